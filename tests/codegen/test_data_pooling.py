"""Pooling kernels against the operator's NumPy meaning."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu.data.pooling import pooling_launch, windows
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.ops.base import make_op
from tests.values import empty_in_order, in_order, normal

from .launching import run_launch, tensor_of

random = functools.partial(normal, scale=8)


def check(
    x: np.ndarray,
    order: Any = None,
    out_order: Any = None,
    gap: int = 0,
    fast_math: bool = False,
    **attributes: Any,
) -> None:
    op = make_op("pooling", **attributes)
    shape = op.compute_shape([Shape(from_numpy(x.dtype), x.shape)])
    expected = op.compute(shape, [x])
    x = in_order(x, order, gap)
    out = empty_in_order(shape.lens, x.dtype, order if out_order is None else out_order, gap)
    launch = pooling_launch(op, windows(op, x.shape, out.shape), tensor_of(x), tensor_of(out), fast_math=fast_math)
    run_launch(launch, {"x": x, "out": out})
    wide = np.float64 if x.dtype.kind not in "iub" else x.dtype
    tolerance = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}.get(x.dtype.name, 0)
    np.testing.assert_allclose(out.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance)


NCHW, NHWC = (0, 1, 2, 3), (0, 2, 3, 1)
CASES = {
    "3x3 stride 2": {"lengths": (3, 3), "stride": (2, 2), "padding": (1, 1)},
    "unequal": {"lengths": (2, 5), "stride": (1, 3), "padding": (0, 2, 1, 1)},
    "stride 1": {"lengths": (5, 5), "stride": (1, 1), "padding": (2, 2)},
    "dilated": {"lengths": (3, 2), "stride": (2, 1), "padding": (2, 1), "dilations": (2, 3)},
    "ceil": {"lengths": (3, 3), "stride": (2, 2), "padding": (0, 0, 1, 1), "ceil_mode": True},
    "global": {"dyn_global": True},
    "one axis": {"lengths": (1, 4), "stride": (1, 2), "padding": (0, 1)},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("order", [NCHW, NHWC], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("mode", ["max", "average"])
def test_modes_windows_and_memory_orders(case: str, order: tuple[int, ...], mode: str) -> None:
    check(random(2, 37, 9, 23), order, mode=mode, **CASES[case])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32], ids=lambda t: t.__name__)
@pytest.mark.parametrize("case", ["3x3 stride 2", "dilated", "global"])
def test_means_by_reciprocals(case: str, dtype: Any) -> None:
    for channels, order in ((37, NHWC), (5, NCHW)):
        check(random(2, channels, 9, 23, dtype=dtype), order, fast_math=True, mode="average", **CASES[case])
    special = random(1, 33, 6, 7, dtype=dtype)
    if np.issubdtype(dtype, np.floating):
        special[0, ::5, 2, 3], special[0, 1::5, 4, 4] = np.inf, np.nan
    check(special, NHWC, fast_math=True, mode="average", **CASES[case])


@pytest.mark.parametrize("order", [NCHW, NHWC], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("case", ["3x3 stride 2", "dilated", "ceil"])
def test_mean_over_padding_too(case: str, order: tuple[int, ...]) -> None:
    check(random(1, 20, 10, 11), order, mode="average", count_include_pad=True, **CASES[case])


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("stride", [1, 2, 5])
def test_dilated_means_of_rows_divide_no_vectors_of_integers(stride: int, include: bool) -> None:
    """Numbers of elements in windows were quotients by the dilation: 0.3 to 0.5 of ONNX Runtime's speed."""
    window = {"lengths": (3, 3), "stride": (1, stride), "padding": (2, 2), "dilations": (1, 2)}
    attributes = {"mode": "average", "count_include_pad": include, **window}
    check(random(2, 3, 7, 61), NCHW, **attributes)
    op, x = make_op("pooling", **attributes), np.zeros((2, 3, 7, 61), np.float32)
    lens = op.compute_shape([Shape(from_numpy(x.dtype), x.shape)]).lens
    launch = pooling_launch(op, windows(op, x.shape, lens), tensor_of(x), tensor_of(np.zeros(lens, np.float32)))
    divided = re.findall(r"\bdiv\([^)]*\)", launch.kernel.text)
    assert divided and set(divided) == {"div(m0, count)"}


@pytest.mark.parametrize("lp_order", [1, 2, 3])
@pytest.mark.parametrize("order", [NCHW, NHWC], ids=["nchw", "nhwc"])
def test_norms(lp_order: int, order: tuple[int, ...]) -> None:
    check(random(1, 18, 8, 9), order, mode="lpnorm", lp_order=lp_order, **CASES["3x3 stride 2"])


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint8", "int32", "int64", "bool"])
@pytest.mark.parametrize("order", [NCHW, NHWC], ids=["nchw", "nhwc"])
def test_max_of_other_types(dtype: str, order: tuple[int, ...]) -> None:
    check(np.abs(random(1, 5, 6, 9)).astype(dtype), order, mode="max", **CASES["3x3 stride 2"])


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8"])
def test_mean_of_other_types(dtype: str) -> None:
    check(random(1, 5, 6, 9).astype(dtype), NHWC, mode="average", **CASES["unequal"])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("lengths", [(1, 2), (2, 2), (3, 3), (3, 1), (5, 5)], ids=str)
