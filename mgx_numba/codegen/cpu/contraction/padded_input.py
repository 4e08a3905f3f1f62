"""A grid of a convolution's input pixels from which matrix tiles read every tap at constant distances.

The grid is the padded input, with its lines sorted by their number modulo the vertical stride: line ``y`` with
remainder ``r`` is line ``y * stride + r`` of the padded input. The length of a line is a multiple of the horizontal
stride.

So output ``(y, x)`` reads, at each tap, ``(y * width + x) * stride * pixel`` behind what output ``(0, 0)`` reads:
successive outputs, over all lines, are evenly spaced rows. Outputs between the end of a line and the next line are
computed and dropped. The last of them read lines of zeros at the end.

An input without padding may already be a grid; nothing is then computed past its last output.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from ....core.dim import Length, known_equal
from ....dataclass import dataclass
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from .. import host
from ..microkernels.register_tile import RegisterTile


def padded_input_refusal(problem: ConvProblem) -> str | None:
    """Return why a problem's input cannot be copied onto a grid; None if it can."""
    p = problem.volume()
    if problem.transposed:
        return "the convolution is transposed"
    if not known_equal(p.in_lens[0], 1) or p.kernel[0] > 1 or p.pads_begin[0] or p.pads_end[0]:
        return "there are three spatial dimensions"
    return "the input is cropped" if min(*p.pads_begin, *p.pads_end) < 0 else None


def _sampled(p: ConvProblem) -> ConvProblem:
    """Return the problem without strides along dimensions that have one tap and no padding."""
    steps = [s if (k, *pads) == (1, 0, 0) else 1 for s, k, *pads in zip(p.stride, p.kernel, p.pads_begin, p.pads_end)]
    return replace(
        p,
        in_lens=tuple(o if step > 1 else n for n, o, step in zip(p.in_lens, p.out_lens, steps)),
        stride=tuple(s // step for s, step in zip(p.stride, steps)),
        x_strides=(p.x_strides[0], *(s * step for s, step in zip(p.x_strides[1:], steps))),
    )


@dataclass(frozen=True)
class PaddedInput:
    """The grid of a problem for a tile; lengths and strides are in words of the tile unless said otherwise.

    A line of taps is one tap (``merged``) where that takes fewer steps than its taps one by one.
    """

    problem: ConvProblem
    tile: RegisterTile

    @functools.cached_property
    def volume(self) -> ConvProblem:
        """Return the problem in three dimensions, over only the pixels that are read where these are evenly spaced."""
        return _sampled(self.problem.volume())

    @property
    def form(self) -> str:
        """Return the dtype of an element on the grid."""
        return self.tile.packing.a or self.tile.types.a

    @property
    def pixel_elements(self) -> int:
        """Return the elements of a pixel, in whole words."""
        together = self.tile.packing.k_interleave
        return -(-self.problem.in_channels // together) * together

    @property
    def pixel(self) -> int:
        return self.pixel_elements // self.tile.packing.k_interleave

    @property
    def merged(self) -> bool:
        p = self.volume
        if p.groups > 1 or p.dilation[2] > 1:
            return False
        return self.tile.depth(p.kernel[2] * self.pixel_elements) < p.kernel[2] * self.tile.depth(p.in_channels)

    @property
    def terms(self) -> int:
        """Return the left-hand elements of a tap."""
        return self.volume.kernel[2] * self.pixel_elements if self.merged else self.problem.group_in

    @property
    def taps(self) -> int:
        kernel = self.volume.kernel
        return kernel[1] if self.merged else kernel[1] * kernel[2]

    @property
    def width(self) -> Length:
        """Return the outputs of a line, including dropped outputs."""
        p = self.volume
        return -(-(p.in_lens[2] + p.pads_begin[2] + p.pads_end[2]) // p.stride[2])

    @functools.cached_property
    def in_place(self) -> bool:
        """Return whether the input already is such a grid, and reads past a tap's terms are harmless."""
        p, together = self.volume, self.tile.packing.k_interleave
        past = self.terms != together * self.tile.depth(self.terms)  # the last word reads past a tap's terms
        whole = self.pixel_elements == p.in_channels and (not past or (p.line_behind and ITEMSIZE[p.types.a] == 1))
        if self.form != p.types.a or not whole or any((*p.pads_begin, *p.pads_end)) or p.stride[1] > 1:
            return False
        even = known_equal(p.in_lens[2] % p.stride[2], 0) and known_equal(p.x_strides[0] % together, 0)
        close = known_equal(p.in_lens[1], 1) or known_equal(p.x_strides[2], p.in_lens[2] * p.in_channels)
        return even and close and known_equal(p.x_strides[3], p.in_channels)

    @property
    def rows(self) -> Length:
        """Return the outputs of an image."""
        height, width = self.volume.out_lens[1:]
        return (height - 1) * self.width + width if self.in_place else height * self.width

    @property
    def line(self) -> Length:
        return self.width * self.volume.stride[2] * self.pixel

    @property
    def reach(self) -> Length:
        """Return the lines of one remainder from the first to the last that an output reads, and for reads past the
        last pixel."""
        p = self.volume
        last = (p.kernel[1] - 1) * p.dilation[1] // p.stride[1]
        behind = (p.kernel[2] - 1) * p.dilation[2] * self.pixel + self.tile.depth(self.terms)
        return last + 1 + behind // self.line

    @property
    def lines(self) -> Length:
        """Return the lines per remainder class in an image."""
        return self.volume.out_lens[1] + self.reach

    @property
    def phases(self) -> int:
        """Return the number of line remainders."""
        return self.volume.stride[1]

    @property
    def image(self) -> Length:
        """Return the words from one image to the next."""
        if self.in_place:
            return self.volume.x_strides[0] // self.tile.packing.k_interleave
        return self.phases * self.lines * self.line

    @property
    def low(self) -> Length:
        """Return the words from the high to the low parts, a multiple of cache lines; 0 for a grid of one part."""
        if self.tile.packing.parts == 1:
            return 0
        line = host.CACHE_LINE // ITEMSIZE[self.tile.left_word]
        return -(-self.problem.batch * self.image // line) * line

    @property
    def noted(self) -> bool:
        """Return whether each line has a flag: where parts cannot represent some numbers, or where reads past a tap may
        be infinite."""
        past = self.terms != self.tile.packing.k_interleave * self.tile.depth(self.terms)
        return self.form == "bfloat16" and (self.tile.packing.parts > 1 or past) and not self.in_place

    @property
    def flags(self) -> Length:
        """Return the byte at which the line flags begin, if there are any: a multiple of cache lines."""
        line, size = host.CACHE_LINE, ITEMSIZE[self.tile.left_word]
        return 2 * self.low * size if self.low else -(-self.problem.batch * self.image * size // line) * line

    @property
    def scratch(self) -> Length:
        """Return the bytes of the grid and its flags."""
        if self.in_place:
            return 0
        notes = 4 * self.problem.batch * self.phases * self.lines if self.noted else 0
        return self.flags + notes
