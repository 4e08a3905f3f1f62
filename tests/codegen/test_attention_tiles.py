"""Attention with products in bfloat16 or float32 in parts, on AMX tiles and on vector code that emulates them."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.attention import AttentionProblem, plan, reads_transposed_masks
from mgx_numba.codegen.cpu.attention.attention_amx import TYPES, tiles_refusal
from mgx_numba.codegen.cpu.microkernels.tile_table import matrix_tile
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.ops.base import make_op
from tests.values import normal

from ..features import features
from .bf16_split_form import joined_parts, room_for_parts, split_parts
from .contracting import GuardedPages, needs_page_protection, run_plan
from .test_attention import attend, operands, problem_of

FORMS = [host.EMULATED_TILES, *([""] if matrix_tile(TYPES) is not None else [])]
pytestmark = pytest.mark.skipif(host.host().vector_bits < 512, reason="the CPU has no AVX-512")
PRODUCTS = ("bfloat16_products", "products_in_parts")
TOLERANCE = {"bfloat16_products": 4e-3, "products_in_parts": 5e-5}
"""Error relative to the largest result. Weights are rounded to 8 bits (half a unit is 2**-9), or in parts to 16 bits,
where scores of up to ten have relative errors of 5e-6."""


@pytest.fixture(params=PRODUCTS)
def products(request: Any) -> str:
    return str(request.param)


form = features(FORMS, autouse=True)


def rounded(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Numbers that bfloat16 has, in the same order in memory."""
    made = []
    for array in arrays:
        order = np.argsort([-s for s in array.strides], kind="stable")
        whole = array.transpose(order).astype(ml_dtypes.bfloat16).astype(np.float32)
        made.append(whole.transpose(np.argsort(order)))
    return tuple(made)


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, **how: Any) -> np.ndarray:
    arrays = [q, k, v, *([] if mask is None else [mask])]
    op = make_op("attention", **{n: x for n, x in how.items() if n in ("scale", "causal", "nan_rows", "fill")})
    with np.errstate(all="ignore"):
        shapes = [Shape(from_numpy(a.dtype), a.shape) for a in arrays]
        return np.asarray(op.compute(op.compute_shape(shapes), arrays))


