"""Convolution problems.

All strides are in elements. Activations are channels-last: channels have stride 1.
"""

from __future__ import annotations

import functools
import math
from dataclasses import field, replace

from ...core.dim import Dim, known_equal, known_less, minimum
from ...core.integers import plain_ints
from ...dataclass import dataclass
from ...errors import ShapeError, UnsupportedError
from .element_types import FLOAT32, ElementTypes, TypedProblem
from .epilogue import Prologue
from .gemm import packed_strides

MOST_SPATIAL = 3
"""Most spatial axes of a convolution: those of ONNX's models. Solvers loop over so many, by definition."""


@dataclass(frozen=True)
class ConvProblem(TypedProblem):
    """A channels-last convolution, or (``transposed``) its gradient with respect to the input.

    Weights are ``[out_channels, in_channels / groups, *kernel]``; transposed ``[in_channels, out_channels / groups,
    *kernel]``. One to three spatial axes.

    Attributes:
        x_strides: of the image and of each spatial axis.
        out_strides: of the image and of one output pixel, with contiguous image rows (a pixel stride larger than
            ``out_channels`` writes a channel slice); or, with gaps between image rows, of image, row and pixel.
        pads_begin, pads_end: padding; negative values crop.
        output_padding: of the transposed form.
        fast_math: whether transformations that change rounding, such as Winograd's, are allowed.
        prologue: applied to the input but not to its padding.
        line_behind: whether a cache line beyond the input's last element may be read.
        low_parts: nonzero if the input is float32 as two bfloat16 parts, see `GemmProblem`; ``x_strides`` count
            bfloat16 elements.
        shuffled: groups of a channel shuffle to read through, or 0: channel j is channel ``j // shuffled`` of group ``j
            % shuffled`` in memory.

    The number of images, image lengths and strides may be symbolic (`core.dim`).
    """

    batch: int
    in_channels: int
    out_channels: int
    in_lens: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    pads_begin: tuple[int, ...] = ()
    pads_end: tuple[int, ...] = ()
    groups: int = 1
    types: ElementTypes = FLOAT32
    x_strides: tuple[int, ...] = ()
    out_strides: tuple[int, ...] = ()
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    fast_math: bool = False
    prologue: Prologue | None = None
    line_behind: bool = False
    low_parts: int = 0
    shuffled: int = 0
    out_lens: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        rank = len(self.in_lens)
        if not 1 <= rank <= MOST_SPATIAL:
            raise UnsupportedError(f"convolution over {rank} spatial dimensions; expected 1 to {MOST_SPATIAL}")
        ones, zeros = (1,) * rank, (0,) * rank
        for name, default in (
            ("in_lens", None), ("kernel", None), ("stride", ones), ("dilation", ones), ("pads_begin", zeros),
            ("pads_end", zeros), ("output_padding", zeros),
        ):  # fmt: skip
            value = getattr(self, name) or default
            if value is None or len(value) != rank:
                raise ShapeError(f"convolution {name}={value}; expected {rank} values")
            object.__setattr__(self, name, plain_ints(value))
        if self.groups < 1 or self.in_channels % self.groups or self.out_channels % self.groups:
            raise ShapeError(
                f"convolution of {self.in_channels} to {self.out_channels} channels does not divide into "
                f"{self.groups} groups"
            )
        if self.shuffled and self.in_channels % self.shuffled:
            raise ShapeError(f"{self.in_channels} channels do not divide into {self.shuffled} groups to shuffle")
        object.__setattr__(self, "out_lens", self._output_lens())
        if any(known_less(length, 1) for length in self.out_lens):
            raise ShapeError(f"convolution output lens {self.out_lens}; expected at least 1 in each dimension")
        x_default = packed_strides((self.batch, *self.in_lens, self.in_channels))[:-1]
        out_default = (self.out_pixels * self.out_channels, self.out_channels)
        for name, strides in (("x_strides", x_default), ("out_strides", out_default)):
            value = plain_ints(getattr(self, name)) or strides
            lines = name == "out_strides" and len(value) == 3 and rank > 1 and math.prod(self.out_lens[:-2]) == 1
            if len(value) != len(strides) and not lines:
                raise ShapeError(f"convolution {name} has {len(value)} entries; expected {len(strides)}")
            object.__setattr__(self, name, value)
        if len(self.out_strides) == 3 and known_equal(self.line_gap, 0):
            object.__setattr__(self, "out_strides", self.out_strides[::2])

    def _output_lens(self) -> tuple[int, ...]:
        lens = []
        for i, length in enumerate(self.in_lens):
            reach = self.dilation[i] * (self.kernel[i] - 1) + 1
            pads = self.pads_begin[i] + self.pads_end[i]
            if self.transposed:
                lens.append((length - 1) * self.stride[i] + reach - pads + self.output_padding[i])
            else:
                lens.append((length + pads - reach) // self.stride[i] + 1)
        return tuple(lens)

    @functools.cached_property
    def symbolic(self) -> bool:
        """Return whether a length or a stride is symbolic."""
        operands = self.prologue.operands if self.prologue else ()
        more = (stride for operand in operands for stride in operand.batch_strides)
        return self.symbolic_image or Dim in map(type, (self.batch, self.x_strides[0], self.low_parts, *more))

    @functools.cached_property
    def symbolic_image(self) -> bool:
        """Return whether a length or stride other than the image count's is symbolic."""
        own = (*self.in_lens, *self.x_strides[1:], *self.out_strides, *self.pads_begin, *self.pads_end)
        return Dim in map(type, (*own, *self.output_padding))

    @property
    def taps(self) -> int:
        """Return the number of filter taps."""
        return math.prod(self.kernel)

    @property
    def in_pixels(self) -> int:
        return math.prod(self.in_lens)

    @property
    def out_pixels(self) -> int:
        """Return the output pixels per image."""
        return math.prod(self.out_lens)

    @property
    def line_gap(self) -> int:
        """Return the elements between the end of an output image row and the next one."""
        return self.out_strides[1] - self.out_lens[-1] * self.out_strides[2] if len(self.out_strides) == 3 else 0

    @property
    def phases(self) -> tuple[int, ...]:
        """Return, for a transposed convolution, the number of output phases (remainders by the stride) along each
        axis."""
        return tuple(map(minimum, self.out_lens, self.stride)) if self.transposed else ()

    @property
    def group_in(self) -> int:
        """Return the input channels per group."""
        return self.in_channels // self.groups

    @property
    def group_out(self) -> int:
        """Return the output channels per group."""
        return self.out_channels // self.groups

    @property
    def flops(self) -> int:
        pixels = self.in_pixels if self.transposed else self.out_pixels
        return 2 * self.batch * pixels * self.taps * self.in_channels * self.group_out

    @property
    def weight_lens(self) -> tuple[int, ...]:
        """Return the shape of the weights before packing."""
        if self.transposed:
            return (self.in_channels, self.group_out, *self.kernel)
        return (self.out_channels, self.group_in, *self.kernel)

    def volume(self) -> ConvProblem:
        """Return the convolution with three spatial axes; missing ones are prepended with length 1."""
        extra = 3 - len(self.in_lens)
        if not extra:
            return self
        ones, zeros = (1,) * extra, (0,) * extra
        return replace(
            self,
            in_lens=ones + self.in_lens, kernel=ones + self.kernel, stride=ones + self.stride,
            dilation=ones + self.dilation, pads_begin=zeros + self.pads_begin, pads_end=zeros + self.pads_end,
            output_padding=zeros + self.output_padding,
            x_strides=(self.x_strides[0], *zeros, *self.x_strides[1:]),
        )  # fmt: skip
