"""Attention kernels against the operator's NumPy meaning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu.attention import AttentionProblem, MaskLayout, attention_kernel, plan, select
from mgx_numba.codegen.cpu.attention.attention_kernel import decode_queries
from mgx_numba.codegen.cpu.microkernels.tile_table import TILES, tile_for
from mgx_numba.codegen.launch import Solution
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.errors import ShapeError
from mgx_numba.ops.base import make_op
from tests.values import element_strides, normal

from .contracting import GuardedPages, needs_page_protection, run_plan

HEADS_LAST = (0, 2, 1, 3)


def operands(
    b: int, h: int, hk: int, s: int, t: int, d: int, e: int, dtype: Any = np.float32
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values with the memory order of projections: [batch, position, head, feature]."""
    return (
        normal(b, s, h, d, seed=1, dtype=dtype).transpose(HEADS_LAST),
        normal(b, t, hk, d, seed=2, dtype=dtype).transpose(HEADS_LAST),
        normal(b, t, hk, e, seed=3, dtype=dtype).transpose(HEADS_LAST),
    )


def problem_of(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    out: np.ndarray,
    mask: np.ndarray | None = None,
    fill: float = -np.inf,
    **attributes: Any,
) -> AttentionProblem:
    return AttentionProblem(
        batch=q.shape[0], heads=q.shape[1], kv_heads=k.shape[1], queries=q.shape[2], keys=k.shape[2], depth=q.shape[3],
        width=v.shape[3], q_strides=element_strides(q), k_strides=element_strides(k), v_strides=element_strides(v),
        out_strides=element_strides(out), dtype=q.dtype.name,
        mask=None if mask is None else MaskLayout(mask.dtype.name, element_strides(mask), fill=fill), **attributes,
    )  # fmt: skip


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None, threads: int = 1, **attributes: Any
) -> tuple[np.ndarray, Solution]:
    (b, h, s, _), t, e = q.shape, k.shape[2], v.shape[3]
    out = np.full((b, s, h, e + 3), 7.25, q.dtype).transpose(HEADS_LAST)
    inside = out[..., :e]
    arrays = {"q": q, "k": k, "v": v, "out": inside}
    if mask is not None:
        mask = arrays["mask"] = np.broadcast_to(mask, (b, h, s, t))
    chosen = plan(problem_of(q, k, v, inside, mask, **attributes), threads)
    run_plan(chosen, arrays)
    assert (out[..., e:] == q.dtype.type(7.25)).all()
    return inside, chosen


def expected(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray | None = None,
    scale: float = 1.0,
    causal: bool = False,
    fill: float = -np.inf,
) -> np.ndarray:
    wide = [x.astype(np.float64) for x in (q, k, v)]
    if mask is not None:
        wide.append(mask if mask.dtype == np.bool_ else mask.astype(np.float64))
    op = make_op("attention", scale=scale, causal=causal, fill=fill)
    shape = op.compute_shape([Shape(from_numpy(x.dtype), x.shape) for x in wide])
    with np.errstate(invalid="ignore"):
        return op.compute(shape, wide)


def check(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None, threads: int = 1, **attributes: Any
) -> Solution:
    attributes.setdefault("scale", q.shape[3] ** -0.5)
    got, chosen = attend(q, k, v, mask, threads, **attributes)
    attributes.pop("fast_math", None)
    want = expected(q, k, v, mask, **attributes)
    tolerance = 5e-6 if q.dtype == np.float32 else 1e-13
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    return chosen


