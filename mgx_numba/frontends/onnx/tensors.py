"""Conversion of TensorProto to NumPy: element types, typed data fields, raw and external data; and of ONNX's value
types (TypeProto) to the IR's shapes and back.

Elements smaller than a byte, which ONNX packs, are unpacked to one byte each. See ONNX `IR.md`, `onnx.proto`
(TensorProto).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...core.dim import Dim
from ...core.shape import UNBOUNDED, DynamicDimension, Shape
from ...core.strings import as_strings
from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from .onnx_package import messages
from .repeated import repeated_numbers

if TYPE_CHECKING:
    from onnx import TypeProto

if TYPE_CHECKING:
    from collections.abc import Callable

    from onnx import SparseTensorProto, TensorProto

    External = Callable[[TensorProto, int], np.ndarray]

ELEMENT_NAMES: tuple[str, ...] = (
    "undefined float uint8 int8 uint16 int16 int32 int64 string bool float16 double uint32 uint64 complex64"
    " complex128 bfloat16 float8e4m3fn float8e4m3fnuz float8e5m2"
    " float8e5m2fnuz uint4 int4 float4e2m1 float8e8m0"
    " uint2 int2 float6e2m3 float6e3m2"
).split()  # type: ignore[assignment]

IR_TYPES: dict[int, Type] = {
    1: Type.float_type,
    2: Type.uint8_type,
    3: Type.int8_type,
    4: Type.uint16_type,
    5: Type.int16_type,
    6: Type.int32_type,
    7: Type.int64_type,
    8: Type.string_type,
    9: Type.bool_type,
    10: Type.half_type,
    11: Type.double_type,
    12: Type.uint32_type,
    13: Type.uint64_type,
    14: Type.complex64_type,
    15: Type.complex128_type,
    16: Type.bf16_type,
    17: Type.fp8e4m3fn_type,
    18: Type.fp8e4m3fnuz_type,
    19: Type.fp8e5m2_type,
    20: Type.fp8e5m2fnuz_type,
    21: Type.uint4_type,
    22: Type.int4_type,
    23: Type.fp4e2m1_type,
    24: Type.fp8e8m0_type,
    25: Type.uint2_type,
    26: Type.int2_type,
}
_NUMBERS = {type: number for number, type in IR_TYPES.items()}
# Types whose elements are in int32_data, by TensorProto.
_INT32_FIELD = frozenset({2, 3, 4, 5, 6, 9, 10, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26})
_FIELDS = {
    1: "float_data",
    7: "int64_data",
    11: "double_data",
    12: "uint64_data",
    13: "uint64_data",
    14: "float_data",
    15: "double_data",
}
_COMPLEX = frozenset({14, 15})
"""Types whose elements are two numbers of their field."""
_FIELD_TYPES: dict[str, np.dtype] = {
    "float_data": np.dtype(np.float32),
    "int32_data": np.dtype(np.int32),
    "int64_data": np.dtype(np.int64),
    "double_data": np.dtype(np.float64),
    "uint64_data": np.dtype(np.uint64),
}
MAX_ELEMENTS = 1 << 60  # at 8 bytes each, the size stays below 2**63


def elem_name(number: int) -> str:
    """Return ONNX's name of an element type number: ``float``, ``int64``, ``float8e4m3fn``."""
    return ELEMENT_NAMES[number] if 0 <= number < len(ELEMENT_NAMES) else f"element type {number}"


def onnx_type_string(type: Type) -> str:
    """Return ONNX's type string, as operator schemas list it: ``tensor(float)``."""
    return f"tensor({ELEMENT_NAMES[_NUMBERS[type]] if type in _NUMBERS else type.name})"


def onnx_number(type: Type) -> int:
    """Return ONNX's number of an element type.

    Raises:
        UnsupportedError: ONNX lacks the type (tuples).
    """
    if type not in _NUMBERS:
        raise UnsupportedError(f"ONNX has no element type for {type.name}")
    return _NUMBERS[type]


def ir_type(number: int) -> Type:
    """Return the IR type of an ONNX element type number.

    Raises:
        ParseError: the number is unknown.
        UnsupportedError: the IR lacks the type.
    """
    found = IR_TYPES.get(number)
    if found is None:
        if not 0 < number < len(ELEMENT_NAMES):
            raise ParseError(f"{elem_name(number)} is not an ONNX element type")
        raise UnsupportedError(f"element type {elem_name(number)} is not supported")
    return found


def element_count(dims: list[int], where: str) -> int:
    """Return the product of the dimensions.

    Raises:
        ParseError: a dimension is negative, or the product exceeds 2**60.
    """
    count = 1
    for dim in dims:
        if dim < 0:
            raise ParseError(f"{where} has a negative dimension: {dims}")
        count *= dim
    if not isinstance(count, Dim) and count > MAX_ELEMENTS:
        raise ParseError(f"{where} has too many elements: {dims}")
    return count


