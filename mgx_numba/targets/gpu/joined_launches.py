"""Small independent launches become one launch: the embedding tables of a recommendation network, or the halves of
rotated queries and keys with the rows of caches.

Each launch gets a plane of blocks along grid axis 2, which runs its kernel with its arguments.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from ...codegen.gpu.kernel import NAME
from ...codegen.gpu.machine import multiprocessors
from ...codegen.gpu.merged_text import function_of, renamed_statements
from ...codegen.gpu.open_grids import head_number, open_axes
from ...codegen.kernel import KernelSource
from ...codegen.launch import Grid, Launch, Mark, Operand
from ...codegen.toolchain.nodes import nodes_in
from ...core.dim import Dim, SharedLength, hint, known_equal, known_less, known_same, maximum
from ...runtime.plan import Region
from ..lowering.buffers import View
from ..lowering.steps import PendingStep

MOST_WORDS = 500
"""Most argument words of a launch: drivers before CUDA 12.1 take 4096 bytes ("Function Parameters", CUDA C++
programming guide)."""
MOST_KERNELS = 8
"""Most different kernels of a launch, to bound the size of its code. No figures kept."""
BLOCKS = 2
"""Most blocks per multiprocessor of a launch that is joined: larger launches fill the device alone."""
MOST_NAME = 120
"""Most letters of a joined kernel's name, which traces show."""
_ALONE = re.compile(r"CLUSTER|block_index\([12]\)|\b(shared|dynamic)_|barrier|grid_wait|mma_")
"""What a joined kernel must not have: shared memory, barriers and waits of its own, matrix products, which fill the
device, and grids of more axes."""
_FAULT = re.compile(r"(note_fault\(\w+, \w+, )(\d+)")
_START = "def kernel(args):\n"
_SAME_POINTER = ("offset", "words_of", "floats_of")
"""Functions that return the pointer that they take, moved or of another type."""


def joined(steps: Sequence[PendingStep], updates: Collection[PendingStep]) -> list[PendingStep]:
    """Return the steps with small independent launches joined; a launch moves before others that can be joined, too,
    and steps of launches without blocks at any length are left out.

    Args:
        steps: the steps of a plan without jumps.
        updates: steps that copy a cache to its update. They stay alone, because a run may skip them, and move before
            other launches. Both may be the same memory, so that no read of the cache may move behind one.
    """
    alone = {id(step) for step in updates}
    most = BLOCKS * multiprocessors()
    groups: list[_JoinedLaunches] = []
    for step in steps:
        if step.launch is not None and step.launch.empty:
            continue
        launch = _small_launch(step, most)
        if launch is None:
            groups.append(_JoinedLaunches([step]))
            continue
        uses = _uses(step, launch, id(step) in alone)
        at, found = len(groups), None
        while at and groups[at - 1].launches and groups[at - 1].independent(uses):
            at -= 1
            if id(step) not in alone and groups[at].takes(step, launch):
                found = groups[at]
        if found is None:
            found = _JoinedLaunches([], id(step) not in alone)
            groups.insert(at if id(step) in alone else len(groups), found)
        found.steps.append(step)
        found.launches.append(launch)
        found.uses += uses
    return [_one(group) for group in groups]


class _JoinedLaunches:
    """Steps that become one launch.

    Attributes:
        launches: their launches; empty for a step that no other step moves before.
        grows: whether other launches may join.
        uses: the views that they use, each with whether it may be written.
    """

    def __init__(self, steps: list[PendingStep], grows: bool = True) -> None:
        self.steps, self.grows = steps, grows
        self.launches: list[Launch] = []
        self.uses: list[tuple[View, bool]] = []

    def independent(self, uses: list[tuple[View, bool]]) -> bool:
        """Return whether a step with the views ``uses`` may run before or after the group: no memory that the step uses
        is written by the group, and no memory that the group uses by the step."""
        return not any(
            (written or other) and _same(view, own) and not (written and other and _apart(view, own))
            for view, written in uses
            for own, other in self.uses
        )

    def takes(self, step: PendingStep, launch: Launch) -> bool:
        """Return whether a further, independent launch fits: one of the same kernel, or one without index checks, whose
        errors name the first step's instruction."""
        launches = [*self.launches, launch]
        kernels = {own.kernel for own in launches}
        words = sum(len(own.args) for own in launches)
        if not self.grows or words > MOST_WORDS or len(kernels) > MOST_KERNELS:
            return False
        if head_number(launch.kernel, "THREADS") != head_number(launches[0].kernel, "THREADS"):
            return False
        alike = len(kernels) == 1 and step.instruction.name == self.steps[0].instruction.name
        return alike or not any(own.checks for own in launches)


