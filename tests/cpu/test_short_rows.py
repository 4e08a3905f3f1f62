"""Reductions of rows that fit in registers, and maxima that need not propagate NaN, against ref."""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np
import pytest

from ..values import normal
from .programs import broadcast, check

LENGTHS = [1, 2, 7, 10, 16, 17, 31, 32, 49, 64, 100, 127, 128, 129]


def data(shape, seed=0, special=False, dtype=np.float32):
    values = normal(*shape, seed=seed, scale=3, dtype=np.float64)
    if special:
        values.reshape(-1)[:: 2 * shape[-1] + 1] = np.nan
        values.reshape(-1)[1 :: 3 * shape[-1] + 1] = -np.inf
        values.reshape(-1)[2 :: 5 * shape[-1] + 1] = np.inf
    return values.astype(dtype)


def softmax(m, x, logarithm=False, keep_max=False):
    lens, axis = x.shape.lens, x.shape.ndim - 1
    top = m.add_instruction("reduce_max", [x], axes=[axis])
    away = m.add_instruction("sub", [x, broadcast(m, top, lens)])
    e = m.add_instruction("exp", [away])
    total = m.add_instruction("reduce_sum", [e], axes=[axis])
    if logarithm:
        result = m.add_instruction("sub", [away, broadcast(m, m.add_instruction("log", [total]), lens)])
    else:
        result = m.add_instruction("div", [e, broadcast(m, total, lens)])
    return [result, top] if keep_max else result


@pytest.mark.parametrize("past_caches", [False, True])
@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("cols", LENGTHS)
def test_softmax(cols, fast_math, past_caches, given_machine):
    if past_caches:
        given_machine(last_cache_bytes=0)
    x = data((21, cols))
    x[3:5] = -np.inf
    x[7, :-1] = -np.inf
    check([x], lambda m, p: softmax(m, p[0]), fast_math=fast_math)
    check([data((21, cols), 1, special=True)], lambda m, p: softmax(m, p[0]), fast_math=fast_math)


@pytest.mark.parametrize("cols", [10, 64, 200])
@pytest.mark.parametrize("fast_math", [False, True])
def test_log_softmax_and_maxima_as_results(cols, fast_math):
    x = data((9, cols), special=True)
    check([x], lambda m, p: softmax(m, p[0], logarithm=True), fast_math=fast_math)
    check([x], lambda m, p: softmax(m, p[0], keep_max=True), fast_math=fast_math)


@pytest.mark.parametrize("fast_math", [False, True])
def test_largest_numbers(fast_math):
    x = np.full((4, 12), np.finfo(np.float32).min, np.float32)
    x[1, 3] = 0.0
    x[2] = np.finfo(np.float32).max
    x[3, ::2] = 1e30
    check([x], lambda m, p: softmax(m, p[0]), fast_math=fast_math)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("cols", [5, 33, 64])
def test_softmax_of_other_types(dtype, cols):
    rtol = 1e-5 if dtype is np.float64 else 0.03
    check([data((6, cols), dtype=dtype)], lambda m, p: softmax(m, p[0]), rtol)


@pytest.mark.parametrize("cols", LENGTHS)
def test_layer_norm(cols):
    def build(m, p):
        lens = p[0].shape.lens
        mean = m.add_instruction("reduce_mean", [p[0]], axes=[1])
        away = m.add_instruction("sub", [p[0], broadcast(m, mean, lens)])
        square = m.add_instruction("mul", [away, away])
        variance = m.add_instruction("reduce_mean", [square], axes=[1])
        root = m.add_instruction("sqrt", [variance])
        scaled = m.add_instruction("div", [away, broadcast(m, root, lens)])
        return m.add_instruction("mul", [scaled, broadcast(m, p[1], lens)])

    check([data((13, cols + 1)), data((cols + 1,), 1)], build)


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64, np.uint8])
def test_reductions(name, dtype):
    for cols in (2, 9, 49, 64):
        x = np.random.default_rng(cols).integers(1, 3, (11, 3, cols)).astype(dtype)
        check([x], lambda m, p: m.add_instruction(name, [p[0]], axes=[2]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32])
@pytest.mark.parametrize("cols", range(1, 9))
def test_many_tiny_rows(cols, dtype):
    """A vector holds one element of each of several rows if there are at least 64 rows of at most 6 elements."""
    names = ["reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_mean"]
    rtol = 1e-2 if dtype is np.float16 else 1e-5
    for lens in ((63, cols), (64, cols), (2, 131, cols)):
        x = data(lens, special=np.issubdtype(dtype, np.floating)).astype(dtype)
        axis = len(lens) - 1
        check([x], lambda m, p, axis=axis: [m.add_instruction(n, [p[0]], axes=[axis]) for n in names], rtol)
        if np.issubdtype(dtype, np.floating):
            check([x], lambda m, p: softmax(m, p[0]), rtol)
            check([x], lambda m, p: softmax(m, p[0], logarithm=True, keep_max=True), rtol)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.bool_])
