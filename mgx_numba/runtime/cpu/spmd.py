"""The executor's own kernels: how one or more threads walk the steps of a plan.

They are kernel sources like any other, compiled and stored the same way; their ``args`` are the blocks below, whose
words are int64.

Every worker walks the steps. A step's tiles are divided into equal shares, one for each thread. So a worker finds in
its own cache the data of the step before. It claims ``GRAIN`` tiles at a time by an atomic addition to a share's count
of tiles taken, first of its own share, then of the others. It adds the tiles that it ran to the step's ``DONE``, and
goes on when all are done. So nobody waits for a thread that has not claimed anything: a worker that the system runs
late only finds less to do, and a caller without workers does all the work.

Waiting spins, then yields, then sleeps. Waking costs more than a brief job can win: while workers sleep, its caller
runs a brief job alone. The exception is a job soon after another, since more are to be expected. Where every CPU has a
thread, woken workers keep off the caller's CPU: a system that puts a worker there lets the caller wait for milliseconds
while another CPU is idle.

Successive steps of a single claim form a chain, which one worker runs in one claim.

Threads run on the CPUs that the caller may currently use: its affinity is queried from time to time before workers are
woken (`CONFINE`), and no more of them join than there are CPUs. A long call of Python's main thread checks for pending
signals (`LOOK`): between steps, and inside long steps. If a handler raises an error, the rest of the job counts as
taken and done, so that all threads leave.
"""

from __future__ import annotations

from ...codegen.cpu.kernel import cpu_kernel
from ..host.native import constants_of


class StepRecord:
    """Words of one step; a table ends with one more record, of which only ``PATCH`` is read.

    ``PIECE``: number of tasks that a thread may run between two checks for signals; 0 if no check is due before the
    next step.
    """

    FUNCTION, ARGS, TASKS, GRAIN, DONE, CHAIN, PATCH, PIECE = range(8)
    WORDS = 8  # a cache line


class Patch:
    """Words of one patch: ``slots[SLOT] = bases[BASE] + OFFSET``, done before the step's range runs."""

    SLOT, BASE, OFFSET = range(3)
    WORDS = 3  # one for each name


class TraceRow:
    """Words that one thread records of a traced call: ``COUNT`` events, from word ``EVENTS`` on.

    An event is the number of a step, and when the thread began and ended its part of the step, in nanoseconds. A step
    has at most one event in each row.
    """

    COUNT, EVENTS = range(2)
    EVENT_WORDS = 3  # step, begin, end


class Job:
    """Words of one call's context.

    The words that a worker needs to join are on one cache line, here and in `Pool`: loading a line takes as long as a
    small task.

    Fields:
        ``POSITION``: where a late worker joins.
        ``WAITERS``: number of sleeping threads.
        ``TAKEN``: address of a count for each step and thread: tiles of its share that are claimed.
        ``HELD``: address of a word for each parameter, for references that keep the inputs alive.
        ``BRIEF``: whether all steps together take several microseconds.
        ``TEAM``: number of threads that take part, of the ``THREADS`` that have shares.
        ``FAULT`` and following: the call's fault record (`codegen.launch.Mark`): the step, if not 0, the number of its
            check, and the index.
        ``TRACE``: address of a `TraceRow` for each thread, with room for all steps, or 0.
        ``LONG``: whether the steps may take long enough to be interrupted.
        ``LOOKING``, ``LOOKED``: whether this call checks for signals; when it last did, in nanoseconds.
        ``STOPPED``: whether a signal handler has raised an error.
        ``ERROR`` and following: the error's type, value and traceback (references, or 0).
        ``SELF``: address of this block.
        ``BINDING``: address of a symbolic plan's `binding.Bound` block; 0 for other plans.
        ``OPERATIONS``: address of the operations of a plan with jumps (`jumps.DriverOperation`).
        ``LEADER``: address of the kernel that runs their ranges of steps.
    """

    STEPS, POOL, THREADS, END, TAKEN, POSITION, TEAM, TRACE = range(8)
    WAITERS = 8
    SLOTS, BASES, PATCHES, HELD, BRIEF, FAULT, FAULT_CHECK, FAULT_INDEX = range(16, 24)
    LONG, LOOKING, LOOKED, STOPPED, SELF, ERROR = range(24, 30)
    BINDING, OPERATIONS, LEADER = range(32, 35)
    WORDS = 40  # whole cache lines
    TRACED_STEPS = 9
    """Number of steps for which a `TraceRow` has room."""


