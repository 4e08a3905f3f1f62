"""The native kernel that binds a context of a symbolic plan to lengths, and the blocks that it reads and writes."""

from __future__ import annotations

from enum import IntEnum

from ...codegen.cpu.kernel import cpu_kernel
from ..host.native import constants_of
from ..host.sizes import Sizes
from ..memory import ALIGNMENT
from .spmd import Job, StepRecord

MAX_CLAIMS = 1 << 31  # claim counters are int32
MOST_BYTES = 1 << 56
"""Upper bound of an address space in bytes (x86-64 with five levels of page tables: 57 bits, half of it for user
space)."""

ROOMS_EACH = 2
"""Number of words for each output at `Bound.ROOMS`."""

_LEAST_UNIT = 1 << 14
"""Allocation sizes are rounded for outputs of more than four times this many bytes; smaller allocations never get a
mapping of their own (glibc maps from 128 KiB on)."""


class Status(IntEnum):
    """How a binding ended."""

    BOUND = 0  # the context is ready to run
    UNSERVED = 1  # lengths beyond the ranges of the symbols, or for which the plan's condition is not 1
    TOO_LARGE = 2  # a needed number is invalid, or exceeds the address space
    ROOM = 3  # the arena has to grow, or available memory for the outputs is unchecked
    UNCOUNTABLE = 4  # a step has more tasks than the executor can count


class Bound(Sizes):
    """Words (int64) of a context's block, which begins with the words of `Sizes`.

    Addresses of the plan's tables:
        ``RANGES``: least and largest value of each symbol.
        ``SOURCES``: parameter and axis whose length each symbol is.
        ``NUMBERS``: a `StepNumbers` for each native step.
        ``WRITES``: `Write` entries in the order of the steps.
        ``AXES``: numbers of the lengths of all parameters, then outputs.
        ``BYTES``: numbers of the outputs' sizes in bytes.

    Numbers of values:
        ``CONDITION``, ``ARENA_BYTES``.

    Counts:
        ``CHECKED``: rows that the condition and the parameters' lengths need.
        ``ROW_COUNT``, ``STEP_COUNT``, ``AXIS_COUNT``, ``OUTPUT_COUNT``, ``PATCH_COUNT``.

    Addresses of the context's data:
        ``JOB``: its `Job` block.
        ``TEMPLATE``: records of all native steps, whose ``FUNCTION``, ``ARGS`` and ``PATCH`` are final.
        ``KEPT``: the native step of each record in the job's table.
        ``POSITIONS``: for each native step, and for the end, the record of the step or of the next kept step.
        ``LENS``: values of ``AXES``.
        ``ROOMS``: bytes that each output needs, then the bytes to allocate for each. Large outputs are rounded up, in
            steps of an eighth to a quarter. So outputs that grow from call to call, as a cache does, reuse freed memory
            whose pages are mapped already. Untouched pages take no memory.

    Memory:
        ``ARENA``: address of the arena.
        ``CAPACITY``: its size in bytes.
        ``ALLOWED``: bytes of outputs that may be allocated without asking for available memory.

    Results:
        ``STATUS``: how the binding ended.
        ``READY``: whether the context is bound.
        ``STEP``: the step that has too many tasks to count.
        ``NEEDED``, ``RESULTS``: bytes of the arena and of the outputs.
        ``RECORDS``: number of kept steps.
        ``BINDINGS``: number of bindings so far.
    """

    EVALUATE, BIND = range(3, 5)
    RANGES, SOURCES, NUMBERS, WRITES, AXES, BYTES = range(5, 11)
    CONDITION, ARENA_BYTES, CHECKED, ROW_COUNT, STEP_COUNT, AXIS_COUNT, OUTPUT_COUNT, PATCH_COUNT = range(11, 19)
    JOB, TEMPLATE, KEPT, POSITIONS, LENS, ROOMS, ARENA, CAPACITY, ALLOWED = range(19, 28)
    STATUS, READY, STEP, NEEDED, RESULTS, RECORDS, BINDINGS = range(28, 35)
    WORDS = 40  # whole cache lines


class StepNumbers:
    """Words (int64) of a native step: numbers of its tasks, grain, operations and bytes; the index of its first write;
    its segment of the plan. The entry after the last step has the end of all writes."""

    TASKS, GRAIN, FLOPS, BYTES, WRITES, SEGMENT = range(6)
    WORDS = 6  # one for each name


