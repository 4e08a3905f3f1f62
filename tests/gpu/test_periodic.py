"""Sine, cosine and tangent over the full range of float32 angles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from mgx_numba.codegen.gpu.lang import double
from mgx_numba.codegen.lang.target import with_features
from mgx_numba.runtime.gpu.cuda import cuda_engine
from mgx_numba.runtime.gpu.engine import Engine

from .operators import check_compiles, check_operator, operator_program
from .programs import compiled, interpreter

NAMES = ("sin", "cos", "tan")
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e6, -1.000001e6, 2.0**23, 3.4e38, -3.4e38, 1e-40)
UNITS = 1.0


def angles() -> np.ndarray:
    """Return angles of every exponent, of ordinary size, and near multiples of a quarter turn."""
    rng = np.random.default_rng(0)
    every = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = np.arange(-500, 500) * (np.pi / 2)
    return np.concatenate([every, near, rng.uniform(-20, 20, 1 << 12), SPECIAL]).astype(np.float32)


def check_values(name: str, x: np.ndarray, found: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        wanted = getattr(np, name)(x.astype(np.float64))
        finite = np.isfinite(x)
        unit = np.spacing(np.abs(wanted[finite]).astype(np.float32)).astype(np.float64)
    assert np.isnan(found[~finite]).all()
    assert (np.abs(found[finite] - wanted[finite]) <= UNITS * unit).all()
    assert np.array_equal(np.signbit(found[x == 0]), np.signbit(x[x == 0]) & (name != "cos"))


@pytest.mark.parametrize("name", NAMES)
def test_what_the_language_makes_of_them_is_right_to_a_unit(name: str) -> None:
    """The LLVM IR, which is the same on every device, run by this machine's CPU."""
    function = getattr(double, name)

    @njit
    def every(x: Any, out: Any) -> None:
        for k in range(x.size):
            out[k] = function(x[k])

    x = angles()
    found = np.empty_like(x)
    with with_features(frozenset(("fma", "f16c"))):
        every(x, found)
    check_values(name, x, found)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_they_have_kernels(name: str, dtype: Any, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.linspace(-300, 300, 41).astype(dtype)
    check_operator(on, name, [x])
    if dtype is np.float32:
        monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
        check_compiles(name, [x], interpreter())


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_all_angles_on_the_device(name: str) -> None:
    x = angles()
    (found,) = compiled(operator_program(name, [x]), cuda_engine()).run({"p0": x})
    check_values(name, x, found)