class Pool:
    """Words of the pool.

    Fields:
        ``GATE``: number of workers inside the current job, plus ``CLOSED`` while none may enter.
        ``CPUS``: number of CPUs that the workers may use, 0 if unknown.
        ``ALLOWED``: address of the set of these CPUs, as bits.
        ``NUMBERS``: address of the workers' thread ids.
        ``AVOIDED``: CPU that the workers keep off, if any.
        ``WORKERS``: number of workers.
        ``ENDED``: when a brief job last ended while the workers slept, in nanoseconds.
        ``CONFINED``: when the caller's affinity was last queried, in nanoseconds.
        ``GROWN``: whether workers have been added since.
        ``PATIENCE``: spins of threads that have a core of their own.
        ``QUOTA``: maximum number of such threads, one for each ``SIBLINGS`` CPUs.
        ``MAIN``: id of Python's main thread, 0 where its functions are not known; the functions that `LOOK` calls
            follow.
    """

    GENERATION, STOP, JOB, WALK, SPINS, YIELDS = range(6)
    # Several threads change these words, so each has a cache line of its own.
    GATE = 8
    OWNER = 16
    SLEEPERS = 24
    CPUS, ALLOWED, NUMBERS, AVOIDED, WORKERS, ENDED = range(32, 38)
    CONFINE, CONFINED, GROWN, PATIENCE, QUOTA, SIBLINGS = range(38, 44)
    LOOK, MAIN, IDENT, ENSURE, RELEASE, CHECK, FETCH = range(44, 51)
    WORDS = 56  # whole cache lines
    CLOSED = 1 << 32
    MASK = 16  # words of a CPU set, for 1024 CPUs


_LAYOUT = (
    "LOW = 0xFFFFFFFF\nWAIT_MICROSECONDS = 2000\nCLOSING_MICROSECONDS = 50\nSOON_NANOSECONDS = 20000\n"
    # Reading an affinity takes 0.2 us. A check for signals may wait for the interpreter's lock, up to 5 ms.
    "CONFINE_NANOSECONDS = 1000000\nLOOK_NANOSECONDS = 50000000\n"
    + constants_of("STEP", StepRecord)
    + constants_of("PATCH", Patch)
    + constants_of("JOB", Job)
    + constants_of("TRACE", TraceRow)
    + constants_of("POOL", Pool)
)

