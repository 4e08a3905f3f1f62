"""Microbenchmarks: plans whose kernels run multiply-adds, register tiles, loads, stores and empty tasks.

`limits` compares measured models with these rates, and `measure_machine` makes a machine's record
(`codegen.cpu.machine_record`) of them in less than a second, once the kernels are compiled.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...codegen.arguments import Arguments
from ...codegen.cpu import host
from ...codegen.cpu.contraction.tile_source import tile_record, tile_source
from ...codegen.cpu.kernel import cpu_kernel
from ...codegen.cpu.machine import cache_bytes, l1_sets_and_ways, last_cache_bytes
from ...codegen.cpu.machine_record import ESTIMATED, LEVELS, MEASURED, MachineRecord, keep_record
from ...codegen.cpu.microkernels.register_tile import RegisterTile
from ...codegen.cpu.microkernels.tile_table import MATRIX_BLOCK, TILE_BLOCK, TILE_TABLE_ROWS, declared_tile, matrix_tile
from ...codegen.cpu.records import RecordText
from ...codegen.kernel import KernelSource
from ...codegen.launch import Callee, Operand, TaskRange
from ...codegen.platform import cpu_model, platform
from ...codegen.problems.element_types import ElementTypes
from ...codegen.statements import for_tasks, indent, kernel_text
from ...codegen.workers.objects import objects_of
from ...core.types import numpy_dtype
from ...errors import MgxError
from ..memory import aligned_empty
from ..plan import Plan, Pointer, Region, Step, TensorSpec
from .executor import Executable
from .threads import available_cores

_CHAINS = 12
"""Number of independent chains of multiply-adds: two units with a latency of 4 cycles need 8 chains, with 5 cycles
10."""
_ROUNDS = 20_000  # about ten microseconds a task
_STREAMS = 8
"""Vectors that a loop of loads or stores takes at a time: enough sums to hide the latency of additions."""
TILE_WORDS = 512
"""Words of a row of a tile's operands: with AMX 64 KiB on each side, which fits in the L2 cache; a call's overhead is a
few percent."""
_LEAST_RUNS = 3  # the best run counts
_SAME = 1.15
"""Ratio of the second best to the best run up to which a measurement counts as undisturbed."""


def best_seconds(executable: Executable, seconds: float) -> float:
    """Return the time of the fastest run within ``seconds``, after a first run."""
    return best_and_repeated(executable, seconds)[0]


def best_and_repeated(executable: Executable, seconds: float) -> tuple[float, bool]:
    """Return the time of the fastest run within ``seconds``, after a first run, and whether a second run took about as
    long: if none did, other work runs on the machine."""
    executable.run([])
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _LEAST_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        executable.run([])
        times.append(time.perf_counter() - start)
    times.sort()
    return times[0], times[1] <= _SAME * times[0]


def peak_plan(width: int, tasks: int = 64) -> tuple[Plan, int]:
    """Return a plan whose tasks run chains of multiply-adds of ``width`` elements, and the vector instructions of all
    tasks."""
    names = [f"c{k}" for k in range(_CHAINS)]
    arguments = Arguments()
    arguments.pointer("p", "p", "float32")
    arguments.pointer("out", "out", "float32")
    arguments.integer("rounds", _ROUNDS)
    task = [
        *(f"{name} = mul(a, const_float32({k}, {width}))" for k, name in enumerate(names)),
        "i = 0",
        "while i < rounds:",
        *indent([*(f"{name} = fma({name}, a, b)" for name in names), "i += 1"]),
        *_summed(names),
        "store_scalar(out, task, reduce_add(total))",
    ]
    factors = [f"a = load_splat(p, 0, {width})", f"b = load_splat(p, 1, {width})"]
    kernel = cpu_kernel("fma_peak_kernel", kernel_text([*arguments.bind(), *factors, *for_tasks(task)]))
    made = step(kernel, arguments, tasks, p=Pointer(Region.CONSTANT), out=Pointer(Region.OUTPUT))
    constants = [np.array([0.5, 0.25], np.float32)]
    plan = Plan([made], 0, constants, [], [TensorSpec("float32", (tasks,))], parallel=True)
    return plan, tasks * _ROUNDS * _CHAINS


def stream_plan(store: bool, array: np.ndarray, chunk: int, tasks: int, rounds: int, width: int) -> tuple[Plan, int]:
    """Return a plan that loads or stores successive chunks of ``array``, and the bytes of all tasks.

    Args:
        store: store instead of load.
        array: contiguous float32 memory of at least ``tasks * chunk`` elements, which all runs share.
        chunk: elements of a task, a multiple of `_STREAMS` vectors.
        tasks: tasks of the plan, each with a chunk of its own.
        rounds: times that a task goes through its chunk.
        width: elements of a vector.
    """
    arguments = Arguments()
    arguments.pointer("p", "p", "float32")
    arguments.pointer("out", "out", "float32")
    arguments.integers(chunk=chunk, rounds=rounds)
    names = [f"s{k}" for k in range(_STREAMS)]
    if store:
        inner = [f"store(own, i + {k * width}, s0)" for k in range(_STREAMS)]
    else:
        inner = [f"{name} = add({name}, load(own, i + {k * width}, {width}))" for k, name in enumerate(names)]
    task = [
        "own = offset(p, task * chunk)",
        *(f"{name} = const_float32(0, {width})" for name in names),
        "for r in range(rounds):",
        f"    for i in range(0, chunk, {_STREAMS * width}):",
        *indent(inner, 2),
        *([f"    s0 = add(s0, const_float32(1, {width}))"] if store else []),
        *_summed(names),
        "store_scalar(out, task, reduce_add(total))",
    ]
    name = "store_stream_kernel" if store else "load_stream_kernel"
    kernel = cpu_kernel(name, kernel_text([*arguments.bind(), *for_tasks(task)]))
    made = step(kernel, arguments, tasks, p=Pointer(Region.CONSTANT), out=Pointer(Region.OUTPUT))
    plan = Plan([made], 0, [array], [], [TensorSpec("float32", (tasks,))], parallel=tasks > 1)
    return plan, 4 * tasks * chunk * rounds


def idle_plan(steps: int, tasks: int) -> Plan:
    """Return a plan of ``steps`` steps, each of ``tasks`` tasks that do nothing."""
    kernel = cpu_kernel("idle_kernel", "def kernel(args, begin, end):\n    pass\n")
    return Plan([step(kernel, Arguments(), tasks) for _ in range(steps)], 0, [], [], [], parallel=True)


def tile_plan(tile: RegisterTile, tasks: int, rounds: int) -> tuple[Plan, int]:
    """Return a plan whose tasks multiply a block of rows by a panel ``rounds`` times, and the operations of all
    tasks."""
    words, parts = TILE_WORDS, tile.packing.parts
    left, right = tile.rows * words, parts * words * tile.columns
    block = RecordText(MATRIX_BLOCK if tile.step > 1 else TILE_BLOCK, "block")
    arguments = Arguments()
    arguments.callee("tile", tile_source(tile))
    arguments.pointer("x", "x", tile.left_word)
    arguments.pointer("w", "w", tile.right_word)
    arguments.integers(rounds=rounds, words=words, panel=right, low=left)
    last: dict[str, int | str] = {"x_row": "words", "x_low": "low", "exist": tile.rows} if tile.step > 1 else {}
    setup = [
        *tile_record(block),
        f"places = local_int64({TILE_TABLE_ROWS})",
        f"for i in range({TILE_TABLE_ROWS}):",
        "    places[i] = i * words",
        f"sums = local_{tile.types.accumulator}({tile.rows * tile.columns})",
        block.put("offsets", "places"),
        *block.fill(
            x="x", zero="x", w="w", acc="sums", taps=1, depth="words", x_step=1, w_step=parts * tile.columns,
            w_panel="panel", acc_row=tile.columns, acc_panel=tile.columns, accumulate=0, rows=tile.rows,
            vectors=tile.vectors, columns=tile.columns, **last,
        ),
    ]  # fmt: skip
    task = ["for i in range(rounds):", *indent([arguments.call("tile", block.name, 0, 1)])]
    text = kernel_text([*arguments.bind(), *setup, *tile.in_state(for_tasks(task))])
    constants = [_operand(tile.left_word, parts * left), _operand(tile.right_word, right)]
    places = {name: Pointer(Region.CONSTANT, k) for k, name in enumerate("xw")}
    made = step(cpu_kernel(f"{tile.name}_peak_kernel", text), arguments, tasks, **places)
    operations = 2 * tasks * rounds * tile.rows * tile.columns * words * tile.packing.k_interleave
    return Plan([made], 0, constants, [], [], parallel=tasks > 1), operations


def step(kernel: KernelSource, arguments: Arguments, tasks: int, **places: Pointer) -> Step:
    """Return a step that runs ``kernel`` with ``places`` as the addresses of its operands, by name."""
    args: list[int | Pointer | KernelSource] = []
    for word in arguments.values:
        assert isinstance(word, (int, Operand, Callee))
        if isinstance(word, Operand):
            args.append(places[word.name])
        else:
            args.append(word.kernel if isinstance(word, Callee) else word)
    return Step(kernel=kernel, args=tuple(args), geometry=TaskRange(tasks))


def _summed(names: list[str]) -> list[str]:
    """Return statements that sum the vectors ``names`` in ``total``."""
    return [f"total = {names[0]}", *(f"total = add(total, {name})" for name in names[1:])]


def _operand(word: str, count: int) -> np.ndarray:
    """Return ``count`` random words whose bytes, and pairs of bytes as bfloat16, are numbers of ordinary size."""
    rng = np.random.default_rng(0)  # zeros would run faster, since they draw less power
    if word == "float32":
        return rng.standard_normal(count, np.float32)
    pairs = rng.standard_normal(2 * count).astype(numpy_dtype("bfloat16"))
    return pairs.view(np.int32) if word == "int32" else pairs.view(np.int16)[:count]


SECONDS = 0.02
"""Duration of each of about 30 measurements."""
TILE_TYPES = (
    ElementTypes("float32", "float32", "float32", "float32"),
    ElementTypes("float32", "bfloat16", "float32", "float32"),
    ElementTypes("bfloat16", "bfloat16", "float32", "float32"),
    ElementTypes("uint8", "int8", "int32", "int32"),
    ElementTypes("int8", "int8", "int32", "int32"),
)
"""Element types whose register tiles are measured."""
_STREAM_BYTES = 16 << 20
"""Bytes that a task loads or stores from a cache in one run, in several rounds."""
_MOST_BYTES = 256 << 20
"""Most memory that measuring takes."""
_CALLS = 20
"""Calls of a tile in a run."""
_STEPS, _CLAIMS = 64, 4096
"""Steps of the plan that times barriers, and tasks of the plan that times claims."""


def measure_machine(seconds: float = SECONDS) -> MachineRecord:
    """Return the record of this machine, not quantised; the best of several runs counts.

    Its name is `ESTIMATED` if other work on the machine did not let two runs of a measurement take equal time. Barriers
    and claims need not repeat: how threads meet varies on an idle machine, too.
    """
    threads, cpu, name = available_cores(), host.host(), MEASURED
    l1_sets, l1_ways = l1_sets_and_ways()

    def timed(plan: Plan, using: int) -> float:
        nonlocal name
        found, repeated = best_and_repeated(Executable(plan, num_threads=using), seconds)
        name = name if repeated else ESTIMATED
        return found

    def per_second(made: tuple[Plan, int], using: int = 1) -> float:
        return made[1] / timed(made[0], using) / 1e9

    fma = {str(bits): per_second(peak_plan(bits // 32, tasks=1)) for bits in _widths(cpu)}
    tiles = {tile.name: per_second(tile_plan(tile, 1, _CALLS)) for tile in _tiles()}
    load: dict[str, tuple[float, float]] = {}
    store: dict[str, tuple[float, float]] = {}
    l2_bytes = cache_bytes(2) or 1 << 20
    array = _touched(_memory_bytes())
    for level in LEVELS:
        for found, is_store in ((load, False), (store, True)):
            rates = []
            for using in (1, threads):
                chunk = _chunk_bytes(level, l2_bytes, using, array.nbytes)
                rounds = max(1, _STREAM_BYTES // chunk) if level != "memory" else 1
                width = host.lanes("float32")
                rates.append(per_second(stream_plan(is_store, array, chunk // 4, using, rounds, width), using))
            found[level] = (rates[0], max(rates))
    model = f"{platform().cpu} {cpu_model()}"
    record = MachineRecord(name, model, threads, l2_bytes, l1_sets, l1_ways, fma, tiles, load, store)
    if threads == 1:
        return record
    barrier = timed(idle_plan(_STEPS, threads), threads) / _STEPS
    claim = timed(idle_plan(1, _CLAIMS), threads) / _CLAIMS * threads
    return replace(record, barrier=barrier, claim=claim)


def measure_in_background() -> threading.Thread | None:
    """Measure this machine in another thread, and keep the record for later processes.

    If other work disturbs the measurement, later processes measure again. This process keeps to its record, so that all
    its plans are for one machine.

    Returns:
        The thread; None if this process has measured the machine before.
    """
    if _begun:
        return None
    _begun.append(True)

    def measure() -> None:
        objects_of(_kernels(), workers=1)  # by another process, so that the compilation at hand is not held up
        keep_record(host.host(), measure_machine())

    thread = threading.Thread(target=_quietly, args=(measure,), name="mgx-machine-rates")
    thread.start()
    return thread


_begun: list[bool] = []


def _quietly(measure: Callable[[], None]) -> None:
    """Run a measurement, whose failure is nothing that a user has to know."""
    with contextlib.suppress(MgxError, OSError, MemoryError):
        measure()


def _widths(cpu: host.Host) -> list[int]:
    """Return the vector widths (bits) of a CPU."""
    return [bits for bits in (128, 256, 512) if bits <= cpu.vector_bits]


def _kernels() -> list[KernelSource]:
    """Return the kernels that a measurement of this machine runs, each once."""
    array, width = np.zeros(1, np.float32), host.lanes("float32")
    plans = [peak_plan(bits // 32, tasks=1)[0] for bits in _widths(host.host())]
    plans += [tile_plan(tile, 1, _CALLS)[0] for tile in _tiles()]
    plans += [stream_plan(is_store, array, 1, 1, 1, width)[0] for is_store in (False, True)]
    return list(dict.fromkeys(kernel for plan in (*plans, idle_plan(1, 1)) for kernel in plan.kernels()))


def _tiles() -> list[RegisterTile]:
    """Return the tiles that compute `TILE_TYPES` on this CPU, each once."""
    found = [tile for types in TILE_TYPES for tile in (declared_tile(types), matrix_tile(types)) if tile]
    emulated = host.host().emulates_tiles
    return list({tile.name: tile for tile in reversed(found) if not (emulated and tile.step > 1)}.values())[::-1]


def _memory_bytes() -> int:
    return min(max(2 * (last_cache_bytes()), 64 << 20), _MOST_BYTES)


def _touched(size: int) -> np.ndarray:
    array = aligned_empty([size // 4], "float32")
    array.fill(1.0)  # pages that nobody has written share one page of zeros
    return array


def _chunk_bytes(level: str, l2_bytes: int, tasks: int, most: int) -> int:
    """Return the bytes of each task's chunk such that the chunks of all tasks stay in ``level``."""
    last = last_cache_bytes()
    size = {
        "l1": 16 << 10,
        "l2": l2_bytes // 2,
        "last": max(2 * l2_bytes, last // 2 // tasks),
        "memory": most // tasks,
    }[level]
    return min(size, most // tasks) >> 12 << 12
