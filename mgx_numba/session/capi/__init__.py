"""Replacements of ONNX Runtime's inner modules, for code that imports from them.

These modules import by absolute names. If a program itself sets ``sys.modules["onnxruntime"]`` to this package's
sessions, they are loaded again as ``onnxruntime.capi`` and must still refer to the same classes.
"""

from __future__ import annotations

from mgx_numba.session.capi import (
    _pybind_state,
    build_and_package_info,
    onnxruntime_inference_collection,
    onnxruntime_pybind11_state,
    onnxruntime_validation,
)

__all__ = [
    "_pybind_state",
    "build_and_package_info",
    "onnxruntime_inference_collection",
    "onnxruntime_pybind11_state",
    "onnxruntime_validation",
]
