"""What this machine can do at most: measured by kernels of our own, in a fraction of a second.

The peak of the FMA units is that of independent chains of fused multiply-adds in registers; the memory bandwidth is
that of a copy between two blocks that no cache holds, reads and writes both counted.
"""

from __future__ import annotations

import time

import numpy as np

from ...codegen.arguments import Arguments
from ...codegen.cpu.host import lanes
from ...codegen.cpu.kernel import cpu_kernel
from ...codegen.kernel import KernelSource
from ...codegen.launch import Operand, TaskRange
from ...codegen.statements import for_tasks, indent, kernel_text
from ..limits import Limits
from ..plan import Plan, Pointer, Region, Step, TensorSpec
from .executor import Executable

__all__ = ["measure_limits"]

_CHAINS = 12
"""Multiply-adds under way: two units of 4 cycles need 8 chains, 5 cycles need 10."""
_ROUNDS = 20_000  # some ten microseconds a task
_COPY_BYTES = 48 << 20  # of each block: both together are past the last cache of most machines
_CHUNK_BYTES = 1 << 20  # a task: long enough for the hardware to fetch ahead
_SECONDS = 0.15  # for each of the two
_LEAST_RUNS = 3  # of which the best counts


def measure_limits(num_threads: int = 0) -> Limits:
    """Measure on this number of threads (0: as many as a run takes); the best of several runs counts.

    It takes about 0.3 s. Other work on the machine makes it too low: the larger of several results is nearer.
    """
    peak, flops = _peak_plan()
    copy, bytes = _copy_plan()
    compute = Executable(peak, num_threads=num_threads or None)
    memory = Executable(copy, num_threads=num_threads or None)
    return Limits(flops / _best(compute) / 1e9, bytes / _best(memory) / 1e9, compute.num_threads)


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
    """A plan whose every task runs the chains, and the operations of all tasks."""
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


def _copy_plan() -> tuple[Plan, int]:
    """A plan that copies one block to another and back, and the bytes that it reads and writes."""
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
    """A step whose operands lie at these places."""
    args: list[int | Pointer] = []
    for word in arguments.values:
        assert isinstance(word, (int, Operand))
        args.append(places[word.name] if isinstance(word, Operand) else word)
    return Step(kernel=kernel, args=tuple(args), geometry=TaskRange(tasks))
