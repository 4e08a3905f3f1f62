"""The two roofs of this machine, measured by our own kernels: multiply-add throughput, and copy bandwidth.

See Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", 2009.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.timing import interleave
from mgx_numba.codegen.arguments import Arguments
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.cpu.microkernels.tile_table import tile_for
from mgx_numba.codegen.launch import TaskRange
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.runtime.cpu.rates import peak_plan
from mgx_numba.runtime.plan import Plan, Pointer, Region, Step

__all__ = ["COPIES", "COPY_BYTES", "Roofs", "Work", "copying", "measure_roofs", "multiply_adds"]

COPY_BYTES = 128 << 20
"""Bytes of each of the two arrays of a copy: far more than a cache holds."""

_CHUNK_BYTES = 256 << 10
_TILES_PER_THREAD = 4


@dataclass(frozen=True)
class Work:
    """A function to time: ``run``, the operations of one call, and the least bytes that it must move."""

    run: Callable[[], object]
    flops: float
    bytes: float


@dataclass(frozen=True)
class Roofs:
    """Limits of ``threads`` threads: float32 operations per second, and bytes per second (read plus written) by
    copy."""

    threads: int
    flops: float
    copies: dict[str, float]

    @property
    def bandwidth(self) -> float:
        """Bytes per second of the fastest copy."""
        return max(self.copies.values())

    def attainable(self, intensity: float) -> float:
        """Return the operations per second that a kernel of ``intensity`` operations per byte can reach."""
        return min(self.flops, self.bandwidth * intensity)


def _head(**block: Pointer | int) -> list[str]:
    """Return the first lines of a kernel, which bind the words of its argument block: float32 pointers or integers."""
    arguments = Arguments()
    for name, value in block.items():
        if isinstance(value, Pointer):
            arguments.pointer(name, name, "float32")
        else:
            arguments.integer(name, value)
    return ["def kernel(args, begin, end):", *(f"    {line}" for line in arguments.bind())]


def multiply_adds(threads: int) -> Work:
    """Return work of float32 multiply-adds in registers, at the vector width of contractions."""
    lanes = tile_for(element_types("float32")).lanes
    plan, instructions = peak_plan(lanes, threads * _TILES_PER_THREAD)
    executable = Executable(plan, num_threads=threads)
    flops = 2.0 * lanes * instructions
    return Work(lambda: executable.run([]), flops, 0.0)


def _vector_copy(lanes: int) -> list[str]:
    return [
        "    for tile in range(begin, end):",
        "        first = tile * words",
        f"        for i in range(first, first + words, {4 * lanes}):",
        *(f"            v{k} = load(x, i + {k * lanes}, {lanes})" for k in range(4)),
        *(f"            store(y, i + {k * lanes}, v{k})" for k in range(4)),
    ]


def _library_copy(lanes: int) -> list[str]:
    return [
        "    for tile in range(begin, end):",
        "        copy_bytes(offset(y, tile * words), offset(x, tile * words), words * 4)",
    ]


COPIES: dict[str, Callable[[int], list[str]]] = {"vector": _vector_copy, "memcpy": _library_copy}
"""Ways to copy ``words`` elements of each tile from ``x`` to ``y``: vector loads and stores, and the C library's
copy."""


def copying(threads: int, way: str = "vector") -> Work:
    """Return work of copying one half of an arena to the other; both halves are written, so that all pages exist."""
    here, there = Pointer(Region.ARENA), Pointer(Region.ARENA, 0, COPY_BYTES)
    tiles = COPY_BYTES // _CHUNK_BYTES
    words = _CHUNK_BYTES // 4
    lines = [*_head(x=here, y=there, words=words), *COPIES[way](tile_for(element_types("float32")).lanes)]
    source = cpu_kernel(f"copy_{way}_kernel", "\n".join(lines) + "\n")
    steps: list = [Step(source, (*pair, words), TaskRange(tiles)) for pair in ((here, there), (there, here))]
    executable = Executable(Plan(steps, 2 * COPY_BYTES, [], [], []), num_threads=threads)
    return Work(lambda: executable.run([]), 0.0, 4.0 * COPY_BYTES)


def measure_roofs(threads: int, budget: float = 3.0) -> Roofs:
    """Measure both roofs in about ``budget`` seconds: the speed that the fastest tenth of the calls reaches."""
    peak = multiply_adds(threads)
    copies = {way: copying(threads, way) for way in COPIES}
    timings = interleave({"fma": peak.run, **{way: copy.run for way, copy in copies.items()}}, budget)
    return Roofs(
        threads=threads,
        flops=peak.flops / timings["fma"].p10,
        copies={way: copy.bytes / timings[way].p10 for way, copy in copies.items()},
    )
