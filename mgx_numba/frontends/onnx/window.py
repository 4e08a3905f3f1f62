"""Attributes that convolution and pooling nodes share: kernel, strides, dilations and padding."""

from __future__ import annotations

from collections.abc import Sequence

from ...dataclass import dataclass
from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from ...ops.window import same_total
from .builder import Builder, rank
from .node import Node

AUTO_PAD = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
# MIGraphX's padding modes: default, same_lower, same_upper.
MODES = {"NOTSET": 0, "VALID": 0, "SAME_LOWER": 1, "SAME_UPPER": 2}


@dataclass(frozen=True)
class Window:
    """A sliding window; ``padding`` lists values before all axes, then after all axes.

    ``padding_mode`` is MIGraphX's (1 same_lower, 2 same_upper) if padding depends on dynamic lengths, else 0.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    padding_mode: int = 0

    @property
    def shared_padding(self) -> tuple[int, ...]:
        """Return one value per axis if both sides are equal, as MIGraphX prints it; else all values."""
        half = len(self.padding) // 2
        return self.padding[:half] if self.padding[:half] == self.padding[half:] else self.padding


def check_spatial(x: Instruction) -> int:
    """Return the number of spatial axes of [n, c, spatial...].

    Raises:
        ParseError: there are no spatial axes.
    """
    if rank(x) < 3:
        raise ParseError(f"input has {rank(x)} dimensions, expected at least 3: batch, channels, spatial")
    return rank(x) - 2


def read_window(g: Builder, node: Node, x: Instruction, kernel: Sequence[int] | None = None) -> Window:
    """Return the window of a node over ``x``; ``kernel`` replaces an absent attribute ``kernel_shape``.

    Raises:
        ParseError: an attribute has a wrong length, or values below 1 (below 0 for pads).
    """
    spatial = check_spatial(x)
    kernel = tuple(node.get_ints("kernel_shape", kernel))
    stride = tuple(node.get_ints("strides", (1,) * spatial))
    dilation = tuple(node.get_ints("dilations", (1,) * spatial))
    for name, values in (("kernel_shape", kernel), ("strides", stride), ("dilations", dilation)):
        if len(values) != spatial or any(v < 1 for v in values):
            raise ParseError(f"{name} {list(values)} must be {spatial} positive numbers")
    auto = node.get_choice("auto_pad", AUTO_PAD, "NOTSET")
    if auto == "NOTSET":
        padding = tuple(node.get_ints("pads", (0,) * (2 * spatial)))
        if len(padding) != 2 * spatial or any(v < 0 for v in padding):
            raise ParseError(f"pads {list(padding)} must be {2 * spatial} numbers that are not negative")
        return Window(kernel, stride, dilation, padding)
    if auto == "VALID":
        return Window(kernel, stride, dilation, (0,) * (2 * spatial))
    if not all(d.is_fixed for d in x.shape.dims[2:]):
        return Window(kernel, stride, dilation, (0,) * (2 * spatial), MODES[auto])
    lens = [d.min for d in x.shape.dims[2:]]
    return Window(kernel, stride, dilation, same_padding(lens, kernel, stride, dilation, auto == "SAME_UPPER"))


def same_padding(
    lens: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], upper: bool
) -> tuple[int, ...]:
    """Return the padding that makes output lengths ceil(length / stride); ``upper`` puts an odd element at the end."""
    small, large = [], []
    for n, k, s, d in zip(lens, kernel, stride, dilation, strict=False):
        if n < 1:
            raise ShapeError(f"spatial lengths {list(lens)} hold a 0")
        total = same_total(n, k, s, d)
        small.append(total // 2)
        large.append(total - total // 2)
    return (*small, *large) if upper else (*large, *small)
