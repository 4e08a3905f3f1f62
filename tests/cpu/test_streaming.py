"""Kernels for results larger than the caches, on small tensors that count as such, against ref."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest

from ..values import normal
from .programs import broadcast, check, compile_and_run, program_of, softmax

data = functools.partial(normal, scale=3)


@pytest.fixture(autouse=True)
def no_caches(given_machine):
    given_machine(last_cache_bytes=0)


@pytest.mark.parametrize("shape", [(1,), (15,), (16,), (1000,), (70001,), (5, 37), (3, 1040), (0, 7)])
def test_pointwise(shape):
    def build(m, p):
        total = m.add_instruction("add", [p[0], p[1]])
        return [m.add_instruction("relu", [total]), m.add_instruction("mul", [total, broadcast(m, p[2], shape)])]

    check([data(*shape, special=True), data(*shape, seed=1), data(*shape[-1:], seed=2)], build)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8, np.bool_])
def test_widths_of_results(dtype):
    x = np.random.default_rng(0).integers(0, 2, (3, 333)).astype(dtype)
    check([x, x[::-1].copy()], lambda m, p: m.add_instruction("max", [p[0], p[1]]))


def test_results_that_start_anywhere():
    """Parts of a concatenation, none of which starts at a cache line."""

    def build(m, p):
        parts = [m.add_instruction(name, [x]) for name, x in zip(("neg", "exp", "relu"), p)]
        return m.add_instruction("concat", parts, axis=1)

    check([data(4, 33), data(4, 100, seed=1), data(4, 259, seed=2)], build)


def test_transposed_results():
    def build(m, p):
        return m.add_instruction("neg", [m.add_instruction("transpose", [p[0]], permutation=[1, 0])])

    check([data(37, 70)], build)


ROWS = [(3, 5), (7, 63), (5, 64), (33, 1000), (3, 2085), (2, 3, 4099), (1, 9000), (2, 70001)]


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("lens", ROWS)
def test_softmax(lens, fast_math):
    x = data(*lens)
    x[..., 1] = -np.inf
    check([x], lambda m, p: softmax(m, p[0], len(lens) - 1, lens), fast_math=fast_math)


@pytest.mark.parametrize("lens", ROWS)
def test_normalisation_of_a_sum(lens):
    axis = len(lens) - 1

    def build(m, p):
        x = m.add_instruction("add", [p[0], p[1]])
        mean = m.add_instruction("reduce_mean", [x], axes=[axis])
        centered = m.add_instruction("sub", [x, broadcast(m, mean, lens)])
        variance = m.add_instruction("reduce_mean", [m.add_instruction("mul", [centered, centered])], axes=[axis])
        scale = m.add_instruction("rsqrt", [variance])
        return [m.add_instruction("mul", [centered, broadcast(m, scale, lens)]), mean]

    check([data(*lens) + 5, data(*lens, seed=1)], build)


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min", "reduce_sum"])
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_pass_nan_and_infinity(name, axis):
    x = data(37, 2050, special=True)
    x[5, 7], x[6, 2049], x[36, 64] = np.nan, np.nan, np.inf
    check([x], lambda m, p: m.add_instruction(name, [p[0]], axes=[axis]), rtol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_along_strided_memory(axis):
    lens = (9, 37, 65)
    check([data(*lens)], lambda m, p: softmax(m, p[0], axis, lens), fast_math=True)


def test_softmax_of_columns_that_collide_in_the_caches():
    lens = (2, 33, 1024)
    x = data(*lens)
    x[1, :, 5], x[0, 3, 7] = -np.inf, np.nan
    check([x], lambda m, p: softmax(m, p[0], 1, lens))


@pytest.mark.parametrize("lens", [(37, 70), (4, 1000), (1003, 3), (130, 2300), (64, 4096), (3, 5001)])
def test_transposed_copies(lens):
    check([data(*lens, special=True)], lambda m, p: m.add_instruction("transpose", [p[0]], permutation=[1, 0]))


@pytest.mark.parametrize("mode", ["max", "average", "lpnorm"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("size", "stride", "pad"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (1, 2, 0), (5, 3, 2)])
def test_pooling(mode, channels_last, size, stride, pad):
    def build(m, p):
        x = m.add_instruction("layout", [p[0]], permutation=[0, 2, 3, 1]) if channels_last else p[0]
        y = m.add_instruction(
            "pooling", [x], mode=mode, padding=[pad] * 4, stride=[stride] * 2, lengths=[size] * 2, lp_order=2
        )
        return m.add_instruction("contiguous", [y])

    x = data(2, 67, 12, 17)
    x[0, :, 3, 3], x[1, 4, 5, 6], x[1, 66, 0, 0] = -np.inf, np.nan, np.inf
    check([x if mode == "max" else data(*x.shape)], build)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("size", [1, 4, 5, 17])
def test_local_response_normalisation(channels_last, size):
    def build(m, p):
        x = m.add_instruction("layout", [p[0]], permutation=[0, 2, 3, 1]) if channels_last else p[0]
        y = m.add_instruction("lrn", [x], alpha=1e-2, beta=0.75, bias=1.0, size=size)
        return m.add_instruction("contiguous", [y])

    check([data(2, 35, 5, 6)], build)


def long_rows(rows, cols, gap=0):
    x = data(rows, cols + gap)
    x[0, 3], x[1 % rows, :] = -np.inf, x[1 % rows, 0]
    x[2 % rows, 5], x[3 % rows, 7] = np.nan, np.inf
    return x


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("cols", [255, 256, 300, 512, 1040, 2085, 4096])
@pytest.mark.parametrize("rows", [1, 2, 5, 67])
def test_log_softmax_of_long_rows(rows, cols, fast_math):
    lens = (rows, cols)

    def build(m, p):
        top = m.add_instruction("reduce_max", [p[0]], axes=[1])
        x = m.add_instruction("sub", [p[0], broadcast(m, top, lens)])
        total = m.add_instruction("reduce_sum", [m.add_instruction("exp", [x])], axes=[1])
        return m.add_instruction("sub", [x, broadcast(m, m.add_instruction("log", [total]), lens)])

    check([long_rows(rows, cols)], build, fast_math=fast_math)


def test_rows_apart_with_masks_and_scales():
    """Rows with gaps between them, operands with one value per row and per column, results with one value per row."""
    lens = (5, 3, 700)

    def build(m, p):
        x = m.add_instruction("slice", [p[0]], axes=[2], starts=[1], ends=[701])
        scaled = m.add_instruction("mul", [x, broadcast(m, p[1], lens)])
        masked = m.add_instruction("add", [scaled, broadcast(m, p[2], lens)])
        top = m.add_instruction("reduce_max", [masked], axes=[2])
        e = m.add_instruction("exp", [m.add_instruction("sub", [masked, broadcast(m, top, lens)])])
        total = m.add_instruction("reduce_sum", [e], axes=[2])
        return [m.add_instruction("div", [e, broadcast(m, total, lens)]), top, total]

    mask = np.where(np.arange(700) % 5 == 0, -np.inf, 0).astype(np.float32)
    check([data(5, 3, 703), data(1, 3, 1, seed=1), mask], build)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_softmax_of_long_rows_of_other_types(dtype):
    lens = (7, 777)
    rtol = 1e-12 if dtype is np.float64 else 1e-2
    check([data(*lens).astype(dtype)], lambda m, p: softmax(m, p[0], 1, lens), rtol=rtol)


def test_sum_of_exponentials_of_what_varies():
    """Two passes over a row before its result, of which none has as many elements as the row."""
    lens = (9, 900)

    def build(m, p):
        mean = m.add_instruction("reduce_mean", [m.add_instruction("exp", [p[0]])], axes=[1])
        away = m.add_instruction("sub", [p[0], broadcast(m, mean, lens)])
        return [m.add_instruction("reduce_sum", [m.add_instruction("tanh", [away])], axes=[1]), mean]

    check([data(*lens)], build)


def variance(m, x, axes, lens):
    """Differences from the mean, and their variance."""
    mean = broadcast(m, m.add_instruction("reduce_mean", [x], axes=axes), lens)
    centered = m.add_instruction("sub", [x, mean])
    return centered, m.add_instruction("reduce_mean", [m.add_instruction("mul", [centered, centered])], axes=axes)


def layer_norm(m, x, axes, lens):
    centered, spread = variance(m, x, axes, lens)
    small = m.add_literal(np.full([1] * len(lens), 1e-5, np.float32))
    spread = m.add_instruction(
        "add", [spread, broadcast(m, small, [1 if a in axes else n for a, n in enumerate(lens)])]
    )
    return m.add_instruction("mul", [centered, broadcast(m, m.add_instruction("rsqrt", [spread]), lens)])


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("cols", [255, 256, 300, 512, 1040, 4099, 20001])
@pytest.mark.parametrize("rows", [1, 2, 67])
def test_layer_norm_of_long_rows(rows, cols, fast_math):
    x = data(rows, cols)
    x[1 % rows, 3], x[2 % rows, cols - 1] = -np.inf, np.nan
    check([x], lambda m, p: layer_norm(m, p[0], [1], x.shape), fast_math=fast_math)


@pytest.mark.parametrize("place", [0, 300, 2999])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_mean_of_a_variance_passes_nan_and_infinity(place, value):
    """The first of a row's elements, about which its variance is taken, may not be finite."""
    lens = (3, 3000)
    x = data(*lens)
    x[1, place] = value

    def build(m, p):
        centered, spread = variance(m, p[0], [1], lens)
        mean = m.add_instruction("sub", [p[0], centered])
        return m.add_instruction("add", [m.add_instruction("mul", [mean, broadcast(m, spread, lens)]), centered])

    check([x], build, rtol=1e-4)


