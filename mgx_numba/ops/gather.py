"""Reading elements at positions that another tensor holds."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from ..core.shape import DynamicDimension, Shape
from ..dataclass import dataclass
from .base import Operator, register
from .dims import any_dynamic, meet_dim


def wrap_indices(op: Operator, indices: np.ndarray, length: int, what: str) -> np.ndarray:
    """Return indices as int64 from 0 to ``length`` - 1; negative indices count from the end.

    Raises:
        IndexRangeError: an index is out of range.
    """
    bad = (indices < -length) | (indices >= length) if indices.dtype.kind == "i" else indices >= length
    if bad.any():
        index = int(indices[bad].reshape(-1)[0].astype(np.int64))
        raise op.bad_index(f"index {index} is out of range for {what} of length {length}")
    wide = indices.astype(np.int64)
    return np.where(wide < 0, wide + length, wide)


def expect_indices(op: Operator, shape: Shape) -> None:
    """Raise ``ShapeError`` unless the elements are integers."""
    if not shape.type.is_integral:
        raise op.fail(f"indices must be integers, got {shape.type.name}")


@register
@dataclass(frozen=True)
class Gather(Operator):
    """Positions ``indices`` of ``axis``: the axis is replaced by the axes of the indices, none for a scalar.

    Inputs are data and indices; negative indices count from the end.
    """

    name: ClassVar[str] = "gather"
    AXES: ClassVar[tuple[str, ...]] = ("axis",)
    axis: int = 0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        data, indices = self.expect_inputs(inputs, 2)
        expect_indices(self, indices)
        axis = self.resolve_axis(self.axis, data.ndim)
        alone = indices.without_axes
        if not data.is_dynamic and not indices.is_dynamic:
            lens = (*data.lens[:axis], *(() if alone else indices.lens), *data.lens[axis + 1 :])
            return Shape(data.type, lens or None)
        middle = () if alone else indices.dims
        dims = (*data.dims[:axis], *middle, *data.dims[axis + 1 :])
        if not dims:
            return Shape(data.type)
        return Shape.dynamic(data.type, dims)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        data, indices = args
        axis = self.axis % data.ndim
        if indices.dtype.kind == "i":  # NumPy takes large unsigned numbers for negative ones
            with contextlib.suppress(IndexError):
                return data.take(indices, axis).reshape(output.lens)
        wrapped = wrap_indices(self, indices, data.shape[axis], f"axis {axis}")
        return np.take(data, wrapped, axis).reshape(output.lens)


@register
@dataclass(frozen=True)
class GatherElements(Operator):
    """ONNX GatherElements: for each position the data there, but at the index along ``axis``."""

    name: ClassVar[str] = "gather_elements"
    AXES: ClassVar[tuple[str, ...]] = ("axis",)
    axis: int = 0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        data, indices = self.expect_inputs(inputs, 2)
        expect_indices(self, indices)
        axis = self.resolve_axis(self.axis, data.ndim)
        if indices.ndim != data.ndim:
            raise self.fail(f"data and indices need the same rank, got {data} and {indices}")
        for k, (own, given) in enumerate(zip(data.dims, indices.dims)):
            if k != axis and given.min > own.max:
                raise self.fail(f"indices have length {given} on axis {k}, data only {own}")
        return Shape.dynamic(data.type, indices.dims)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        data, indices = args
        axis = self.axis % data.ndim
        wrapped = wrap_indices(self, indices, data.shape[axis], f"axis {axis}")
        return data.reshape(-1)[flat_index(data.shape, wrapped, axis)]


@register
@dataclass(frozen=True)
class GatherND(Operator):
    """ONNX GatherND: slices of the data at the index tuples in the last axis of the indices.

    The first ``batch_dims`` axes are common to both.
    """

    name: ClassVar[str] = "gathernd"
    batch_dims: int = 0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        data, indices = self.expect_inputs(inputs, 2)
        expect_indices(self, indices)
        batch = self.batch_dims
        if not 0 <= batch < min(data.ndim, indices.ndim):
            raise self.fail(f"batch_dims {batch} must be below the ranks of {data} and {indices}")
        for k in range(batch):
            meet_dim(self, f"lengths of batch axis {k}", data.dims[k], indices.dims[k])
        if not indices.dims[-1].is_fixed:
            raise self.fail(f"the last axis of the indices must have a fixed length, got {indices}")
        depth = indices.dims[-1].min
        if not 1 <= depth <= data.ndim - batch:
            raise self.fail(
                f"tuples of {depth} indices do not fit the {data.ndim - batch} axes of {data} after the batch"
            )
        dims: tuple[DynamicDimension, ...] = indices.dims[:-1] + data.dims[batch + depth :]
        if not dims:
            return Shape(data.type)
        return Shape.dynamic(data.type, dims) if any_dynamic(inputs) else Shape(data.type, [d.min for d in dims])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        data, indices = args
        slices, index = nd_index(self, data, indices, self.batch_dims)
        return slices[index].reshape(output.lens)


def flat_index(lens: Sequence[int], indices: np.ndarray, axis: int) -> np.ndarray:
    """Return the flat index, in row-major data of ``lens``, of each element that ``indices`` selects along ``axis``.

    All other coordinates are those of the position in ``indices``. NumPy itself accepts at most 63 index arrays.
    """
    place = indices.astype(np.int64) * prod(lens[axis + 1 :])
    for k, n in enumerate(indices.shape):
        if k != axis and n > 1:
            steps = np.arange(n, dtype=np.int64) * prod(lens[k + 1 :])
            place += steps.reshape([-1 if k == other else 1 for other in range(indices.ndim)])
    return place


def nd_index(op: Operator, data: np.ndarray, indices: np.ndarray, batch: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the data with its slices along a single first axis, and the index of the slice for each tuple.

    The tuples are the last axis of ``indices``; slices are in row-major order.
    """
    lead = batch + indices.shape[-1]
    lens = data.shape[:lead]
    place = np.zeros(indices.shape[:-1], np.int64)
    for axis in range(lead):
        if axis < batch:
            at = np.arange(lens[axis]).reshape([-1 if k == axis else 1 for k in range(indices.ndim - 1)])
        else:
            at = wrap_indices(op, indices[..., axis - batch], lens[axis], f"axis {axis}")
        place += at * prod(lens[axis + 1 :])
    return data.reshape(prod(lens), *data.shape[lead:]), place
