"""Remainders of float32 and float64 are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from mgx_numba.codegen.gpu.lang import remainders
from mgx_numba.codegen.lang.target import with_features
from mgx_numba.runtime.gpu.cuda import cuda_engine
from mgx_numba.runtime.gpu.engine import Engine

from .operators import check_compiles, check_operator, operator_program
from .programs import compiled, interpreter

NAMES = ("fmod", "mod")
SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 3.4e38, -3.4e38, 1e-45, 5.5, -2.5, 1e-38], np.float32)


def pairs(dtype: Any = np.float32) -> list[np.ndarray]:
    """Numbers of every exponent, near ones, and all pairs of special ones."""
    rng = np.random.default_rng(0)
    bits = np.uint32 if dtype is np.float32 else np.uint64
    every = rng.integers(0, np.iinfo(bits).max, (2, 1 << 15), dtype=bits, endpoint=True).view(dtype)
    near = rng.uniform(-50, 50, (2, 1 << 12)).astype(dtype)
    ends = np.array([np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal, np.finfo(dtype).tiny], dtype)
    special = np.concatenate([SPECIAL.astype(dtype), ends])
    return [np.concatenate(parts) for parts in zip(every, near, (g.ravel() for g in np.meshgrid(special, special)))]


def check_values(name: str, x: np.ndarray, y: np.ndarray, found: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        wanted = np.fmod(x, y) if name == "fmod" else np.fmod(np.fmod(x, y) + y, y)
    np.testing.assert_array_equal(found, wanted)
    zero = wanted == 0
    assert np.array_equal(np.signbit(found[zero]), np.signbit(wanted[zero]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
def test_what_the_language_makes_of_them_is_exact(name: str, dtype: Any) -> None:
    """The LLVM IR, which is the same on every device, run by this machine's CPU."""
    function = getattr(remainders, f"{name}_exact")

    @njit
    def every(x: Any, y: Any, out: Any) -> None:
        for k in range(x.size):
            out[k] = function(x[k], y[k])

    x, y = pairs(dtype)
    found = np.empty_like(x)
    with with_features(frozenset(("fma", "f16c"))):
        every(x, y, found)
    check_values(name, x, y, found)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32])
def test_they_have_kernels(name: str, dtype: Any, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(-20, 21).astype(dtype)
    arrays = [x, np.where(x % 7 == 0, 3, x[::-1] % 7).astype(dtype)]
    check_operator(on, name, arrays)
    if dtype in (np.float32, np.float64):
        monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
        check_compiles(name, [a[:3] for a in arrays], interpreter())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
def test_all_numbers_on_the_device(name: str, dtype: Any) -> None:
    x, y = pairs(dtype)
    (found,) = compiled(operator_program(name, [x, y]), cuda_engine()).run({"p0": x, "p1": y})
    check_values(name, x, y, found)
