"""Element types of the IR: MIGraphX's ``shape::type_t`` with its names, wire values and C++ spellings.

Types that MIGraphX does not have (from `FIRST_OWN` on) are computed on the host: they have no kernels. Elements of
types below a byte (`Type.is_narrow`) occupy the low bits of a byte each, as in ``ml_dtypes``. The pass `rewrite_narrow`
converts them to bytes, which have kernels. Elements of four types are Python objects in NumPy arrays of dtype
``object``: strings, sequences, optionals and maps.
"""

from __future__ import annotations

import functools
from enum import IntEnum
from types import ModuleType
from typing import Any

import numpy as np


class Type(IntEnum):
    """An element type; the value is MIGraphX's wire value (used in text, ``.mxr`` and ``convert``)."""

    bool_type = 0
    half_type = 1
    float_type = 2
    double_type = 3
    uint8_type = 4
    int8_type = 5
    uint16_type = 6
    int16_type = 7
    int32_type = 8
    int64_type = 9
    uint32_type = 10
    uint64_type = 11
    fp8e4m3fnuz_type = 12
    fp8e4m3fn_type = 13
    fp8e5m2_type = 14
    bf16_type = 15
    fp8e5m2fnuz_type = 16
    tuple_type = 17
    fp4x2_type = 18
    uint2_type = 123
    int2_type = 124
    uint4_type = 125
    int4_type = 126
    fp4e2m1_type = 127
    fp8e8m0_type = 128
    complex64_type = 129
    complex128_type = 130
    string_type = 131
    sequence_type = 132
    optional_type = 133
    map_type = 134

    __hash__ = int.__hash__  # faster than Enum's Python function; shapes are looked up by type

    @property
    def numpy(self) -> np.dtype:
        """NumPy (or ml_dtypes) dtype of one stored element; ``fp4x2_type`` is stored as bytes of two nibbles."""
        return _NUMPY[self]

    @property
    def size(self) -> int:
        """Bytes per stored element (0 for ``tuple_type``)."""
        return _SIZES[self]

    @property
    def bits(self) -> int:
        """Return the number of significant bits of an element: 2 or 4 for narrow types, which are stored in a byte."""
        return _NARROW_BITS.get(self) or 8 * self.size

    @property
    def is_narrow(self) -> bool:
        """Whether an element is below a byte."""
        return self in _NARROW_BITS

    @property
    def dtype_name(self) -> str:
        """NumPy's (or ml_dtypes') name of `numpy`, also used in kernels. Cached, since NumPy builds the name at each
        access."""
        return _NAMES[self]

    @property
    def cpp(self) -> str:
        """MIGraphX's C++ spelling: ``float``, ``int64_t``, ``migraphx::fp8::fp8e4m3fn``."""
        return _CPP[self]

    @property
    def is_floating(self) -> bool:
        """Whether elements are floating-point numbers of any width."""
        return self in _FLOATING

    @property
    def is_integral(self) -> bool:
        """Whether elements are integers (bool counts, as in C++)."""
        return self in _INTEGRAL

    @property
    def hosted(self) -> bool:
        """Whether values are computed on the host only, without kernels."""
        return self >= FIRST_OWN

    @property
    def coded(self) -> bool:
        """Whether values are computed on the host only, but take a byte each, which kernels can move."""
        return FIRST_OWN <= self <= Type.fp8e8m0_type

    @property
    def holds_objects(self) -> bool:
        """Whether elements are Python objects: ``str``, the value of a sequence or an optional, or ``dict``."""
        return self >= Type.string_type

    @property
    def unsigned(self) -> Type:
        """The unsigned integer type of the same size."""
        return {1: Type.uint8_type, 2: Type.uint16_type, 4: Type.uint32_type, 8: Type.uint64_type}[self.size]

    @property
    def is_signed(self) -> bool:
        """Whether negative values exist."""
        return self.is_floating or self in _SIGNED

    @property
    def compute(self) -> Type:
        """Type of arithmetic on this storage type: float32 for floats below 32 bits, int32 for integers below a
        byte."""
        if self in _NARROW:
            return Type.float_type
        return Type.int32_type if self in _NARROW_BITS else self

    def __str__(self) -> str:
        return self.name


