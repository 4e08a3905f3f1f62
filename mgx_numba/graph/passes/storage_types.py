"""Types of 16 bits in which values are stored, and conversions of such values to float32."""

from __future__ import annotations

from collections.abc import Collection

from ...core.types import Type
from ..instruction import Instruction

STORAGE = (Type.half_type, Type.bf16_type)


def element_types(values: Collection[Instruction]) -> set[Type]:
    """Return the element types of values, for a tuple those of its members."""
    found = {value.shape.type for value in values}
    if Type.tuple_type in found:
        found = {leaf.type for value in values for leaf in value.shape.flatten()}
    return found


def widens(ins: Instruction) -> bool:
    """Return whether an instruction makes float32 of 16 bits."""
    return ins.name == "convert" and ins.shape.type is Type.float_type and ins.inputs[0].shape.type in STORAGE


def handles_sequences(ins: Instruction) -> bool:
    """Return whether an operand or the result is a sequence or an optional, whose tensors keep their types."""
    return any(shape.element is not None for shape in (ins.shape, *(i.shape for i in ins.inputs)))
