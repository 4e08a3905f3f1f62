"""Prologues of 1x1 convolutions and products against float64 references."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.body import scalar_body
from mgx_numba.codegen.cpu.contraction.blocking import Blocking
from mgx_numba.codegen.cpu.contraction.conv import ConvPointwise
from mgx_numba.codegen.cpu.contraction.gemm import GemmPacked
from mgx_numba.codegen.cpu.contraction.solvers import CONV_SOLVERS, GEMM_SOLVERS, select
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.epilogue import Prologue, PrologueOperand
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.core.types import Type, parse_type
from mgx_numba.errors import ShapeError

from .contracting import apply_full_epilogue, full_epilogue, full_epilogue_arrays, run_plan


def scale_add(dtype: str, images: int, channels: int) -> Prologue:
    """``max(term * a0 + a1, a2)``; ``a0`` differs by image if there are several."""
    operands = (
        PrologueOperand(dtype, "per_k", (channels if images > 1 else 0,)),
        PrologueOperand(dtype, "per_k", (0,)),
        PrologueOperand(dtype, "scalar", (0,)),
    )
    body = scalar_body(lambda s, term, a0, a1, a2: s.max(s.add(s.mul(term, a0), a1), a2), [parse_type(dtype)] * 4)
    return Prologue(operands, body, False, "mul_add_max")


def run(
    pixels: tuple[int, ...],
    channels: int,
    out: int,
    images: int = 1,
    dtype: str = "float32",
    threads: int = 1,
    gap: int = 0,
    blocking: Blocking | None = None,
    special: bool = False,
) -> None:
    rng = np.random.default_rng(channels + out)
    room = rng.standard_normal((images, *pixels, channels + gap)).astype(dtype)
    x = room[..., gap // 2 : gap // 2 + channels]
    if special:
        x[(0,) * (x.ndim - 1)] = [np.nan, np.inf, -np.inf, *np.zeros(channels - 3)]
    w = rng.standard_normal((out, channels, *[1] * len(pixels))).astype(dtype)
    a0 = rng.standard_normal((images, channels)).astype(dtype)
    a1, a2 = rng.standard_normal(channels).astype(dtype), np.array([-0.25], dtype)
    problem = ConvProblem(
        images, channels, out, pixels, (1,) * len(pixels), types=element_types(dtype),
        x_strides=tuple(s // x.itemsize for s in x.strides[:-1]), prologue=scale_add(dtype, images, channels),
    )  # fmt: skip
    solver = ConvPointwise()
    assert solver.refusal(problem) is None
    e = full_epilogue_arrays(rng, (images, *pixels), out, dtype)
    got = np.full((images, *pixels, out), 7.25, dtype)
    plan = solver.plan(problem, full_epilogue(dtype), (), threads, blocking)
    packed = solver.pack_weights(problem, w)
    run_plan(plan, {"x": x, "w": packed, "out": got, "a0": a0, "a1": a1, "a2": a2, **e})
    lens = (images, *[1] * len(pixels), channels)
    with np.errstate(invalid="ignore"):
        terms = np.maximum(x.astype(np.float64) * a0.reshape(lens) + a1, a2)
        wanted = apply_full_epilogue(terms @ w.reshape(out, channels).T.astype(np.float64), e)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(got[~finite], wanted[~finite].astype(dtype))
    assert np.abs(got - wanted)[finite].max() < 3e-5 * np.abs(wanted[finite]).max()
    assert special != finite.all()


@pytest.mark.parametrize(
    "pixels,channels,out", [((1, 1), 5, 3), ((7, 5), 17, 9), ((13,), 33, 40), ((2, 3, 5), 100, 65)]
)
@pytest.mark.parametrize("images", [1, 2])
def test_shapes(pixels: tuple[int, ...], channels: int, out: int, images: int) -> None:
    run(pixels, channels, out, images)
    run(pixels, channels, out, images, threads=3, gap=6)


@pytest.mark.parametrize("channels", [1344, 1345, 2051, 4100])
def test_sums_longer_than_the_buffer(channels: int) -> None:
    run((5, 3), channels, 37)
    run((5, 3), channels, 37, images=2, blocking=Blocking(1, 1, 1, channels))
    run((2, 2), channels, 3, dtype="float64")


@pytest.mark.parametrize("given", [(1, 1, 1, 1), (1 << 20, 1 << 20, 1, 1 << 20), (24, 2, 1, 16), (12, 1, 1, 100)])
def test_any_blocking(given: tuple[int, int, int, int]) -> None:
    run((9, 7), 130, 70, images=2, threads=2, blocking=Blocking(*given))


def test_nan_and_infinity() -> None:
    run((4, 3), 21, 5, special=True)


@pytest.mark.parametrize("ceiling", ["avx2", "sse"])
def test_other_instruction_sets(monkeypatch: pytest.MonkeyPatch, ceiling: str) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    run((5, 5), 27, 19, images=2, gap=3)
    run((3, 3), 2051, 6)


def test_product_over_several_batch_dimensions() -> None:
    rng = np.random.default_rng(0)
    x, w, scale = (
        rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 2, 2, 7, 19), (19, 5), (2, 1, 2, 1, 1, 19))
    )
    strides = (38, 0, 19, 0)
    body = scalar_body(lambda s, term, a0: s.mul(term, a0), [Type.float_type] * 2)
    prologue = Prologue((PrologueOperand("float32", "per_k", strides),), body, False, "mul")
    problem = GemmProblem(7, 5, 19, (2, 3, 2, 2), b_strides=(0, 0, 0, 0, 5, 1), prologue=prologue)
    got = np.zeros((2, 3, 2, 2, 7, 5), np.float32)
    packed = GemmPacked().pack_weights(problem, np.broadcast_to(w, (2, 3, 2, 2, 19, 5)))
    run_plan(GemmPacked().plan(problem), {"x": x, "w": packed, "out": got, "a0": scale})
    np.testing.assert_allclose(got, (x * scale) @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("vector_code")
def test_only_products_over_packed_weights_take_one() -> None:
    prologue = scale_add("float32", 1, 8)
    conv = ConvProblem(1, 8, 4, (5, 5), (1, 1), fast_math=True, prologue=prologue)
    assert [s.name for s in CONV_SOLVERS if s.refusal(conv) is None] == ["conv_1x1"]
    assert select(conv).name == "conv_1x1"
    product = GemmProblem(1, 4, 8, (1,), prologue=prologue)
    assert [s.name for s in GEMM_SOLVERS if s.refusal(product) is None] == ["gemm"]
    assert GemmPacked().refusal(GemmProblem(3, 4, 8, (1,), a_strides=(0, 1, 3), prologue=prologue))
    with pytest.raises(ShapeError, match="per_k"):
        PrologueOperand("float32", "per_n", ())