FIRST_OWN = Type.uint2_type
"""The first wire value of a type that MIGraphX does not have, far above its own values to leave room for new ones."""

_EXTENDED: dict[Type, str] = {
    Type.fp8e4m3fnuz_type: "float8_e4m3fnuz",
    Type.fp8e4m3fn_type: "float8_e4m3fn",
    Type.fp8e5m2_type: "float8_e5m2",
    Type.bf16_type: "bfloat16",
    Type.fp8e5m2fnuz_type: "float8_e5m2fnuz",
    Type.uint2_type: "uint2",
    Type.int2_type: "int2",
    Type.uint4_type: "uint4",
    Type.int4_type: "int4",
    Type.fp4e2m1_type: "float4_e2m1fn",
    Type.fp8e8m0_type: "float8_e8m0fnu",
}
"""Types with ``ml_dtypes`` dtypes, and their names there. The package is imported on first use."""


class _Dtypes(dict[Type, np.dtype]):
    """Map from type to dtype."""

    def __missing__(self, type: Type) -> np.dtype:
        found = self[type] = np.dtype(getattr(_ml_dtypes(), _EXTENDED[type]))
        return found


@functools.cache
def _ml_dtypes() -> ModuleType:
    import ml_dtypes  # late: importing it takes milliseconds

    return ml_dtypes


_NUMPY: dict[Type, np.dtype] = _Dtypes()
_NUMPY |= {
    Type.bool_type: np.dtype(np.bool_),
    Type.half_type: np.dtype(np.float16),
    Type.float_type: np.dtype(np.float32),
    Type.double_type: np.dtype(np.float64),
    Type.uint8_type: np.dtype(np.uint8),
    Type.int8_type: np.dtype(np.int8),
    Type.uint16_type: np.dtype(np.uint16),
    Type.int16_type: np.dtype(np.int16),
    Type.int32_type: np.dtype(np.int32),
    Type.int64_type: np.dtype(np.int64),
    Type.uint32_type: np.dtype(np.uint32),
    Type.uint64_type: np.dtype(np.uint64),
    Type.fp4x2_type: np.dtype(np.uint8),
    Type.complex64_type: np.dtype(np.complex64),
    Type.complex128_type: np.dtype(np.complex128),
    Type.string_type: np.dtype(np.object_),
    Type.sequence_type: np.dtype(np.object_),
    Type.optional_type: np.dtype(np.object_),
    Type.map_type: np.dtype(np.object_),
}

_SIZES = {Type.tuple_type: 0, **{type: dtype.itemsize for type, dtype in _NUMPY.items()}}
_SIZES |= {type: 2 if type is Type.bf16_type else 1 for type in _EXTENDED}
_NAMES = {**{type: dtype.name for type, dtype in _NUMPY.items()}, **_EXTENDED}

_CPP: dict[Type, str] = {
    Type.bool_type: "bool",
    Type.half_type: "half",
    Type.float_type: "float",
    Type.double_type: "double",
    Type.uint8_type: "uint8_t",
    Type.int8_type: "int8_t",
    Type.uint16_type: "uint16_t",
    Type.int16_type: "int16_t",
    Type.int32_type: "int32_t",
    Type.int64_type: "int64_t",
    Type.uint32_type: "uint32_t",
    Type.uint64_type: "uint64_t",
    Type.fp8e4m3fnuz_type: "migraphx::fp8::fp8e4m3fnuz",
    Type.fp8e4m3fn_type: "migraphx::fp8::fp8e4m3fn",
    Type.fp8e5m2_type: "migraphx::fp8::fp8e5m2",
    Type.bf16_type: "bf16",
    Type.fp8e5m2fnuz_type: "migraphx::fp8::fp8e5m2fnuz",
    Type.tuple_type: "tuple",
    Type.fp4x2_type: "fp4x2",
    Type.uint2_type: "uint2",
    Type.int2_type: "int2",
    Type.uint4_type: "uint4",
    Type.int4_type: "int4",
    Type.fp4e2m1_type: "fp4e2m1",
    Type.fp8e8m0_type: "fp8e8m0",
    Type.complex64_type: "std::complex<float>",
    Type.complex128_type: "std::complex<double>",
    Type.string_type: "std::string",
    Type.sequence_type: "sequence",
    Type.optional_type: "optional",
    Type.map_type: "map",
}

