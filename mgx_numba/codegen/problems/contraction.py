"""What a contraction solver is asked to compute: a matrix product or a convolution, its prologue and its epilogue.

All strides are in elements. Activations are channels-last: the channel of an input or output has stride 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...errors import ShapeError
from .element_types import FLOAT32, ElementTypes

__all__ = ["ITEMSIZE", "ConvProblem", "Epilogue", "EpilogueOperand", "GemmProblem", "Prologue", "PrologueOperand"]

ITEMSIZE = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
"""Bytes of one element of the dtypes that an epilogue may read or write."""

ACCESSES = ("full", "per_n", "per_m", "scalar")


@dataclass(frozen=True)
class EpilogueOperand:
    """An extra input of an epilogue: its dtype and how it is read at output element (row m, column n).

    ``access`` is ``full`` (m and n; n contiguous), ``per_n`` (a vector over columns, such as a bias), ``per_m`` (one
    value a row) or ``scalar``. In the kernel it appears as ``e<index>``, a vector over columns in every case.
    """

    dtype: str
    access: str

    def __post_init__(self) -> None:
        if self.access not in ACCESSES:
            raise ShapeError(f"epilogue operand access {self.access!r}; expected one of {', '.join(ACCESSES)}")


@dataclass(frozen=True)
class Epilogue:
    """Pointwise work on each accumulated vector before it is stored.

    ``lines`` are assignments in the kernel language (`codegen.cpu.vocabulary`) over the names ``acc`` (the
    accumulated vector), ``e0``, ``e1``, ... and ``LANES`` (its number of lanes, a literal), one statement a line.
    ``result`` names the value that is stored, of dtype ``dtype`` (None: the accumulator's).
    """

    operands: tuple[EpilogueOperand, ...] = ()
    lines: tuple[str, ...] = ()
    result: str = "acc"
    dtype: str | None = None
    name: str = ""

    def out_dtype(self, accumulator: str) -> str:
        """Dtype of the stored values when accumulating in ``accumulator``."""
        return self.dtype or accumulator

    @property
    def moving(self) -> tuple[str, ...]:
        """Names of the operands that have an element for each of the result."""
        return tuple(f"e{k}" for k, operand in enumerate(self.operands) if operand.access == "full")


@dataclass(frozen=True)
class PrologueOperand:
    """An extra input of a prologue: ``per_k`` is contiguous along the sum, ``scalar`` is one value for all of it.

    ``batch_strides`` are its element strides along the batch dimensions (of a convolution: the image), which may be 0.
    """

    dtype: str
    access: str
    batch_strides: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.access not in ("per_k", "scalar"):
            raise ShapeError(f"prologue operand access {self.access!r}; expected one of per_k, scalar")


@dataclass(frozen=True)
class Prologue:
    """Pointwise work on each vector of the left operand (of a convolution: its input) before it is multiplied.

    As `Epilogue`, with the names ``term`` for the vector and ``a0``, ``a1``, ... for the operands. ``result`` has the
    problem's dtype.
    """

    operands: tuple[PrologueOperand, ...]
    lines: tuple[str, ...]
    result: str
    name: str


NOT_COMPUTED = "the left operand has a prologue"
"""Why a solver refuses a problem that has one."""


@dataclass(frozen=True)
class GemmProblem:
    """``out[b, m, n] = sum over k of a[b, m, k] * b[b, k, n]``.

    ``batch`` may be empty; the strides name one element stride for each batch dimension, then the two of the matrix
    (``out_strides``: the batch dimensions and the row; its columns are contiguous). A batch stride may be 0.
    Defaults are those of contiguous operands. ``b_constant``: b is known at compile time and is packed then.
    ``fast_math`` allows methods that change rounding, such as Strassen's. A ``prologue`` is applied to a.
    """

    m: int
    n: int
    k: int
    batch: tuple[int, ...] = ()
    a_strides: tuple[int, ...] = ()
    b_strides: tuple[int, ...] = ()
    out_strides: tuple[int, ...] = ()
    types: ElementTypes = FLOAT32
    b_constant: bool = True
    fast_math: bool = False
    prologue: Prologue | None = None

    def __post_init__(self) -> None:
        rank = len(self.batch)
        defaults = {
            "a_strides": _packed((*self.batch, self.m, self.k)),
            "b_strides": _packed((*self.batch, self.k, self.n)),
            "out_strides": _packed((*self.batch, self.m, self.n))[: rank + 1],
        }
        for name, default in defaults.items():
            value = getattr(self, name) or default
            if len(value) != len(default):
                raise ShapeError(f"{name} has {len(value)} entries; expected {len(default)}")
            object.__setattr__(self, name, tuple(int(s) for s in value))

    @property
    def batch_count(self) -> int:
        return math.prod(self.batch)

    @property
    def flops(self) -> int:
        return 2 * self.batch_count * self.m * self.n * self.k

    @property
    def dtype(self) -> str:
        """The one dtype of all sides (`ShapeError` if they differ)."""
        return self.types.single

    @property
    def itemsize(self) -> int:
        """Bytes of an element of that dtype."""
        return ITEMSIZE[self.dtype]


@dataclass(frozen=True)
class ConvProblem:
    """A convolution of channels-last activations, or (``transposed``) the gradient of one with respect to its input.

    Weights are laid out ``[out_channels, in_channels / groups, *kernel]``, or for a transposed one ``[in_channels,
    out_channels / groups, *kernel]``, as ONNX has them. One, two or three spatial dimensions. ``x_strides`` are the
    element strides of the image and of each spatial dimension; ``out_strides`` those of the image and of one output
    pixel (rows and planes of the output follow each other without gaps; a stride larger than ``out_channels`` writes
    into a channel slice). ``pads_begin`` and ``pads_end`` may be negative (cropping). ``output_padding`` belongs to the
    transposed form. ``fast_math`` allows transformations that change rounding, such as Winograd's. A ``prologue`` is
    applied to the input, but not to its padding.
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
    out_lens: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        rank = len(self.in_lens)
        if not 1 <= rank <= 3:
            raise ShapeError(f"convolution over {rank} spatial dimensions; expected 1 to 3")
        ones, zeros = (1,) * rank, (0,) * rank
        for name, default in (
            ("in_lens", None), ("kernel", None), ("stride", ones), ("dilation", ones), ("pads_begin", zeros),
            ("pads_end", zeros), ("output_padding", zeros),
        ):  # fmt: skip
            value = getattr(self, name) or default
            if value is None or len(value) != rank:
                raise ShapeError(f"convolution {name}={value}; expected {rank} values")
            object.__setattr__(self, name, tuple(int(v) for v in value))
        if self.groups < 1 or self.in_channels % self.groups or self.out_channels % self.groups:
            raise ShapeError(
                f"convolution of {self.in_channels} to {self.out_channels} channels does not divide into "
                f"{self.groups} groups"
            )
        object.__setattr__(self, "out_lens", self._output_lens())
        if min(self.out_lens) < 1:
            raise ShapeError(f"convolution output lens {self.out_lens}; expected at least 1 in each dimension")
        x_default = _packed((self.batch, *self.in_lens, self.in_channels))[:-1]
        out_default = (self.out_pixels * self.out_channels, self.out_channels)
        for name, strides in (("x_strides", x_default), ("out_strides", out_default)):
            value = tuple(int(s) for s in getattr(self, name)) or strides
            if len(value) != len(strides):
                raise ShapeError(f"convolution {name} has {len(value)} entries; expected {len(strides)}")
            object.__setattr__(self, name, value)

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

    @property
    def taps(self) -> int:
        """Number of kernel positions."""
        return math.prod(self.kernel)

    @property
    def in_pixels(self) -> int:
        return math.prod(self.in_lens)

    @property
    def out_pixels(self) -> int:
        """Output positions of one image."""
        return math.prod(self.out_lens)

    @property
    def phases(self) -> tuple[int, ...]:
        """Of a transposed one, along each axis: how many remainders by the stride its outputs leave."""
        return tuple(map(min, self.out_lens, self.stride)) if self.transposed else ()

    @property
    def group_in(self) -> int:
        """Input channels of one group."""
        return self.in_channels // self.groups

    @property
    def group_out(self) -> int:
        """Output channels of one group."""
        return self.out_channels // self.groups

    @property
    def flops(self) -> int:
        pixels = self.in_pixels if self.transposed else self.out_pixels
        return 2 * self.batch * pixels * self.taps * self.in_channels * self.group_out

    @property
    def dtype(self) -> str:
        """The one dtype of all sides (`ShapeError` if they differ)."""
        return self.types.single

    @property
    def itemsize(self) -> int:
        """Bytes of an element of that dtype."""
        return ITEMSIZE[self.dtype]

    @property
    def weight_lens(self) -> tuple[int, ...]:
        """Lens of the weights before packing."""
        if self.transposed:
            return (self.in_channels, self.group_out, *self.kernel)
        return (self.out_channels, self.group_in, *self.kernel)

    def volume(self) -> ConvProblem:
        """The same convolution over three spatial dimensions, the missing ones in front with length 1."""
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


def _packed(lens: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of ``lens``."""
    strides = [1] * len(lens)
    for i in range(len(lens) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(int(lens[i + 1]), 1)
    return tuple(strides)
