"""Conversion between ONNX's value types (TypeProto) and the IR's shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.shape import UNBOUNDED, DynamicDimension, Shape
from ...core.types import Type
from ...errors import ParseError, UnsupportedError
from .onnx_package import messages
from .tensors import ir_type, onnx_number, onnx_type_string

if TYPE_CHECKING:
    from onnx import TypeProto


def declared_shape(proto: TypeProto) -> Shape:
    """Return the shape of a declared type.

    An open or negative length is a range without bounds; a tensor without lengths is unranked.

    Raises:
        ParseError: there is no type.
        UnsupportedError: it is a map to maps, an opaque or a sparse type, or the IR lacks the element type.
    """
    kind = proto.WhichOneof("value")
    if kind is None:
        raise ParseError("there is no type")
    if kind == "sequence_type":
        return Shape.sequence(declared_shape(proto.sequence_type.elem_type))
    if kind == "optional_type":
        return Shape.optional(declared_shape(proto.optional_type.elem_type))
    if kind == "map_type":
        value = declared_shape(proto.map_type.value_type)
        if value.element is not None:
            raise UnsupportedError(f"a map to {value} is not supported, only to numbers and strings")
        return Shape.map(ir_type(proto.map_type.key_type), value.type)
    if kind != "tensor_type":
        raise UnsupportedError(
            f"a {kind.removesuffix('_type')} is not supported, only tensors, sequences, optionals and maps are"
        )
    tensor = proto.tensor_type
    type = ir_type(tensor.elem_type)
    if not tensor.HasField("shape"):
        return Shape.unranked(type)
    dims = [
        DynamicDimension(d.dim_value, d.dim_value)
        if d.WhichOneof("value") == "dim_value" and d.dim_value >= 0
        else DynamicDimension(0, UNBOUNDED, symbol=d.dim_param)
        for d in tensor.shape.dim
    ]
    return Shape.dynamic(type, dims) if dims else Shape(type)


def type_proto(shape: Shape, ranked: bool = True) -> TypeProto:
    """Return the type of values of a shape.

    Args:
        shape: shape of a tensor, a sequence or an optional.
        ranked: include a tensor's lengths, as far as known.
    """
    proto = messages().TypeProto()
    if shape.type is Type.map_type and shape.element is not None:
        key, value = shape.element.sub_shapes
        proto.map_type.key_type = onnx_number(key.type)
        proto.map_type.value_type.CopyFrom(type_proto(value))
        return proto
    if shape.element is not None:
        holder = proto.sequence_type if shape.type is Type.sequence_type else proto.optional_type
        holder.elem_type.CopyFrom(type_proto(shape.element, ranked))
        return proto
    proto.tensor_type.elem_type = onnx_number(shape.type)
    if not ranked or not shape.ranked:
        return proto
    proto.tensor_type.shape.SetInParent()
    for dim in shape.dims if not shape.without_axes else ():
        entry = proto.tensor_type.shape.dim.add()
        if dim.is_fixed:
            entry.dim_value = dim.min
    return proto


def type_string(shape: Shape) -> str:
    """Return ONNX's type string, as operator schemas list it: ``tensor(float)``, ``seq(tensor(float))``."""
    if shape.element is None:
        return onnx_type_string(shape.type)
    if shape.type is Type.map_type:
        names = (onnx_type_string(s.type).removeprefix("tensor(").removesuffix(")") for s in shape.element.sub_shapes)
        return f"map({', '.join(names)})"
    return f"{'seq' if shape.type is Type.sequence_type else 'optional'}({type_string(shape.element)})"