def test_nan_at_every_place_of_a_window(lengths: tuple[int, int], order: tuple[int, ...]) -> None:
    """Beside infinities, in windows with odd and even numbers of elements, and where all are the lowest."""
    x = np.full((1, 33, 12, 40), -np.inf, np.float32)
    rng = np.random.default_rng(1)
    for value in (np.nan, np.inf, 3.0):
        places = [rng.integers(0, n, 60) for n in x.shape]
        x[tuple(places)] = value
    for stride in (1, 2):
        check(x, order, mode="max", padding=(0, 0, 0, 0), stride=(stride, stride), lengths=lengths)
        check(x[..., :1], order, mode="max", padding=(0, 0, 0, 0), stride=(stride, 1), lengths=(lengths[0], 1))


@pytest.mark.parametrize("mode", ["max", "average"])
def test_long_rows_in_parts(mode: str) -> None:
    for padded in (False, True):
        check(
            random(1, 2, 3, 5003),
            mode=mode,
            padding=(1, 1, 1, 1),
            stride=(1, 2),
            lengths=(3, 3),
            count_include_pad=padded,
        )


def test_nan_is_the_largest() -> None:
    for order in (NCHW, NHWC):
        x = random(1, 20, 12, 12)
        x[0, ::3, 5, 7] = np.nan
        check(x, order, mode="max", **CASES["3x3 stride 2"])


@pytest.mark.parametrize("mode", ["max", "average", "lpnorm"])
@pytest.mark.parametrize("lens", [(1, 64, 4, 9), (2, 70, 5, 3), (1, 131, 3, 70), (1, 66, 2, 2)], ids=str)
def test_windows_that_slide_over_channels_last(mode: str, lens: tuple[int, ...]) -> None:
    """Overlaps of successive windows are reused, for whole vectors of channels and the remainder."""
    x = random(*lens)
    for lengths, stride, dilation in (
        ((3, 3), (1, 1), (1, 1)),
        ((3, 3), (2, 2), (1, 1)),
        ((2, 5), (1, 2), (2, 1)),
        ((2, 3), (1, 1), (1, 2)),
        ((1, 7), (1, 1), (1, 1)),
        ((3, 2), (1, 3), (1, 1)),
        ((1, 1), (2, 2), (1, 1)),
    ):
        around = [d * (n - 1) // 2 for n, d in zip(lengths, dilation)]
        window = {"mode": mode, "lengths": lengths, "stride": stride, "dilations": dilation}
        padding = [*around, *(a + 1 if n > 2 else a for a, n in zip(around, lengths))]
        for padded in (False, True):
            check(x, NHWC, padding=padding, count_include_pad=padded, fast_math=padded, **window)
    check(x, NHWC, gap=5, mode=mode, lengths=(3, 3), stride=(1, 1), padding=(1, 1))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [64, 80])
def test_nan_and_infinity_in_windows_that_slide(channels: int, stride: int) -> None:
    x = random(1, channels, 9, 70)
    for seed, value in enumerate((np.nan, np.inf, -np.inf, -np.nan)):
        x[tuple(np.random.default_rng(seed).integers(0, n, 300) for n in x.shape)] = value
    for lengths in ((3, 3), (2, 2), (1, 3), (4, 4)):
        for mode in ("max", "average"):
            check(x, NHWC, mode=mode, lengths=lengths, stride=(stride, stride), padding=(0, 1))
    check(x[..., 3], (0, 2, 1), mode="max", lengths=(3,), stride=(stride,), padding=(1,), dilations=(1,))


def test_sliding_past_the_caches(given_machine: Any) -> None:
    given_machine(last_cache_bytes=0)
    for lengths, stride in (((3, 3), (1, 1)), ((3, 3), (2, 2)), ((2, 2), (2, 2))):
        check(random(2, 72, 7, 12), NHWC, mode="max", lengths=lengths, stride=stride, padding=(1, 1))


def test_windows_over_nothing() -> None:
    for lens in ((0, 64, 4, 4), (2, 0, 4, 4)):
        check(random(*lens), NHWC, mode="max", **CASES["3x3 stride 2"])
        for order in (NCHW, NHWC):
            for mode in ("max", "average", "lpnorm"):
                check(random(*lens), order, mode=mode, lengths=(9, 3), stride=(2, 2), padding=(0, 0))


def test_windows_in_the_padding_only() -> None:
    for order in (NCHW, NHWC):
        for mode in ("max", "average"):
            check(random(1, 16, 3, 3), order, mode=mode, lengths=(2, 2), stride=(2, 2), padding=(3, 3))


def test_one_and_three_spatial_axes() -> None:
    check(random(2, 3, 40), mode="max", lengths=(3,), stride=(2,), padding=(1,), dilations=(1,))
    volume = {"lengths": (2, 3, 3), "stride": (1, 2, 2), "padding": (0, 1, 1), "dilations": (1, 1, 1)}
    for order in ((0, 1, 2, 3, 4), (0, 2, 3, 4, 1)):
        check(random(2, 17, 4, 7, 9), order, mode="average", **volume)


def test_rows_longer_than_the_scratch_memory() -> None:
    check(random(1, 1, 2, 9000), mode="average", lengths=(2, 7), stride=(1, 2), padding=(0, 3))


def test_results_inside_of_a_larger_tensor() -> None:
    check(random(2, 24, 9, 9), NHWC, gap=7, mode="max", **CASES["3x3 stride 2"])
    check(random(2, 24, 9, 9), NCHW, NHWC, gap=7, mode="average", **CASES["3x3 stride 2"])
    check(random(2, 3, 19, 18), NHWC, NCHW, gap=3, mode="max", **CASES["3x3 stride 2"])
