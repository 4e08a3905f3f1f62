"""Module-level functions of ONNX Runtime: version, and process-wide settings."""

from __future__ import annotations

import sys
from collections.abc import Callable

from .._version import __version__ as package_version
from ..errors import OptionError, UnsupportedError
from ..interrupts import whole_module
from .exceptions import Fail, error_of
from .providers import get_available_providers

__all__ = [
    "API_VERSION",
    "cuda_version",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_build_info",
    "get_version_string",
    "has_collective_ops",
    "package_name",
    "preload_dlls",
    "print_debug_info",
    "register_execution_provider_library",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "unregister_execution_provider_library",
]

API_VERSION = "1.32.0"
"""Version of ONNX Runtime whose Python interface sessions implement; `tests/session/test_surface.py` compares both."""

package_name = "mgx_numba"
cuda_version = ""


def get_version_string() -> str:
    """Return the version of ONNX Runtime whose interface sessions implement."""
    return API_VERSION


def get_build_info() -> str:
    """Return this package's version and the version of ONNX Runtime's interface, as text."""
    return f"mgx_numba Build Info: version {package_version}, interface of ONNX Runtime {API_VERSION}"


def has_collective_ops() -> bool:
    """Return False: there are no collective operators."""
    return False


def disable_telemetry_events() -> None:
    """Do nothing: no telemetry is collected."""


def enable_telemetry_events() -> None:
    """Do nothing: no telemetry is collected."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Do nothing: a GPU needs only its driver, which is loaded on first use."""


def print_debug_info() -> None:
    """Print the versions and the providers of this process."""
    print(f"{get_build_info()}\nPython {sys.version}\nproviders: {', '.join(get_available_providers())}")


def set_seed(seed: int) -> None:
    """Set the seed of the generator that seeds random operators without a seed attribute, in the order of runs."""
    whole_module("mgx_numba.ops")
    from ..ops.sampling import draw_seeds_from  # late: importing operators takes long

    draw_seeds_from(int(seed))


def set_global_thread_pool_sizes(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None:
    """Do nothing: sessions share the threads of the process; ``SessionOptions.intra_op_num_threads`` limits a run."""


def set_default_logger_severity(severity: int) -> None:
    """Set the level of the logger ``mgx_numba``, from 0 (verbose) to 4 (fatal).

    Raises:
        OptionError: the severity is not from 0 to 4.
    """
    from .logs import level_of, logger  # late: rarely needed

    logger().setLevel(level_of(severity))


def set_default_logger_verbosity(verbosity: int) -> None:
    """Do nothing: in ONNX Runtime, too, only debug builds use the verbosity."""


def set_default_logger_callback(callback: Callable[..., None] | None, severity: int = 2) -> None:
    """Call ``callback(severity, category, logid, code_location, message)`` for records of the logger ``mgx_numba``.

    Args:
        callback: replaces the previous callback; None removes it.
        severity: least severity that the logger reports from now on.

    Raises:
        OptionError: ``callback`` is not callable, or the severity is not from 0 to 4.
    """
    if callback is not None and not callable(callback):
        raise error_of(RuntimeError, OptionError, f"the callback is {callback!r}, expected a function or None")
    from .logs import level_of, replace_callback

    replace_callback(callback, level_of(severity))


def register_execution_provider_library(registration_name: str, library_path: str) -> None:
    """Raise: plug-in libraries of ONNX Runtime's providers cannot be loaded.

    Raises:
        UnsupportedError: always.
    """
    raise error_of(Fail, UnsupportedError, f"{library_path}: libraries of ONNX Runtime's providers are not supported")


def unregister_execution_provider_library(registration_name: str) -> None:
    """Raise: no library can be registered.

    Raises:
        UnsupportedError: always.
    """
    raise error_of(Fail, UnsupportedError, f"no library {registration_name!r} is registered")
