"""A plan that is run many times, each on what the run before has given: all of it one native function.

Entering a plan takes microseconds of Python and new arrays, which is more than a small body of a loop computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...codegen.cpu.kernel import cpu_kernel
from ...codegen.cpu.toolchain.loader import load
from ...core.types import numpy_dtype
from ...errors import MgxError
from ..memory import ALIGNMENT, address_of, aligned_array, aligned_empty
from ..plan import HostStep, Plan
from .spmd import LEAD, Job, constants_of
from .threads import NativeKernel

if TYPE_CHECKING:
    from .executor import Executable

__all__ = ["REPEAT", "may_repeat", "repeat"]

MOST_BYTES = 1 << 28
"""Of what is collected of all runs. Room is made for as many as there may be; a loop that is known to end earlier only
by its condition would take too much."""

TOGETHER = 256
"""Runs between which Python's handlers of signals have no turn, unless one takes so long that it has looks of its own
(`layout`): some hundredths of a second."""


class Repeat:
    """Words of one call's block, after which come a `Carried` for each value that is handed on, the condition first,
    then a `Collected` for each that is kept of every run. ``NUMBER``: the address of the run's number; ``RAN``: how
    many runs there were, and ``GOING`` whether another one may follow."""

    LEAD, JOB, STEPS, NUMBER, RAN, CARRIED, COLLECTED, GOING = range(8)
    WORDS = 8  # one for each name


class Carried:
    """Words of a value that is handed on: the numbers of the bases that a run reads and writes it at, and addresses:
    of what the next run reads, where it writes, where the one after it writes."""

    IN, OUT, CURRENT, NEXT, SPARE = range(5)
    WORDS = 5  # one for each name


class Collected:
    """Words of a value that is kept of every run: the number of its base, where the next run writes it, and the bytes
    from there to the next."""

    OUT, ADDRESS, PITCH = range(3)
    WORDS = 3  # one for each name


# args: a Repeat block; begin and end: numbers of the first run and of the one that is no more.
REPEAT = cpu_kernel(
    "executor_repeat",
    constants_of("REPEAT", Repeat)
    + constants_of("CARRIED", Carried)
    + constants_of("COLLECTED", Collected)
    + constants_of("JOB", Job)
    + """
def kernel(args, begin, end):
    job = words_at(args, REPEAT_JOB)
    bases = words_at(job, JOB_BASES)
    number = words_at(args, REPEAT_NUMBER)
    count = begin
    going = True
    while going and count < end:
        number[0] = count
        row = words_from(args, REPEAT_WORDS)
        for k in range(args[REPEAT_CARRIED]):
            bases[row[CARRIED_IN]] = row[CARRIED_CURRENT]
            bases[row[CARRIED_OUT]] = row[CARRIED_NEXT]
            row[CARRIED_CURRENT] = row[CARRIED_NEXT]
            row[CARRIED_NEXT] = row[CARRIED_SPARE]
            row[CARRIED_SPARE] = row[CARRIED_CURRENT]
            row = words_from(row, CARRIED_WORDS)
        for k in range(args[REPEAT_COLLECTED]):
            bases[row[COLLECTED_OUT]] = row[COLLECTED_ADDRESS]
            row[COLLECTED_ADDRESS] = row[COLLECTED_ADDRESS] + row[COLLECTED_PITCH]
            row = words_from(row, COLLECTED_WORDS)
        call_kernel(args, REPEAT_LEAD, job, 0, args[REPEAT_STEPS])
        count += 1
        condition = words_of(args[REPEAT_WORDS + CARRIED_CURRENT])
        going = condition[0] & 255 != 0 and job[JOB_FAULT] == 0 and job[JOB_STOPPED] == 0
    args[REPEAT_RAN] = count
    args[REPEAT_GOING] = going
""",
)


def may_repeat(plan: Plan, carried: int) -> bool:
    """Whether a plan is one of a loop's body that `repeat` runs: of kernels alone, whose parameters are a number, a
    condition and ``carried`` values, perhaps more, and whose first results are the next condition and values. No plan
    with symbolic lengths is: values of each run would have to be checked against them."""
    given, made = plan.parameters[: carried + 2], plan.outputs
    if plan.symbols or any(o.lens is None for o in made) or any(isinstance(step, HostStep) for step in plan.steps):
        return False
    if len(given) < carried + 2 or len(made) < carried + 1:
        return False
    if (given[0].dtype, math.prod(given[0].lens), given[1].dtype, math.prod(given[1].lens)) != ("int64", 1, "bool", 1):
        return False
    pairs = zip(given[1:], made[: carried + 1])
    return all((g.dtype, math.prod(g.lens)) == (m.dtype, math.prod(m.lens or ())) for g, m in pairs)


def repeat(
    executable: Executable, inputs: Sequence[np.ndarray], carried: int, trips: int, place: Callable[[int], str]
) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
    """Run a plan up to ``trips`` times (at least once), until a run's first result is false.

    Args:
        executable: of a plan that `may_repeat`.
        inputs: one C-contiguous array for each parameter of the first run; that of the number is not read.
        carried: values that are handed on, besides the condition.
        place: gives what errors of a run, by its number, begin with.

    Returns:
        The condition and the carried values after the last run, and of every other result those of all runs, along a
        new first axis. None if that would take too much memory.

    Raises:
        As `Executable.run` does.
    """
    plan = executable.plan
    kept = plan.outputs[carried + 1 :]
    sizes = [math.prod(o.lens or ()) * numpy_dtype(o.dtype).itemsize for o in plan.outputs]
    pitches = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    if trips * sum(pitches[carried + 1 :]) > MOST_BYTES:
        return None
    number = np.zeros(1, np.int64)
    conditions = [aligned_empty((ALIGNMENT,), "uint8") for _ in range(2)]  # one byte, which is read as a word
    buffers = [conditions]
    for output, size in zip(plan.outputs[1 : carried + 1], sizes[1:]):
        buffers.append([aligned_array(tuple(output.lens or ()), numpy_dtype(output.dtype), size) for _ in range(2)])
    stores = [aligned_empty((trips * pitch,), "uint8") for pitch in pitches[carried + 1 :]]
    first_output = len(plan.parameters)
    lead, code = load([LEAD, REPEAT])
    words = [lead, 0, len(plan.steps), address_of(number), 0, carried + 1, len(kept), 1]
    for k, (value, (one, other)) in enumerate(zip(inputs[1 : carried + 2], buffers, strict=True)):
        words += [1 + k, first_output + k, address_of(value), address_of(one), address_of(other)]
    for k, (store, pitch) in enumerate(zip(stores, pitches[carried + 1 :]), carried + 1):
        words += [first_output + k, address_of(store), pitch]
    block = np.array(words, np.int64)
    ran, run = 0, NativeKernel(code)
    try:
        with executable.context() as context:
            context.place(inputs)
            context.bases[0] = address_of(number)
            block[Repeat.JOB] = context.job_address
            while ran < trips and block[Repeat.GOING]:
                run(address_of(block), ran, min(trips, ran + TOGETHER))
                ran = int(block[Repeat.RAN])
    except MgxError as error:
        raise type(error)(f"{place(max(ran - 1, 0))}: {error}") from error
    condition, *last = (pair[(ran - 1) % 2] for pair in buffers)
    rows = [
        store[: ran * pitch].reshape(ran, pitch)[:, :size].view(numpy_dtype(o.dtype)).reshape(ran, *(o.lens or ()))
        for store, pitch, size, o in zip(stores, pitches[carried + 1 :], sizes[carried + 1 :], kept)
    ]
    return [condition[:1].view(np.bool_), *last], rows
