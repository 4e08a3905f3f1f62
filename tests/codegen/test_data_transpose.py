"""Transposing copies against NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.data.transpose import transpose_launch
from tests.values import digits, empty_in_order, in_order

from .launching import run_launch, tensor_of


def check(
    lens: Sequence[int],
    x_order: Sequence[int],
    out_order: Sequence[int],
    dtype: Any = np.float32,
    gap: int = 0,
) -> None:
    values = digits(*lens, dtype=dtype)
    x = in_order(values, x_order, gap)
    out = empty_in_order(lens, values.dtype, out_order, gap)
    launch = transpose_launch(tensor_of(x), tensor_of(out))
    assert launch is not None
    around = np.array(out.base if out.base is not None else out)
    run_launch(launch, {"x0": x, "out0": out})
    np.testing.assert_array_equal(out, values)
    if gap:
        np.testing.assert_array_equal(out.base[..., -gap:], around[..., -gap:])


@pytest.mark.parametrize("lens", list(itertools.product((4, 7, 15, 16, 33, 130), repeat=2)), ids=str)
def test_two_dimensions(lens: tuple[int, int]) -> None:
    check(lens, (0, 1), (1, 0))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "bfloat16", "int32", "float64"])
@pytest.mark.parametrize("lens", [(40, 70), (3, 200), (200, 4)], ids=str)
def test_each_width(dtype: str, lens: tuple[int, int]) -> None:
    check(lens, (0, 1), (1, 0), pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize("channels", [2, 3, 4, 5, 64])
def test_image_layouts(channels: int) -> None:
    lens = (2, channels, 9, 11)
    check(lens, (0, 1, 2, 3), (0, 2, 3, 1))
    check(lens, (0, 2, 3, 1), (0, 1, 2, 3))


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("channels", [5, 6, 7, 8, 9, 12, 15])
def test_few_channels(channels: int, dtype: str, given_machine: Any) -> None:
    for cache in (1 << 30, 0):  # the second time as if tensors were larger than the caches
        given_machine(last_cache_bytes=cache)
        for length in (8, 16, 17, 63, 64, 67, 300):
            check((2, channels, length), (0, 1, 2), (0, 2, 1), dtype)
            check((2, channels, length), (0, 2, 1), (0, 1, 2), dtype)
        check((9001, channels), (0, 1), (1, 0), dtype)
        check((9001, channels), (1, 0), (0, 1), dtype)


def test_shuffled_channel_groups() -> None:
    for groups, channels in ((3, 80), (4, 68), (2, 5), (8, 48), (24, 2)):
        x_order, out_order = (0, 3, 1, 2), (0, 3, 2, 1)
        check((1, groups, channels, 9), x_order, out_order)


def test_dimensions_around_the_pair() -> None:
    check((3, 20, 5, 18), (0, 3, 2, 1), (2, 0, 1, 3))
    check((20, 6, 18), (1, 2, 0), (0, 1, 2))


def test_rows_with_gaps() -> None:
    check((37, 50), (0, 1), (1, 0), gap=5)
    check((2, 21, 6, 9), (0, 1, 2, 3), (0, 2, 3, 1), gap=3)


def test_rows_that_alias_in_the_cache() -> None:
    check((512, 130), (0, 1), (1, 0))
    check((2048, 17), (0, 1), (1, 0), np.uint8)
    check((2, 512, 5, 13), (0, 1, 2, 3), (0, 2, 3, 1))


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_past_the_caches(dtype: str, given_machine: Any) -> None:
    """Rows of the target that are whole cache lines or not, and tensors smaller and larger than a tile."""
    given_machine(last_cache_bytes=0)
    for lens in ((64, 128), (128, 37), (50, 64), (4200, 96), (33, 2080), (5, 300), (300, 7), (3, 70), (70, 2)):
        check(lens, (0, 1), (1, 0), dtype)
    check((3, 64, 5, 32), (0, 3, 2, 1), (2, 0, 1, 3), dtype)
    check((37, 50), (0, 1), (1, 0), dtype, gap=5)


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_past_the_caches_from_the_beginning_of_a_line(dtype: str, start: int, given_machine: Any) -> None:
    """All rows of the target begin at a cache line, or one element later; NumPy's allocations begin anywhere."""
    given_machine(last_cache_bytes=0)
    x = np.random.default_rng(0).integers(0, 100, (40, 64)).astype(dtype)
    room = np.zeros(x.size + 2 * host.CACHE_LINE, dtype)
    start += -room.__array_interface__["data"][0] % host.CACHE_LINE // room.itemsize
    expected = room.copy()
    expected[start : start + x.size] = x.ravel()
    source, out = in_order(x, (1, 0)), room[start : start + x.size].reshape(x.shape)
    launch = transpose_launch(tensor_of(source), tensor_of(out))
    assert launch is not None
    run_launch(launch, {"x0": source, "out0": out})
    np.testing.assert_array_equal(room, expected)


def test_longer_than_a_ribbon() -> None:
    check((3, 9000), (0, 1), (1, 0))
    check((9001, 2), (0, 1), (1, 0))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("times", [2, 3, 4])
def test_repeated_elements(times: int, dtype: str) -> None:
    for lens in ((5, 37), (3, 9001), (2, 4)):
        x = np.random.default_rng(0).integers(0, 100, lens).astype(dtype)
        wide = np.broadcast_to(x[..., None], (*lens, times))
        out = np.zeros(wide.shape, dtype)
        launch = transpose_launch(tensor_of(wide), tensor_of(out))
        assert launch is not None
        run_launch(launch, {"x0": wide, "out0": out})
        np.testing.assert_array_equal(out, wide)


def test_copies_that_keep_the_inner_dimension_are_left_to_others() -> None:
    x = np.zeros((4, 5, 6), np.float32)
    out = in_order(x, (1, 0, 2))
    assert transpose_launch(tensor_of(x), tensor_of(out)) is None
    assert transpose_launch(tensor_of(np.broadcast_to(x[:1, :1], x.shape)), tensor_of(out)) is None