def test_variance_of_rows_apart_and_of_several_axes():
    """Rows that are not one run of memory, and a sum of operands of which one is given a column."""
    lens = (5, 3, 600)

    def build(m, p):
        x = m.add_instruction("slice", [p[0]], axes=[2], starts=[1], ends=[601])
        x = m.add_instruction(
            "add", [m.add_instruction("mul", [x, broadcast(m, p[1], lens)]), broadcast(m, p[2], lens)]
        )
        return [layer_norm(m, x, [2], lens), layer_norm(m, p[3], [0, 2], lens)]

    check([data(5, 3, 603), data(1, 3, 1, seed=1), data(600, seed=2), data(*lens, seed=3)], build)


@pytest.mark.parametrize("cols", [600, 4099, 40000])
@pytest.mark.parametrize(
    ("mean", "step", "count"), [(1e4, 0, 0), (3.3, 0, 0), (0, 1e4, 1), (0, 1e3, 250), (5, -1e3, 1)]
)
def test_variance_is_as_exact_as_in_two_passes(cols, mean, step, count):
    """Far from zero, of equal values, and with a few others in front, which are the worst to start from."""
    x = (mean + data(4, cols).astype(np.float64) * np.array([[1], [1e-2], [1e-3], [0]])).astype(np.float32)
    x[:, :count] += np.float32(step)
    program = program_of([x], lambda m, p: m.add_instruction("sqrt", [variance(m, p[0], [1], x.shape)[1]]))
    (got,), fused = compile_and_run(program, [x], fast_math=True)  # else there are two passes
    assert [i.name for i in fused.main if not i.is_param] == ["fused_reduce", "@return"]
    wanted = x.astype(np.float64).std(1, keepdims=True)
    np.testing.assert_allclose(got, wanted, rtol=3e-5, atol=1e-6 * abs(mean))


