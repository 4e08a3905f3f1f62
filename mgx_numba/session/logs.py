"""The package's logger, with ONNX Runtime's severities and log callback."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..errors import OptionError
from .exceptions import error_of

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""Logging level for each of ONNX Runtime's severities: verbose, info, warning, error, fatal."""


def logger() -> logging.Logger:
    """Return the logger ``mgx_numba``."""
    return logging.getLogger("mgx_numba")


def level_of(severity: int, theirs: type[Exception] = RuntimeError) -> int:
    """Return the logging level of an ONNX Runtime severity.

    Raises:
        OptionError: the severity is not from 0 to 4; also an instance of ``theirs``.
    """
    if not isinstance(severity, int) or not 0 <= severity < len(_LEVELS):
        raise error_of(theirs, OptionError, f"severity is {severity!r}, expected 0 (verbose) to 4 (fatal)")
    return _LEVELS[severity]


def replace_callback(callback: Callable[..., None] | None, level: int) -> None:
    """Call a function for the logger's records from ``level`` on, instead of the previous callback; None removes it."""
    own = logger()
    for handler in [h for h in own.handlers if isinstance(h, _Callback)]:
        own.removeHandler(handler)
    if callback is not None:
        own.setLevel(level)
        own.addHandler(_Callback(callback, level))


class _Callback(logging.Handler):
    """A log handler that passes records to a function with ONNX Runtime's arguments."""

    def __init__(self, callback: Callable[..., None], level: int) -> None:
        super().__init__(level)
        self._callback = callback

    def emit(self, record: logging.LogRecord) -> None:
        """Call the function; `logging` reports its exceptions, as for any handler."""
        severity = sum(record.levelno >= level for level in _LEVELS[1:])
        place = f"{record.filename}:{record.lineno} {record.funcName}"
        try:
            self._callback(severity, record.name, "", place, record.getMessage())
        except Exception:
            self.handleError(record)
