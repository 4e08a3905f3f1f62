"""Which solver, tile and split-K factor each machine's record chooses, without a device."""

from __future__ import annotations

from typing import Any

import pytest

from mgx_numba.codegen.gpu import machine as machines
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.contraction.gpu_contraction import GpuContraction
from mgx_numba.codegen.gpu.contraction.solvers import SOLVER_SET
from mgx_numba.codegen.gpu.driver.device import known_architecture
from mgx_numba.codegen.gpu.machine import MACHINES, machine, multiprocessors, planning_for
from mgx_numba.codegen.problems.element_types import ElementTypes
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.request import Request
from mgx_numba.errors import DeviceError
from mgx_numba.targets.gpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions

PROBLEMS = (
    (4096, 4096, 4096, "float16"),
    (512, 2048, 8192, "float16"),
    (128, 768, 768, "float16"),
    (1, 4096, 4096, "float16"),
    (512, 512, 512, "float32"),
)
"""Rows, columns, depth and element type of products."""
HOPPER = ("warpgroup 128x256 /1", "warpgroup 64x128 /1", "warpgroup 64x32 /1", "few_rows", "fma 64x64 /4")
MANY_CORES = ("tensor 128x128 /1", "tensor 64x64 /1", "tensor 64x64 /4", "few_rows", "fma 64x64 /4")
CHOSEN = {
    "H200": HOPPER,
    "H100": HOPPER,
    "A100": ("tensor 128x128 /1", "tensor 128x64 /1", "tensor 64x64 /4", "few_rows", "fma 64x64 /3"),
    "L40S": MANY_CORES,
    "RTX 5090": MANY_CORES,
    "RTX 5070 Ti": ("tensor 128x128 /1", "tensor 128x128 /1", "tensor 32x32 /1", "few_rows", "fma 64x128 /4"),
    "B200": MANY_CORES,
}
"""Choices for `PROBLEMS` by machine."""


def contraction_of(rows: int, columns: int, depth: int, dtype: str) -> GpuContraction:
    problem = GemmProblem(rows, columns, depth, types=ElementTypes(*[dtype] * 4), b_strides=(1, depth))
    return GpuContraction(Request(problem, Epilogue(), (), 1, False), constant=True, precision="highest")


def choice(rows: int, columns: int, depth: int, dtype: str) -> str:
    """Return the solver, and the rows, columns and split-K factor of its tile, for a product of one element type."""
    contraction = contraction_of(rows, columns, depth, dtype)
    solver: Any = SOLVER_SET.choose(contraction).solver
    if solver.name == "few_rows":
        return solver.name
    if solver.name == "warpgroup":
        tile, splits = solver.chosen(contraction), solver.chosen(contraction).splits
    else:
        tile, splits = solver.tile(contraction, None)
    return f"{solver.name} {tile.rows}x{tile.columns} /{splits}"


@pytest.mark.parametrize("record", MACHINES, ids=lambda m: m.name)
def test_each_machine_chooses_by_its_own_size(record: machines.GpuMachine) -> None:
    with planning_for(record):
        assert machine() is record and known_architecture() is ARCHITECTURES[record.architecture]
        assert tuple(choice(*problem) for problem in PROBLEMS) == CHOSEN[record.name]
        can = pass_options(TargetOptions()).capabilities
    assert can is not None
    assert record.multiprocessors < can.threads < 2 * record.multiprocessors
    assert 4 * can.repeated_elements < record.l2_bytes


def test_slower_memory_makes_memory_bound_products_slower() -> None:
    row = (1, 4096, 4096, "float16")
    seconds = {}
    for record in MACHINES[:2]:
        with planning_for(record):
            contraction = contraction_of(*row)
            seconds[record.name] = SOLVER_SET.choose(contraction).solver.estimate(contraction)
    assert seconds["H100"] > 1.2 * seconds["H200"]


class Unknown:
    """A device without a record."""

    name, architecture, multiprocessors, l2_bytes = "RTX 4060", ARCHITECTURES["sm_89"], 24, 24 << 20
    clock, bandwidth = 2.46e9, 272e9


def test_a_device_without_a_record_is_described_by_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    machines.machine_of_device.cache_clear()
    monkeypatch.setattr(machines, "device", lambda number: Unknown())
    found = machine(77)
    assert (found.multiprocessors, found.l2_bytes, found.architecture) == (24, 24 << 20, "sm_89")
    assert found.bandwidth < Unknown.bandwidth and found.clock < Unknown.clock
    assert found.warp_products == next(m for m in MACHINES if m.name == "L40S").warp_products
    like = Unknown()
    like.name, like.multiprocessors = "NVIDIA H200", 132  # type: ignore[misc]
    monkeypatch.setattr(machines, "device", lambda number: like)
    assert machine(78) is MACHINES[0]
    machines.machine_of_device.cache_clear()


def test_without_a_device_the_architecture_names_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(number: int) -> object:
        raise DeviceError("none")

    monkeypatch.setattr(machines, "device", missing)
    for arch, cores in (("sm_80", 108), ("sm_90a", 132), ("sm_100a", 148), ("gfx942", 132)):
        monkeypatch.setenv("MGX_GPU_ARCH", arch)
        assert multiprocessors() == cores