def check(
    products: str,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray | None = None,
    threads: int = 2,
    **how: Any,
) -> None:
    narrow = products == "bfloat16_products"
    if narrow:
        q, k, v = rounded(q, k, v)
    got, chosen = attend(q, k, v, mask, threads, **{products: True}, **how)
    name = "attention_tiles" if narrow else "attention_parts"
    assert any(kernel.name.startswith(name) for kernel in chosen.kernels)
    wanted = reference(q, k, v, mask, **how)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(got[~finite], wanted[~finite])
    assert np.abs(got[finite] - wanted[finite]).max(initial=0) <= TOLERANCE[products] * np.abs(wanted[finite]).max(
        initial=0
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("fast_math", [False, True])
def test_odd_sizes_and_shared_heads(causal: bool, fast_math: bool, products: str) -> None:
    for shape in (
        (1, 2, 2, 16, 16, 32, 32), (2, 4, 2, 35, 45, 33, 40), (1, 2, 1, 70, 33, 5, 7), (1, 1, 1, 20, 290, 64, 64),
        (1, 2, 2, 130, 130, 64, 48), (1, 1, 1, 40, 300, 200, 130), (1, 1, 1, 33, 29, 256, 256),
    ):  # fmt: skip
        check(products, *operands(*shape), causal=causal, scale=0.3, fast_math=fast_math)


@pytest.mark.parametrize("lens", [(45,), (1, 1, 1, 45), (2, 1, 1, 45), (1, 3, 37, 45), (37, 45), (2, 3, 37, 45)])
def test_masks(lens: tuple[int, ...], products: str) -> None:
    q, k, v = operands(2, 3, 3, 37, 45, 24, 32)
    rng = np.random.default_rng(4)
    check(products, q, k, v, rng.standard_normal(lens).astype(np.float32), scale=0.4)
    check(products, q, k, v, rng.random(lens) < 0.6, scale=0.4)
    check(products, q, k, v, np.where(rng.random(lens) < 0.5, np.float32(-np.inf), 0).astype(np.float32), causal=True)


@pytest.mark.parametrize("nan_rows", [False, True])
def test_queries_and_steps_that_see_no_key(nan_rows: bool, products: str) -> None:
    q, k, v = operands(1, 2, 2, 40, 600, 32, 32)
    mask = np.ones((40, 600), bool)
    mask[7], mask[9, :560], mask[20:, :300] = False, False, False
    check(products, q, k, v, mask, nan_rows=nan_rows)
    mask[:, 256:512] = False
    check(products, q, k, v, mask, nan_rows=nan_rows)
    check(products, *operands(1, 2, 2, 40, 12, 32, 32), causal=True, nan_rows=nan_rows)


def test_a_fill_replaces_scores_where_the_mask_does_not_keep(products: str) -> None:
    q, k, v = operands(1, 2, 2, 40, 600, 32, 32)
    mask = np.random.default_rng(5).random((40, 600)) < 0.5
    mask[7], mask[9, :560], mask[20:, :300] = False, False, False
    for fill in (-1e9, -5.0):
        check(products, q, k, v, mask, fill=fill)
        check(products, q, k, v, mask[7], fill=fill, causal=True)


def test_few_heads_are_split_along_the_keys(products: str) -> None:
    check(products, *operands(1, 1, 1, 20, 2100, 40, 24), threads=4, scale=0.2)


def test_values_that_are_not_finite(products: str) -> None:
    q, k, v = operands(1, 1, 1, 20, 40, 32, 40)
    v = v.copy()
    v[0, 0, 3, 5], v[0, 0, 7, 9] = np.inf, np.nan
    check(products, q, k, v, scale=0.3)
    q = q.copy()
    q[0, 0, 4, 3], q[0, 0, 6, 0] = np.nan, np.inf
    check(products, q, k, np.abs(operands(1, 1, 1, 20, 40, 32, 40)[2]), scale=0.3)


def test_what_cannot_be_split_is_as_in_float32() -> None:
    """Infinities meet zeros in low parts, the largest numbers round to infinity, the smallest have no low parts."""
    q, k, v = operands(2, 2, 2, 37, 300, 24, 40)
    few = q.copy()
    few[0, 1, 3, 2], few[1, 0, 30] = np.inf, 3.4e38
    check("products_in_parts", few, k, v, scale=0.3)
    few = np.abs(k)
    few[0, 0, 280, 3] = np.inf
    check("products_in_parts", -np.abs(q), few, v, scale=0.3)  # a score of -infinity
    few = v.copy()
    few[0, 0, 5, 3], few[1, 1, 290, 39], few[0, 1, 7, 1] = np.inf, np.nan, 3.4e38
    check("products_in_parts", q, k, few, scale=0.3)
    few[1, 1, 290] = 1  # what is hidden from some queries
    check("products_in_parts", q, k, few, scale=0.3, causal=True)
    check("products_in_parts", q * np.float32(1e-30), k * np.float32(1e30), v * np.float32(1e-38), scale=0.3)


def test_operands_in_one_array(products: str) -> None:
    whole = normal(2, 20, 3, 4, 24, seed=9, dtype=np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    q, k, v = (whole[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    got, _ = attend(q, k, v, scale=0.2, **{products: True})
    wanted = reference(q, k, v, None, scale=0.2)
    assert np.abs(got - wanted).max() <= TOLERANCE[products] * np.abs(wanted).max()


@needs_page_protection
def test_nothing_past_the_end_is_touched(products: str) -> None:
    pages = GuardedPages()
    q, k, v = (pages.place(np.ascontiguousarray(a)) for a in operands(1, 1, 1, 17, 35, 23, 41))
    mask = pages.place(normal(1, 1, 17, 35, seed=3, dtype=np.float32))
    out = pages.place(np.zeros((1, 1, 17, 41), np.float32))
    chosen = plan(problem_of(q, k, v, out, mask, scale=0.2, **{products: True}), 2)
    run_plan(chosen, {"q": q, "k": k, "v": v, "out": out, "mask": mask}, pages)
    assert np.isfinite(out).all()


def test_what_is_left_to_the_other_kernels() -> None:
    def reason(s: int = 40, t: int = 40, d: int = 32, apart: bool = False, **how: Any) -> str:
        q, k, v = operands(1, 1, 1, s, t, d, d)
        if apart:
            k = np.asfortranarray(k)
        problem = problem_of(q, k, v, np.zeros_like(q), **{"bfloat16_products": True, **how})
        return tiles_refusal(problem) or ""

    assert reason() == ""
    assert "bfloat16" in reason(bfloat16_products=False)
    assert "16 queries" in reason(s=15)
    assert "256 features" in reason(d=257)
    assert "features lie apart" in reason(apart=True)
    assert "side by side" in reason(mask=np.zeros((1, 1, 40, 80), np.float32)[..., ::2])
    assert "side by side" in reason(mask=np.broadcast_to(np.zeros((1, 1, 40, 1), np.float32), (1, 1, 40, 40)))
    q, k, v = operands(1, 1, 1, 40, 40, 32, 32)
    problem: AttentionProblem = problem_of(q, k, v, np.zeros_like(q), bfloat16_products=True)
    assert not reads_transposed_masks(problem)


def test_results_are_written_in_parts(products: str) -> None:
    """Heads side by side, in rows of parts, besides or alone; one query sees nothing, another infinity."""
    q, k, v = operands(2, 3, 3, 37, 50, 24, 32)
    v[0, 1, 7], q[1, 0, 3] = np.inf, q[1, 0, 3] * np.float32(1e-30)
    mask = np.zeros((37, 50), np.float32)
    mask[5] = -np.inf
    lens = (2, 37, 3 * 32)
    plain, out = np.full(lens, 77, np.float32), np.full(lens, 77, np.float32)

    def heads(rows: np.ndarray) -> np.ndarray:
        return rows[..., : 3 * 32].reshape(2, 37, 3, 32).transpose(0, 2, 1, 3)

    arrays = {"q": q, "k": k, "v": v, "mask": np.broadcast_to(mask, (2, 3, 37, 50))}
    problem = problem_of(q, k, v, heads(plain), arrays["mask"], **{products: True})
    run_plan(plan(problem), {**arrays, "out": plain})
    for alone in (False, True):
        room, high, low = room_for_parts(lens)
        pitch = room.shape[-1]
        own = dataclasses.replace(problem, part_strides=(37 * pitch, 32, pitch, 1), parts_alone=alone)
        assert own.bytes - problem.bytes == 4 * plain.size * (not alone)
        run_plan(plan(own), {**arrays, "out": out, "high": room[0], "low": room[1]})
        np.testing.assert_array_equal(joined_parts(high, low), joined_parts(*split_parts(plain)))
        assert np.isnan(room[..., 3 * 32 :].astype(np.float32)).all()
        if not alone:
            np.testing.assert_array_equal(out, plain)
            out[...] = 77
    assert (out == 77).all()


def test_one_query_of_grouped_heads_is_written_in_parts(products: str) -> None:
    """Heads of a group are rows of one head there, in the parts, too."""
    q, k, v = operands(2, 6, 2, 1, 50, 24, 32)
    lens = (2, 1, 6 * 32)
    out = np.full(lens, 77, np.float32)
    problem = problem_of(q, k, v, out.reshape(2, 1, 6, 32).transpose(0, 2, 1, 3), **{products: True})
    room, high, low = room_for_parts(lens)
    pitch = room.shape[-1]
    own = dataclasses.replace(problem, part_strides=(pitch, 32, pitch, 1))
    run_plan(plan(own), {"q": q, "k": k, "v": v, "out": out, "high": room[0], "low": room[1]})
    assert (out != 77).all()
    np.testing.assert_array_equal(joined_parts(high, low), joined_parts(*split_parts(out)))
