"""Names of ONNX Runtime's extension module, as its Python code imports them."""

from __future__ import annotations

from mgx_numba.session.capi.onnxruntime_pybind11_state import *  # noqa: F403
