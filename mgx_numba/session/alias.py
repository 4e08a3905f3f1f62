"""Install `mgx_numba.session` as the module ``onnxruntime`` of this process."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from ..errors import OptionError

__all__ = ["install_as_onnxruntime", "uninstall_as_onnxruntime"]

_NAME = "onnxruntime"
_OURS = __name__.rpartition(".")[0]
_MODULES = (
    "",
    ".capi",
    ".capi._pybind_state",
    ".capi.build_and_package_info",
    ".capi.onnxruntime_inference_collection",
    ".capi.onnxruntime_pybind11_state",
    ".capi.onnxruntime_validation",
)
"""Modules of ONNX Runtime that this package replaces; its tools (``quantization``, ``transformers``, ...) are not
replaced."""


def install_as_onnxruntime() -> None:
    """Make ``import onnxruntime`` return `mgx_numba.session` in this process.

    Call this function before anything imports ``onnxruntime``.

    Raises:
        OptionError: another ``onnxruntime`` is already imported; the message names its file.
    """
    found = {_NAME + part: importlib.import_module(_OURS + part) for part in _MODULES}
    other = sys.modules.get(_NAME)
    if other is not None and other is not found[_NAME]:
        raise OptionError(f"{_NAME!r} is imported already, from {getattr(other, '__file__', 'nowhere')}")
    sys.modules.update(found)


def uninstall_as_onnxruntime() -> None:
    """Undo `install_as_onnxruntime`; do nothing if that function was not called."""
    if _is_ours(sys.modules.get(_NAME)):
        for part in _MODULES:
            sys.modules.pop(_NAME + part, None)


def _is_ours(module: ModuleType | None) -> bool:
    return module is not None and module is sys.modules.get(_OURS)
