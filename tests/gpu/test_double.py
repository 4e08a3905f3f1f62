"""Elementary functions of float64 without a C library have errors of at most two units in the last place."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from numba import njit

from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.kernel import gpu_kernel
from mgx_numba.codegen.gpu.lang import double
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.codegen.lang.target import with_features
from mgx_numba.codegen.lang.vector import kernel_functions
from mgx_numba.runtime.gpu.engine import Engine

from .operators import check_operator

UNITS = 2.0
COUNT = 1 << 11
WIDER = np.longdouble
needs_wider = pytest.mark.skipif(
    np.finfo(WIDER).nmant < 63, reason="NumPy has no wider floats here that results could be held against"
)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 5e-324, -5e-324, 1e300, -1e300])


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


REFERENCES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "log2")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "softplus": _softplus,
    "mish": lambda x: x * np.tanh(_softplus(x)),
}


def powers(rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    """Numbers of both signs whose sizes are spread over powers of two."""
    found: np.ndarray = np.exp2(rng.uniform(low, high, COUNT)) * rng.choice([-1, 1], COUNT)
    return found


def arguments(name: str) -> np.ndarray:
    """Return arguments of all magnitudes, and close to a function's special points."""
    rng = np.random.default_rng(len(name))
    near_one = 1 - np.abs(powers(rng, -52, -1))
    if name in ("sin", "cos", "tan"):
        quarters = np.arange(-500, 500) * (np.pi / 2)
        worst = 6381956970095103.0 * 2.0**797  # the float64 that is nearest to a multiple of pi / 2: Muller 2016, 11.3
        parts = [powers(rng, -60, 1023.9), rng.uniform(-20, 20, COUNT), powers(rng, 18, 22), quarters, [worst, -worst]]
    elif name in ("asin", "acos", "atanh"):
        parts = [rng.uniform(-1, 1, COUNT), near_one, -near_one, powers(rng, -60, 0), [1.5, -1.5]]
    elif name == "acosh":
        parts = [2 - near_one, np.abs(powers(rng, 0, 1023)), [0.5]]
    elif name == "log2":
        parts = [np.abs(powers(rng, -1074, 1023.9)), near_one, 2 - near_one, np.exp2(np.arange(-1074, 1024.0))]
    else:
        parts = [rng.uniform(-2, 2, COUNT), rng.uniform(-745, 745, COUNT), powers(rng, -60, 10)]
    return np.concatenate([np.asarray(p, np.float64) for p in (*parts, SPECIAL)])


def computed(name: str, *operands: np.ndarray) -> np.ndarray:
    """The LLVM IR, which is the same on every device, run by this machine's CPU."""
    function = getattr(double, name)

    @njit
    def one(x: Any, out: Any) -> None:
        for k in range(x.size):
            out[k] = function(x[k])

    @njit
    def two(x: Any, y: Any, out: Any) -> None:
        for k in range(x.size):
            out[k] = function(x[k], y[k])

    out = np.empty_like(operands[0])
    with with_features(frozenset(("fma", "f16c"))), np.errstate(all="ignore"):
        (one if len(operands) == 1 else two)(*operands, out)
    return out


def check_units(found: np.ndarray, wanted: np.ndarray, rounded: np.ndarray) -> None:
    """``rounded`` is what NumPy has in float64, whose infinities, NaN and signs of 0 are right."""
    with np.errstate(all="ignore"):
        near = wanted.astype(np.float64)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
        finite = np.isfinite(near)
        np.testing.assert_array_equal(found[~finite], near[~finite])
        units = np.abs((found[finite].astype(WIDER) - wanted[finite]) / np.spacing(np.abs(near[finite])))
        zero = near == 0
        np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(rounded[zero]))
    assert units.max() <= UNITS, units.max()


@needs_wider
@pytest.mark.parametrize("name", REFERENCES)
def test_functions_of_one_number(name: str) -> None:
    x = arguments(name)
    with np.errstate(all="ignore"):
        wanted, rounded = REFERENCES[name](x.astype(WIDER)), REFERENCES[name](x)
    check_units(computed(name, x), wanted, rounded)


@needs_wider
def test_powers() -> None:
    rng = np.random.default_rng(3)
    ends = np.array([*SPECIAL, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1e-308])
    special = [values.ravel() for values in np.meshgrid(ends, ends)]
    x = [np.abs(powers(rng, -1074, 1023)), rng.uniform(0.5, 2, COUNT), rng.uniform(-9, 9, COUNT), special[0]]
    y = [rng.uniform(-2, 2, COUNT), rng.uniform(-1100, 1100, COUNT), rng.integers(-20, 20, COUNT), special[1]]
    left, right = np.concatenate(x), np.concatenate(y).astype(np.float64)
    with np.errstate(all="ignore"):
        wanted, rounded = np.power(left.astype(WIDER), right.astype(WIDER)), np.power(left, right)
    check_units(computed("pow", left, right), wanted, rounded)


def _erf(x: Decimal) -> Decimal:
    """By its series; digits are lost to the size of its largest term."""
    root_pi = Decimal("1.7724538509055160272981674833411451827975494561223871282138077898529112845910321813749507")
    total = term = x
    k = 0
    while abs(term) > abs(total) * Decimal("1e-40"):
        k += 1
        term *= -x * x / k
        total += term / (2 * k + 1)
    return 2 * total / root_pi


@pytest.mark.parametrize("name", ["erf", "gelu_erf"])
def test_the_error_function(name: str) -> None:
    rng = np.random.default_rng(7)
    x = np.concatenate([rng.uniform(-5.5, 5.5, 200), powers(rng, -30, 2)[:50], rng.uniform(0.7, 1.1, 50)])
    found = computed(name, x)
    with localcontext() as context:
        context.prec = 75
        half = Decimal("0.5").sqrt()
        for value, one in zip(x, found):
            exact = Decimal(float(value))
            wanted = _erf(exact) if name == "erf" else exact * (1 + _erf(exact * half)) / 2
            assert abs(Decimal(float(one)) - wanted) <= Decimal(UNITS) * Decimal(float(np.spacing(abs(float(wanted)))))
    ends = computed(name, SPECIAL)
    if name == "erf":
        np.testing.assert_array_equal(ends[:7], [0, -0.0, 1, -1, np.nan, *(np.array([1, -1]) * _erf_of_one())])
    else:
        np.testing.assert_array_equal(ends[:3], [0, -0.0, np.inf])
    assert np.isnan(ends[4]) and not np.signbit(ends[0]) and np.signbit(ends[1])


def _erf_of_one() -> float:
    with localcontext() as context:
        context.prec = 60
        return float(_erf(Decimal(1)))


@pytest.mark.parametrize("name", ["sin", "atan", "erf", "pow", "softplus"])
def test_they_have_kernels(name: str, on: Engine) -> None:
    x = np.linspace(0.1, 30, 21)
    check_operator(on, name, [x, x[::-1].copy()] if name == "pow" else [x])


@pytest.mark.parametrize("name", ["sm_75", "sm_90a", "gfx90a", "gfx1201"])
def test_all_of_them_compile_without_stack(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    lines = ["p = pointer_float64(args, 0)", "i = thread_index(0) * 2"]
    for function in kernel_functions(double):
        lines += ["x = load(p, i, 2)", f"store(p, i, {function}(x{', x' if function == 'pow' else ''}))"]
    text = assembly(gpu_kernel("k", lines, 64, 1), ARCHITECTURES[name])
    assert ".local" not in text if ARCHITECTURES[name].nvidia else ".private_segment_fixed_size: 0\n" in text
