"""Fast functions on the device: errors of a few units in the last place; correct infinities and NaN."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.lang import quick
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.cuda import cuda_engine

from .programs import compiled, interpreter

UNITS = 5
SMALLEST = 2.0**-124
"""Results below may be 0."""


def _exact(name: str, x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        sigmoid = np.where(wide >= 0, 1 / (1 + np.exp(-wide)), np.exp(wide) / (1 + np.exp(wide)))
        erfc = np.array([math.erfc(-v / math.sqrt(2)) for v in wide])
        return {
            "exp": np.exp(wide),
            "sigmoid": sigmoid,
            "silu": wide * sigmoid,
            "tanh": np.tanh(wide),
            "gelu_erf": wide * erfc / 2,
        }[name]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["exp", "sigmoid", "silu", "tanh", "gelu_erf"])
def test_fast_functions_are_close(name: str) -> None:
    rng = np.random.default_rng(0)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 88.5, 88.73, 89.0, -87.0, -103.0, -200.0, 1e38, -1e38])
    x = np.concatenate([rng.uniform(-12, 12, 1 << 16), rng.uniform(-90, 90, 1 << 16), special]).astype(np.float32)
    program = Program()
    p = program.main.add_parameter("x", Shape(Type.float_type, x.shape))
    program.main.add_return([program.main.add_instruction(name, [p])])
    (got,) = compiled(program, cuda_engine(), fast_math=True).run({"x": x})
    wanted = _exact(name, x)
    with np.errstate(all="ignore"):
        rounded = wanted.astype(np.float32)
    finite = np.isfinite(rounded) & np.isfinite(x)
    unlike = np.isfinite(x) & ~np.isfinite(rounded)
    assert np.array_equal(got[unlike], rounded[unlike])
    assert np.isnan(got[np.isnan(x)]).all()
    limits = np.isinf(x) & ~np.isnan(rounded)
    assert np.array_equal(got[limits], rounded[limits])
    allowed = UNITS * np.spacing(np.abs(rounded[finite])).astype(np.float64) + SMALLEST * np.maximum(
        1, np.abs(x[finite])
    )
    wrong = np.abs(got[finite] - wanted[finite]) > allowed
    assert not wrong.any(), (x[finite][wrong][:5], got[finite][wrong][:5], wanted[finite][wrong][:5])


def test_the_short_gelu_is_within_part_of_a_unit() -> None:
    x = np.concatenate([np.linspace(-20, 20, 1 << 18), [0.0, -60000.0, 60000.0]]).astype(np.float32)
    with np.errstate(over="ignore"):
        square = np.minimum(np.float32(quick.LOGIT_END), x * x)
        fitted = np.polynomial.polynomial.polyval(square, np.asarray(quick.LOGIT, np.float32))
        got = x * (1 / (1 + np.exp2(-x * fitted)))
    wanted = _exact("gelu_erf", x)
    assert (np.abs(got - wanted) <= 1e-7 + np.abs(wanted) / (8 << 10)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("type", [Type.half_type, Type.bf16_type])
def test_results_of_16_bits_are_one_unit_off_at_most(type: Type) -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 60000.0, -60000.0], np.float32)
    x = np.concatenate([np.linspace(-20, 20, 1 << 16, dtype=np.float32), special]).astype(type.numpy)
    program = Program()
    p = program.main.add_parameter("x", Shape(type, x.shape))
    program.main.add_return([program.main.add_instruction("gelu_erf", [p])])
    made = compiled(program, cuda_engine(), fast_math=True)
    assert "gelu_erf_short" in made.kernels()[0].text
    (got,) = made.run({"x": x})
    wanted = _exact("gelu_erf", x.astype(np.float32))
    assert np.array_equal(np.isnan(got.astype(np.float32)), np.isnan(wanted))
    assert got[-5] == np.inf
    finite = np.isfinite(wanted)
    unit = np.abs(wanted[finite]) * float(ml_dtypes.finfo(type.numpy).eps)
    assert (np.abs(got[finite].astype(np.float64) - wanted[finite]) <= 1.5 * np.maximum(unit, 4e-7)).all()


@pytest.mark.parametrize(("name", "wanted"), [("sm_75", "rcp.approx.ftz.f32"), ("gfx942", "v_rcp_f32")])
def test_the_short_gelu_divides_by_one_instruction(name: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    program = Program()
    p = program.main.add_parameter("x", Shape(Type.half_type, (1024,)))
    program.main.add_return([program.main.add_instruction("gelu_erf", [p])])
    (kernel,) = compiled(program, interpreter(), fast_math=True).kernels()
    text = assembly(kernel, ARCHITECTURES[name])
    assert wanted in text and "div." not in text and "v_div" not in text