def tensor_array(tensor: TensorProto, external: External, raw: np.ndarray | None = None) -> np.ndarray:
    """Return the tensor's elements, borrowed from ``raw``, ``raw_data`` or a mapped file if the layout allows.

    Args:
        external: reads external data of a tensor: (tensor, number of bytes) to an array of bytes.
        raw: the content of ``raw_data`` if it was kept outside the message.

    Raises:
        ParseError: data and dimensions do not fit, data is in the wrong field, or an external reference is broken.
        UnsupportedError: the IR lacks the element type.
    """
    where = f"tensor {tensor.name!r}"
    try:
        type = ir_type(tensor.data_type)
    except (ParseError, UnsupportedError) as error:
        raise error.__class__(f"{where}: {error}") from None
    dims = list(tensor.dims)
    count = element_count(dims, where)
    if tensor.HasField("segment"):
        raise UnsupportedError(f"{where} is stored in segments")
    length = (count * type.bits + 7) // 8
    if type is Type.string_type:
        return _texts(tensor, count, where).reshape(dims)
    if tensor.data_location == 1:
        data = external(tensor, length)
    elif raw is not None:
        data = raw
    elif tensor.HasField("raw_data"):
        data = np.frombuffer(tensor.raw_data, np.uint8)
    else:
        return _from_fields(tensor, type, count, where).reshape(dims)
    if data.size != length:
        raise ParseError(
            f"{where} has {data.size} bytes of data, expected {length} for {elem_name(tensor.data_type)}{dims}"
        )
    if type.is_narrow:
        return _unpack(data, count, type).reshape(dims)
    return data.view(type.numpy.newbyteorder("<") if type.numpy.kind in "iufc" else type.numpy).reshape(dims)


def replacing(tensor: TensorProto, given: np.ndarray) -> np.ndarray:
    """Return an array that a caller passes in place of the tensor's elements, after checking it.

    Raises:
        ShapeError: element type or lengths differ.
    """
    wanted = ir_type(tensor.data_type)
    if given.dtype != wanted.numpy or given.shape != tuple(tensor.dims):
        raise ShapeError(
            f"tensor {tensor.name!r} is given as {given.dtype}{list(given.shape)}, expected"
            f" {elem_name(tensor.data_type)}{list(tensor.dims)}"
        )
    return given


def sparse_array(sparse: SparseTensorProto, external: External) -> np.ndarray:
    """Return a sparse initializer as a dense array.

    Raises:
        ParseError: indices are out of range, or have the wrong shape.
    """
    where = f"sparse tensor {sparse.values.name!r}"
    dims = list(sparse.dims)
    if element_count(dims, where) > 1 << 32:
        raise UnsupportedError(f"{where} is too large to be stored densely: {dims}")
    values = tensor_array(sparse.values, external)
    indices = tensor_array(sparse.indices, external)
    if values.ndim != 1 or indices.shape not in ((values.size,), (values.size, len(dims))):
        raise ParseError(f"{where}: indices {list(indices.shape)} do not fit values {list(values.shape)}")
    limits = np.array(dims if indices.ndim == 2 else [int(np.prod(dims))])
    columns = indices.reshape(values.size, -1)
    if indices.dtype != np.int64 or (columns < 0).any() or (columns >= limits).any():
        raise ParseError(f"{where}: an index is outside of {dims}")
    dense = np.full(dims, "", object) if values.dtype.hasobject else np.zeros(dims, values.dtype)
    dense[np.unravel_index(indices, dims) if indices.ndim == 1 else tuple(indices.T)] = values
    return dense


def _texts(tensor: TensorProto, count: int, where: str) -> np.ndarray:
    """Return the elements of a string tensor, flat."""
    if tensor.HasField("raw_data") or tensor.data_location == 1:
        raise ParseError(f"{where} of strings has raw or external data, expected string_data")
    if len(tensor.string_data) != count:
        raise ParseError(f"{where} has {len(tensor.string_data)} values in string_data, expected {count}")
    held = np.empty(count, object)
    held[:] = list(tensor.string_data)
    try:
        return as_strings(held)
    except ShapeError as error:
        raise ParseError(f"{where}: {error}") from None


def _from_fields(tensor: TensorProto, type: Type, count: int, where: str) -> np.ndarray:
    number = tensor.data_type
    field = "int32_data" if number in _INT32_FIELD else _FIELDS[number]
    stored = getattr(tensor, field)
    wanted = (count * type.bits + 7) // 8 if type.is_narrow else count * 2 if number in _COMPLEX else count
    if len(stored) != wanted:
        raise ParseError(
            f"{where} has {len(stored)} values in {field}, expected {wanted} for {elem_name(number)}{list(tensor.dims)}"
        )
    values = repeated_numbers(tensor, field, _FIELD_TYPES[field])
    if type.is_narrow:
        return _unpack(values.astype(np.uint8), count, type)
    if number in (10, 16):
        return values.astype(np.uint16).view(type.numpy)
    if number in _COMPLEX:
        return values.view(type.numpy)
    if number in (17, 18, 19, 20, 24):
        return values.astype(np.uint8).view(type.numpy)
    return values.astype(type.numpy, copy=False)


def _unpack(data: np.ndarray, count: int, type: Type) -> np.ndarray:
    """Return elements packed from the low bits of each byte upwards."""
    shifts = np.arange(0, 8, type.bits, dtype=np.uint8)
    codes = (data[:, None] >> shifts) & ((1 << type.bits) - 1)
    return codes.ravel()[:count].view(type.numpy)


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
