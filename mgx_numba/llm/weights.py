"""Weights of a model's file as they lie there: memory-mapped, floats or blocks of quantised codes."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from ..ops.block_layouts import layout_named


class Weight(NamedTuple):
    """A tensor of a model's file.

    Attributes:
        array: floats of the tensor's lengths, or with a layout uint8 whose last axis has the bytes of a row.
        layout: a name of `ops.block_layouts`, or "" for floats.
    """

    array: np.ndarray
    layout: str = ""

    @property
    def lens(self) -> tuple[int, ...]:
        """Return the lengths of the tensor."""
        if not self.layout:
            return self.array.shape
        return (*self.array.shape[:-1], layout_named(self.layout).depth(self.array.shape[-1]))

    def dense(self) -> np.ndarray:
        """Return the values in float32."""
        if not self.layout:
            return self.array.astype(np.float32)
        rows = self.array.reshape(-1, self.array.shape[-1])
        return layout_named(self.layout).dequantize(rows).reshape(self.lens)


class WeightSource(Protocol):
    """A file of named tensors."""

    def weight(self, name: str) -> Weight | None:
        """Return the tensor of this name; None if there is none."""
