"""Measure the rates of a GPU that the cost models read: copies, and products on its tensor cores."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from ...codegen.gpu.architecture import lowering_on
from ...codegen.gpu.contraction.gpu_contraction import GpuContraction
from ...codegen.gpu.contraction.solvers import SOLVER_SET
from ...codegen.gpu.machine import GpuMachine, keep_machine, machine, planning_for
from ...codegen.problems.element_types import ElementTypes
from ...codegen.problems.epilogue import Epilogue
from ...codegen.problems.gemm import GemmProblem
from ...codegen.tuning.request import Request
from ...errors import DeviceError
from ...runtime.gpu.engine import Engine
from ...runtime.gpu.engines import engine, model_of
from .measuring import DeviceBench

SIDE = 4096
"""Rows, columns and terms of the measured products: many times what a device computes at once."""
COPIED = 1 << 29
"""Bytes of the measured copy: several times the largest L2 cache."""
SAMPLES = 5
"""Measurements, of which the least counts: others are disturbed by other work on the device."""


def fit_machine(number: int = 0) -> tuple[GpuMachine, GpuMachine, Path]:
    """Measure a device and keep its record; return the former record, the new one, and its file.

    Raises:
        DeviceError: there is no device, or not enough memory.
        OSError: the cache folder cannot be written.
    """
    on = engine(number)
    if not on.name:
        raise DeviceError("the engine that stands in for a device has no rates to measure")
    with lowering_on(number):
        before = machine(number)
        after = measured(on, before)
        return before, after, keep_machine(after, model_of(number))


def measured(on: Engine, like: GpuMachine) -> GpuMachine:
    """Return the record of a device with measured rates; ``like`` gives what is not measured, and is corrected by the
    ratios of estimated to measured times.

    Products of warpgroups run at a fixed number of multiplications per cycle, so they tell the clock under load; where
    there are none the clock is kept, and products by warps (``mma.sync``) tell their own rate.
    """
    found = replace(like, bandwidth=_copied(on))
    with planning_for(found):
        clock = _gain(on, "warpgroup")
        found = replace(found, clock=found.clock * clock)
    with planning_for(found):
        return replace(found, warp_products=found.warp_products * _gain(on, "tensor"))


def _copied(on: Engine) -> float:
    """Return the bytes read and written per second by the driver's copy."""
    queue = on.queue()
    source, target = (on.allocate(COPIED, "a copy") for _ in range(2))
    try:
        copy = partial(queue.copy, target, source, COPIED)
        return 2 * COPIED / min(queue.timed(copy) for _ in range(SAMPLES + 1))
    finally:
        on.free(source)
        on.free(target)


def _gain(on: Engine, solver: str) -> float:
    """Return the estimated over the measured time of a product by a solver; 1 where it does not apply."""
    types = ElementTypes(*["float16"] * 4)
    problem = GemmProblem(SIDE, SIDE, SIDE, types=types, b_strides=(1, SIDE))
    contraction = GpuContraction(Request(problem, Epilogue(), (), 1, False), constant=True, any_order=True)
    for candidate in SOLVER_SET.own_candidates(contraction):
        if candidate.solver.name == solver:
            bench = DeviceBench(on, contraction)
            seconds = min(bench.sample(candidate) for _ in range(SAMPLES))
            return float(candidate.solver.estimate(contraction) / seconds)
    return 1.0
