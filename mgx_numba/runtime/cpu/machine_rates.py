"""Measure this machine's record (`codegen.cpu.machine_record`) in less than a second, once the kernels are compiled."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...codegen.cpu import host
from ...codegen.cpu.machine import cache_bytes, l1_sets_and_ways, last_cache_bytes
from ...codegen.cpu.machine_record import ESTIMATED, LEVELS, MEASURED, MachineRecord, keep_record
from ...codegen.cpu.microkernels.register_tile import RegisterTile
from ...codegen.cpu.microkernels.tile_table import declared_tile, matrix_tile
from ...codegen.kernel import KernelSource
from ...codegen.platform import cpu_model, platform
from ...codegen.problems.element_types import ElementTypes
from ...codegen.workers.objects import objects_of
from ...errors import MgxError
from ..memory import aligned_empty
from ..plan import Plan
from .executor import Executable
from .rates import best_and_repeated, idle_plan, peak_plan, stream_plan, tile_plan
from .threads import available_cores

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
