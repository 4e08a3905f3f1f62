"""Measure this machine's peak rates with our own kernels, in a fraction of a second.

The peak of the FMA units is that of independent chains of fused multiply-adds in registers. The memory bandwidth is
that of a copy between two blocks larger than the caches, with reads and writes both counted.
"""

from __future__ import annotations

import time
from collections.abc import Collection

import numpy as np

from ...codegen.arguments import Arguments
from ...codegen.cpu.contraction.tile_source import tile_record, tile_source
from ...codegen.cpu.host import lanes
from ...codegen.cpu.kernel import cpu_kernel
from ...codegen.cpu.microkernels.register_tile import RegisterTile
from ...codegen.cpu.microkernels.tile_table import MATRIX_BLOCK, TILE_BLOCK, TILE_TABLE_ROWS
from ...codegen.cpu.records import RecordText
from ...codegen.cpu.units import tile_of_unit
from ...codegen.kernel import KernelSource
from ...codegen.launch import Callee, Operand, TaskRange
from ...codegen.statements import for_tasks, indent, kernel_text
from ...core.types import numpy_dtype
from ..limits import Limits
from ..plan import Plan, Pointer, Region, Step, TensorSpec
from .executor import Executable

_CHAINS = 12
"""Number of independent chains of multiply-adds: two units with a latency of 4 cycles need 8 chains, with 5 cycles
10."""
_ROUNDS = 20_000  # about ten microseconds a task
_COPY_BYTES = 48 << 20  # bytes of a block: two exceed the last-level cache of most machines
_CHUNK_BYTES = 1 << 20  # bytes of a task: enough for hardware prefetching
_SECONDS = 0.15  # duration of each measurement
TILE_WORDS = 512
"""Words of a row of a tile's operands: with AMX 64 KiB on each side, which fits in the L2 cache; a call's overhead is a
few percent."""
TILE_ROUNDS = 100
"""Calls of a tile in a task: several hundred microseconds."""
_LEAST_RUNS = 3  # the best run counts


def measure_limits(num_threads: int = 0, units: Collection[str] = ()) -> Limits:
    """Return this machine's limits on ``num_threads`` threads (0: as many as a run takes); the best of several runs
    counts.

    ``units`` names tiles (`codegen.cpu.units`) whose rate over operands in the L2 cache is also measured. Measuring
    takes about 0.3 s, and half of that for each unit. Other work on the machine lowers the result, so the larger of
    several results is closer to the truth.
    """
    peak, flops = _peak_plan()
    copy, bytes = _copy_plan()
    compute = Executable(peak, num_threads=num_threads or None)
    memory = Executable(copy, num_threads=num_threads or None)
    rates = {}
    for unit in units:
        plan, operations = _tile_plan(tile_of_unit(unit))
        rates[unit] = operations / _best(Executable(plan, num_threads=num_threads or None)) / 1e9
    return Limits(flops / _best(compute) / 1e9, bytes / _best(memory) / 1e9, compute.num_threads, units=rates)


def _best(executable: Executable) -> float:
    executable.run([])
    best, runs, end = float("inf"), 0, time.perf_counter() + _SECONDS
    while runs < _LEAST_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        executable.run([])
        best = min(best, time.perf_counter() - start)
        runs += 1
    return best


def _peak_plan() -> tuple[Plan, int]:
    """Return a plan whose tasks run the chains, and the operations of all tasks."""
    width = lanes("float32")
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
        f"total = {names[0]}",
        *(f"total = add(total, {name})" for name in names[1:]),
        "store_scalar(out, task, reduce_add(total))",
    ]
    factors = [f"a = load_splat(p, 0, {width})", f"b = load_splat(p, 1, {width})"]
    kernel = cpu_kernel("fma_peak_kernel", kernel_text([*arguments.bind(), *factors, *for_tasks(task)]))
    tasks = 64
    step = _step(kernel, arguments, tasks, p=Pointer(Region.CONSTANT), out=Pointer(Region.OUTPUT))
    constants = [np.array([0.5, 0.25], np.float32)]
    plan = Plan([step], 0, constants, [], [TensorSpec("float32", (tasks,))], parallel=True)
    return plan, tasks * _ROUNDS * _CHAINS * width * 2


def _tile_plan(tile: RegisterTile) -> tuple[Plan, int]:
    """Return a plan whose tasks repeatedly multiply a block of rows by a panel, and the operations of all tasks."""
    words, parts = TILE_WORDS, tile.packing.parts
    left, right = tile.rows * words, parts * words * tile.columns
    block = RecordText(MATRIX_BLOCK if tile.step > 1 else TILE_BLOCK, "block")
    arguments = Arguments()
    arguments.callee("tile", tile_source(tile))
    arguments.pointer("x", "x", tile.left_word)
    arguments.pointer("w", "w", tile.right_word)
    arguments.integers(rounds=TILE_ROUNDS, words=words, panel=right, low=left)
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
    tasks = 64
    constants = [_operand(tile.left_word, parts * left), _operand(tile.right_word, right)]
    places = {name: Pointer(Region.CONSTANT, k) for k, name in enumerate("xw")}
    step = _step(cpu_kernel(f"{tile.name}_peak_kernel", text), arguments, tasks, **places)
    operations = 2 * tasks * TILE_ROUNDS * tile.rows * tile.columns * words * tile.packing.k_interleave
    return Plan([step], 0, constants, [], [], parallel=True), operations


def _operand(word: str, count: int) -> np.ndarray:
    """Return ``count`` random words whose bytes, and pairs of bytes as bfloat16, are numbers of ordinary size."""
    rng = np.random.default_rng(0)  # zeros would run faster, since they draw less power
    if word == "float32":
        return rng.standard_normal(count, np.float32)
    pairs = rng.standard_normal(2 * count).astype(numpy_dtype("bfloat16"))
    return pairs.view(np.int32) if word == "int32" else pairs.view(np.int16)[:count]


def _copy_plan() -> tuple[Plan, int]:
    """Return a plan that copies a block to another and back, and the bytes that it reads and writes."""
    width = 4 * lanes("float32")
    chunk = _CHUNK_BYTES // 4
    arguments = Arguments()
    arguments.pointer("p", "p", "float32")
    arguments.pointer("out", "out", "float32")
    arguments.integer("chunk", chunk)
    task = [
        "i = task * chunk",
        "last = i + chunk",
        "while i < last:",
        f"    store(out, i, load(p, i, {width}))",
        f"    i += {width}",
    ]
    kernel = cpu_kernel("copy_bandwidth_kernel", kernel_text([*arguments.bind(), *for_tasks(task)]))
    blocks = Pointer(Region.ARENA, 0, 0), Pointer(Region.ARENA, 0, _COPY_BYTES)
    tasks = _COPY_BYTES // _CHUNK_BYTES
    steps = [_step(kernel, arguments, tasks, p=p, out=out) for p, out in (blocks, blocks[::-1])]
    return Plan(list(steps), 2 * _COPY_BYTES, [], [], [], parallel=True), 4 * _COPY_BYTES


def _step(kernel: KernelSource, arguments: Arguments, tasks: int, **places: Pointer) -> Step:
    """Return a step whose operands are at these addresses."""
    args: list[int | Pointer | KernelSource] = []
    for word in arguments.values:
        assert isinstance(word, (int, Operand, Callee))
        if isinstance(word, Operand):
            args.append(places[word.name])
        else:
            args.append(word.kernel if isinstance(word, Callee) else word)
    return Step(kernel=kernel, args=tuple(args), geometry=TaskRange(tasks))
