"""Element types of PyTorch by name, and PyTorch's type promotion. This module does not import torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeGuard

import numpy as np

from ...core.dim import Dim, Length
from ...core.types import Type
from ...errors import UnsupportedError
from ...graph.instruction import Instruction

Number = bool | int | float | Dim
"""A Python number, or a symbolic length."""
Operand = Instruction | Number
"""An operand of a pointwise operator."""
Axes = Sequence[int] | int | None
"""Axes of a reduction; None and no axes stand for all."""
Lens = Sequence[Length]
"""Lengths of a tensor."""
Sizes = Sequence[int] | int
"""Numbers of the spatial axes; an integer stands for all axes."""
Results = Instruction | Sequence[Instruction | None]
"""The result of a builder function, or the results of an operator with several."""
TYPES = {
    "torch.bool": Type.bool_type,
    "torch.uint8": Type.uint8_type,
    "torch.uint16": Type.uint16_type,
    "torch.uint32": Type.uint32_type,
    "torch.uint64": Type.uint64_type,
    "torch.int8": Type.int8_type,
    "torch.int16": Type.int16_type,
    "torch.int32": Type.int32_type,
    "torch.int64": Type.int64_type,
    "torch.float16": Type.half_type,
    "torch.bfloat16": Type.bf16_type,
    "torch.float32": Type.float_type,
    "torch.float64": Type.double_type,
    "torch.float8_e4m3fn": Type.fp8e4m3fn_type,
    "torch.float8_e4m3fnuz": Type.fp8e4m3fnuz_type,
    "torch.float8_e5m2": Type.fp8e5m2_type,
    "torch.float8_e5m2fnuz": Type.fp8e5m2fnuz_type,
    "torch.complex64": Type.complex64_type,
    "torch.complex128": Type.complex128_type,
}
"""IR type of each element type, by the text of a ``torch.dtype``."""


def ir_type(dtype: object) -> Type:
    """Return the IR type of a ``torch.dtype``.

    Raises:
        UnsupportedError: there is none.
    """
    found = TYPES.get(str(dtype))
    if found is None:
        raise UnsupportedError(f"element type {dtype} is not supported")
    return found


def limits(type: Type) -> tuple[float, float]:
    """Return the least and the greatest value of a type; infinities of floats."""
    if type.is_floating:
        return -np.inf, np.inf
    info = np.iinfo(type.numpy)
    return info.min, info.max


def is_number(value: object) -> TypeGuard[Number]:
    """Return whether an operand is a Python number or a symbolic length."""
    return isinstance(value, (bool, int, float, Dim))


def promoted(operands: Iterable[Operand]) -> Type:
    """Return the type in which an operator combines tensors and Python numbers (``torch.result_type``).

    Tensors with axes decide, unless tensors without axes, or then numbers, have a higher category of bool, integer and
    float.
    """
    levels: list[list[Type]] = [[], [], []]  # tensors with axes, tensors without axes, numbers
    for value in operands:
        if isinstance(value, Instruction):
            levels[1 if value.shape.without_axes else 0].append(value.shape.type)
        else:
            kind = Type.bool_type if isinstance(value, bool) else Type.int64_type
            levels[2].append(Type.float_type if isinstance(value, float) else kind)
    result: Type | None = None
    for level in levels:
        wide = _widest(level)
        if wide is not None and (result is None or _category(wide) > _category(result)):
            result = wide
    return Type.float_type if result is None else result


def _category(type: Type) -> int:
    if type is Type.bool_type:
        return 0
    return 2 if type.is_floating else 1


def _widest(types: list[Type]) -> Type | None:
    """Return the promoted type of tensors of equal promotion level."""
    result: Type | None = None
    for type in types:
        result = type if result is None else _common(result, type)
    return result


def _common(a: Type, b: Type) -> Type:
    if a is b:
        return a
    if _category(a) != _category(b):
        return max(a, b, key=_category)
    if a.is_floating:
        return Type.float_type if a.size == b.size else max(a, b, key=lambda t: t.size)
    if a.is_signed == b.is_signed:
        return max(a, b, key=lambda t: t.size)
    signed, other = (a, b) if a.is_signed else (b, a)
    wider = {1: Type.int16_type, 2: Type.int32_type, 4: Type.int64_type, 8: Type.int64_type}
    return signed if signed.size > other.size else wider[other.size]