def _small_launch(step: PendingStep, most: int) -> Launch | None:
    """Return a step's launch if it may be joined: it has few blocks, on one grid axis. Else return None."""
    launch = step.launch
    if launch is None or launch.kernel.backend != NAME or not isinstance(launch.geometry, Grid):
        return None
    grid = launch.geometry
    if grid.cooperative or grid.shared_bytes or not all(known_equal(n, 1) for n in grid.blocks[1:]):
        return None
    if not all(isinstance(arg, (int, Dim, Operand, Mark)) for arg in launch.args):
        return None
    if any(step.operands[name].buffer.region is not Region.PARAMETER for name in launch.replaceable):
        return None  # a copy may be computed in place
    few = isinstance(grid.blocks[0], Dim) or grid.blocks[0] <= most
    return launch if few and not _ALONE.search(launch.kernel.text) else None


def _uses(step: PendingStep, launch: Launch, update: bool) -> list[tuple[View, bool]]:
    """Return the views that a launch uses, each with whether it may be written; of an ``update`` all may."""
    read = read_slots(launch.kernel)
    written: dict[str, bool] = {}
    for slot, arg in enumerate(launch.args):
        if isinstance(arg, Operand):
            written[arg.name] = written.get(arg.name, update) or slot not in read
    return [(step.operands[name], own) for name, own in written.items()]


@functools.lru_cache(maxsize=1024)
def read_slots(kernel: KernelSource) -> frozenset[int]:
    """Return the argument slots of pointers through which a kernel only loads."""
    nodes = list(nodes_in(function_of(kernel.text)))
    slots = _pointer_slots(nodes)
    loaded: set[int] = set()  # ids of names in loads, and where a pointer is made of another one
    for node in nodes:
        if isinstance(node, ast.Call) and (_called(node).startswith("load") or _called(node) in _SAME_POINTER):
            loaded.update(id(arg) for arg in node.args[:1])
    names = (n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and id(n) not in loaded)
    written = {slot for name in names for slot in slots.get(name.id, ())}
    return frozenset(slot for own in slots.values() for slot in own) - written


def _pointer_slots(nodes: Sequence[ast.AST]) -> dict[str, set[int]]:
    """Return the argument slots whose pointers each variable may hold, perhaps moved or of another type."""
    slots: dict[str, set[int]] = {}
    calls = [
        (node.targets[0].id, node.value)
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Call)
    ]
    for name, call in calls:
        if _called(call).startswith("pointer_") and isinstance(call.args[1], ast.Constant):
            slots.setdefault(name, set()).add(int(str(call.args[1].value)))
    moves = [(name, getattr(call.args[0], "id", "")) for name, call in calls if _called(call) in _SAME_POINTER]
    for _ in moves:  # so often may a pointer be moved
        for name, source in moves:
            slots.setdefault(name, set()).update(slots.get(source, ()))
    return slots


def _called(call: ast.Call) -> str:
    return getattr(call.func, "id", "")


def _same(a: View, b: View) -> bool:
    """Return whether two views are of the same buffer."""
    if a.buffer.region is Region.ARENA or b.buffer.region is Region.ARENA:
        return a.buffer is b.buffer
    return (a.buffer.region, a.buffer.index) == (b.buffer.region, b.buffer.index)


def _apart(a: View, b: View) -> bool:
    """Return whether two views with equal lengths and strides, like slices of a row, provably share no element: each
    axis steps over all of the axes below it, the distance of the views counted as an axis."""
    if not known_same(a.lens, b.lens) or not known_same(a.strides, b.strides) or a.type is not b.type:
        return False
    between = a.offset - b.offset
    if isinstance(between, Dim):
        return False
    axes: list[tuple[SharedLength, SharedLength]] = [(s, n) for n, s in zip(a.lens, a.strides) if not known_equal(n, 1)]
    reach: SharedLength = 0
    for stride, length in sorted([*axes, (abs(between), 2)], key=lambda axis: hint(axis[0])):
        if not known_less(reach, stride):
            return False
        reach = reach + stride * (length - 1)
    return True


