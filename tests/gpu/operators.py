"""Single operators on an engine, on contiguous operands and on views, compared with ref."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.toolchain.compiler import compile_object
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.runtime.plan import FallbackStep
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import assert_agrees, reference
from .programs import compiled

__all__ = ["check_compiles", "check_operator", "hosted", "operator_program"]


def operator_program(name: str, arrays: Sequence[np.ndarray], turned: bool = False, **attributes: Any) -> Program:
    """A program of one operator over parameters ``p0``, ``p1``, ...; ``turned`` ones have their axes reversed, and are
    seen through a transpose."""
    program = Program()
    inputs = []
    for k, array in enumerate(arrays):
        lens = array.shape[::-1] if turned else array.shape
        value = program.main.add_parameter(f"p{k}", Shape(from_numpy(array.dtype), lens))
        if turned and array.ndim > 1:
            value = program.main.add_instruction("transpose", [value], permutation=tuple(range(array.ndim))[::-1])
        inputs.append(value)
    result = program.main.add_instruction(name, inputs, **attributes)
    count = len(result.shape.sub_shapes)
    parts = [program.main.add_instruction("get_tuple_elem", [result], index=k) for k in range(count)]
    program.main.add_return(parts or [result])
    return program


def hosted(made: GpuProgram) -> list[str]:
    """Labels of the plan's fallback steps."""
    assert made.executable is not None
    return [step.label for step in made.executable.plan.steps if isinstance(step, FallbackStep)]


def check_operator(on: Engine, name: str, arrays: Sequence[np.ndarray], **attributes: Any) -> None:
    """Check that the operator gives the values of ref, using only kernels."""
    for turned in (False, True) if any(array.ndim > 1 for array in arrays) else (False,):
        program = operator_program(name, arrays, turned, **attributes)
        made = compiled(program, on)
        assert not hosted(made), made.fallback_reasons()
        feed = {f"p{k}": np.ascontiguousarray(a.T if turned else a) for k, a in enumerate(arrays)}
        assert_agrees(made.run(feed), reference(program, feed))


def check_compiles(name: str, arrays: Sequence[np.ndarray], on: Engine, **attributes: Any) -> None:
    """Check that an operator's kernels compile for devices of both vendors."""
    for kernel in compiled(operator_program(name, arrays, **attributes), on).kernels():
        for architecture in ("sm_75", "sm_90a", "gfx942", "gfx1201"):
            assert kernel.symbol.encode() in compile_object(kernel, ARCHITECTURES[architecture])
