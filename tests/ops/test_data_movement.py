"""Concatenation, padding, gathering and scattering against ONNX's reference and NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import IndexRangeError, ShapeError

from ..values import counting
from .running import call, onnx_reference, onnx_runtime, shape


def dyn(*dims: int | tuple[int, int], type: Type = Type.float_type) -> Shape:
    return Shape.dynamic(type, [d if isinstance(d, int) else DynamicDimension(*d) for d in dims])


def test_concat_keeps_the_common_memory_order() -> None:
    x = counting(2, 4, 5, 3).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(call("concat", x, x[:, :1], axis=1), np.concatenate([x, x[:, :1]], 1))
    assert shape("concat", x, x, axis=1).strides == (120, 1, 30, 6)
    assert shape("concat", counting(2, 0), counting(2, 3), axis=-1).lens == (2, 3)
    assert shape("concat", dyn((1, 3), 2), dyn(4, 2), axis=0) == dyn((5, 7), 2)
    for args, message in (
        ((counting(2, 3), counting(3, 2)), "lengths of axis 1 differ"),
        ((counting(2), counting(2, 1)), "ranks"),
        ((counting(2), counting(2).astype(np.int32)), "types"),
        ((), "no input"),
    ):
        with pytest.raises(ShapeError, match=message):
            shape("concat", *args, axis=0)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(1, 2, 0, 3), (0, 0, 0, 0), (2, 0, 2, 1)])
def test_pad(mode: str, pads: tuple) -> None:
    x = counting(3, 4).T
    attributes = {"constant_values": 1.5} if mode == "constant" else {}
    expected = np.pad(x, list(zip(pads[:2], pads[2:])), mode=mode, **attributes)  # type: ignore[call-overload]
    np.testing.assert_array_equal(call("pad", x, mode=mode, pads=pads, value=1.5), expected)


def test_pad_crops_and_keeps_infinities() -> None:
    x = counting(3, 4)
    np.testing.assert_array_equal(call("pad", x, pads=(-1, 1, 0, -2)), np.pad(x[1:, :2], ((0, 0), (1, 0))))
    np.testing.assert_array_equal(
        call("pad", x, pads=(-1, 0, 1, -2), mode=2), np.pad(x, ((0, 1), (0, 0)), "edge")[1:, :2]
    )
    assert call("pad", x, pads=(0, 1, 0, 0), value=-np.inf)[0, 0] == -np.inf
    assert call("pad", counting(2).astype(np.uint8), pads=(1, 0), value=7).tolist() == [7, 0, 1]
    assert call("pad", np.zeros(0, np.float32), pads=(1, 1)).tolist() == [0, 0]
    assert shape("pad", dyn((1, 3), 2), pads=(1, 0, 1, 0)) == dyn((3, 5), 2)
    with pytest.raises(ShapeError, match="cut more"):
        shape("pad", x, pads=(-2, 0, -2, 0))
    with pytest.raises(ShapeError, match="needs 4 values"):
        shape("pad", x, pads=(1, 1))
    with pytest.raises(ShapeError, match="nothing to copy"):
        shape("pad", np.zeros(0, np.float32), pads=(1, 1), mode=1)


def test_fixed_pad() -> None:
    np.testing.assert_array_equal(
        call("fixed_pad", counting(2, 3), output_lens=(3, 3)), np.pad(counting(2, 3), ((0, 1), (0, 0)))
    )
    with pytest.raises(ShapeError, match="does not fit"):
        shape("fixed_pad", counting(2, 3), output_lens=(1, 3))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(axis: int) -> None:
    x = counting(4, 5, 6).transpose(2, 1, 0)
    indices = np.array([[0, -1], [3, 2]])
    np.testing.assert_array_equal(call("gather", x, indices, axis=axis), np.take(x, indices, axis))
    np.testing.assert_array_equal(call("gather", x, np.int32(-2), axis=axis), np.take(x, -2, axis))
    assert call("gather", x, np.zeros((0,), np.int64), axis=axis).size == 0


def test_gather_of_ranges_and_what_it_refuses() -> None:
    assert shape("gather", dyn((1, 9), 4), np.zeros((2, 3), np.int64), axis=1) == dyn((1, 9), 2, 3)
    assert shape("gather", counting(3), np.int64(0)).scalar
    with pytest.raises(ShapeError, match="integers"):
        shape("gather", counting(3), counting(3))
    with pytest.raises(IndexRangeError, match="index 3 is out of range for axis 0 of length 3"):
        call("gather", counting(3), np.array([3]))


@pytest.mark.parametrize("axis", [0, -1])
def test_gather_elements(axis: int) -> None:
    x, indices = counting(3, 4), np.array([[0, -1, 2], [1, 0, 2]])
    expected = onnx_runtime("GatherElements", x, indices, axis=axis)[0]
    np.testing.assert_array_equal(call("gather_elements", x, indices, axis=axis), expected)
    with pytest.raises(ShapeError, match="same rank"):
        shape("gather_elements", x, np.zeros(3, np.int64))


@pytest.mark.parametrize(
    ("batch", "indices"),
    [
        (0, [[0, 1], [1, -1]]),
        (0, [[[1]], [[0]]]),
        (0, [1, 2, 3]),
        (1, [[1], [2]]),
        (2, [[[0], [1], [2]], [[3], [-1], [1]]]),
    ],
)
def test_gathernd(batch: int, indices: list) -> None:
    x, index = counting(2, 3, 4), np.array(indices)
    expected = np.empty((*index.shape[:-1], *x.shape[batch + index.shape[-1] :]), np.float32)
    for place in np.ndindex(*index.shape[:-1]):
        expected[place] = x[(*place[:batch], *index[place])]
    result = call("gathernd", x, index, batch_dims=batch)
    np.testing.assert_array_equal(result, expected.reshape(result.shape))
    with pytest.raises(ShapeError, match="do not fit"):
        shape("gathernd", x, np.zeros((2, 4), np.int64))


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize("axis", [0, -1])
def test_scatter(reduction: str, axis: int) -> None:
    x = counting(3, 4).T.copy().T
    indices, updates = np.array([[0, -1, 2], [1, 0, 1]]), 10 + counting(2, 3) / 2
    expected = onnx_reference("ScatterElements", x, indices, updates, axis=axis, reduction=reduction)[0]
    np.testing.assert_array_equal(call(f"scatter_{reduction}", x, indices, updates, axis=axis), expected)
    half = call(
        f"scatter_{reduction}",
        x.astype(ml_dtypes.bfloat16),
        indices,
        updates.astype(ml_dtypes.bfloat16),
        axis=axis,
    )
    np.testing.assert_allclose(half.astype(np.float32), expected, rtol=0.02)


def test_the_last_of_several_updates_counts_however_indices_lie() -> None:
    """NumPy assigned in the order of memory, so that of indices by columns another update was the last."""
    indices, updates = np.array([[1, 1, 0], [0, 1, 1]]), counting(2, 3)
    for order in "CF":
        at, new = np.asarray(indices, order=order), np.asarray(updates, order=order)
        tuples = np.empty((1, *at.shape[::-1]), np.int64).T if order == "F" else np.empty((*at.shape, 1), np.int64)
        tuples[..., 0] = at
        assert call("scatternd_none", counting(2), tuples, new).tolist() == [3, 5]


def test_scatter_out_of_bounds() -> None:
    x, indices, updates = counting(3), np.array([5, 1, -4]), np.array([7, 8, 9], np.float32)
    assert call("scatter_none", x, indices, updates, skip_out_of_bounds=True).tolist() == [0, 8, 2]
    with pytest.raises(IndexRangeError, match="index 5 is out of range"):
        call("scatter_add", x, indices, updates)
    for args, message in (
        ((x, indices[:2], updates), "indices and updates"),
        ((x, indices, updates.astype(np.int32)), "types"),
        ((x, indices[None], updates[None]), "same rank"),
    ):
        with pytest.raises(ShapeError, match=message):
            shape("scatter_none", *args)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatternd(reduction: str) -> None:
    x = counting(4, 3, 2)
    for indices, lens in ((np.array([[0], [2]]), (2, 3, 2)), (np.array([[[0, 1], [3, -1]]]), (1, 2, 2))):
        updates = 3 + counting(*lens)
        expected = onnx_reference("ScatterND", x, indices, updates, reduction=reduction)[0]
        np.testing.assert_array_equal(call(f"scatternd_{reduction}", x, indices, updates), expected)
    with pytest.raises(ShapeError, match="updates"):
        shape(f"scatternd_{reduction}", x, np.array([[0], [2]]), counting(2, 3, 3))


def test_scatternd_adds_repeated_positions() -> None:
    assert call("scatternd_add", counting(3), np.array([[1], [1]]), np.ones(2, np.float32)).tolist() == [
        0,
        3,
        2,
    ]
