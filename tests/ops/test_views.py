"""Views: lengths, strides, values, and errors of the shape rules."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.shape import DynamicDimension, Shape, row_major_strides
from mgx_numba.core.types import Type
from mgx_numba.errors import OperatorError, ShapeError
from mgx_numba.ops.base import make_op
from mgx_numba.ops.dims import view_strides

from ..values import counting
from .running import call, shape

FLOAT = Type.float_type


def dyn(*dims: int | tuple[int, int]) -> Shape:
    return Shape.dynamic(FLOAT, [d if isinstance(d, int) else DynamicDimension(*d) for d in dims])


def test_transpose_permutes_strides() -> None:
    x = counting(2, 3, 4)
    np.testing.assert_array_equal(call("transpose", x, permutation=(2, 0, 1)), x.transpose(2, 0, 1))
    assert shape("transpose", x, permutation=(2, 0, 1)) == Shape(FLOAT, (4, 2, 3), (1, 12, 4))
    assert shape("transpose", dyn((1, 4), 3), permutation=(1, 0)) == dyn(3, (1, 4))
    with pytest.raises(ShapeError, match="permutation"):
        shape("transpose", x, permutation=(0, 1, 1))


def test_broadcast_lays_axes_at_axis() -> None:
    x = counting(3)
    expected = np.broadcast_to(x[None, :, None], (2, 3, 4))
    np.testing.assert_array_equal(call("broadcast", x, axis=1, out_lens=(2, 3, 4)), expected)
    np.testing.assert_array_equal(call("broadcast", x, np.zeros((2, 3, 4), np.float32), axis=1), expected)
    assert shape("broadcast", x, axis=1, out_lens=(2, 3, 4)).strides == (0, 1, 0)
    assert shape("broadcast", dyn((1, 3)), dyn(2, (1, 3)), axis=1).is_dynamic
    with pytest.raises(ShapeError, match="lengths of input axis 0 and output axis 0"):
        shape("broadcast", x, axis=0, out_lens=(2, 3))
    with pytest.raises(ShapeError, match="do not fit"):
        shape("broadcast", counting(2, 3), axis=1, out_lens=(2, 3))
    with pytest.raises(ShapeError, match="out of range"):
        shape("broadcast", x, axis=3, out_lens=(2, 3))


def test_multibroadcast_gives_zero_strides() -> None:
    x = counting(3, 1)
    np.testing.assert_array_equal(call("multibroadcast", x, out_lens=(2, 3, 4)), np.broadcast_to(x, (2, 3, 4)))
    assert shape("multibroadcast", x, out_lens=(2, 3, 4)).strides == (0, 1, 0)
    assert shape("multibroadcast", Shape(FLOAT), out_lens=(2, 3)).scalar
    np.testing.assert_array_equal(call("multibroadcast", x, counting(1, 5)), np.broadcast_to(x, (3, 5)))
    with pytest.raises(ShapeError, match="broadcast"):
        shape("multibroadcast", x, out_lens=(2, 4))
    with pytest.raises(ShapeError, match="cannot become"):
        shape("multibroadcast", x, out_lens=(3,))


def test_multibroadcast_of_ranges() -> None:
    assert shape("multibroadcast", dyn((1, 4), 1), dyn(1, 7)) == dyn((1, 4), 7)
    assert shape("multibroadcast", dyn((1, 4), 3), out_dyn_dims=[DynamicDimension(1, 4), 3]) == dyn((1, 4), 3)
    with pytest.raises(ShapeError):
        shape("multibroadcast", dyn((2, 4), 3), dyn((5, 6), 3))


def test_broadcast_with_dims_reads_lengths_at_run_time() -> None:
    x = counting(2, 1)
    result = call("broadcast_with_dims", x, np.array([4, 1, 3]))
    np.testing.assert_array_equal(result, np.broadcast_to(x, (4, 2, 3)))


@pytest.mark.parametrize(
    ("lens", "message"), [([-1, 3], "hold a negative number"), ([2**40, 2**30], "exceeds"), ([0, 2**62], "exceeds")]
)
def test_lengths_of_a_run_that_no_array_has(lens: list[int], message: str) -> None:
    """The messages were NumPy's, such as that an iterator is too large."""
    with pytest.raises(ShapeError, match=message):
        call("broadcast_with_dims", np.ones((1, 1), np.float32), np.array(lens))


