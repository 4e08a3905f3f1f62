"""Single kernels in turn with the roof that bounds them and with BLAS.

The row called ``roof`` is the time of the kernel's operations at the multiply-add peak, or of its bytes at copy
bandwidth, both measured in the same turns. Streaming kernels also report their share of each copy method's bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from bench.conftest import Settings
from bench.kernels import KERNELS, KernelCase, compile_kernel, library_function, limited_blas
from bench.peers import OURS, is_installed
from bench.replay import CLOCK, replay
from bench.roofs import COPIES, Work, copying, multiply_adds
from bench.timing import Timing, interleave

STREAMING = ("pointwise", "rows", "data")
LIBRARIES = ("numpy", *(["torch"] if is_installed("torch") else []))


@dataclass
class Measurements:
    """Seconds of calls by row for each kernel and number of threads; only the latest measurement is kept."""

    budget: float
    enabled: bool
    key: tuple[str, int] | None = None
    seconds: dict[str, list[float]] = field(default_factory=dict)
    work: Work | None = None

    def measure(self, case: KernelCase, threads: int) -> None:
        if self.key == (case.name, threads):
            return
        self.work = compile_kernel(case, threads)
        functions = {OURS: self.work.run}
        scales = {OURS: 1.0}
        if case.kind in STREAMING:
            roofs = {f"roof {way}": copying(threads, way) for way in COPIES}
            scales.update({name: self.work.bytes / roof.bytes for name, roof in roofs.items()})
        else:
            roofs = {"roof": multiply_adds(threads)}
            scales["roof"] = self.work.flops / roofs["roof"].flops
        functions.update({name: roof.run for name, roof in roofs.items()})
        for library in LIBRARIES:
            function = library_function(case, library)
            if function is not None:
                functions[library], scales[library] = function, 1.0
        with limited_blas(threads):
            timings = interleave(functions, self.budget if self.enabled else 0.0)
        self.seconds = {name: [s * scales[name] for s in timing.seconds] for name, timing in timings.items()}
        if case.kind in STREAMING:
            ways = [name for name in roofs if name in self.seconds]
            best = min(ways, key=lambda name: Timing((tuple(self.seconds[name]),)).median)
            self.seconds["roof"] = self.seconds[best]
        self.key = (case.name, threads)


@pytest.fixture(scope="module")
def measurements(settings: Settings) -> Measurements:
    return Measurements(settings.budget / 3, settings.enabled)


def _parameters() -> list[tuple[str, str]]:
    """Return the kernels with their rows; products also have rows of other libraries."""
    rows = []
    for name, case in KERNELS.items():
        others = LIBRARIES if case.kind == "gemm" else ()
        rows += [(name, row) for row in (OURS, "roof", *others)]
    return rows


@pytest.mark.benchmark(timer=CLOCK.read)
@pytest.mark.parametrize(("kernel", "row"), _parameters())
def test_kernel(benchmark: Any, kernel: str, row: str, threads: int, measurements: Measurements) -> None:
    case = KERNELS[kernel]
    measurements.measure(case, threads)
    seconds, work = measurements.seconds[row], measurements.work
    assert work is not None
    median = Timing((tuple(seconds),)).median
    roof = Timing((tuple(measurements.seconds["roof"]),)).median
    benchmark.group = f"{case.kind} {kernel}, {threads} thread{'s' if threads > 1 else ''}"
    benchmark.extra_info["gflops"] = work.flops / median / 1e9
    benchmark.extra_info["gigabytes_per_second"] = work.bytes / median / 1e9
    benchmark.extra_info["share_of_roof"] = roof / median
    for way in COPIES if case.kind in STREAMING else ():
        copy = Timing((tuple(measurements.seconds[f"roof {way}"]),)).median
        benchmark.extra_info[f"share_of_{way}_copy"] = copy / median
    replay(benchmark, seconds)
