"""Lines of the logger ``mgx_numba.torch``."""

from __future__ import annotations

import logging

_log = logging.getLogger("mgx_numba.torch")
_warned: set[str] = set()


def warn_once(text: str, *values: object) -> None:
    """Log a warning, once a process."""
    line = text % values
    if line not in _warned:
        _warned.add(line)
        _log.warning("%s", line)


def log_info(text: str, *values: object) -> None:
    """Log a line at the level INFO."""
    _log.info(text, *values)
