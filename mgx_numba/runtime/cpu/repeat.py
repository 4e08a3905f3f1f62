"""Run a plan many times, each on the results of the run before, in one native function.

Entering a plan takes microseconds of Python and new arrays, more than a small loop body computes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...codegen.cpu.kernel import cpu_kernel
from ...codegen.cpu.toolchain.loader import load
from ...errors import MgxError
from ..host.native import NativeKernel, constants_of
from ..memory import ALIGNMENT, address_of, aligned_array, aligned_empty
from ..plan import FallbackStep, Plan
from .spmd import Job

if TYPE_CHECKING:
    from .binding import Made
    from .context import Context
    from .executor import Executable

MOST_BYTES = 1 << 28
"""Maximum size (bytes) of the results collected from all runs. Room is made for the maximum trip count, which is too
much for a loop that only its condition ends."""

TOGETHER = 256
"""Number of runs between two checks for signals, several hundredths of a second; long runs make checks of their own
(`layout`)."""


class Repeat:
    """Words (int64) of one call's block.

    A `Carried` follows for each carried value, the condition first, then a `Collected` for each value collected from
    every run. ``NUMBER``: address of the run's number. ``RAN``: number of runs so far. ``GOING``: whether another run
    may follow.
    """

    LEAD, JOB, STEPS, NUMBER, RAN, CARRIED, COLLECTED, GOING = range(8)
    WORDS = 8  # one for each name


class Carried:
    """Words (int64) of a carried value: the numbers of the bases at which a run reads and writes it; the addresses that
    the next run reads and writes, and that the run after the next writes."""

    IN, OUT, CURRENT, NEXT, SPARE = range(5)
    WORDS = 5  # one for each name


class Collected:
    """Words (int64) of a value collected from every run: the number of its base, the address that the next run writes,
    and the bytes between the addresses of successive runs."""

    OUT, ADDRESS, PITCH = range(3)
    WORDS = 3  # one for each name


# args: a Repeat block; begin and end: range of run numbers, without end.
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


@functools.cache
def _code() -> int:
    """Return the address of `REPEAT`."""
    return load([REPEAT])[0]


def may_repeat(plan: Plan, carried: int) -> bool:
    """Return whether `repeat` can run a plan as a loop's body.

    The plan must consist of kernels only. Its parameters begin with a number, a condition and ``carried`` values; its
    results begin with the next condition and values.
    """
    given, made = plan.parameters[: carried + 2], plan.outputs
    if any(o.lens is None for o in made) or any(isinstance(step, FallbackStep) for step in plan.steps):
        return False
    if len(given) < carried + 2 or len(made) < carried + 1 or (given[0].dtype, given[1].dtype) != ("int64", "bool"):
        return False
    return all(g.dtype == m.dtype for g, m in zip(given[1:], made[: carried + 1]))


def repeat(
    executable: Executable, inputs: Sequence[np.ndarray], carried: int, trips: int, place: Callable[[int], str]
) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
    """Run a plan up to ``trips`` times (at least once), until a run's first result is false.

    Args:
        executable: executable of a plan that `may_repeat`.
        inputs: one C-contiguous array for each parameter of the first run; the array for the number is not read.
        carried: number of carried values, besides the condition.
        trips: maximum trip count.
        place: returns the prefix of errors in a run, by its number.

    Returns:
        The condition and the carried values after the last run; and every other result, from all runs stacked along a
        new first axis. None if the results would take too much memory, or if values change their sizes from run to run.

    Raises:
        As `Executable.run` does.
    """
    loop = None
    try:
        with executable.context(inputs) as context:
            loop = _NativeLoop.of(executable.plan, context, inputs, carried, trips)
            if loop is not None:
                loop.run(trips)
    except MgxError as error:
        raise type(error)(f"{place(max(loop.ran - 1, 0) if loop is not None else 0)}: {error}") from error
    return None if loop is None else loop.results()


class _NativeLoop:
    """A loop of runs in native code: memory of carried and collected results, and the block with its addresses."""

    @classmethod
    def of(
        cls, plan: Plan, context: Context, inputs: Sequence[np.ndarray], carried: int, trips: int
    ) -> _NativeLoop | None:
        """Return the loop; None where `repeat` returns None."""
        made = [output for output in context.outputs if output is not None]
        sizes = [size for _, _, size in made]
        if inputs[0].size != 1 or sizes[0] != 1 or sizes[: carried + 1] != [a.nbytes for a in inputs[1 : carried + 2]]:
            return None
        pitches = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes[carried + 1 :]]
        if trips * sum(pitches) > MOST_BYTES:
            return None
        return cls(
            context, inputs, made[: carried + 1], list(zip(made[carried + 1 :], pitches)), len(plan.steps), trips
        )

    def __init__(
        self,
        context: Context,
        inputs: Sequence[np.ndarray],
        carried: Sequence[Made],
        kept: Sequence[tuple[Made, int]],
        steps: int,
        trips: int,
    ) -> None:
        """Allocate the loop; ``kept`` has each collected result with the bytes between successive runs' results."""
        self.ran = 0
        self._kept = kept
        self._number = np.zeros(1, np.int64)
        conditions = [aligned_empty((ALIGNMENT,), "uint8") for _ in range(2)]  # the kernel reads the bool as a word
        self._buffers = [conditions, *([aligned_array(*made) for _ in range(2)] for made in carried[1:])]
        self._stores = [aligned_empty((trips * pitch,), "uint8") for _, pitch in kept]
        first_output = len(inputs)
        self._run = NativeKernel(_code())
        lead, records = context.entry(steps)
        words = [lead, context.job_address, records, address_of(self._number), 0, len(carried), len(kept), 1]
        for k, (value, (one, other)) in enumerate(zip(inputs[1:], self._buffers)):
            words += [1 + k, first_output + k, address_of(value), address_of(one), address_of(other)]
        for k, (store, (_, pitch)) in enumerate(zip(self._stores, kept), len(carried)):
            words += [first_output + k, address_of(store), pitch]
        self._block = np.array(words, np.int64)
        context.bases[0] = address_of(self._number)

    def run(self, trips: int) -> None:
        """Run the loop until it has made ``trips`` runs, or until a run's condition ends it."""
        while self.ran < trips and self._block[Repeat.GOING]:
            self._run(address_of(self._block), self.ran, min(trips, self.ran + TOGETHER))
            self.ran = int(self._block[Repeat.RAN])

    def results(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the results of `repeat`."""
        condition, *last = (pair[(self.ran - 1) % 2] for pair in self._buffers)
        rows = [
            store[: self.ran * pitch].reshape(self.ran, pitch)[:, :size].view(dtype).reshape(self.ran, *lens)
            for store, ((lens, dtype, size), pitch) in zip(self._stores, self._kept)
        ]
        return [condition[:1].view(np.bool_), *last], rows
