"""Copies of arrays, of large ones by several threads."""

from __future__ import annotations

import numpy as np

from ..parallel import PART_BYTES, in_parts

__all__ = ["copy_elements", "row_major"]

LEAST_RUN = 256
"""Bytes in a row at least that a part of a copy writes: four cache lines, so that threads rarely write to the same one.
No figures kept."""


def copy_elements(target: np.ndarray, source: np.ndarray) -> None:
    """``target[...] = source`` for a C-contiguous array that shares no memory with the other, of the same dtype and
    lengths; ``source`` may have any strides.

    The parts of a large one are pieces of the source's memory where that is possible: in an order of its own, each
    element of a cache line is read before the line is gone. On two CPUs (Zen 5) parts of the target's rows take one and
    a half times as long for the transpose of 4,100 by 4,100 float32, three times for 4,096 by 4,096.
    """
    if target.dtype.isbuiltin == 2:  # of ml_dtypes, each of whose elements NumPy would copy by a call
        target, source = (array.view(f"u{target.itemsize}") for array in (target, source))
    parts = 0 if target.dtype.hasobject else target.nbytes // PART_BYTES
    if parts < 2:
        np.copyto(target, source)
        return

    def pieces(axis: int) -> tuple[int, int]:
        """How many there would be, and bytes between them in the source."""
        run = target.shape[axis] * target.strides[axis] // parts
        return (min(target.shape[axis], parts) if run >= LEAST_RUN else 1), abs(source.strides[axis])

    axis = max(range(target.ndim), key=pieces)
    before = (slice(None),) * axis

    def copy(part: slice) -> None:
        np.copyto(target[(*before, part)], source[(*before, part)])

    in_parts(copy, target.shape[axis], target.nbytes)


def row_major(array: np.ndarray) -> np.ndarray:
    """As `numpy.ascontiguousarray`: the array, or a C-contiguous copy, with an axis at least; by several threads if it
    is large.

    Raises:
        MemoryError: the system has not so much memory.
    """
    if array.flags.c_contiguous or array.nbytes < 2 * PART_BYTES or array.dtype.hasobject:
        return np.ascontiguousarray(array)
    made = np.empty(array.shape, array.dtype)
    copy_elements(made, array)
    return made