# Entry of the calling thread. args: a Job block; begin and end: the range of steps to run.
LEAD = cpu_kernel(
    "executor_lead",
    _LAYOUT
    + """
def kernel(args, begin, end):
    steps = words_at(args, JOB_STEPS)
    slots = words_at(args, JOB_SLOTS)
    bases = words_at(args, JOB_BASES)
    patches = words_at(args, JOB_PATCHES)
    patch = steps[begin * STEP_WORDS + STEP_PATCH] * PATCH_WORDS
    last_patch = steps[end * STEP_WORDS + STEP_PATCH] * PATCH_WORDS
    while patch < last_patch:
        base = bases[patches[patch + PATCH_BASE]]
        slots[patches[patch + PATCH_SLOT]] = base + patches[patch + PATCH_OFFSET]
        patch += PATCH_WORDS
    alone = args[JOB_THREADS] < 2 or steps[begin * STEP_WORDS + STEP_CHAIN] >= end - begin
    pool = words_at(args, JOB_POOL)
    started = 0
    if not alone and args[JOB_BRIEF] != 0 and atomic_load(pool, POOL_SLEEPERS) > 0:
        started = nanoseconds()
        alone = started - pool[POOL_ENDED] > SOON_NANOSECONDS
    if not alone:
        alone = atomic_load(pool, POOL_OWNER) != 0
    if not alone:
        alone = compare_exchange(pool, POOL_OWNER, 0, 1) != 0
    team = args[JOB_THREADS]
    if not alone:
        now = nanoseconds()
        if now - pool[POOL_CONFINED] > CONFINE_NANOSECONDS or atomic_load(pool, POOL_GROWN) != 0:
            pool[POOL_CONFINED] = now
            call_kernel(pool, POOL_CONFINE, pool, 0, 0)
        if pool[POOL_CPUS] > 0 and team > pool[POOL_CPUS]:
            team = pool[POOL_CPUS]
        if team < 2:
            alone = True
            atomic_store(pool, POOL_OWNER, 0)
    looking = False
    if args[JOB_LONG] != 0 and pool[POOL_MAIN] != 0:
        looking = call_function(pool, POOL_IDENT, ()) == pool[POOL_MAIN]
    args[JOB_LOOKING] = looking
    if looking:
        args[JOB_LOOKED] = nanoseconds()
    single = alone and args[JOB_TRACE] == 0
    if single and looking:
        s = begin
        while s < end:
            at = s * STEP_WORDS
            tasks = steps[at + STEP_TASKS]
            piece = steps[at + STEP_PIECE]
            first = 0
            while first < tasks:
                after = tasks
                if piece > 0 and first + piece < tasks:
                    after = first + piece
                call_kernel(steps, at + STEP_FUNCTION, words_at(steps, at + STEP_ARGS), first, after)
                first = after
                if piece > 0:
                    call_kernel(pool, POOL_LOOK, args, 0, 0)
                    if args[JOB_STOPPED] != 0:
                        first = tasks
                        s = end
            s += 1
    elif single:
        for s in range(begin, end):
            at = s * STEP_WORDS
            call_kernel(steps, at + STEP_FUNCTION, words_at(steps, at + STEP_ARGS), 0, steps[at + STEP_TASKS])
        if started != 0:
            pool[POOL_ENDED] = nanoseconds()
    else:
        threads = args[JOB_THREADS]
        taken = words_at(args, JOB_TAKEN)
        for s in range(begin, end):
            steps[s * STEP_WORDS + STEP_DONE] = 0
            for t in range(s * threads, (s + 1) * threads):
                taken[t] = 0
        args[JOB_TEAM] = team
        args[JOB_END] = end
        args[JOB_POSITION] = begin
        if not alone:
            put_pointer(pool, POOL_JOB, args)
            atomic_and(pool, POOL_GATE, LOW)
            atomic_add(pool, POOL_GENERATION, 1)
        if not alone and atomic_load(pool, POOL_SLEEPERS) > 0:
            if threads == pool[POOL_CPUS] and threads <= pool[POOL_WORKERS] + 1:
                cpu = current_cpu()
                if cpu >= 0 and cpu != pool[POOL_AVOIDED]:
                    allowed = words_at(pool, POOL_ALLOWED)
                    mask = local_int64(POOL_MASK)
                    for k in range(POOL_MASK):
                        mask[k] = allowed[k]
                    mask[cpu >> 6] = mask[cpu >> 6] & ~(1 << (cpu & 63))
                    numbers = words_at(pool, POOL_NUMBERS)
                    for t in range(1, threads):
                        run_only_on(numbers[t], mask, POOL_MASK)
                    pool[POOL_AVOIDED] = cpu
            futex_wake(pool, POOL_GENERATION, 0)
        call_kernel(pool, POOL_WALK, args, 0, 0)
        if not alone:
            atomic_or(pool, POOL_GATE, POOL_CLOSED)
            spins = 0
            while (atomic_load(pool, POOL_GATE) & LOW) != 0:
                spins += 1
                if spins < pool[POOL_SPINS]:
                    pause()
                elif spins < pool[POOL_SPINS] + pool[POOL_YIELDS]:
                    yield_thread()
                else:
                    sleep_microseconds(CLOSING_MICROSECONDS)
            atomic_store(pool, POOL_OWNER, 0)
""",
)

