"""What the package tells the loggers ``mgx_numba.*``: below the level of warnings, and only where somebody listens.

Warnings are Python's. Nothing here imports `logging`: in a process that has not, nobody can have asked for records.
"""

from __future__ import annotations

import sys

__all__ = ["DEBUG", "INFO", "NAME", "TRACE", "tell"]

NAME = "mgx_numba"
TRACE, DEBUG, INFO = 5, 10, 20
"""Levels: the last two are those of `logging`; ``TRACE``, for each instruction or kernel, is MIGraphX's below them."""


def tell(part: str, level: int, text: str, *values: object) -> None:
    """Log ``text % values`` with the logger ``mgx_numba.<part>``."""
    logging = sys.modules.get("logging")
    if logging is not None:
        logging.getLogger(f"{NAME}.{part}").log(level, text, *values)
