"""Systems of linear equations with triangular matrices, a column each thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.test_triangular_systems import system
from .operators import check_compiles, check_operator
from .programs import interpreter


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_systems(dtype: Any, upper: bool, unit: bool, on: Engine) -> None:
    for lens, columns in (((2, 3, 7), 20), ((4, 9), 1), ((1, 1), 5), ((5,), 300), ((2, 0), 3), ((2, 3), 0)):
        check_operator(on, "solve_triangular", system(dtype, *lens, columns=columns), upper=upper, unit=unit)
    a, b = system(dtype, 3, 6, columns=9)
    a[0, 2, 2], a[1, 0, 5], a[1, 5, 0], b[2, 3, 4] = 0, np.nan, np.nan, np.inf
    check_operator(on, "solve_triangular", [a, b], upper=upper, unit=unit)


def test_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    check_compiles("solve_triangular", system(np.float32, 2, 5, columns=3), interpreter(), upper=True)
