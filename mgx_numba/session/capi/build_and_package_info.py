"""Package name, and version of ONNX Runtime's interface."""

from __future__ import annotations

from mgx_numba.session.process import API_VERSION, package_name

__all__ = ["__version__", "package_name"]

__version__ = API_VERSION