# Walks the job's steps together with the other workers. args: a Job block; begin: the worker (0 is the caller).
WALK = cpu_kernel(
    "executor_walk",
    _LAYOUT
    + """
def kernel(args, begin, end):
    pool = words_at(args, JOB_POOL)
    steps = words_at(args, JOB_STEPS)
    taken = words_at(args, JOB_TAKEN)
    threads = args[JOB_THREADS]
    last = args[JOB_END]
    looking = begin == 0 and args[JOB_LOOKING] != 0
    traced = args[JOB_TRACE] != 0
    notes = words_at(args, JOB_TRACE)
    row = begin * (TRACE_EVENTS + args[JOB_TRACED_STEPS] * TRACE_EVENT_WORDS)
    started = 0
    s = atomic_load(args, JOB_POSITION)
    while s < last:
        if begin == 0:
            atomic_store(args, JOB_POSITION, s)
        at = s * STEP_WORDS
        step = words_from(steps, at)
        tasks = step[STEP_TASKS]
        grain = step[STEP_GRAIN]
        chain = step[STEP_CHAIN]
        following = s + 1
        if chain > 0:
            tasks = 1
            grain = 1
            following = s + chain
            if following > last:
                following = last
        if atomic_load(step, STEP_DONE) < tasks:
            completed = 0
            claims = idiv(tasks + grain - 1, grain)
            share = begin
            for other in range(threads):
                first = idiv(claims * share + threads - 1, threads) * grain
                stop = idiv(claims * (share + 1) + threads - 1, threads) * grain
                if stop > tasks:
                    stop = tasks
                count = s * threads + share
                if traced and completed == 0:
                    started = nanoseconds()
                if first + atomic_load(taken, count) < stop:
                    tile = first + atomic_add(taken, count, grain)
                    while tile < stop:
                        if chain > 0:
                            member = s
                            while member < following and atomic_load(step, STEP_DONE) == 0:
                                m = member * STEP_WORDS
                                if traced:
                                    started = nanoseconds()
                                member_args = words_at(steps, m + STEP_ARGS)
                                call_kernel(steps, m + STEP_FUNCTION, member_args, 0, steps[m + STEP_TASKS])
                                if traced:
                                    note = row + TRACE_EVENTS + notes[row + TRACE_COUNT] * TRACE_EVENT_WORDS
                                    notes[note] = member
                                    notes[note + 1] = started
                                    notes[note + 2] = nanoseconds()
                                    notes[row + TRACE_COUNT] = notes[row + TRACE_COUNT] + 1
                                if looking and steps[m + STEP_PIECE] > 0:
                                    call_kernel(pool, POOL_LOOK, args, 0, 0)
                                member += 1
                            completed = 1
                        else:
                            after = tile + grain
                            if after > stop:
                                after = stop
                            call_kernel(steps, at + STEP_FUNCTION, words_at(step, STEP_ARGS), tile, after)
                            completed += after - tile
                            if looking and step[STEP_PIECE] > 0:
                                call_kernel(pool, POOL_LOOK, args, 0, 0)
                        tile = first + atomic_add(taken, count, grain)
                share += 1
                if share == threads:
                    share = 0
            if traced and completed > 0 and chain == 0:
                note = row + TRACE_EVENTS + notes[row + TRACE_COUNT] * TRACE_EVENT_WORDS
                notes[note] = s
                notes[note + 1] = started
                notes[note + 2] = nanoseconds()
                notes[row + TRACE_COUNT] = notes[row + TRACE_COUNT] + 1
            done = 0
            if completed > 0:
                done = atomic_add(step, STEP_DONE, completed)
            if completed > 0 and done + completed == tasks:
                if atomic_load(args, JOB_WAITERS) > 0:
                    futex_wake(step, STEP_DONE, 0)
            else:
                spins = 0
                done = atomic_load(step, STEP_DONE)
                while done < tasks:
                    spins += 1
                    if spins < pool[POOL_SPINS]:
                        pause()
                    elif spins < pool[POOL_SPINS] + pool[POOL_YIELDS]:
                        yield_thread()
                    else:
                        atomic_add(args, JOB_WAITERS, 1)
                        done = atomic_load(step, STEP_DONE)
                        if done < tasks:
                            futex_wait(step, STEP_DONE, 0, done, WAIT_MICROSECONDS)
                        atomic_add(args, JOB_WAITERS, -1)
                        if looking:
                            call_kernel(pool, POOL_LOOK, args, 0, 0)
                    done = atomic_load(step, STEP_DONE)
        s = following
""",
)

