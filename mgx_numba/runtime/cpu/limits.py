"""Measure this machine's peak rates with our own kernels, in a fraction of a second.

The peak of the FMA units is that of independent chains of fused multiply-adds in registers. The memory bandwidth is
that of a copy between two blocks larger than the caches, with reads and writes both counted.
"""

from __future__ import annotations

from collections.abc import Collection

from ...codegen.arguments import Arguments
from ...codegen.cpu.host import lanes
from ...codegen.cpu.kernel import cpu_kernel
from ...codegen.cpu.units import tile_of_unit
from ...codegen.statements import for_tasks, kernel_text
from ..limits import Limits
from ..plan import Plan, Pointer, Region
from .executor import Executable
from .rates import best_seconds, peak_plan, step, tile_plan

_COPY_BYTES = 48 << 20  # bytes of a block: two exceed the last-level cache of most machines
_CHUNK_BYTES = 1 << 20  # bytes of a task: enough for hardware prefetching
_SECONDS = 0.15  # duration of each measurement
_TASKS, _TILE_ROUNDS = 64, 100
"""Tasks that run tiles, and calls of a tile in each: several hundred microseconds."""


def measure_limits(num_threads: int = 0, units: Collection[str] = ()) -> Limits:
    """Return this machine's limits on ``num_threads`` threads (0: as many as a run takes); the best of several runs
    counts.

    ``units`` names tiles (`codegen.cpu.units`) whose rate over operands in the L2 cache is also measured. Measuring
    takes about 0.3 s, and half of that for each unit. Other work on the machine lowers the result, so the larger of
    several results is closer to the truth.
    """
    width = lanes("float32")
    peak, instructions = peak_plan(width)
    copy, bytes = _copy_plan()
    compute = Executable(peak, num_threads=num_threads or None)
    memory = Executable(copy, num_threads=num_threads or None)
    rates = {}
    for unit in units:
        plan, operations = tile_plan(tile_of_unit(unit), _TASKS, _TILE_ROUNDS)
        rates[unit] = operations / best_seconds(Executable(plan, num_threads=num_threads or None), _SECONDS) / 1e9
    flops = 2 * width * instructions / best_seconds(compute, _SECONDS)
    return Limits(flops / 1e9, bytes / best_seconds(memory, _SECONDS) / 1e9, compute.num_threads, units=rates)


def _copy_plan() -> tuple[Plan, int]:
    """Return a plan that copies a block to another and back, and the bytes that it reads and writes."""
    width = 4 * lanes("float32")
    arguments = Arguments()
    arguments.pointer("p", "p", "float32")
    arguments.pointer("out", "out", "float32")
    arguments.integer("chunk", _CHUNK_BYTES // 4)
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
    steps = [step(kernel, arguments, tasks, p=p, out=out) for p, out in (blocks, blocks[::-1])]
    return Plan(list(steps), 2 * _COPY_BYTES, [], [], [], parallel=True), 4 * _COPY_BYTES
