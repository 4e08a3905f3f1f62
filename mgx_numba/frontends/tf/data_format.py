"""Conversion between TensorFlow's ``data_format`` (the order of an image's axes) and the IR's [n, c, spatial...]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ...errors import ParseError
from ...graph.instruction import Instruction
from ..builder import GraphBuilder, rank
from .node import TfNode

TO_NCHW = (0, 3, 1, 2)  # by definition: permutation of [n, h, w, c]
FROM_NCHW = (0, 2, 3, 1)  # its inverse
_NAMES = ("NHWC", "NCHW", "NDHWC", "NCDHW")
PADDINGS = ("SAME", "VALID", "EXPLICIT")

T = TypeVar("T")


class DataFormat:
    """The axis order that a node's ``data_format`` names, for its first input."""

    def __init__(self, node: TfNode, x: Instruction) -> None:
        self.axes = rank(x)
        default = "NHWC" if self.axes < 5 else "NDHWC"
        self.last = node.get_choice("data_format", _NAMES, default).endswith("C")
        if self.axes < 3:
            raise ParseError(f"the input has {self.axes} dimensions, expected at least 3: batch, spatial, channels")
        self.node = node

    def channels_first(self, g: GraphBuilder, x: Instruction) -> Instruction:
        """Transpose ``x`` to [n, c, spatial...]."""
        return g.transpose(x, [0, self.axes - 1, *range(1, self.axes - 1)]) if self.last else x

    def restored(self, g: GraphBuilder, x: Instruction) -> Instruction:
        """Transpose [n, c, spatial...] to the node's order."""
        return g.transpose(x, [0, *range(2, self.axes), 1]) if self.last else x

    def spatial(self, values: Sequence[T]) -> list[T]:
        """Return the spatial axes' values from a list with one value per axis."""
        return list(values[1:-1] if self.last else values[2:])

    def window(self, name: str, default: int | None = 1) -> list[int]:
        """Return the spatial axes' values of an attribute with one value per axis.

        Raises:
            ParseError: the attribute has another length, a value below 1, or a value other than 1 for batch or
                channels.
        """
        values = self.node.get_ints(name, None if default is None else [default] * self.axes)
        if len(values) != self.axes or any(v < 1 for v in values):
            raise ParseError(f"attribute {name!r} is {values}, expected {self.axes} numbers from 1 on")
        spatial = self.spatial(values)
        if sum(values) != sum(spatial) + 2 or values[0] != 1:
            raise ParseError(f"attribute {name!r} is {values}, expected 1 along batch and channels")
        return spatial

    def padding(
        self, lens: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
    ) -> tuple[int, ...]:
        """Return the padding before all spatial axes, then after them; SAME makes lengths ``ceil(length / stride)``."""
        kind = self.node.get_choice("padding", PADDINGS)
        if kind == "VALID":
            return (0,) * (2 * len(kernel))
        if kind == "EXPLICIT":
            given = self.node.get_ints("explicit_paddings")
            if len(given) != 2 * self.axes or any(v < 0 for v in given):
                raise ParseError(f"explicit_paddings are {given}, expected {2 * self.axes} numbers from 0 on")
            pairs = self.spatial(list(zip(given[::2], given[1::2], strict=True)))
            return (*(a for a, _ in pairs), *(b for _, b in pairs))
        before, after = [], []
        for n, k, s, d in zip(lens, kernel, stride, dilation, strict=True):
            total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
            before.append(total // 2)
            after.append(total - total // 2)
        return (*before, *after)
