"""Pooling over regions of whole pixels, the predecessor of ``roialign``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import DynamicDimension, Shape
from ..dataclass import dataclass
from .base import Operator, register
from .dims import may_be


@register
@dataclass(frozen=True)
class MaxRoiPool(Operator):
    """The largest pixel of each cell of each region: images [n, c, h, w] and regions [r, 5] (image, x1, y1, x2, y2)
    give [r, c, rows, columns].

    Corners are multiplied by ``spatial_scale`` and rounded, halves away from 0; both belong to the region, which has at
    least one pixel. Cells overlap where lengths are no multiples of ``pooled_shape``; empty ones give 0.
    """

    name: ClassVar[str] = "max_roi_pool"
    pooled_shape: tuple[int, ...] = (1, 1)
    spatial_scale: float = 1.0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 2)
        self.expect_same_type(inputs)
        x, rois = inputs
        if x.ndim != 4 or rois.ndim != 2 or not may_be(rois.dims[1], 5):
            raise self.fail(f"expected images [n, c, h, w] and regions [r, 5], got {x}; {rois}")
        if len(self.pooled_shape) != 2 or min(self.pooled_shape) < 1:
            raise self.fail(f"pooled_shape is {list(self.pooled_shape)}, expected two lengths of at least 1")
        cells = [DynamicDimension(n, n) for n in self.pooled_shape]
        return Shape.dynamic(x.type, [rois.dims[0], x.dims[1], *cells])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, rois = args[0], args[1].astype(np.float32)
        result = np.zeros((rois.shape[0], x.shape[1], *self.pooled_shape), x.dtype)
        for k, roi in enumerate(rois):
            image = int(roi[0])
            if not 0 <= image < x.shape[0]:
                raise self.fail(f"region {k} is of image {image}, there are {x.shape[0]}")
            scaled = roi[1:] * np.float32(self.spatial_scale)
            left, top, right, bottom = (int(np.copysign(np.floor(np.abs(v) + 0.5), v)) for v in scaled)
            rows = _cells(top, bottom, self.pooled_shape[0], x.shape[2])
            columns = _cells(left, right, self.pooled_shape[1], x.shape[3])
            for i, row in enumerate(rows):
                for j, column in enumerate(columns):
                    cell = x[image, :, row, column]
                    if cell.size:
                        result[k, :, i, j] = cell.max((1, 2))
        return result


def _cells(first: int, last: int, count: int, length: int) -> list[slice]:
    """Return the pixels of each cell along an axis of ``length`` pixels."""
    size = np.float32(max(last - first + 1, 1)) / np.float32(count)
    starts = [int(np.floor(np.float32(k) * size)) + first for k in range(count)]
    stops = [int(np.ceil(np.float32(k + 1) * size)) + first for k in range(count)]
    return [slice(min(max(a, 0), length), min(max(b, 0), length)) for a, b in zip(starts, stops)]