_NARROW = frozenset(
    {
        Type.half_type,
        Type.bf16_type,
        Type.fp8e4m3fnuz_type,
        Type.fp8e4m3fn_type,
        Type.fp8e5m2_type,
        Type.fp8e5m2fnuz_type,
        Type.fp4e2m1_type,
        Type.fp8e8m0_type,
    }
)
_NARROW_BITS = {
    Type.uint2_type: 2,
    Type.int2_type: 2,
    Type.uint4_type: 4,
    Type.int4_type: 4,
    Type.fp4e2m1_type: 4,
}
"""Bits of an element, by definition."""
_FLOATING = _NARROW | {Type.float_type, Type.double_type}
_SIGNED = frozenset({Type.int2_type, Type.int4_type, Type.int8_type, Type.int16_type, Type.int32_type, Type.int64_type})
_INTEGRAL = _SIGNED | {
    Type.bool_type,
    Type.uint2_type,
    Type.uint4_type,
    Type.uint8_type,
    Type.uint16_type,
    Type.uint32_type,
    Type.uint64_type,
}
_SHARED = frozenset({Type.fp4x2_type, Type.sequence_type, Type.optional_type, Type.map_type})
"""Types that share another type's dtype: bytes, and objects, which are strings unless a shape says otherwise."""
_BY_NAME: dict[str, Type] = {str(dtype): t for t, dtype in _NUMPY.items() if t not in _SHARED and not dtype.hasobject}
_BY_NAME |= {name: t for t, name in _EXTENDED.items()}
_BY_NAME |= {t.name: t for t in Type} | {name: t for t, name in _CPP.items()}
_BY_NUMPY = {dtype: t for t, dtype in _NUMPY.items() if t not in _SHARED}


def parse_type(name: object) -> Type:
    """Return the ``Type`` of an enum member, a wire value, an enum name, a C++ name or a NumPy name.

    Raises:
        ValueError: the name is unknown; the message lists the known names.
    """
    if isinstance(name, Type):
        return name
    if isinstance(name, int) and not isinstance(name, bool):
        return Type(name)
    found = _BY_NAME.get(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"unknown element type {name!r}; known: {', '.join(t.name for t in Type)}")
    return found


@functools.cache
def numpy_dtype(name: str) -> np.dtype:
    """Return the NumPy or ml_dtypes dtype of this name.

    Raises:
        TypeError: neither package knows the name.
    """
    if name in _EXTENDED.values():
        return np.dtype(getattr(_ml_dtypes(), name))
    try:
        return np.dtype(name)
    except TypeError:
        return np.dtype(getattr(_ml_dtypes(), name, None) or name)


def finfo(dtype: Any) -> Any:
    """Return ``ml_dtypes.finfo`` of a dtype; NumPy's own types do not load the package."""
    found = np.dtype(dtype)
    return _ml_dtypes().finfo(found) if found.isbuiltin == 2 else np.finfo(found)


@functools.cache
def from_numpy(dtype: np.dtype) -> Type:
    """Return the ``Type`` whose stored elements have this NumPy dtype, in either byte order.

    Raises:
        ValueError: no IR type is stored in this dtype (structured, dates ...).
    """
    dtype = np.dtype(dtype)
    found = _BY_NUMPY.get(dtype.newbyteorder("=") if dtype.kind in "iufbc" else dtype)
    if found is None and dtype.isbuiltin == 2:  # an ml_dtypes dtype, so ml_dtypes is imported
        found = next((t for t, name in _EXTENDED.items() if name == dtype.name and t.numpy == dtype), None)
    if found is None:
        raise ValueError(f"no element type for NumPy dtype {dtype}")
    return found
