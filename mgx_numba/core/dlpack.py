"""DLPack exchange of every element type, including types without a DLPack code in NumPy, in host and device memory.

NumPy's own export and import refuse bfloat16 and float8. Their data is exchanged as unsigned integers of the same size.
The type code in the capsule (``DLDataType`` of dlpack.h) is set to the true type on export, and read and replaced on
import. Capsules of device memory are read and written here; without DLPack, ``__cuda_array_interface__`` (version 3,
Numba's documentation) is read.

Elements below a byte take a byte each in this package. DLPack 1.1 has a flag for that. Without the flag such elements
are packed, from the low bits of each byte upwards, and importing unpacks them.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from typing import Any

import numpy as np

from ..errors import ShapeError
from .device_array import CPU_DEVICES, CUDA, DeviceArray, device_of
from .shape import Shape
from .types import Type, from_numpy

_MANAGED = 13  # kDLCUDAManaged
_UNSIGNED = 1  # kDLUInt
_KINDS = {"i": 0, "u": _UNSIGNED, "f": 2, "c": 5, "b": 6}
"""DLDataTypeCode of each NumPy dtype kind."""
_NAME = b"dltensor"
_VERSIONED = b"dltensor_versioned"
# KDLBfloat and the kDLFloat8 types of dlpack.h.
_CODES = {
    Type.bf16_type: 4,
    Type.fp8e4m3fn_type: 10,
    Type.fp8e4m3fnuz_type: 11,
    Type.fp8e5m2_type: 12,
    Type.fp8e5m2fnuz_type: 13,
    Type.fp8e8m0_type: 14,
}
_TYPES = {code: type for type, code in _CODES.items()}
NARROW_CODES = {
    Type.uint2_type: (_UNSIGNED, 2),
    Type.int2_type: (0, 2),
    Type.uint4_type: (_UNSIGNED, 4),
    Type.int4_type: (0, 4),
    Type.fp4e2m1_type: (17, 4),
}
"""DLDataTypeCode and bits of types below a byte."""
_NARROW_TYPES = {of: type for type, of in NARROW_CODES.items()}
_PADDED = 1 << 2  # DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED
_PADDED_SINCE = (1, 1)  # the version of DLPack that has the flag
_PLAIN = [
    t
    for t in Type
    if t not in (*_CODES, Type.tuple_type, Type.fp4x2_type) and not t.is_narrow and t.numpy.kind in _KINDS
]
_CODES_AND_BITS = {t: (_KINDS[t.numpy.kind], 8 * t.size) for t in _PLAIN} | {
    t: (c, 8 * t.size) for t, c in _CODES.items()
}
_TYPE_OF = {code: type for type, code in _CODES_AND_BITS.items()}


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _VersionedHead(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


def export_dlpack(array: np.ndarray, type: Type, **options: Any) -> object:
    """Return a DLPack capsule over the array's memory; ``options`` are those of ``__dlpack__``.

    Raises:
        BufferError: NumPy refuses, for instance for read-only memory; or elements are below a byte, and the consumer's
            DLPack version cannot express a byte for each.
    """
    if type.is_narrow:
        return _export_narrow(array, type, options)
    code = _CODES.get(type)
    if code is None:
        return array.__dlpack__(**options)
    capsule = array.view(f"u{array.itemsize}").__dlpack__(**options)
    data_type_of(capsule).code = code
    return capsule


def import_dlpack(exporter: Any) -> np.ndarray:
    """Return the exporter's memory as an array, without copying.

    Raises:
        ShapeError: the tensor is on a device (`import_device` takes it), takes part in automatic differentiation, or
            has an unsupported element type.
    """
    if getattr(exporter, "requires_grad", False):
        raise ShapeError("the tensor requires grad, so its memory is not given away; pass tensor.detach()")
    device = int(exporter.__dlpack_device__()[0])
    if device not in CPU_DEVICES:
        raise ShapeError(f"the tensor is on a device (DLPack device type {device}); copy it to host memory first")
    adapter = _Importer(exporter)
    try:
        array = np.from_dlpack(adapter)
    except (BufferError, RuntimeError, TypeError) as error:
        raise ShapeError(f"DLPack import failed: {error}") from None
    return array if adapter.type is None else array.view(adapter.type.numpy)


def _export_narrow(array: np.ndarray, type: Type, options: dict[str, Any]) -> object:
    if tuple(options.get("max_version") or (0, 0)) < _PADDED_SINCE:
        raise BufferError(
            f"elements of {type.name} have a byte each, for which DLPack has a form from version 1.1 on;"
            f" the consumer asks for {options.get('max_version') or 'no version'}"
        )
    capsule = array.view(np.uint8).__dlpack__(**options)
    data_type, head = data_type_of(capsule), _head(capsule)
    data_type.code, data_type.bits = NARROW_CODES[type]
    head.version[1] = max(head.version[1], _PADDED_SINCE[1])
    head.flags |= _PADDED
    return capsule


def _unpacked(tensor: _Tensor, type: Type) -> np.ndarray:
    """Unpack packed elements into new memory, a byte each.

    Raises:
        ShapeError: the elements are not in row-major order.
    """
    lens = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides and not _shaped(type, lens, tuple(tensor.strides[: tensor.ndim])).standard:
        raise ShapeError(f"packed elements of {type.name} must lie in row-major order")
    count = math.prod(lens)
    length = (count * type.bits + 7) // 8
    data = ctypes.string_at((tensor.data or 0) + tensor.byte_offset, length) if length else b""
    shifts = np.arange(0, 8, type.bits, dtype=np.uint8)
    codes = (np.frombuffer(data, np.uint8)[:, None] >> shifts) & ((1 << type.bits) - 1)
    return np.array(codes.ravel()[:count].reshape(lens))


class _Importer:
    """Wraps an exporter for NumPy: types that NumPy does not know become unsigned integers."""

    def __init__(self, exporter: Any) -> None:
        self.exporter = exporter
        self.type: Type | None = None

    def __dlpack__(self, **options: Any) -> Any:
        wanted = options | {"max_version": _PADDED_SINCE} if "max_version" in options else options
        try:
            capsule = self.exporter.__dlpack__(**wanted)
        except TypeError:  # exporters older than DLPack 1.0 take no options
            capsule = self.exporter.__dlpack__()
        data_type = data_type_of(capsule)
        if data_type.bits < 8 and data_type.lanes == 1:
            self.type = _NARROW_TYPES.get((data_type.code, data_type.bits))
            if self.type is None:
                raise BufferError(f"no element type for DLPack's type code {data_type.code} of {data_type.bits} bits")
            head = _head(capsule) if _is_valid(capsule, _VERSIONED) else None
            if head is None or not head.flags & _PADDED:
                return _unpacked(tensor_of(capsule), self.type).__dlpack__(**options)
            head.flags &= ~_PADDED
            data_type.code, data_type.bits = _UNSIGNED, 8
            return capsule
        self.type = _TYPES.get(data_type.code)
        if self.type is not None:
            data_type.code = _UNSIGNED
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def data_type_of(capsule: object) -> _DataType:
    """Return the element type in an unconsumed capsule."""
    return tensor_of(capsule).dtype


def _head(capsule: object) -> _VersionedHead:
    """Return the header before the tensor in an unconsumed capsule of version 1 or later."""
    return _VersionedHead.from_address(_pointer(capsule, _VERSIONED))


def tensor_of(capsule: object) -> _Tensor:
    """Return the tensor in an unconsumed capsule."""
    if _is_valid(capsule, _VERSIONED):
        return _Tensor.from_address(_pointer(capsule, _VERSIONED) + ctypes.sizeof(_VersionedHead))
    return _Tensor.from_address(_pointer(capsule, _NAME))


def import_device(exporter: Any, stream: int) -> DeviceArray:
    """Import a tensor in the memory of a CUDA device, without copying; its owner is kept alive.

    Args:
        exporter: has ``__dlpack__``, or else ``__cuda_array_interface__``.
        stream: the stream that will read the elements, in DLPack's numbering: a driver's handle, 1 for the default
            stream.

    Returns:
        The tensor; its ``stream`` must be waited for, its ``device`` is -1 if the exporter does not state it.

    Raises:
        ShapeError: the tensor is elsewhere, takes part in automatic differentiation, has an unsupported element type,
            or strides that are not whole elements.
    """
    if getattr(exporter, "requires_grad", False):
        raise ShapeError("the tensor requires grad, so its memory is not given away; pass tensor.detach()")
    found = device_of(exporter)
    if found is None or found[0] not in (CUDA, _MANAGED):
        where = "host memory" if found is None else f"a device of another kind (DLPack device type {found[0]})"
        raise ShapeError(f"the tensor is in {where}, expected one on a CUDA device")
    if not hasattr(type(exporter), "__dlpack__"):
        return _from_interface(exporter)
    try:
        capsule = exporter.__dlpack__(stream=stream)
    except (BufferError, RuntimeError, TypeError) as error:
        raise ShapeError(f"DLPack import failed: {error}") from None
    tensor = tensor_of(capsule)
    kind = _TYPE_OF.get((tensor.dtype.code, tensor.dtype.bits)) if tensor.dtype.lanes == 1 else None
    if kind is None:
        code, bits, lanes = tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
        raise ShapeError(f"no element type for DLPack's type code {code} of {bits} bits in {lanes} lanes")
    lens = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    # The capsule stays unconsumed, so that its destructor notifies the exporter.
    return DeviceArray(_shaped(kind, lens, strides), (tensor.data or 0) + tensor.byte_offset, found[1], capsule)


def _from_interface(exporter: Any) -> DeviceArray:
    told = exporter.__cuda_array_interface__
    dtype = np.dtype(told["typestr"])
    try:
        kind = from_numpy(dtype)
    except ValueError as error:
        raise ShapeError(str(error)) from None
    strides = told.get("strides")
    if strides is not None and any(s % dtype.itemsize for s in strides):
        raise ShapeError(f"strides {strides} are not whole elements of {dtype}")
    if told.get("mask") is not None:
        raise ShapeError("the tensor is masked, which no shape can describe")
    whole = None if strides is None else tuple(s // dtype.itemsize for s in strides)
    shape = _shaped(kind, tuple(told["shape"]), whole)
    return DeviceArray(shape, told["data"][0] or 0, -1, exporter, told.get("stream"))


@functools.lru_cache(maxsize=256)  # making a shape takes as long as the rest of an import
def _shaped(kind: Type, lens: tuple[int, ...], strides: tuple[int, ...] | None) -> Shape:
    return Shape(kind, lens, strides) if len(lens) else Shape(kind)


def export_device(array: DeviceArray, owner: object) -> object:
    """Return a DLPack capsule (version 0) over memory of a CUDA device; ``owner`` is kept alive until the consumer is
    done.

    Raises:
        BufferError: DLPack has no code for the element type.
    """
    shape = array.shape
    known = _CODES_AND_BITS.get(shape.type)
    if known is None:
        raise BufferError(f"DLPack has no code for {shape.type.name}")
    lens, strides = ((), ()) if shape.without_axes else (shape.lens, shape.strides)
    words = ctypes.c_int64 * len(lens)
    tensor = _Tensor(
        array.address, (CUDA, array.device), len(lens), _DataType(*known, 1), words(*lens), words(*strides), 0
    )
    managed = _ManagedTensor(tensor, next(_numbers), ctypes.cast(_delete, ctypes.c_void_p))
    exported[managed.manager] = managed, owner
    return _new_capsule(ctypes.addressof(managed), _NAME, _discard)


_numbers = itertools.count(1)
exported: dict[int, tuple[_ManagedTensor, object]] = {}
"""Exported tensors that other libraries still hold, by number."""
_api = ctypes.pythonapi
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
# For a capsule in its destructor, to which no new reference may be made.
_going_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_going_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Callback)(("PyCapsule_New", _api))


@_Callback
def _delete(managed: int) -> None:
    """Release an exported tensor; its consumer calls this."""
    del exported[_ManagedTensor.from_address(managed).manager]


@_Callback
def _discard(capsule: int) -> None:
    """Destroy a capsule; release its tensor if the capsule's name shows that nobody has consumed it."""
    if _going_is_valid(capsule, _NAME):
        _delete(_going_pointer(capsule, _NAME))
