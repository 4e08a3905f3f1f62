"""Add up windows at their places in an image: the last step of a transposed convolution, and Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ..core.dim import Length, known_equal
from ..core.shape import row_major_strides
from .emitter import Emitter
from .instruction import Instruction


def add_windows(
    e: Emitter,
    columns: Instruction,
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    begins: Sequence[int],
    steps: Sequence[int],
) -> Instruction:
    """Emit the images [n, c, size...] to which windows add up; elements in the padding are dropped.

    Args:
        columns: [n, c * prod(kernel), prod(steps)], an element of a window a row.
        size, kernel, stride, dilation: lengths of images and windows, and distances of windows and of their elements.
        begins: elements of padding before each axis.
        steps: windows along each axis. Lengths are symbolic only where `windows_apart`.
    """
    n, channels, rank = e.lens(columns)[0], e.lens(columns)[1] // prod(kernel), len(kernel)
    if windows_apart(size, kernel, stride, dilation, begins, steps):
        apart = e.reshape(columns, (n, channels, *kernel, *steps))
        order = (0, 1, *(axis for k in range(rank) for axis in (2 + rank + k, 2 + k)))
        return e.reshape(e.transpose(apart, order), (n, channels, *size))
    places = window_places(size, kernel, stride, dilation, begins, steps)
    rows = n * channels
    zeros = e.broadcast(e.like(0, columns), (rows, prod(size)))
    index = e.broadcast(e.literal(places.reshape(1, -1)), (rows, places.size))
    updates = e.reshape(columns, (rows, places.size))
    added = e.op("scatter_add", zeros, index, updates, axis=1, skip_out_of_bounds=True)
    return e.reshape(added, (n, channels, *size))


def windows_apart(
    size: Sequence[Length],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    begins: Sequence[int],
    steps: Sequence[Length],
) -> bool:
    """Return whether windows cover the image side by side, so that nothing is added; lengths may be symbolic."""
    dense = all(k == s and (d == 1 or k == 1) for k, s, d in zip(kernel, stride, dilation))
    return dense and not any(begins) and all(known_equal(n, k * m) for n, k, m in zip(size, kernel, steps))


def window_places(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    begins: Sequence[int],
    steps: Sequence[int],
) -> np.ndarray:
    """Return the flat place in the image of each element [kernel..., steps...]; ``prod(size)`` for the padding."""
    count = len(size)
    flat, inside = np.zeros((1,) * (2 * count), np.int64), np.ones((1,) * (2 * count), bool)
    for k, weight in enumerate(row_major_strides(size)):
        place = np.arange(kernel[k])[:, None] * dilation[k] + np.arange(steps[k]) * stride[k] - begins[k]
        shape = [1] * (2 * count)
        shape[k], shape[count + k] = place.shape
        inside = inside & ((place >= 0) & (place < size[k])).reshape(shape)
        flat = flat + (place * weight).reshape(shape)
    return np.where(inside, flat, prod(size))
