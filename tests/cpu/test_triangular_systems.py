"""Systems of linear equations with triangular matrices: kernels against the operator's NumPy meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.runtime.plan import FallbackStep
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions

from ..codegen.symbolic import scope_of
from ..values import normal
from .programs import FUSION, check, program_of
from .symbolic_plans import Lens, SymbolicCase


def system(dtype: Any, *lens: int, columns: int) -> list[np.ndarray]:
    """Return matrices that are not read above the diagonal when they are lower triangular, and right-hand sides."""
    a = normal(*lens, lens[-1]) / 4 + 2 * np.eye(lens[-1], dtype=np.float32)
    return [a.astype(dtype), normal(*lens, columns).astype(dtype)]


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_systems(dtype: Any, upper: bool, unit: bool) -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        return m.add_instruction("solve_triangular", p, upper=upper, unit=unit)

    def turned(m: Module, p: list[Instruction]) -> Instruction:
        views = [m.add_instruction("transpose", [x], permutation=(0, 2, 1)) for x in p]
        return m.add_instruction("solve_triangular", views, upper=upper, unit=unit)

    for lens, columns in (((2, 3, 7), 70), ((4, 33), 1), ((1, 1), 5), ((5,), 130), ((2, 0), 3), ((2, 3), 0)):
        given = system(dtype, *lens, columns=columns)
        check(given, build)
        plan = lower(program_of(given, build), TargetOptions())
        assert not [s.label for s in plan.steps if isinstance(s, FallbackStep)]
    a, b = system(dtype, 3, 6, columns=9)
    a[0, 2, 2], a[1, 0, 5], a[1, 5, 0], b[2, 3, 4] = 0, np.nan, np.nan, np.inf
    check([a, b], build)
    check([a, np.ascontiguousarray(b.swapaxes(1, 2))], turned)


def test_narrow_types_run_on_the_host() -> None:
    check(system(np.float16, 2, 5, columns=3), lambda m, p: m.add_instruction("solve_triangular", p))


def test_systems_of_open_lengths() -> None:
    def shapes(n: Lens) -> list[Shape]:
        rows = n["batch"], n["length"]
        return [Shape(Type.float_type, (*rows, last)) for last in (n["length"], n["columns"])]

    def build(m: Module, p: list[Instruction], n: Lens) -> Instruction:
        return m.add_instruction("solve_triangular", p, upper=True)

    symbols = scope_of(batch=(0, None), length=(0, None), columns=(0, None))
    case = SymbolicCase(*symbols, shapes, build, FUSION)
    assert case.guards == []
    for batch, length, columns in ((1, 1, 1), (0, 3, 2), (2, 0, 4), (3, 5, 0), (2, 4, 200)):
        case.check(1e-4, batch=batch, length=length, columns=columns)
