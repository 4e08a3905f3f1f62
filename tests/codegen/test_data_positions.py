"""Position tables made by kernels equal NumPy's for resizing and padding, bit by bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu.data.resize import (
    Resampled,
    nearest_positions,
    open_axes,
    open_resize_launch,
    pad_positions,
    tap_positions,
)
from mgx_numba.codegen.problems.cluster import Tensor
from mgx_numba.core.types import Type
from mgx_numba.ops.base import make_op
from mgx_numba.ops.resize import (
    COORDINATES,
    NEAREST,
    interpolation_taps,
    nearest_index,
    scaled_length,
    source_coordinates,
)

from .launching import run_launch
from .symbolic import Plans, symbols

N, M = symbols("n", "m")
LENGTHS = (1, 2, 3, 7, 16, 35, 100, 333)
FACTORS = (0.6, 1.7)


def resize(mode: str, how: str, **attributes: Any) -> Any:
    return make_op("resize", scales=(2.0,), mode=mode, coordinate_transformation_mode=how, **attributes)


@pytest.mark.parametrize("rounding, how", [*((r, "half_pixel") for r in NEAREST), *(("floor", c) for c in COORDINATES)])
def test_nearest_positions(rounding: str, how: str) -> None:
    op = resize("nearest", how, nearest_mode=rounding)
    given = Plans(Resampled(N, M, 1.7, 3, M), lambda axis: nearest_positions(op, axis), 1)
    free = Plans(Resampled(N, M, None, 3, M), lambda axis: nearest_positions(op, axis), 1)
    for n in LENGTHS:
        cases = [(given, scaled_length(n, 1.7), float(np.float32(1.7)))]
        cases += [(free, count, count / n) for count in (1, 2, n, n + 4, 2 * n)]
        for plans, count, factor in cases:
            index = np.full(count, -1, np.int64)
            plans.run({N: n, M: count}, {"index": index})
            at = nearest_index(rounding, source_coordinates(how, n, count, factor), n)
            np.testing.assert_array_equal(index, 3 * (np.arange(n) if count == n and plans is free else at))


@pytest.mark.parametrize(
    "mode, how, dtype", [("linear", "asymmetric", "float64"), *(("cubic", how, "float32") for how in COORDINATES)]
)
def test_taps(mode: str, how: str, dtype: str) -> None:
    op = resize(mode, how, cubic_coeff_a=-0.6)
    for n, factor in itertools.product(LENGTHS, FACTORS):
        count = scaled_length(n, factor)
        room = count + 5
        axis = Resampled(n, count, float(np.float32(factor)), 2, room)
        taps = interpolation_taps(mode, source_coordinates(how, n, count, axis.factor or 0), n, op.cubic_coeff_a)
        index, weight = np.zeros(len(taps) * room, np.int64), np.zeros(len(taps) * room, dtype)
        if count:
            run_launch(tap_positions(op, axis, dtype), {"index": index, "weight": weight})
            for k, (at, share) in enumerate(taps):
                np.testing.assert_array_equal(index[k * room : (k + 1) * room], 2 * np.pad(at, (0, 5), "edge"))
                own = np.pad(share, (0, 5), "edge").astype(dtype)
                np.testing.assert_allclose(weight[k * room : (k + 1) * room], own, rtol=0, atol=3e-7)


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_positions_of_paddings(mode: str) -> None:
    op = make_op("pad", pads=(0, 0), mode=mode)
    before = 4
    plans = Plans((N, M), lambda axis: pad_positions(op.mode, axis[0], before, axis[1], 5), 1)
    for n, after in itertools.product(LENGTHS, (0, 1, 9, 40)):
        count = before + n + after
        index = np.full(count, -1, np.int64)
        plans.run({N: n, M: count}, {"index": index})
        np.testing.assert_array_equal(index, 5 * op.positions(n, before, after))


def test_axes_that_keep_their_length_have_no_table() -> None:
    def tensor(*lens: Any) -> Tensor:
        return Tensor(Type.float_type, lens, (1, 1, 1))

    op = make_op("resize", sizes=(N, 2 * M, 9), mode="linear")
    assert list(open_axes(op, tensor(N, M, 9), tensor(N, 2 * M, 9))) == [1]
    op = make_op("resize", scales=(1.0, 1.0, 2.0), mode="linear")
    assert list(open_axes(op, tensor(N, M, M), tensor(N, M, 2 * M))) == [2]
    launch = open_resize_launch(op, tensor(N, M, M), tensor(N, M, 2 * M))
    assert launch.operands == ("x", "out", "index2", "weight2")
