"""Classes of ONNX Runtime's Python code."""

from __future__ import annotations

from mgx_numba.session.binding import IOBinding
from mgx_numba.session.devices import OrtDevice
from mgx_numba.session.enums import OrtDeviceVendorId
from mgx_numba.session.inference import InferenceSession
from mgx_numba.session.sparse import SparseTensor
from mgx_numba.session.values import OrtValue, copy_tensors

__all__ = [
    "IOBinding",
    "InferenceSession",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtValue",
    "Session",
    "SparseTensor",
    "copy_tensors",
]

Session = InferenceSession