def test_rows_of_narrow_elements(dtype):
    """Rows that fill few registers, but have more elements than a vector may."""
    names = ("reduce_any", "reduce_all") if dtype is np.bool_ else ("reduce_sum", "reduce_mean", "reduce_max")
    for cols in (128, 200, 256, 257, 512):
        x = np.random.default_rng(cols).integers(0, 2, (3, cols)).astype(dtype)
        check([x], lambda m, p: [m.add_instruction(name, [p[0]], axes=[1]) for name in names])


@pytest.mark.parametrize("axis", [0, 1])
def test_means_of_large_unsigned_integers(axis):
    x = np.random.default_rng(axis).integers(0, 2**64 // 64, (17, 40), np.uint64)
    x[:, :20] *= 4
    check([x], lambda m, p: m.add_instruction("reduce_mean", [p[0]], axes=[axis]))


@pytest.mark.parametrize("cols", [7, 16, 64])
def test_sums_of_what_rows_repeat(cols):
    def build(m, p):
        top = m.add_instruction("reduce_max", [p[0]], axes=[1])
        repeated = m.add_instruction("exp", [broadcast(m, top, p[0].shape.lens)])
        total = m.add_instruction("reduce_sum", [repeated], axes=[1])
        outer = m.add_instruction("reduce_sum", [broadcast(m, p[1], p[0].shape.lens)], axes=[1])
        return [total, m.add_instruction("add", [outer, top])]

    check([data((5, cols)), data((5, 1), 1)], build)


@pytest.mark.parametrize("cols", [9, 16, 49])
def test_rows_apart_and_transposed(cols):
    check([data((7, 3, 2 * cols), special=True)], lambda m, p: softmax(m, part(m, p[0], cols)), fast_math=True)
    check([data((7, cols, 5))], lambda m, p: softmax(m, turned(m, p[0])), fast_math=True)


def part(m, x, cols):
    return m.add_instruction("slice", [x], axes=[2], starts=[1], ends=[1 + cols])


def turned(m, x):
    return m.add_instruction("transpose", [x], permutation=[0, 2, 1])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.float16])
@pytest.mark.parametrize("cols", [1, 2, 3, 4, 5, 6, 8, 9])
def test_elements_of_tiny_rows_with_broadcast_operands(cols, dtype, threads):
    """Along rows of 2, 8,400 products took 19 us and powers 668; across rows they take 6 and 42."""
    whole, integers = (3, 700, cols), np.issubdtype(dtype, np.integer)
    rtol = 2e-3 if dtype is np.float16 else 1e-5

    def values(lens, seed):
        found = data(lens, seed, special=not integers and len(lens) == 3)
        return (np.abs(found) + 1 if integers else found).astype(dtype)

    def build(m, p, name, first):
        x = m.add_instruction("slice", [p[0]], axes=[2], starts=[first], ends=[first + cols])
        return m.add_instruction(name, [x, broadcast(m, p[1], whole)])

    for name in ("mul", "div", "mod" if integers else "pow"):
        for seed, lens in enumerate([(3, 700, 1), (3, 1, cols), (1, 1, 1)]):
            for width, first in ((cols, 0), (cols + 5, 2)):
                x, other = values((3, 700, width), 7), values(lens, seed)
                check([x, other], partial(build, name=name, first=first), rtol, num_threads=threads)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
@pytest.mark.parametrize("lens", [(64, 14, 2, 24), (16, 16, 3, 16), (9, 3, 2, 4), (2, 3, 4, 5), (1, 70, 5, 8)])
def test_transposes_to_tiny_rows(lens, dtype):
    """Elements of rows of 2 were loaded one by one, for a vector a row: 8 ns an element."""
    x = np.arange(np.prod(lens)).astype(dtype).reshape(lens)
    for permutation in ((1, 3, 0, 2), (0, 3, 2, 1), (3, 0, 1, 2), (1, 0, 3, 2)):
        check([x], lambda m, p, order=permutation: m.add_instruction("contiguous", [
            m.add_instruction("transpose", [p[0]], permutation=order)
        ]), num_threads=2)  # fmt: skip


@pytest.mark.parametrize("name", ["mod", "fmod", "div"])
@pytest.mark.parametrize("cols", [2, 7, 8, 9])
def test_remainders_of_short_rows(name, cols):
    """Most lanes were idle: 1,536 rows of 8 remainders of int64 took 97 us, ONNX Runtime 41."""
    rng = np.random.default_rng(cols)
    x = rng.integers(-1000, 1000, (130, cols))
    x[0], x[1] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    y = rng.integers(1, 99, cols)
    check([x, y], lambda m, p: m.add_instruction(name, [p[0], broadcast(m, p[1], x.shape)]))
