"""Memory: buffers, views into an arena, and values that are deliberately absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import UNBOUNDED, DynamicDimension, Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register

SCALAR = Shape(Type.float_type)


@register
@dataclass(frozen=True)
class Allocate(Operator):
    """A buffer of ``shape``, or of the lengths that the input vector holds and the type ``buf_type``.

    The reference fills it with zeros.
    """

    name: ClassVar[str] = "allocate"
    shape: Shape | None = None
    buf_type: Type | None = None

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 0, 1)
        if self.shape is not None:
            if self.shape.is_dynamic and not inputs:
                raise self.fail(f"a buffer of {self.shape} needs its lengths as input")
            return self.shape
        if not inputs or self.buf_type is None:
            raise self.fail("needs a shape, or buf_type and a vector of lengths as input")
        lengths = inputs[0]
        if lengths.is_dynamic or lengths.ndim != 1 or not lengths.type.is_integral:
            raise self.fail(f"lengths must be a vector of integers of fixed length, got {lengths}")
        return Shape.dynamic(self.buf_type, [DynamicDimension(0, UNBOUNDED)] * lengths.lens[0])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        lens = args[0].tolist() if args else output.lens
        return np.zeros(lens, output.type.numpy)


@register
@dataclass(frozen=True)
class Load(Operator):
    """The memory of a byte buffer from ``offset`` on, seen through ``shape``."""

    name: ClassVar[str] = "load"
    view: ClassVar[bool] = True
    shape: Shape = SCALAR
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.name}[offset={self.offset},end={self.offset + self.shape.bytes}]"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        if self.offset < 0 or self.offset + self.shape.bytes > inputs[0].bytes:
            raise self.fail(f"bytes {self.offset} to {self.offset + self.shape.bytes} are not inside of {inputs[0]}")
        if self.offset % max(self.shape.type.size, 1):
            raise self.fail(f"offset {self.offset} is not aligned to elements of {self.shape.type.name}")
        return self.shape

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        raw = args[0].reshape(-1).view(np.uint8)[self.offset : self.offset + output.bytes]
        flat = raw.view(output.type.numpy)
        return np.lib.stride_tricks.as_strided(flat, output.lens, [s * flat.itemsize for s in output.strides])


@register
@dataclass(frozen=True)
class Fill(Operator):
    """The second input's lengths, every element the scalar that the first input holds."""

    name: ClassVar[str] = "fill"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 2)
        self.expect_same_type(inputs)
        if inputs[0].is_dynamic or inputs[0].elements != 1:
            raise self.fail(f"the value must be one element, got {inputs[0]}")
        return inputs[1]

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return np.full(args[1].shape, args[0].reshape(-1)[0], args[1].dtype)


@register
@dataclass(frozen=True)
class UndefinedValue(Operator):
    """A value of ``shape`` whose elements no instruction defines; they are zeros here."""

    name: ClassVar[str] = "outline"
    shape: Shape = SCALAR

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 0)
        if self.shape.is_dynamic:
            raise self.fail(f"the shape must have fixed lengths, got {self.shape}")
        return self.shape

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return np.zeros(output.lens, output.type.numpy)


@register
@dataclass(frozen=True)
class Undefined(Operator):
    """An optional input that is not there; its value has no axes and is never read."""

    name: ClassVar[str] = "undefined"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 0)
        return Shape.absent(Type.float_type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return np.zeros((), np.float32)
