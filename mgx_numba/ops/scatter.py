"""Writing or combining elements at positions that another tensor holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import Shape
from ..core.types import from_numpy
from ..dataclass import dataclass
from .base import Operator, register
from .dims import any_dynamic, meet_dim, packed_like
from .gather import expect_indices, flat_index, nd_index, wrap_indices

REDUCTIONS: dict[str, np.ufunc | None] = {
    "none": None,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
"""Combining functions by name; ``none`` replaces, the last of several updates wins."""


def combine_at(data: np.ndarray, index: np.ndarray, updates: np.ndarray, reduction: str) -> np.ndarray:
    """Return a copy of ``data`` with updates combined at indices of its first axis; 16-bit floats are combined in
    float32."""
    ufunc = REDUCTIONS[reduction]
    updates = updates.reshape(index.size, *data.shape[1:])
    index = index.reshape(-1)  # NumPy goes through it as it lies, and the order counts
    if ufunc is None:
        result = data.copy()
        result[index] = updates
        return result
    wide = from_numpy(data.dtype).compute.numpy
    result = data.astype(wide)
    ufunc.at(result, index, updates.astype(wide, copy=False))
    return result.astype(data.dtype, copy=False)


@dataclass(frozen=True)
class ScatterBase(Operator):
    """ONNX ScatterElements: ``updates[i]`` goes to position ``i``, but at ``indices[i]`` along ``axis``.

    Inputs are data, indices, updates. With ``skip_out_of_bounds`` updates at indices out of range are
    dropped; without it they are an error.
    """

    AXES: ClassVar[tuple[str, ...]] = ("axis",)
    combine: ClassVar[str] = "none"
    axis: int = 0
    skip_out_of_bounds: bool = False

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        data, indices, updates = self.expect_inputs(inputs, 3)
        expect_indices(self, indices)
        self.expect_same_type([data, updates])
        axis = self.resolve_axis(self.axis, data.ndim)
        if indices.ndim != data.ndim or updates.ndim != data.ndim:
            raise self.fail(f"inputs need the same rank, got {'; '.join(map(str, inputs))}")
        for k, (own, given, update) in enumerate(zip(data.dims, indices.dims, updates.dims)):
            meet_dim(self, f"lengths of indices and updates on axis {k}", given, update)
            if k != axis and given.min > own.max:
                raise self.fail(f"indices have length {given} on axis {k}, data only {own}")
        return data if data.is_dynamic else packed_like(data, data.lens)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        data, indices, updates = args
        axis = self.axis % data.ndim
        length = data.shape[axis]
        if self.skip_out_of_bounds:
            wide = indices.astype(np.int64)
            kept = (wide >= -length if indices.dtype.kind == "i" else wide >= 0) & (wide < length)
            place = flat_index(data.shape, np.where(wide < 0, wide + length, wide), axis)[kept]
            updates = updates[kept]
        else:
            place = flat_index(data.shape, wrap_indices(self, indices, length, f"axis {axis}"), axis)
        return combine_at(data.reshape(-1), place, updates, self.combine).reshape(data.shape)


@dataclass(frozen=True)
class ScatterNDBase(Operator):
    """ONNX ScatterND: slices ``updates[i]`` go to the positions that the index tuples ``indices[i]`` give."""

    combine: ClassVar[str] = "none"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        data, indices, updates = self.expect_inputs(inputs, 3)
        expect_indices(self, indices)
        self.expect_same_type([data, updates])
        if indices.ndim < 1 or not indices.dims[-1].is_fixed:
            raise self.fail(f"the last axis of the indices must have a fixed length, got {indices}")
        depth = indices.dims[-1].min
        if depth > data.ndim:
            raise self.fail(f"tuples of {depth} indices do not fit the {data.ndim} axes of {data}")
        expected = indices.dims[:-1] + data.dims[depth:]
        if updates.ndim != len(expected):
            raise self.fail(f"updates need {len(expected)} axes for {data} and {indices}, got {updates}")
        for k, (wanted, given) in enumerate(zip(expected, updates.dims)):
            meet_dim(self, f"expected and given lengths of axis {k} of the updates", wanted, given)
        if any_dynamic(inputs):
            return data
        return packed_like(data, data.lens)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        data, indices, updates = args
        slices, index = nd_index(self, data, indices)
        return combine_at(slices, index, updates, self.combine).reshape(data.shape)


for _reduction in REDUCTIONS:
    for _base, _stem in ((ScatterBase, "scatter"), (ScatterNDBase, "scatternd")):
        _members = {
            "name": f"{_stem}_{_reduction}",
            "combine": _reduction,
            "__doc__": f"{_base.__doc__}\n\n    Reduction: {_reduction}.",
            "__annotations__": {},
        }
        register(dataclass(frozen=True)(type(f"{_base.__name__[:-4]}{_reduction.title()}", (_base,), _members)))