def _one(group: _JoinedLaunches) -> PendingStep:
    """Return one step that does the work of a group."""
    steps, launches = group.steps, group.launches
    if len(steps) == 1:
        return steps[0]
    grids = [launch.geometry.blocks[0] for launch in launches if isinstance(launch.geometry, Grid)]
    blocks: SharedLength = functools.reduce(maximum, grids)
    limits = [0 if open_axes(launch.kernel)[0] or known_equal(n, blocks) else n for launch, n in zip(launches, grids)]
    kinds = list(dict.fromkeys(zip((launch.kernel for launch in launches), limits)))
    order = sorted(range(len(steps)), key=lambda k: kinds.index((launches[k].kernel, limits[k])))
    members = []
    for kernel, limit in kinds:
        own = [k for k in order if (launches[k].kernel, limits[k]) == (kernel, limit)]
        members.append((kernel, len(own), limit, len(launches[own[0]].checks)))
    named = [
        replace(arg, name=f"{arg.name}.{k}") if isinstance(arg, Operand) else arg
        for k in order
        for arg in _padded(launches[k])
    ]
    threads = head_number(launches[0].kernel, "THREADS")
    whole = Launch(
        kernel=_kernel(tuple(members), isinstance(blocks, Dim)),
        args=tuple(named),
        geometry=Grid((blocks, 1, len(steps)), (threads, 1, 1)),
        flops=sum(launch.flops for launch in launches),
        bytes=sum(launch.bytes for launch in launches),
        checks=tuple(check for k in order for check in launches[k].checks),
    )
    operands = {f"{name}.{k}": view for k, step in enumerate(steps) for name, view in step.operands.items()}
    outputs = [view for step in steps for view in step.outputs]
    label = "+".join(dict.fromkeys(step.label for step in steps))
    by = [i for k in order for i in steps[k].checked_by or [steps[k].instruction] * len(launches[k].checks)]
    return PendingStep(whole, operands, label, steps[0].instruction, outputs=outputs, checked_by=tuple(by))


def _padded(launch: Launch) -> tuple[object, ...]:
    """Return a launch's arguments, one for each of its kernel's slots."""
    return (*launch.args, *(0,) * (head_number(launch.kernel, "SLOTS") - len(launch.args)))


@functools.lru_cache(maxsize=1024)
def _kernel(members: tuple[tuple[KernelSource, int, int, int], ...], is_open: bool) -> KernelSource:
    """Return a kernel that does the work of several launches, one plane of blocks along grid axis 2 each.

    Args:
        members: kernels, each with the number of its launches, the number of blocks of each if the grid may have more
            (0: it has not, or the kernel knows), and the number of index checks of each.
        is_open: whether the number of blocks per plane is open, see `open_grids`.
    """
    lines: list[str] = []
    plane = slots = checks = 0
    for k, (kernel, count, limit, own_checks) in enumerate(members):
        last = k == len(members) - 1
        where = f"block_index(2) < {plane + count}"
        lines.append("else:" if last and k else f"{'el' * (k > 0)}if {where}:" if len(members) > 1 else "if True:")
        first = f"{slots} + (block_index(2) - {plane}) * {head_number(kernel, 'SLOTS')}" if count > 1 else str(slots)
        lines.append(f"    k{k}_args = offset(args, {first})")
        body = renamed_statements(kernel, f"k{k}_")
        if own_checks:
            body = _FAULT.sub(rf"\g<1>{checks} + (block_index(2) - {plane}) * {own_checks} + \g<2>", body)
        if limit:
            lines.append(f"    if block_index(0) < {limit}:")
        lines += [("        " if limit else "    ") + line for line in body.splitlines()]
        plane, slots, checks = plane + count, slots + count * head_number(kernel, "SLOTS"), checks + count * own_checks
    first_kernel = members[0][0]
    together = min(max(head_number(kernel, "BLOCKS"), 1) for kernel, *_ in members)
    names = "_and_".join(kernel.name.removesuffix("_kernel") for kernel, *_ in members)
    head = f"THREADS = {head_number(first_kernel, 'THREADS')}\nSLOTS = {slots}\n" + "OPEN = 1\n" * is_open
    head += f"BLOCKS = {together}\n" * (together > 1)
    body = "\n    ".join(lines)
    name = f"{names if len(names) <= MOST_NAME else 'joined'}_times_{plane}_kernel"
    return KernelSource(NAME, name, f"{head}\n\n{_START}    {body}\n", first_kernel.origin)
