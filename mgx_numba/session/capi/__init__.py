"""Replacements of ONNX Runtime's inner modules, for code that imports from them.

They import by full names: where a program makes ``sys.modules["onnxruntime"]`` this package's sessions by itself, they
are loaded as ``onnxruntime.capi`` again, and what they name must be the same classes.
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
