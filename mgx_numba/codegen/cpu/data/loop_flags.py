"""Kernels that control which steps of a plan run, and how often: they write the flags that jumps test.

The first argument of each kernel points to the flag, ``flag``, whose memory the kernels of one loop or one choice
share.
"""

from __future__ import annotations

from ....core.dim import Length, ceil_div
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...statements import for_tasks, indent, kernel_text
from .. import host
from ..kernel import cpu_kernel
from .checks import FAULT

ROW_TASK_BYTES = 1 << 14
"""Bytes of a row that one task copies, some hundred nanoseconds."""


def loop_starts(trips: Length | None) -> Launch:
    """Return a launch that sets the iteration number to 0, and the flag to whether there is an iteration.

    ``trips`` is the trip count; None: an operand ``trips`` holds it.
    """
    return _launch("loop_start_kernel", ["store_scalar(number, 0, 0)", *_going("trips > 0")], trips)


def loop_goes_on(trips: Length | None, most: int | None, too_long: str) -> Launch:
    """Return a launch that increments the iteration number, and sets the flag to whether another iteration follows.

    Args:
        trips: the trip count; None: an operand ``trips`` holds it.
        most: maximum number of iterations, after which a further one is a fault; None: there is no maximum.
        too_long: the fault's message, see `fault_error`.
    """
    task = [
        "following = load_scalar(number, 0) + 1",
        "store_scalar(number, 0, following)",
        *_going("following < trips"),
    ]
    if most is None:
        return _launch("loop_next_kernel", task, trips)
    noted = [
        f"if compare_exchange(fault, {FAULT.place('step')}, 0, step_number) == 0:",
        *indent(FAULT.fill(check=0, index="trips")),
    ]
    task += ["if going == 1 and following >= most:", *indent(noted)]
    return _launch("loop_bounded_kernel", task, trips, most, too_long)


def _going(more: str) -> list[str]:
    """Return statements that set the flag to whether the loop condition and ``more`` hold."""
    holds = "cast_int64(load_scalar(condition, 0)) != 0"
    return ["going = 0", f"if {more} and {holds}:", "    going = 1", "store_scalar(flag, 0, going)"]


def _launch(name: str, task: list[str], trips: Length | None, most: int | None = None, too_long: str = "") -> Launch:
    arguments = Arguments()
    arguments.pointer("flag", "flag", "int64")
    arguments.pointer("number", "number", "int64")
    arguments.pointer("condition", "condition", "uint8")
    if trips is None:
        arguments.pointer("trip_count", "trips", "int64")
        task = ["trips = load_scalar(trip_count, 0)", *task]
    else:
        arguments.integer("trips", trips)
    if most is not None:
        arguments.integer("most", most)
        arguments.fault()
    kernel = cpu_kernel(name, kernel_text([*arguments.bind(), *for_tasks(task)]))
    return Launch(kernel, arguments.values, TaskRange(1), bytes=1, checks=() if most is None else (too_long,))


def branch_starts() -> Launch:
    """Return a launch that sets the flag to whether a condition holds."""
    arguments = Arguments()
    arguments.pointer("flag", "flag", "int64")
    arguments.pointer("condition", "condition", "uint8")
    kernel = cpu_kernel("branch_start_kernel", kernel_text([*arguments.bind(), *for_tasks(_going("True"))]))
    return Launch(kernel, arguments.values, TaskRange(1), bytes=1)


def branch_ends(first: bool) -> Launch:
    """Return a launch that ends the first or the second of two branches: it stores the flag with which the branch
    began."""
    arguments = Arguments()
    arguments.pointer("flag", "flag", "int64")
    task = [f"store_scalar(flag, 0, {int(first)})"]
    name = f"branch_{'turn' if first else 'end'}_kernel"
    kernel = cpu_kernel(name, kernel_text([*arguments.bind(), *for_tasks(task)]))
    return Launch(kernel, arguments.values, TaskRange(1), bytes=1)


def row_is_kept(size: Length, last: Length | None) -> Launch:
    """Return a launch that copies a ``row`` of ``size`` bytes to its place in ``whole``.

    The place is the iteration number, or is counted back from ``last``.
    """
    arguments = Arguments()
    arguments.pointer("row", "row", "uint8")
    arguments.pointer("whole", "whole", "uint8")
    arguments.pointer("number", "number", "int64")
    arguments.integer("size", size)
    arguments.integer("last", 0 if last is None else last)
    place = "load_scalar(number, 0)" if last is None else "(last - load_scalar(number, 0))"
    lanes = host.lanes("float32") * 4
    task = [
        f"first = task * {ROW_TASK_BYTES}",
        f"stop = imin(size, first + {ROW_TASK_BYTES})",
        f"there = {place} * size",
        f"whole_end = first + idiv(stop - first, {lanes}) * {lanes}",
        f"for c in range(first, whole_end, {lanes}):",
        f"    store(whole, there + c, load(row, c, {lanes}))",
        "for c in range(whole_end, stop):",
        "    store_scalar(whole, there + c, load_scalar(row, c))",
    ]
    name = f"loop_row_{'forward' if last is None else 'backward'}_kernel"
    kernel = cpu_kernel(name, kernel_text([*arguments.bind(), *for_tasks(task)]))
    return Launch(kernel, arguments.values, TaskRange(ceil_div(size, ROW_TASK_BYTES)), bytes=2 * size)
