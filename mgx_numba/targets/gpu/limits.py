"""Measure a device's peak rates with our own kernels: a copy larger than its caches, and products in float32 and on
tensor cores."""

from __future__ import annotations

import functools
from collections.abc import Collection

import numpy as np

from ...codegen.gpu.units import TENSOR_CORES
from ...core.shape import Shape
from ...core.types import from_numpy, numpy_dtype
from ...graph.program import Program
from ...runtime.gpu.engine import Engine
from ...runtime.gpu.engines import engine
from ...runtime.limits import Limits
from ...runtime.plan import Step
from ..options import TargetOptions
from .program import GpuProgram

COPIED = 1 << 26
"""Number of float32 elements that are copied: 256 MiB, several times the L2 cache of an H100 (50 MiB)."""
SIDE = 4096
"""Rows, columns and terms of the product: 137 GFLOP, with which an H100 reaches its best rate."""


@functools.lru_cache(maxsize=16)
def device_limits(number: int, units: tuple[str, ...] = ()) -> Limits | None:
    """Return the limits of the device with this number, measured once."""
    return measure_limits(engine(number), units=units)


def measure_limits(on: Engine, copied: int = COPIED, side: int = SIDE, units: Collection[str] = ()) -> Limits | None:
    """Return the limits of an engine; None if it measures no times (`Engine.name` is empty).

    The arithmetic rate is that of float32 without tensor cores. ``units`` names tensor cores whose rate with 16-bit
    floats or TF32 is also measured.
    """
    memory = _rate("relu", [np.zeros(copied, np.float32)], on)
    compute = None if memory is None else _product_rate("float32", side, on, "highest")
    if memory is None or compute is None:
        return None
    rates = {name: _product_rate(dtype, side, on) for dtype, name in TENSOR_CORES.items() if name in units}
    known = {name: rate for name, rate in rates.items() if rate is not None}
    return Limits(compute, memory[1] / 1e9, 0, "float32", f"of {on.name}", known)


def _product_rate(dtype: str, side: int, on: Engine, precision: str = "medium") -> float | None:
    """Return the rate of a matrix product in 1e9 operations a second; None if steps take no time.

    For float32 operands ``precision`` is one of `FLOAT32_PRECISIONS`.
    """
    rng = np.random.default_rng(0)  # zeros would run faster, since they draw less power
    operands = [rng.standard_normal((side, side), np.float32).astype(numpy_dtype(dtype)) for _ in "ab"]
    found = _rate("dot", operands, on, precision)
    return None if found is None else found[0] / 1e9


def _rate(name: str, inputs: list[np.ndarray], on: Engine, precision: str = "medium") -> tuple[float, float] | None:
    """Return operations and bytes a second of an operator's kernels; None if steps take no time."""
    program = Program()
    shapes = [Shape(from_numpy(array.dtype), array.shape) for array in inputs]
    parameters = [program.main.add_parameter(f"x{k}", shape) for k, shape in enumerate(shapes)]
    program.main.add_return([program.main.add_instruction(name, parameters)])
    executable = GpuProgram(program, TargetOptions(float32_matmul_precision=precision), on=on).executable
    assert executable is not None
    seconds = sum(executable.time_steps(inputs))
    steps = [s for s in executable.plan.steps if isinstance(s, Step)]
    return (sum(s.flops for s in steps) / seconds, sum(s.bytes for s in steps) / seconds) if seconds else None