def test_broadcast_for_dot_keeps_the_matrix() -> None:
    assert shape("broadcast_for_dot", counting(5, 6), counting(2, 3, 6, 7)) == Shape(FLOAT, (2, 3, 5, 6), (0, 0, 6, 1))
    assert shape("broadcast_for_dot", dyn(5, 6), dyn((1, 2), 6, 7)) == dyn((1, 2), 5, 6)
    assert call("broadcast_for_dot", counting(5, 6), counting(2, 3, 6, 7)).shape == (2, 3, 5, 6)


def test_scalar_repeats_one_element() -> None:
    assert shape("scalar", np.float32(3), scalar_bcst_dims=(2, 3)).scalar
    assert call("scalar", np.float32(3), scalar_bcst_dims=(2, 3)).tolist() == [[3] * 3] * 2
    with pytest.raises(ShapeError, match="one element"):
        shape("scalar", counting(2), scalar_bcst_dims=(2,))


@pytest.mark.parametrize(
    ("axes", "starts", "ends", "index"),
    [
        ((1,), (1,), (3,), np.s_[:, 1:3]),
        ((0, 2), (0, -2), (1, 1000), np.s_[:1, :, -2:]),
        ((-1,), (-3,), (-1,), np.s_[:, :, -3:-1]),
        ((1,), (2,), (1,), np.s_[:, 2:1]),
        ((1,), (-1000,), (1000,), np.s_[:]),
    ],
)
def test_slice_clips_like_numpy(axes: tuple, starts: tuple, ends: tuple, index: tuple) -> None:
    x = counting(2, 4, 5)
    np.testing.assert_array_equal(call("slice", x, axes=axes, starts=starts, ends=ends), x[index])
    made = shape("slice", x, axes=axes, starts=starts, ends=ends)
    assert made.strides == ((20, 5, 1) if made.elements else row_major_strides(made.lens))


def test_slice_takes_missing_attributes_as_inputs() -> None:
    x = counting(4, 5)
    for result in (
        call("slice", x, np.array([1]), np.array([3]), np.array([0])),
        call("slice", x, np.array([1]), np.array([3]), axes=(0,)),
        call("slice", x, np.array([3]), axes=(0,), starts=(1,)),
    ):
        np.testing.assert_array_equal(result, x[1:3])
    with pytest.raises(ShapeError, match="attributes left empty"):
        shape("slice", x, np.array([1]))


@pytest.mark.parametrize("start", [-5, -2, 0, 1, 4])
@pytest.mark.parametrize("end", [-3, -1, 0, 2, 100])
def test_slice_of_a_range_covers_every_length(start: int, end: int) -> None:
    result = shape("slice", dyn((1, 7), 3), axes=(0,), starts=(start,), ends=(end,)).dims[0]
    lengths = {len(range(n)[start:end]) for n in range(1, 8)}
    assert (result.min, result.max) == (min(lengths), max(lengths))


def test_slice_refuses_what_does_not_fit() -> None:
    with pytest.raises(ShapeError, match="as many"):
        shape("slice", counting(3), axes=(0,), starts=(0, 1), ends=(2,))
    with pytest.raises(ShapeError, match="out of range"):
        shape("slice", counting(3), axes=(1,), starts=(0,), ends=(2,))
    with pytest.raises(ShapeError, match="repeat"):
        shape("slice", counting(3), axes=(0, -1), starts=(0, 0), ends=(2, 2))


def test_step_multiplies_strides() -> None:
    x = counting(5, 4)
    np.testing.assert_array_equal(call("step", x, axes=(0, -1), steps=(2, 3)), x[::2, ::3])
    assert shape("step", x, axes=(0,), steps=(2,)) == Shape(FLOAT, (3, 4), (8, 1))
    assert shape("step", dyn((1, 7)), axes=(0,), steps=(2,)) == dyn((1, 4))
    with pytest.raises(ShapeError, match="positive"):
        shape("step", x, axes=(0,), steps=(0,))


