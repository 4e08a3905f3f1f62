"""What a device can do at most, measured by kernels of our own: a copy of more than its caches hold, and a product on
tensor cores."""

from __future__ import annotations

import functools

import numpy as np

from ...core.shape import Shape
from ...core.types import from_numpy
from ...graph.program import Program
from ...runtime.gpu.choice import engine
from ...runtime.gpu.engine import Engine
from ...runtime.limits import Limits
from ...runtime.plan import Step
from ..options import TargetOptions
from .program import GpuProgram

__all__ = ["device_limits", "measure_limits"]

COPIED = 1 << 26
"""Elements of float32 that are copied, 256 MiB: some times the second-level cache of an H100 (50 MiB)."""
SIDE = 4096
"""Rows, columns and terms of the product: 137 GFLOP, for which a product of an H100 runs at its best rate."""


@functools.lru_cache(maxsize=16)
def device_limits(number: int) -> Limits | None:
    """Those of the device of this number, measured once."""
    return measure_limits(engine(number))


def measure_limits(on: Engine, copied: int = COPIED, side: int = SIDE) -> Limits | None:
    """Rates of an engine; None if its steps take no time, as in the interpreter."""
    memory = _rate("relu", [np.zeros(copied, np.float32)], on)
    rng = np.random.default_rng(0)  # zeros would run faster: they draw less power
    compute = _rate("dot", [rng.standard_normal((side, side), np.float32).astype(np.float16) for _ in "ab"], on)
    if memory is None or compute is None:
        return None
    return Limits(compute[0] / 1e9, memory[1] / 1e9, 0, "float16 on tensor cores", f"of {on.name}")


def _rate(name: str, inputs: list[np.ndarray], on: Engine) -> tuple[float, float] | None:
    """Operations and bytes a second of an operator's kernels."""
    program = Program()
    shapes = [Shape(from_numpy(array.dtype), array.shape) for array in inputs]
    parameters = [program.main.add_parameter(f"x{k}", shape) for k, shape in enumerate(shapes)]
    program.main.add_return([program.main.add_instruction(name, parameters)])
    executable = GpuProgram(program, TargetOptions(), on=on).executable
    assert executable is not None
    seconds = sum(executable.time_steps(inputs))
    steps = [s for s in executable.plan.steps if isinstance(s, Step)]
    return (sum(s.flops for s in steps) / seconds, sum(s.bytes for s in steps) / seconds) if seconds else None
