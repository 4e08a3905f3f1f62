"""Plans with jumps: loops and branches that consist of kernels only, so that native steps repeat or are skipped.

Such a plan is a list of *operations*: a range of steps, or a jump to another operation that depends on an int64 in
memory (`plan.Jump`). One native function follows the operations, and runs their ranges of steps as for any plan.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from ...codegen.cpu.kernel import cpu_kernel
from ...codegen.cpu.toolchain.loader import load
from ..host.native import constants_of
from ..plan import Plan
from .bind_kernel import Bound
from .spmd import LEAD, Job, Pool


class DriverOperation:
    """Words (int64) of an operation: ``KIND``, then the range of steps to run.

    For a jump: the slot with the address of the tested int64, and the operation to continue with if it is 0
    (``IF_ZERO``) or is not (``IF_SET``).
    """

    KIND, FIRST, SECOND = range(3)
    WORDS = 3  # one for each name
    RUN, IF_ZERO, IF_SET = range(3)


# Entry of the calling thread. args: a Job block; begin and end: the range of operations.
DRIVE = cpu_kernel(
    "executor_drive",
    # Jumps between two checks for signals: each run of a range restarts its own count.
    "LOOK_JUMPS = 256\n"
    + constants_of("JOB", Job)
    + constants_of("POOL", Pool)
    + constants_of("BOUND", Bound)
    + constants_of("OPERATION", DriverOperation)
    + """
def kernel(args, begin, end):
    operations = words_at(args, JOB_OPERATIONS)
    slots = words_at(args, JOB_SLOTS)
    pool = words_at(args, JOB_POOL)
    looking = False
    if pool[POOL_MAIN] != 0:
        looking = call_function(pool, POOL_IDENT, ()) == pool[POOL_MAIN]
    looked = nanoseconds()
    jumps = 0
    at = begin
    while at < end:
        row = words_from(operations, at * OPERATION_WORDS)
        at += 1
        if row[OPERATION_KIND] == OPERATION_RUN:
            first = row[OPERATION_FIRST]
            second = row[OPERATION_SECOND]
            if args[JOB_BINDING] != 0:
                positions = words_at(words_at(args, JOB_BINDING), BOUND_POSITIONS)
                first = positions[first]
                second = positions[second]
            if first < second:
                call_kernel(args, JOB_LEADER, args, first, second)
            if args[JOB_FAULT] != 0 or args[JOB_STOPPED] != 0:
                at = end
        else:
            number = words_at(slots, row[OPERATION_FIRST])[0]
            if (number != 0) == (row[OPERATION_KIND] == OPERATION_IF_SET):
                at = row[OPERATION_SECOND]
                jumps += 1
                if looking and jumps >= LOOK_JUMPS:
                    jumps = 0
                    args[JOB_LOOKING] = 1
                    args[JOB_LOOKED] = looked
                    call_kernel(pool, POOL_LOOK, args, 0, 0)
                    looked = args[JOB_LOOKED]
                    if args[JOB_STOPPED] != 0:
                        at = end
""",
)


@functools.cache
def driving_code() -> tuple[int, int]:
    """Return the addresses of `LEAD` and `DRIVE`."""
    lead, drive = load([LEAD, DRIVE])
    return lead, drive


def operations(
    plan: Plan, segments: Sequence[tuple[int, int]], native_index: Sequence[int], starts: np.ndarray
) -> tuple[np.ndarray, dict[tuple[int, int], tuple[int, int]]]:
    """Return the operations of a plan with jumps (int64, `DriverOperation.WORDS` each), and for each segment its range
    of operations. A segment is cut into ranges of steps where a jump is, or where one leads to.

    Args:
        segments: ranges of its native steps between fallback steps.
        native_index: for each step of the plan its number among the native steps.
        starts: the slot of the first argument of each native step.
    """
    next_native = [*native_index, len(starts)]  # number of the next native step, for fallback steps too
    for k in range(len(next_native) - 2, -1, -1):
        if next_native[k] < 0:
            next_native[k] = next_native[k + 1]
    rows: list[tuple[int, int, int]] = []
    ranges: dict[tuple[int, int], tuple[int, int]] = {}
    for begin, end in segments:
        jumps = [jump for jump in plan.jumps if begin <= native_index[jump.by] < end]
        # The step that counts iterations stops after an index out of range, so that errors name the iteration.
        counting = [jump.by for jump in jumps if jump.to <= jump.at]
        cuts = sorted({begin, end, *(next_native[p] for p in (*counting, *(p for j in jumps for p in (j.at, j.to))))})
        start, row_of_cut, targets = len(rows), {}, []
        for cut, next_cut in zip(cuts, [*cuts[1:], end]):
            row_of_cut[cut] = len(rows)
            for jump in jumps:
                if next_native[jump.at] == cut:
                    targets.append((len(rows), next_native[jump.to]))
                    kind = DriverOperation.IF_SET if jump.where else DriverOperation.IF_ZERO
                    rows.append((kind, int(starts[native_index[jump.by]]), 0))
            if cut < next_cut:
                rows.append((DriverOperation.RUN, cut, next_cut))
        for number, cut in targets:  # known only now: jumps may go forward
            rows[number] = (*rows[number][:2], row_of_cut[cut])
        ranges[begin, end] = start, len(rows)
    return np.array(rows, np.int64).reshape(-1), ranges