def test_squeeze_of_everything_is_a_scalar() -> None:
    x = counting(1, 3, 1)
    np.testing.assert_array_equal(call("squeeze", x), x[0, :, 0])
    np.testing.assert_array_equal(call("squeeze", x, axes=(-1,)), x[..., 0])
    assert shape("squeeze", counting(1, 1)).scalar
    assert call("squeeze", counting(1, 1)).shape == (1,)
    assert shape("squeeze", dyn(1, (1, 4))) == dyn((1, 4))
    with pytest.raises(ShapeError, match="expected 1"):
        shape("squeeze", x, axes=(1,))


def test_squeeze_of_a_transposed_input_stays_a_view() -> None:
    x = counting(3, 1, 4).transpose(2, 1, 0)
    assert shape("squeeze", x, axes=(1,)) == Shape(FLOAT, (4, 3), (1, 4))


def test_unsqueeze() -> None:
    x = counting(3, 4)
    assert shape("unsqueeze", x, axes=(0, -1)) == Shape(FLOAT, (1, 3, 4, 1), (12, 4, 1, 1))
    np.testing.assert_array_equal(call("unsqueeze", x, axes=(1,)), x[:, None])
    assert shape("unsqueeze", x.T, axes=(1,)).strides == (1, 12, 4)
    assert call("unsqueeze", np.float32(2), axes=(0, 1)).shape == (1, 1)
    assert shape("unsqueeze", dyn((1, 4)), axes=(0,)) == dyn(1, (1, 4))
    with pytest.raises(ShapeError, match="repeat"):
        shape("unsqueeze", x, axes=(0, 0))


def test_unsqueeze_cuts_an_axis_into_steps() -> None:
    x = counting(3, 4, 10)
    result = call("unsqueeze", x, axes=(2, 4, 5), steps=(2,))
    np.testing.assert_array_equal(result, x.reshape(3, 4, 2, 5, 1, 1))
    with pytest.raises(ShapeError, match="does not divide"):
        shape("unsqueeze", x, axes=(2,), steps=(3,))


@pytest.mark.parametrize(
    ("dims", "lens"), [((-1,), (24,)), ((0, -1), (2, 12)), ((4, 0, 2), (4, 3, 2)), ((0, 0, 0), (2, 3, 4))]
)
def test_reshape_is_standard(dims: tuple, lens: tuple) -> None:
    x = counting(4, 3, 2).transpose(2, 1, 0)
    np.testing.assert_array_equal(call("reshape", x, dims=dims), x.reshape(lens))
    assert shape("reshape", x, dims=dims).standard


def test_reshape_to_the_lengths_of_a_buffer() -> None:
    x = counting(2, 6)
    np.testing.assert_array_equal(call("reshape", x, np.zeros((3, 4), np.float32)), x.reshape(3, 4))
    with pytest.raises(ShapeError, match="different numbers"):
        shape("reshape", x, np.zeros(5, np.float32))


def test_reshape_of_ranges() -> None:
    assert shape("reshape", dyn((1, 4), 6, 2), dims=(0, -1)) == dyn((1, 4), 12)
    assert shape("reshape", dyn((1, 4), 6), dims=(-1, 3)) == dyn((2, 8), 3)
    assert shape("reshape", Shape(FLOAT, (0, 3)), dims=(0, -1)) == Shape(FLOAT, (0, 0))


@pytest.mark.parametrize("dims", [(5, -1), (-1, -1), (2, -3), (2, 3, 4, 0), (7,)])
def test_reshape_refuses(dims: tuple) -> None:
    with pytest.raises(ShapeError, match="dims"):
        shape("reshape", counting(2, 3, 4), dims=dims)


def test_reshape_lazy_is_a_view_or_refused() -> None:
    x = counting(4, 3, 2)
    assert shape("reshape_lazy", x, dims=(2, 2, 6)) == Shape(FLOAT, (2, 2, 6), (12, 6, 1))
    assert shape("reshape_lazy", x.transpose(1, 2, 0), dims=(6, 4)) == Shape(FLOAT, (6, 4), (1, 6))
    assert shape("reshape_lazy", np.broadcast_to(counting(3, 1, 1), (3, 2, 2)), dims=(3, 4)).strides == (1, 0)
    with pytest.raises(ShapeError, match="without a copy"):
        shape("reshape_lazy", x.transpose(2, 1, 0), dims=(6, 4))


