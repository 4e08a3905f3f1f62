"""Operators of object detectors: region of interest pooling, also over whole pixels, and suppression of overlapping
boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import DynamicDimension, Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register
from .dims import any_dynamic, may_be, meet_dim
from .pooling import PoolingMode
from .selection import counted_form, counted_shape, counted_value


@register
@dataclass(frozen=True)
class RoiAlign(Operator):
    """ONNX RoiAlign: regions of [n, c, h, w] pooled to [regions, c, output_height, output_width].

    Inputs are the features, the regions [regions, 4] as x1, y1, x2, y2, and for each region the index of its
    image. ``sampling_ratio`` 0 takes ceil(region / output) samples a bin and axis, none of a region that is not
    finite. With ``max`` a sample is the largest of its four weighted neighbours. A region is at least one element wide
    unless the mode is ``half_pixel``.
    """

    name: ClassVar[str] = "roialign"
    coordinate_transformation_mode: str = "half_pixel"
    mode: PoolingMode = PoolingMode.average
    output_height: int = 1
    output_width: int = 1
    sampling_ratio: int = 0
    spatial_scale: float = 1.0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        x, rois, batch = self.expect_inputs(inputs, 3)
        if self.mode is PoolingMode.lpnorm:
            raise self.fail("mode must be average or max, got lpnorm")
        if self.coordinate_transformation_mode not in ("half_pixel", "output_half_pixel"):
            raise self.fail(
                "coordinate_transformation_mode must be half_pixel or output_half_pixel,"
                f" got {self.coordinate_transformation_mode!r}"
            )
        if x.ndim != 4 or rois.ndim != 2 or rois.max_lens[1] != 4 or batch.ndim != 1:
            raise self.fail(
                f"expected features [n, c, h, w], regions [r, 4] and indices [r], got {'; '.join(map(str, inputs))}"
            )
        regions = meet_dim(self, "numbers of regions and of indices", rois.dims[0], batch.dims[0])
        return Shape.dynamic(x.type, [regions, x.dims[1], self.output_height, self.output_width])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, rois, batch = args
        result = np.empty((rois.shape[0], x.shape[1], self.output_height, self.output_width), np.float32)
        for k, image in enumerate(batch.tolist()):
            if not 0 <= image < x.shape[0]:
                raise self.bad_index(f"image index {image} of region {k} is out of range for {x.shape[0]} images")
            x1, y1, x2, y2 = (rois[k].astype(np.float32) * np.float32(self.spatial_scale)).tolist()
            rows = self._samples(y1, y2, self.output_height, x.shape[2])
            columns = self._samples(x1, x2, self.output_width, x.shape[3])
            result[k] = self._pool(x[image].astype(np.float32), rows, columns)
        return result.astype(output.type.numpy)

    def _samples(self, start: float, end: float, bins: int, length: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return neighbour positions [2, samples], weights [2, samples] and the samples of each bin along one axis."""
        offset = 0.5 if self.coordinate_transformation_mode == "half_pixel" else 0.0
        start, end = start - offset, end - offset
        size = end - start if offset else max(end - start, 1.0)
        per_bin = self.sampling_ratio or (max(0, int(np.ceil(size / bins))) if np.isfinite(size) else 0)
        step = size / bins
        places = start + step * (np.arange(bins)[:, None] + (np.arange(per_bin) + 0.5) / max(per_bin, 1))
        places = places.reshape(-1)
        inside = (places >= -1.0) & (places <= length)
        places = np.where(inside, np.clip(places, 0, length - 1), 0)
        low = np.floor(places).astype(np.int64)
        high = np.minimum(low + 1, length - 1)
        t = places - low
        return np.stack([low, high]), np.stack([1 - t, t]) * inside, per_bin

    def _pool(
        self,
        image: np.ndarray,
        rows: tuple[np.ndarray, np.ndarray, int],
        columns: tuple[np.ndarray, np.ndarray, int],
    ) -> np.ndarray:
        (y, wy, ny), (x, wx, nx) = rows, columns
        lens = (image.shape[0], self.output_height, self.output_width)
        if not ny or not nx:
            return np.zeros(lens, np.float32)
        corners = [
            image[:, y[a]][:, :, x[b]] * (wy[a][:, None] * wx[b]).astype(np.float32) for a in (0, 1) for b in (0, 1)
        ]
        binned = [c.reshape(lens[0], lens[1], ny, lens[2], nx) for c in corners]
        if self.mode is PoolingMode.max:
            return np.max([c.max((2, 4)) for c in binned], axis=0)
        return np.sum([c.sum((2, 4), np.float64) for c in binned], axis=0) / (ny * nx)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return output.elements * 8 * max(self.sampling_ratio, 1) ** 2