class Write:
    """Words (int64) of a number to write: ``PLACE``, a slot or a word of the patches; the value's ``NUMBER``; and its
    ``BASE``.

    `TO_SLOT` and `TO_PATCH` store the value unchanged. `TO_ARENA` stores it in a slot, added to the arena's address.
    Any other base is an address that is added before the value is stored in a slot.
    """

    PLACE, NUMBER, BASE = range(3)
    WORDS = 3  # one for each name
    TO_SLOT, TO_ARENA, TO_PATCH = range(3)


# The times of `layout` as operations or bytes, at 1e11 a second per core.
_BRIEF_COST = 800_000
_LOOK_COST = 10_000_000

# args: a Bound block, whose first values are those of the symbols; begin: 0, or 1 to evaluate the condition and the
# lengths of parameters alone.
BIND = cpu_kernel(
    "executor_bind",
    f"LARGEST = {(1 << 63) - 1}\nINVALID = -LARGEST - 1\nMAX_CLAIMS = {MAX_CLAIMS}\nALIGNMENT = {ALIGNMENT}\n"
    f"LEAST_UNIT = {_LEAST_UNIT}\n"
    f"MOST_BYTES = {MOST_BYTES}\nBRIEF_COST = {_BRIEF_COST}\nLOOK_COST = {_LOOK_COST}\nMOST_COST = {1 << 40}\n"
    + "".join(f"{status.name} = {status.value}\n" for status in Status)
    + constants_of("BOUND", Bound)
    + constants_of("SIZES", Sizes)
    + constants_of("NUMBERS", StepNumbers)
    + constants_of("WRITE", Write)
    + constants_of("STEP", StepRecord)
    + constants_of("JOB", Job)
    + """
def kernel(args, begin, end):
    args[BOUND_READY] = 0
    values = words_at(args, SIZES_VALUES)
    status = BOUND
    ranges = words_at(args, BOUND_RANGES)
    for k in range(args[SIZES_GIVEN]):
        if values[k] < ranges[2 * k] or values[k] > ranges[2 * k + 1]:
            status = UNSERVED
    call_kernel(args, BOUND_EVALUATE, args, 0, args[BOUND_CHECKED])
    if status == BOUND:
        condition = values[args[BOUND_CONDITION]]
        if condition == INVALID:
            status = TOO_LARGE
        elif condition == 0:
            status = UNSERVED
    if status == BOUND and begin == 0:
        call_kernel(args, BOUND_EVALUATE, args, args[BOUND_CHECKED], args[BOUND_ROW_COUNT])
        axes = words_at(args, BOUND_AXES)
        lens = words_at(args, BOUND_LENS)
        for k in range(args[BOUND_AXIS_COUNT]):
            length = values[axes[k]]
            lens[k] = length
            if length == INVALID:
                status = TOO_LARGE
            elif length < 0 and status == BOUND:
                status = UNSERVED
        results = 0
        sizes = words_at(args, BOUND_BYTES)
        rooms = words_at(args, BOUND_ROOMS)
        for k in range(args[BOUND_OUTPUT_COUNT]):
            size = values[sizes[k]]
            if size < 0 or size > MOST_BYTES - results:
                status = TOO_LARGE
            else:
                rooms[k] = size + ALIGNMENT
                unit = LEAST_UNIT
                while 8 * unit < size + ALIGNMENT:
                    unit *= 2
                if size + ALIGNMENT > 4 * LEAST_UNIT:
                    rooms[args[BOUND_OUTPUT_COUNT] + k] = idiv(size + ALIGNMENT + unit - 1, unit) * unit
                else:
                    rooms[args[BOUND_OUTPUT_COUNT] + k] = size + ALIGNMENT
                results += size
        arena = values[args[BOUND_ARENA_BYTES]]
        if arena < 0 or arena > MOST_BYTES - results:
            status = TOO_LARGE
        if status == BOUND and (arena > args[BOUND_CAPACITY] or results > args[BOUND_ALLOWED]):
            status = ROOM
        args[BOUND_NEEDED] = arena
        args[BOUND_RESULTS] = results
    if status == BOUND and begin == 0:
        job = words_at(args, BOUND_JOB)
        slots = words_at(job, JOB_SLOTS)
        patches = words_at(job, JOB_PATCHES)
        step = words_at(job, JOB_STEPS)
        template = words_at(args, BOUND_TEMPLATE)
        numbers = words_at(args, BOUND_NUMBERS)
        kept = words_at(args, BOUND_KEPT)
        positions = words_at(args, BOUND_POSITIONS)
        all_writes = words_at(args, BOUND_WRITES)
        arena_address = args[BOUND_ARENA]
        threads = job[JOB_THREADS]
        count = 0
        total = 0
        waited = 0
        known = True
        looks = 0
        for s in range(args[BOUND_STEP_COUNT]):
            positions[s] = count
            tasks = values[numbers[NUMBERS_TASKS]]
            if tasks == INVALID:
                status = TOO_LARGE
            if tasks > 0:
                grain = values[numbers[NUMBERS_GRAIN]]
                if grain == INVALID:
                    status = TOO_LARGE
                grain = imin(imax(1, grain), MAX_CLAIMS)
                if tasks >= MAX_CLAIMS or tasks + (threads + 1) * grain >= MAX_CLAIMS:
                    if status == BOUND:
                        args[BOUND_STEP] = s
                        status = UNCOUNTABLE
                    tasks = 1
                kept[count] = s
                step[STEP_FUNCTION] = template[STEP_FUNCTION]
                step[STEP_ARGS] = template[STEP_ARGS]
                step[STEP_TASKS] = tasks
                step[STEP_GRAIN] = grain
                step[STEP_DONE] = 0
                step[STEP_PATCH] = template[STEP_PATCH]
                step[STEP_PIECE] = 0
                cost = imax(values[numbers[NUMBERS_FLOPS]], values[numbers[NUMBERS_BYTES]])
                cost = imin(imax(0, cost), MOST_COST)
                total += cost
                waited += cost
                if cost == 0:
                    known = False
                if waited >= LOOK_COST or cost == 0:
                    together = idiv(tasks + grain - 1, grain)
                    if cost > LOOK_COST:
                        together = imax(1, idiv(together * LOOK_COST, cost))
                    step[STEP_PIECE] = together * grain
                    looks = 1
                    waited = 0
                write = words_from(all_writes, numbers[NUMBERS_WRITES] * WRITE_WORDS)
                for w in range(numbers[NUMBERS_WRITES], numbers[NUMBERS_WORDS + NUMBERS_WRITES]):
                    value = values[write[WRITE_NUMBER]]
                    if value == INVALID:
                        status = TOO_LARGE
                    base = write[WRITE_BASE]
                    if base == WRITE_TO_SLOT:
                        slots[write[WRITE_PLACE]] = value
                    elif base == WRITE_TO_ARENA:
                        slots[write[WRITE_PLACE]] = arena_address + value
                    elif base == WRITE_TO_PATCH:
                        patches[write[WRITE_PLACE]] = value
                    else:
                        slots[write[WRITE_PLACE]] = base + value
                    write = words_from(write, WRITE_WORDS)
                count += 1
                step = words_from(step, STEP_WORDS)
            template = words_from(template, STEP_WORDS)
            numbers = words_from(numbers, NUMBERS_WORDS)
        positions[args[BOUND_STEP_COUNT]] = count
        step[STEP_PATCH] = args[BOUND_PATCH_COUNT]
        args[BOUND_RECORDS] = count
        job[JOB_LONG] = looks
        job[JOB_BRIEF] = 0
        if known and total < BRIEF_COST:
            job[JOB_BRIEF] = 1
        numbers = words_at(args, BOUND_NUMBERS)
        steps = words_at(job, JOB_STEPS)
        chain = 0
        segment = -1
        while count > 0:
            count -= 1
            at = count * STEP_WORDS
            own = numbers[kept[count] * NUMBERS_WORDS + NUMBERS_SEGMENT]
            if own != segment:
                chain = 0
                segment = own
            chain += 1
            if steps[at + STEP_TASKS] > steps[at + STEP_GRAIN]:
                chain = 0
            steps[at + STEP_CHAIN] = chain
        args[BOUND_BINDINGS] = args[BOUND_BINDINGS] + 1
    args[BOUND_STATUS] = status
    if status == BOUND and begin == 0:
        args[BOUND_READY] = 1
""",
)