def test_view_strides_agree_with_numpy() -> None:
    rng = np.random.default_rng(5)
    base = counting(4, 3, 2, 6)
    seen = 0
    for _ in range(300):
        x = base.transpose(rng.permutation(4))
        x = x[tuple(slice(None, None, int(s)) for s in rng.choice([1, 1, 2], 4))]
        lens = [int(n) for n in rng.permutation([*x.shape, 1])]
        if rng.random() < 0.7:
            k = int(rng.integers(len(lens) - 1))
            lens[k : k + 2] = [lens[k] * lens[k + 1]]
        source = Shape(FLOAT, x.shape, [s // 4 for s in x.strides])
        strides = view_strides(source, lens)
        copied = not np.shares_memory(x.reshape(lens), base)
        assert (strides is None) == copied
        if strides is not None:
            seen += 1
            view = np.lib.stride_tricks.as_strided(x, lens, [4 * s for s in strides])
            np.testing.assert_array_equal(view, x.reshape(lens))
    assert seen > 20


def test_flatten() -> None:
    x = counting(2, 3, 4)
    assert [shape("flatten", x, axis=a).lens for a in (0, 1, -1, 3)] == [(1, 24), (2, 12), (6, 4), (24, 1)]
    np.testing.assert_array_equal(call("flatten", x.transpose(2, 0, 1), axis=2), x.transpose(2, 0, 1).reshape(8, 3))
    assert shape("flatten", dyn((1, 4), 3, 2), axis=1) == dyn((1, 4), 6)
    with pytest.raises(ShapeError, match="out of range"):
        shape("flatten", x, axis=4)


def test_contiguous_and_layout_choose_the_memory_order() -> None:
    x = counting(2, 3, 4).transpose(0, 2, 1)
    assert shape("contiguous", x) == Shape(FLOAT, (2, 4, 3))
    assert call("contiguous", x).flags.c_contiguous
    assert shape("layout", x, permutation=(0, 2, 1)).strides == (12, 1, 4)
    assert call("layout", np.ascontiguousarray(x), permutation=(0, 2, 1)).strides == (48, 4, 16)


def test_as_shape_and_bit_cast_reread_memory() -> None:
    x = counting(2, 3)
    seen = call("as_shape", x, shape=Shape(FLOAT, (3, 2), (1, 3)))
    np.testing.assert_array_equal(seen, x.T)
    assert call("bit_cast", x, target_type="int32_type")[0, 1] == 0x3F800000
    with pytest.raises(ShapeError, match="bytes"):
        shape("bit_cast", x, target_type="half_type")
    with pytest.raises(ShapeError, match="number of elements"):
        shape("as_shape", x, shape=Shape(FLOAT, (7,)))


def test_dimensions_of() -> None:
    assert call("dimensions_of", counting(2, 3, 4), start=1, end=3).tolist() == [3, 4]
    assert shape("dimensions_of", dyn((1, 4), 3), end=1) == Shape(Type.int64_type, (1,))
    with pytest.raises(ShapeError, match="range"):
        shape("dimensions_of", counting(2), start=1, end=1)


def test_reverse_and_scan_slice() -> None:
    x = counting(2, 3)
    np.testing.assert_array_equal(call("reverse", x, axes=(-1,)), x[:, ::-1])
    np.testing.assert_array_equal(call("scan_slice", x, np.int64(1), axis=1), x[:, 1:2])
    np.testing.assert_array_equal(call("scan_slice", x, np.int64(0), axis=-1, direction=1), x[:, 2:])
    with pytest.raises(ShapeError, match="out of range"):
        call("scan_slice", x, np.int64(3), axis=1)


def test_views_are_marked_as_such() -> None:
    for name in "transpose broadcast multibroadcast scalar slice step squeeze unsqueeze reshape_lazy as_shape".split():
        assert make_op(name).view
    assert not make_op("reshape").view


def test_unknown_attributes_are_refused() -> None:
    with pytest.raises(OperatorError, match="it has: permutation"):
        make_op("transpose", perm=(0, 1))
