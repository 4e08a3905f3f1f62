"""`Tensor`: an array, as onnxruntime-genai's methods return and take it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


class ModelTensor:
    """A tensor over an array of NumPy, which is not copied."""

    def __init__(self, array: object) -> None:
        self._array = np.asarray(array)

    def as_numpy(self) -> np.ndarray:
        """Return the array."""
        return self._array

    def shape(self) -> list[int]:
        """Return the lengths."""
        return list(self._array.shape)

    def type(self) -> np.dtype:
        """Return the element type."""
        return self._array.dtype

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype, copy=copy)