def test_variance_over_many_runs_of_memory_of_which_the_first_is_unlike_the_others():
    x = data(400, 2, 256)
    x[0] += 1e3
    program = program_of([x], lambda m, p: m.add_instruction("sqrt", [variance(m, p[0], [0, 2], x.shape)[1]]))
    (got,), _ = compile_and_run(program, [x], fast_math=True)
    np.testing.assert_allclose(got, x.astype(np.float64).std((0, 2), keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("name", ["reduce_max", "reduce_mean"])
@pytest.mark.parametrize("lens", [(6, 9, 520), (40, 5, 261), (33, 7, 64), (3, 0, 600), (2, 4, 4099)])
def test_reductions_of_columns_of_several_matrices(name, lens):
    x = data(*lens, special=lens[1] > 0)
    if lens[1]:
        check([x], lambda m, p: m.add_instruction(name, [p[0]], axes=[1]))
        check([x], lambda m, p: m.add_instruction(name, [p[0]], axes=[0, 1]))
    else:
        check([x], lambda m, p: m.add_instruction("reduce_sum", [p[0]], axes=[1]))


@pytest.mark.parametrize("columns", [1, 7, 16, 33, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64])
def test_gathered_rows(columns, dtype):
    x = data(9, columns, special=True)
    with np.errstate(invalid="ignore"):
        x = x.astype(dtype)
    places = np.array([3, -1, 0, 0, 8, -9], np.int64)
    check([x, places], lambda m, p: m.add_instruction("gather", [p[0], p[1]], axis=0))
    check([x, places[:, None]], lambda m, p: m.add_instruction("gathernd", [p[0], p[1]], batch_dims=0))


@pytest.mark.parametrize("name", ["scatternd_none", "scatternd_add"])
@pytest.mark.parametrize("lens", [(4, 5), (4, 1000), (3, 2, 700), (2, 70001)])
def test_scattered_slices(name, lens, given_machine):
    """Updates that are no longer in the caches are fetched ahead; one task takes a long run of each slice."""
    given_machine(last_cache_bytes=0, l2_bytes=16)
    places = np.array([[1], [0], [1], [lens[0] - 1], [1]], np.int64)
    updates = data(5, *lens[1:], seed=1, special=name.endswith("none"))
    check([data(*lens), places, updates], lambda m, p: m.add_instruction(name, list(p)))