@register
@dataclass(frozen=True)
class NonMaxSuppression(Operator):
    """ONNX NonMaxSuppression: rows (image, class, box) of the boxes kept, int64, best first in each class.

    Inputs are boxes [n, boxes, 4], scores [n, classes, boxes] and up to three scalars: how many boxes of a
    class to keep (0 if absent), the overlap (intersection over union) above which a box goes (0), and the
    score that a box must exceed (none). Boxes are y1, x1, y2, x2 with any two opposite corners, or with
    ``center_point_box`` x centre, y centre, width, height. Of equal scores the lower index wins; a box whose score is
    NaN is never kept.

    The result has room for all boxes of all classes, and rows of zeros at its end; with ``use_dyn_output`` it
    has just the rows found. With ``counts`` it is a tuple, see `Operator.counted`.
    """

    name: ClassVar[str] = "nonmaxsuppression"
    UNLESS_SET: ClassVar[tuple[str, ...]] = ("counts",)
    center_point_box: bool = False
    use_dyn_output: bool = False
    counts: bool = False

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        boxes, scores = self.expect_inputs(inputs, 2, 3, 4, 5)[:2]
        if boxes.ndim != 3 or scores.ndim != 3 or boxes.max_lens[2] != 4:
            raise self.fail(f"expected boxes [n, boxes, 4] and scores [n, classes, boxes], got {boxes} and {scores}")
        for position, shape in enumerate(inputs[2:], 2):
            if not shape.is_dynamic and shape.elements != 1:
                raise self.fail(f"input {position} is {shape}, expected one number")
        images = meet_dim(self, "numbers of images", boxes.dims[0], scores.dims[0])
        count = meet_dim(self, "numbers of boxes", boxes.dims[1], scores.dims[2])
        rows = images.max * scores.dims[1].max * count.max
        if self.counts:
            return counted_shape(3 * rows)
        if self.use_dyn_output:
            return Shape.dynamic(Type.int64_type, [DynamicDimension(0, rows), 3])
        if any_dynamic(inputs):
            raise self.fail("needs static lengths without use_dyn_output")
        return Shape(Type.int64_type, (rows, 3))

    def counted(self, inputs: Sequence[Shape]) -> tuple[Operator, list[tuple[int, ...]]] | None:
        return counted_form(self, inputs, [(-1, 3)])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        boxes, scores = args[0].astype(np.float64), args[1].astype(np.float64)
        limits = [a.reshape(-1)[0].item() for a in args[2:]]
        keep = int(limits[0]) if limits else 0
        overlap = limits[1] if len(limits) > 1 else 0.0
        lowest = limits[2] if len(limits) > 2 else None
        rows: list[tuple[int, int, int]] = []
        if keep > 0:
            for n in range(scores.shape[0]):
                corners = self._corners(boxes[n])
                for c in range(scores.shape[1]):
                    rows += [(n, c, k) for k in _suppress(corners, scores[n, c], keep, overlap, lowest)]
        found = np.array(rows, np.int64).reshape(-1, 3)
        if self.counts:
            return counted_value(output, found, len(rows))
        if self.use_dyn_output:
            return found
        return np.pad(found, ((0, output.lens[0] - found.shape[0]), (0, 0)))

    def _corners(self, boxes: np.ndarray) -> np.ndarray:
        """Return boxes [boxes, 4] as lower y, lower x, upper y, upper x."""
        if self.center_point_box:
            centre, half = boxes[:, 1::-1], boxes[:, :1:-1] / 2
            first, second = centre - half, centre + half
        else:
            first, second = boxes[:, :2], boxes[:, 2:]
        return np.concatenate([np.minimum(first, second), np.maximum(first, second)], 1)


def _suppress(corners: np.ndarray, scores: np.ndarray, keep: int, overlap: float, lowest: float | None) -> list[int]:
    """Return the numbers of the boxes of one class that stay, best first, at most ``keep``.

    Each box that stays removes the worse boxes that overlap it by more than ``overlap``.
    """
    order = np.argsort(-scores, kind="stable")
    order = order[~np.isnan(scores[order])]
    if lowest is not None:
        order = order[scores[order] > lowest]
    area = np.prod(corners[:, 2:] - corners[:, :2], 1)
    kept: list[int] = []
    while order.size and len(kept) < keep:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        sides = np.minimum(corners[best, 2:], corners[order, 2:]) - np.maximum(corners[best, :2], corners[order, :2])
        common = np.prod(np.maximum(sides, 0), 1)
        union = area[best] + area[order] - common
        with np.errstate(all="ignore"):
            order = order[~((union > 0) & (common / union > overlap))]
    return kept


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
                raise self.bad_index(f"image index {image} of region {k} is out of range for {x.shape[0]} images")
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
