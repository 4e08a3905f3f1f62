"""DLPack exchange of every element type, those that NumPy has no DLPack code for included.

NumPy's own export and import refuse bfloat16 and float8. Their data crosses as unsigned integers of the same size;
the type code in the capsule (``DLDataType`` of dlpack.h) is set to what it really is, or read and replaced.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ..errors import ShapeError
from .types import Type

__all__ = ["export_dlpack", "import_dlpack"]

_CPU_DEVICES = (1, 3, 11)  # kDLCPU, kDLCUDAHost, kDLROCMHost
_UNSIGNED = 1  # kDLUInt
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


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
    )


class _VersionedHead(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


def export_dlpack(array: np.ndarray, type: Type, **options: Any) -> Any:
    """A DLPack capsule over the array's memory; ``options`` are those of ``__dlpack__``.

    Raises:
        BufferError: what NumPy raises, for instance for memory that is read-only.
    """
    code = _CODES.get(type)
    if code is None:
        return array.__dlpack__(**options)
    capsule = array.view(f"u{array.itemsize}").__dlpack__(**options)
    _data_type(capsule).code = code
    return capsule


def import_dlpack(exporter: Any) -> np.ndarray:
    """The exporter's memory as an array, without copying.

    Raises:
        ShapeError: it lies on a device, takes part in automatic differentiation, or has an element type without a
            counterpart.
    """
    if getattr(exporter, "requires_grad", False):
        raise ShapeError("the tensor requires grad, so its memory is not given away; pass tensor.detach()")
    device = int(exporter.__dlpack_device__()[0])
    if device not in _CPU_DEVICES:
        raise ShapeError(f"the tensor is on a device (DLPack device type {device}); copy it to host memory first")
    adapter = _Importer(exporter)
    try:
        array = np.from_dlpack(adapter)
    except (BufferError, RuntimeError, TypeError) as error:
        raise ShapeError(f"DLPack import failed: {error}") from None
    return array if adapter.type is None else array.view(adapter.type.numpy)


class _Importer:
    """Passes an exporter's capsule on, with unsigned integers for the types that NumPy does not know."""

    def __init__(self, exporter: Any) -> None:
        self.exporter = exporter
        self.type: Type | None = None

    def __dlpack__(self, **options: Any) -> Any:
        try:
            capsule = self.exporter.__dlpack__(**options)
        except TypeError:  # exporters older than DLPack 1.0 take no options
            capsule = self.exporter.__dlpack__()
        data_type = _data_type(capsule)
        self.type = _TYPES.get(data_type.code)
        if self.type is not None:
            data_type.code = _UNSIGNED
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def _data_type(capsule: Any) -> _DataType:
    """The element type inside of a capsule that nobody has consumed yet."""
    api = ctypes.pythonapi
    is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", api))
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    if is_valid(capsule, b"dltensor_versioned"):
        address = pointer(capsule, b"dltensor_versioned") + ctypes.sizeof(_VersionedHead)
    else:
        address = pointer(capsule, b"dltensor")
    return _Tensor.from_address(address).dtype
