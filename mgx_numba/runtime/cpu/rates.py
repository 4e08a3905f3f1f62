"""Microbenchmarks: plans whose kernels run multiply-adds, register tiles, loads, stores and empty tasks.

`limits` compares measured models with these rates, and `machine_rates` makes a machine's record of them.
"""

from __future__ import annotations

import time

import numpy as np

from ...codegen.arguments import Arguments
from ...codegen.cpu.contraction.tile_source import tile_record, tile_source
from ...codegen.cpu.kernel import cpu_kernel
from ...codegen.cpu.microkernels.register_tile import RegisterTile
from ...codegen.cpu.microkernels.tile_table import MATRIX_BLOCK, TILE_BLOCK, TILE_TABLE_ROWS
from ...codegen.cpu.records import RecordText
from ...codegen.kernel import KernelSource
from ...codegen.launch import Callee, Operand, TaskRange
from ...codegen.statements import for_tasks, indent, kernel_text
from ...core.types import numpy_dtype
from ..plan import Plan, Pointer, Region, Step, TensorSpec
from .executor import Executable

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
