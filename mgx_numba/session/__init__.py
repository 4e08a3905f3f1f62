"""Sessions in ONNX Runtime's shape: code written for it changes one import.

``import mgx_numba.session as onnxruntime``, or ``from mgx_numba.session import InferenceSession``.
"""

from __future__ import annotations

import logging

from .._version import __version__
from .inference import InferenceSession
from .model import ModelMetadata, NodeArg
from .options import ExecutionMode, GraphOptimizationLevel, RunOptions, SessionOptions
from .providers import get_all_providers, get_available_providers, get_device
from .values import IOBinding, OrtValue

__all__ = [
    "ExecutionMode",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "__version__",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "set_default_logger_severity",
]

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""By ONNX Runtime's severity: verbose, info, warning, error, fatal."""


def set_default_logger_severity(severity: int) -> None:
    """Set the level of the logger ``mgx_numba``, from 0 (verbose) to 4 (fatal).

    Raises:
        OptionError: another number.
    """
    from ..errors import OptionError

    if not isinstance(severity, int) or not 0 <= severity < len(_LEVELS):
        raise OptionError(f"severity is {severity!r}, expected 0 (verbose) to 4 (fatal)")
    logging.getLogger("mgx_numba").setLevel(_LEVELS[severity])