SHAPES = [
    # batch, query heads, key heads, queries, keys, features, width
    (1, 12, 12, 128, 128, 64, 64),
    (1, 3, 3, 197, 197, 64, 64),
    (2, 4, 2, 7, 9, 5, 3),
    (2, 4, 2, 70, 700, 65, 33),
    (3, 2, 2, 49, 49, 32, 32),
    (1, 2, 1, 40, 20, 64, 80),
    (1, 2, 1, 20, 30, 600, 700),
    (2, 2, 2, 65, 1, 1, 1),
    (2, 4, 2, 1, 65, 64, 64),
    (1, 6, 2, 3, 600, 20, 40),
    (1, 8, 1, 1, 1300, 33, 17),
    (1, 1, 1, 1, 1, 1, 1),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_odd_sizes_and_shared_heads(shape: tuple[int, ...], causal: bool) -> None:
    check(*operands(*shape), causal=causal)


@pytest.mark.parametrize("ceiling", ["avx2", "sse"])
@pytest.mark.parametrize("queries", [1, 17, 49])
def test_narrower_vectors(monkeypatch: pytest.MonkeyPatch, ceiling: str, queries: int) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    q, k, v = operands(1, 2, 1, queries, 49, 20, 40)
    check(q, k, v, causal=True)
    check(q, k, v, normal(queries, 49))


def test_panels_of_three_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    tile = next(t for t in TILES if t.vectors == 3 and t.dtype == "float32")
    for module in (attention_kernel, select):
        monkeypatch.setattr(module, "tile_for", lambda dtype: tile)
    for queries in (1, 3, 5, 9, 29):
        q, k, v = operands(1, 2, 1, queries, 50, 20, 21)
        check(q, k, v, causal=True)
        check(q, k, v, normal(50))


@pytest.mark.parametrize("queries", [1, 2, 3, 4])
@pytest.mark.parametrize("keys", [1, 3, 4, 5, 16, 4100, 9001])
def test_few_queries_read_keys_in_several_places(queries: int, keys: int) -> None:
    q, k, v = operands(1, 1, 1, queries, keys, 20, 75)
    check(q, k, v, causal=True)
    check(q, k, v, normal(queries, keys, seed=4), threads=4)


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("keys", [1, 33, 1100])
def test_panels_of_which_only_the_last_see_keys(keys: int, threads: int) -> None:
    q, k, v = operands(1, 1, 1, keys + 75, keys, 16, 40)
    check(q, k, v, causal=True, threads=threads)
    check(q, k, v, np.arange(keys) >= keys // 2, causal=True, threads=threads)


@pytest.mark.parametrize("shape", [(2, 4, 2, 35, 290, 33, 40), (2, 2, 1, 2, 700, 9, 11), (1, 2, 2, 1, 33, 16, 16)])
def test_float64(shape: tuple[int, ...]) -> None:
    q, k, v = operands(*shape, dtype=np.float64)
    check(q, k, v, causal=True)
    check(q, k, v, normal(shape[3], shape[4], dtype=np.float64), threads=8)


@pytest.mark.parametrize("queries", [1, 3, 40])
def test_fast_math(queries: int) -> None:
    check(*operands(1, 2, 2, queries, 300, 32, 32), fast_math=True)


MASKS = [(2, 1, 1, 300), (1, 4, 1, 300), (2, 4, "s", 300), ("s", 300), (4, "s", 1), (300,), (1,)]


@pytest.mark.parametrize("queries", [1, 2, 45])
@pytest.mark.parametrize("lens", MASKS)
def test_masks_of_all_broadcasts(lens: tuple[Any, ...], queries: int) -> None:
    q, k, v = operands(2, 4, 2, queries, 300, 24, 24)
    mask = normal(*(queries if n == "s" else n for n in lens), seed=4)
    check(q, k, v, mask)
    check(q, k, v, mask > 0.5, causal=True)


@pytest.mark.parametrize("queries", [1, 45])
def test_masks_of_any_strides(queries: int) -> None:
    q, k, v = operands(1, 2, 2, queries, 100, 24, 24)
    mask = normal(100, queries, 2).T[None]
    check(q, k, v, mask)
    check(q, k, v, mask > 0)
    check(q, k, v, normal(queries, 200)[:, ::2] > 0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [5, 16, 17, 49, 77])
def test_masks_with_queries_side_by_side(queries: int, causal: bool) -> None:
    q, k, v = operands(3, 2, 2, queries, 50, 20, 32)
    mask = normal(3, 2, 50, queries, seed=4)
    mask[0, 1, :, 2], mask[1, 0, 3], mask[2, 0, 7, 4] = np.nan, -np.inf, np.inf
    mask = mask.swapaxes(2, 3)
    check(q, k, v, mask, causal=causal)
    check(q, k, v, mask > 0, causal=causal)
    check(q, k, v, mask[:1, :1], causal=causal)
    check(q, k, v, np.where(mask[:, :1] > 0, np.float32(0), np.float32(-np.inf)), scale=-0.7)


@pytest.mark.parametrize("ceiling", ["avx512", "avx2", "sse"])
@pytest.mark.parametrize("width", [7, 16, 24, 32, 48, 64])
@pytest.mark.parametrize("lens", [(49, 49), (16, 64), (33, 29), (65, 13), (12, 144)])
def test_windows(monkeypatch: pytest.MonkeyPatch, ceiling: str, width: int, lens: tuple[int, int]) -> None:
    """All rows of a product in one call of the tile, which may store them in the result."""
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    q, k, v = operands(3, 2, 2, *lens, 32, width)
    check(q, k, v)
    check(q, k, v, normal(2, lens[1], lens[0], seed=4).swapaxes(1, 2))
    check(q, k, v, normal(2, *lens, seed=4))


def test_values_that_are_not_finite_stay_in_their_column() -> None:
    q, k, v = operands(2, 2, 2, 49, 49, 32, 48)
    v[0, 0, 3, 5], v[1, 1, 48, 40] = np.nan, np.inf
    check(q, k, v)
    hidden = np.arange(49) == 3
    check(q, k, v, np.where(hidden, np.float32(-np.inf), np.float32(0)))


@pytest.mark.parametrize("queries", [1, 30])
def test_masks_that_repeat_within_the_batch(queries: int) -> None:
    q, k, v = operands(6, 2, 2, queries, 20, 8, 8)
    mask = normal(3, 2, queries, 20, seed=4)
    out = np.zeros_like(q)
    layout = MaskLayout("float32", element_strides(mask), 3)
    run_plan(plan(replace(problem_of(q, k, v, out), mask=layout)), {"q": q, "k": k, "v": v, "out": out, "mask": mask})
    np.testing.assert_allclose(out, expected(q, k, v, np.tile(mask, (2, 1, 1, 1))), rtol=5e-6, atol=5e-6)


def test_operands_of_any_strides() -> None:
    packed = normal(2, 37, 3, 4, 20)
    q, k, v = (packed[:, :, part].transpose(HEADS_LAST) for part in range(3))
    check(q, k, v)
    cache = normal(2, 4, 90, 20)[:, :, 5:80]
    check(q, cache, cache[..., ::-1].copy(), causal=True)
    scattered = normal(20, 37, 4, 2).T
    check(scattered, scattered, v)
    check(q, k, scattered)
    check(q[:, :, :1], k, scattered)
    check(q[:, :, :1], scattered, v)
    check(np.broadcast_to(q[:, :1], q.shape), np.broadcast_to(k[:, :, :1], k.shape), v)


FILLS = (-1e9, -30.0, float(np.finfo(np.float32).min))


@pytest.mark.parametrize("queries", [1, 4, 40])
def test_a_fill_replaces_the_scores_that_a_mask_does_not_keep(queries: int) -> None:
    """A row without any key gives the mean of all values, also where a step, or a part of the keys, has none."""
    for keys, threads in ((30, 1), (2100, 4)):
        q, k, v = operands(1, 2, 2, queries, keys, 8, 8)
        mask = np.random.default_rng(5).random((2, queries, keys)) < 0.5
        mask[1, -1], mask[0, 0, keys // 3 :] = False, False
        for fill in FILLS:
            check(q, k, v, mask, threads, fill=fill)
            check(q, k, v, mask[1, -1], threads, fill=fill)
            check(q, k, v, mask.swapaxes(1, 2).copy().swapaxes(1, 2), threads, fill=fill, causal=True)
    _, chosen = attend(q, k, v, mask, fill=-1e9)
    assert "shown = False" not in chosen.launches[0].kernel.text  # what hides no key wholly skips none


@pytest.mark.parametrize("queries", [1, 4, 40])
def test_queries_that_see_no_key_give_zeros(queries: int) -> None:
    q, k, v = operands(1, 2, 2, queries, 30, 8, 8)
    for mask in (np.zeros((queries, 30), bool), np.zeros(30, bool), np.full((queries, 30), -np.inf, np.float32)):
        got, _ = attend(q, k, v, mask)
        assert not got.any()
        assert np.isnan(attend(q, k, v, mask, nan_rows=True)[0]).all()
    some = normal(queries, 30) > 0
    some[queries // 2] = False
    for mask in (some, np.where(some, np.float32(0), np.float32(-np.inf))):
        for threads in (1, 8):
            got, _ = attend(q, k, v, mask, threads, nan_rows=True)
            np.testing.assert_array_equal(np.isnan(got).all((0, 1, 3)), ~some.any(1))
            np.testing.assert_array_equal(np.isnan(got).any((0, 1, 3)), ~some.any(1))
    check(q, k, v, some)
    check(q, k, v, np.where(some, np.float32(0), np.float32(-np.inf)))
    check(*operands(1, 2, 2, queries, max(1, queries // 3), 8, 8), causal=True)


@pytest.mark.parametrize("queries", [1, 40])
def test_hidden_stretches_of_keys_longer_than_a_step(queries: int) -> None:
    q, k, v = operands(1, 2, 2, queries, 1500, 16, 16)
    for start, stop in ((0, 100), (1400, 1500), (700, 710), (0, 0)):
        mask = np.zeros((queries, 1500), bool)
        mask[:, start:stop] = True
        check(q, k, v, mask)
        check(q, k, v, mask[0], threads=4)
        check(q, k, v, np.where(mask, np.float32(0), np.float32(-np.inf)), threads=4)


@pytest.mark.parametrize("queries", [1, 40])
def test_the_lowest_number_as_mask(queries: int) -> None:
    lowest = np.finfo(np.float32).min
    q, k, v = operands(2, 2, 2, queries, 600, 16, 16)
    mask = np.where(np.arange(600) < np.array([[200], [0]]), np.float32(0), lowest)[:, None, None]
    got, _ = attend(q, k, v, mask, scale=0.25)
    np.testing.assert_allclose(got[:1], expected(q[:1], k[:1], v[:1], mask[:1], 0.25), rtol=5e-6, atol=5e-6)
    # added to the lowest number every score is lost: all keys count alike
    mean = np.broadcast_to(v[1:].astype(np.float64).mean(2, keepdims=True), got[1:].shape)
    np.testing.assert_allclose(got[1:], mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("queries", [3, 40])
def test_values_that_are_not_finite_stay_in_their_row(queries: int, value: float) -> None:
    q, k, v = operands(1, 2, 1, queries, 700, 16, 16)
    q, k = np.abs(q), np.abs(k)
    q[0, 1, 1, 3] = value
    check(q, k, v)
    mask = normal(queries, 700, seed=5)
    mask[2, 650] = value
    check(np.abs(operands(1, 2, 1, queries, 700, 16, 16)[0]), k, v, mask)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(("queries", "keys"), [(1, 50), (2, 70), (3, 700), (7, 4500), (40, 45), (70, 700), (90, 30)])
def test_infinite_masks_of_keys_that_the_causal_bound_hides(queries: int, keys: int, value: float) -> None:
    q, k, v = operands(1, 2, 2, queries, keys, 16, 16)
    hidden = np.arange(keys) > np.arange(queries)[:, None] + keys - queries
    mask = np.where(hidden, np.float32(value), normal(queries, keys, seed=5))
    check(q, k, v, mask, causal=True)
    check(q, k, v, np.asfortranarray(mask), causal=True)
    for first in {keys // 2, keys - 1}:  # masks of each key: the queries from some one on see all of them
        check(q, k, v, np.where(np.arange(keys) >= first, np.float32(value), mask[-1]), causal=True, threads=8)
    check(q, k, v, np.full((queries, 1), value, np.float32), causal=True)


def test_large_scores_do_not_overflow() -> None:
    q, k, v = operands(1, 1, 1, 33, 700, 8, 8)
    got, _ = attend(100 * q, 100 * k, v)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, expected(100 * q, 100 * k, v), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [1, 2, 20])
def test_few_heads_are_split_along_the_keys(queries: int, causal: bool) -> None:
    q, k, v = operands(1, 2, 2, queries, 3001, 24, 40)
    chosen = check(q, k, v, threads=8, causal=causal)
    assert len(chosen.launches) == 2
    assert chosen.launches[0].geometry.tasks >= 16
    hidden = np.arange(3001) < 2000
    check(q, k, v, hidden, threads=8, causal=causal)
    check(q, k, v, np.zeros(3001, bool), threads=8, causal=causal)


def over_cache(q: np.ndarray, k: np.ndarray, v: np.ndarray, past: list[int], threads: int, window: int) -> np.ndarray:
    """Return the attention of new tokens over caches, of which sequence ``i`` has ``past[i]`` rows before them."""
    out = np.full(q.shape[:3] + v.shape[3:], 7.25, q.dtype)
    limits = np.array([[n, n + q.shape[2]] for n in past], np.int64)
    problem = problem_of(q, k, v, out, scale=0.125, causal=True, limited=True, window=window)
    run_plan(plan(problem, threads), {"q": q, "k": k, "v": v, "out": out, "limits": limits})
    return out


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2), (4, 1)])
@pytest.mark.parametrize("tokens", [2, 5, 8])
def test_tokens_over_a_cache_have_the_bits_of_tokens_alone(tokens: int, heads: int, kv_heads: int, window: int) -> None:
    if heads // kv_heads > decode_queries(tile_for(element_types("float32"))):
        pytest.skip("vectors are too short for so many heads of a group")
    past, room = [3, 254, 510, 1020], 1100  # of so many rows, parts of the keys and their joins change
    q = normal(4, heads, tokens, 64, seed=1)
    k, v = (normal(4, kv_heads, room, 64, seed=s) for s in (2, 3))
    together = over_cache(q, k, v, past, 4, window)
    for i, before in enumerate(past):
        for t in range(tokens):
            size = -(-(before + t + 1) // 64) * 64  # a buffer that has just the room
            one = [
                np.ascontiguousarray(x)
                for x in (q[i : i + 1, :, t : t + 1], k[i : i + 1, :, :size], v[i : i + 1, :, :size])
            ]
            got = over_cache(*one, [before + t], 4, window)
            np.testing.assert_array_equal(got[0, :, 0], together[i, :, t])
        keys = slice(max(before + 1 - window, 0) if window else 0, before + 1)
        group = heads // kv_heads
        want = expected(q[i : i + 1, :, :1], *(np.repeat(x[i : i + 1, :, keys], group, 1) for x in (k, v)), scale=0.125)
        np.testing.assert_allclose(together[i : i + 1, :, :1], want, rtol=1e-5, atol=1e-5)


def test_wide_results_of_split_keys() -> None:
    assert len(check(*operands(1, 1, 1, 40, 3001, 24, 700), threads=8).launches) == 2


def test_kernels_do_not_depend_on_lengths() -> None:
    def kernels(*shape: int, **attributes: Any) -> list[str]:
        q, k, v = operands(*shape)
        out = np.empty((*q.shape[:3], v.shape[3]), np.float32)
        return [kernel.text for kernel in plan(problem_of(q, k, v, out, **attributes)).kernels]

    assert kernels(1, 12, 12, 128, 128, 64, 64) == kernels(3, 8, 2, 50, 1000, 300, 20, causal=True, scale=0.3)
    assert kernels(1, 12, 12, 1, 128, 64, 64) == kernels(2, 8, 8, 1, 1000, 300, 20, scale=0.3)


@needs_page_protection
@pytest.mark.parametrize("queries", [1, 5, 37])
@pytest.mark.parametrize("width", [5, 33, 64])
def test_nothing_is_read_or_written_past_the_end(queries: int, width: int) -> None:
    pages = GuardedPages()
    q, k, v = (pages.place(normal(1, 2, n, m)) for n, m in ((queries, 21), (43, 21), (43, width)))
    masks = pages.place(normal(queries, 43)), pages.place(normal(queries, 43) > 0), pages.place(normal(43) > 0)
    for mask in (None, *masks):
        out = pages.place(np.zeros((1, 2, queries, width), np.float32))
        arrays = {"q": q, "k": k, "v": v, "out": out}
        if mask is not None:
            mask = arrays["mask"] = np.broadcast_to(mask, (1, 2, queries, 43))
        run_plan(plan(problem_of(q, k, v, out, mask)), arrays)
        np.testing.assert_allclose(out, expected(q, k, v, mask), rtol=1e-5, atol=1e-5)


def test_problems_that_no_kernel_computes_are_refused() -> None:
    q, k, v = operands(1, 2, 2, 3, 4, 5, 6)
    out = np.empty((1, 2, 3, 6), np.float32)
    with pytest.raises(ShapeError, match="3 elements apart in the result"):
        problem_of(q, k, v, out.reshape(1, 2, 6, 3).swapaxes(2, 3))
    with pytest.raises(ShapeError, match="mask of dtype float64"):
        problem_of(q, k, v, out, np.zeros((1, 2, 3, 4)))
    with pytest.raises(ShapeError, match="do not divide"):
        problem_of(normal(1, 3, 3, 5), k, v, out)
    with pytest.raises(ShapeError, match="int32"):
        problem_of(q.astype(np.int32), k, v, out)