# args: the Pool block; begin: the worker, from 1; returns when the pool stops. Begin 0 stops the pool.
WORKER = cpu_kernel(
    "executor_worker",
    _LAYOUT
    + """
def kernel(args, begin, end):
    if begin == 0:
        atomic_store(args, POOL_STOP, 1)
        atomic_add(args, POOL_GENERATION, 1)
        futex_wake(args, POOL_GENERATION, 0)
        return
    seen = 0
    spins = 0
    while atomic_load(args, POOL_STOP) == 0:
        generation = atomic_load(args, POOL_GENERATION)
        if generation != seen:
            seen = generation
            spins = 0
            if atomic_add(args, POOL_GATE, 1) < POOL_CLOSED:
                job = words_at(args, POOL_JOB)
                if begin < job[JOB_TEAM]:
                    call_kernel(args, POOL_WALK, job, begin, 0)
            atomic_add(args, POOL_GATE, -1)
        else:
            spins += 1
            if spins < args[POOL_SPINS]:
                pause()
            elif spins < args[POOL_SPINS] + args[POOL_YIELDS]:
                yield_thread()
            else:
                atomic_add(args, POOL_SLEEPERS, 1)
                if atomic_load(args, POOL_STOP) == 0:
                    futex_wait(args, POOL_GENERATION, 0, generation & LOW, 0)
                atomic_add(args, POOL_SLEEPERS, -1)
""",
)

# Runs pending signal handlers if a check is due. Called by the job's leading thread. args: a Job block.
LOOK = cpu_kernel(
    "executor_look",
    _LAYOUT
    + """
def kernel(args, begin, end):
    if args[JOB_STOPPED] == 0 and nanoseconds() - args[JOB_LOOKED] > LOOK_NANOSECONDS:
        pool = words_at(args, JOB_POOL)
        state = call_function(pool, POOL_ENSURE, ()) & LOW
        if call_function(pool, POOL_CHECK, ()) & LOW != 0:
            error = args[JOB_SELF] + JOB_ERROR * 8
            call_function(pool, POOL_FETCH, (error, error + 8, error + 16))
            args[JOB_STOPPED] = 1
        call_function(pool, POOL_RELEASE, (state,))
        args[JOB_LOOKED] = nanoseconds()
        if args[JOB_STOPPED] != 0:
            steps = words_at(args, JOB_STEPS)
            taken = words_at(args, JOB_TAKEN)
            threads = args[JOB_THREADS]
            s = args[JOB_END] - 1
            while s >= args[JOB_POSITION]:
                at = s * STEP_WORDS
                beyond = steps[at + STEP_TASKS] + 1
                for t in range(s * threads, (s + 1) * threads):
                    atomic_store(taken, t, beyond)
                atomic_store(steps, at + STEP_DONE, beyond)
                s -= 1
            futex_wake(steps, args[JOB_POSITION] * STEP_WORDS + STEP_DONE, 0)
""",
)

# Sets the workers' affinity to the caller's, and their spins to its CPUs. args: the Pool block, by its owner.
CONFINE = cpu_kernel(
    "executor_confine",
    _LAYOUT
    + """
def kernel(args, begin, end):
    mask = local_int64(POOL_MASK)
    for k in range(POOL_MASK):
        mask[k] = 0
    if allowed_cpus(mask, POOL_MASK) > 0:
        allowed = words_at(args, POOL_ALLOWED)
        changed = atomic_and(args, POOL_GROWN, 0) != 0
        for k in range(POOL_MASK):
            changed = changed or mask[k] != allowed[k]
        if changed:
            cpus = 0
            for k in range(POOL_MASK):
                allowed[k] = mask[k]
                rest = mask[k]
                while rest != 0:
                    rest = rest & (rest - 1)
                    cpus += 1
            numbers = words_at(args, POOL_NUMBERS)
            for t in range(1, args[POOL_WORKERS] + 1):
                if numbers[t] != 0:
                    run_only_on(numbers[t], mask, POOL_MASK)
            args[POOL_CPUS] = cpus
            args[POOL_AVOIDED] = -1
            args[POOL_SPINS] = 0
            if args[POOL_WORKERS] < imin(idiv(cpus, args[POOL_SIBLINGS]), args[POOL_QUOTA]):
                args[POOL_SPINS] = args[POOL_PATIENCE]
""",
)
