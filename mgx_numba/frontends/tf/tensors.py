"""Conversion of TensorFlow's element types and tensors (tensorflow/core/framework: types.proto, tensor.proto)."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...core.types import Type
from ...errors import ParseError, UnsupportedError

_NAMES = (
    "invalid float double int32 uint8 int16 int8 string complex64 int64 bool qint8 quint8 qint32 bfloat16 qint16"
    " quint16 uint16 complex128 half resource variant uint32 uint64"
).split()
"""Names of the DataType numbers, from 0 on."""

_IR_TYPES = {
    "float": Type.float_type,
    "double": Type.double_type,
    "int32": Type.int32_type,
    "uint8": Type.uint8_type,
    "int16": Type.int16_type,
    "int8": Type.int8_type,
    "int64": Type.int64_type,
    "bool": Type.bool_type,
    "bfloat16": Type.bf16_type,
    "uint16": Type.uint16_type,
    "half": Type.half_type,
    "uint32": Type.uint32_type,
    "uint64": Type.uint64_type,
}
_FIELDS = {
    "float": "float_val",
    "double": "double_val",
    "int64": "int64_val",
    "bool": "bool_val",
    "bfloat16": "half_val",
    "half": "half_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
}
"""Field of the values that are not in ``tensor_content``; other integers are in ``int_val``."""

LARGEST = 1 << 31
"""Largest constant in bytes. A GraphDef cannot be larger, but a single value may stand for any number of elements."""


def tf_type(number: int) -> Type:
    """Return the IR type of a DataType number.

    Raises:
        ParseError: the number is unknown.
        UnsupportedError: the type is strings, resources, complex or quantised numbers.
    """
    if not 0 < number < len(_NAMES):
        raise ParseError(f"DataType {number} is unknown")
    name = _NAMES[number]
    if name == "resource":
        raise UnsupportedError("it holds a resource, such as a variable: freeze the model, so that it has constants")
    if name not in _IR_TYPES:
        raise UnsupportedError(f"element type {name} is not supported; {', '.join(_IR_TYPES)} are")
    return _IR_TYPES[name]


def tf_tensor_array(tensor: Any) -> np.ndarray:
    """Return the elements of a ``TensorProto``; missing values repeat the last value, or are zero without values.

    Raises:
        ParseError: data and dimensions do not fit.
        UnsupportedError: the IR lacks the element type.
    """
    type = tf_type(tensor.dtype)
    dims = [int(d.size) for d in tensor.tensor_shape.dim]
    if tensor.tensor_shape.unknown_rank or any(d < 0 for d in dims):
        raise ParseError(f"a constant has open dimensions {dims}")
    count = prod(dims)
    if count * type.size > LARGEST:
        raise ParseError(f"a constant of dimensions {dims} is too large")
    if tensor.tensor_content:
        if len(tensor.tensor_content) != count * type.size:
            found = len(tensor.tensor_content)
            raise ParseError(f"a constant has {found} bytes, expected {count * type.size} for {type.name} {dims}")
        return np.frombuffer(tensor.tensor_content, type.numpy).reshape(dims)
    field = _FIELDS.get(_NAMES[tensor.dtype], "int_val")
    stored = getattr(tensor, field)
    if len(stored) > count:
        raise ParseError(f"a constant has {len(stored)} values in {field}, expected at most {count} for {dims}")
    if field == "half_val":
        values = np.array(stored, np.uint16).view(type.numpy)
    else:
        values = np.array(stored, np.int64 if field == "int_val" else type.numpy).astype(type.numpy)
    if values.size < count:
        values = np.concatenate([values, np.full(count - values.size, values[-1] if values.size else 0, type.numpy)])
    return values.reshape(dims)
