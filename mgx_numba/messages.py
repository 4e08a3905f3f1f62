"""Messages of the package: Python's warnings, and the loggers ``mgx_numba.*`` for lower levels.

This module does not import `logging`: in a process that has not imported `logging`, nobody can receive records.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

Messages = list[str]
"""A warning that was issued: its text, and the name of its class."""

NAME = "mgx_numba"
TRACE, DEBUG, INFO = 5, 10, 20
"""Logging levels; ``DEBUG`` and ``INFO`` are those of `logging`, ``TRACE`` (each instruction or kernel) is
MIGraphX's."""

_PASSED_OVER = (NAME, "contextlib", "functools", "numpy")
"""Modules whose frames `warn` skips: the package itself, its cached properties, and `numpy.errstate`."""

_recording = threading.local()


def tell(part: str, level: int, text: str, *values: object) -> None:
    """Log ``text % values`` with the logger ``mgx_numba.<part>``."""
    if "logging" in sys.modules:
        _logger(part).log(level, text, *values)


@functools.cache
def _logger(part: str) -> Logger:
    """Return the logger ``mgx_numba.<part>``; passes log thousands of times, and `getLogger` takes a lock."""
    import logging

    return logging.getLogger(f"{NAME}.{part}")


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points at the line that called the package."""
    records: tuple[_Record, ...] = getattr(_recording, "records", ())
    for record in records:
        record.append([text, category.__name__])
    if records and records[-1].quiet:
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED_OVER:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def deprecated(name: str, instead: str, until: str) -> None:
    """Issue the `DeprecationWarning` of a name, a form or an option that a later version will not have.

    Args:
        name: what is deprecated, as the caller wrote it.
        instead: what to use or do instead, in the imperative.
        until: the first version without it.
    """
    warn(f"{name} is deprecated and will not be in version {until}: {instead}", DeprecationWarning)


class _Record(list[Messages]):
    """The warnings of a `recorded` block; with ``quiet`` they are not issued."""

    quiet = False


@contextmanager
def recorded(quiet: bool = False) -> Iterator[list[Messages]]:
    """Record the warnings that this thread issues by `warn` inside the block.

    Args:
        quiet: record the warnings without issuing them, since they were issued before.
    """
    record = _Record()
    records: tuple[_Record, ...] = getattr(_recording, "records", ())
    record.quiet = quiet or (bool(records) and records[-1].quiet)
    _recording.records = (*records, record)
    try:
        yield record
    finally:
        _recording.records = records


def repeat_messages(messages: list[Messages]) -> None:
    """Issue warnings that `recorded` has recorded, in this process or another."""
    import builtins

    for text, name in messages:
        category = getattr(builtins, name, UserWarning)
        warn(text, category if isinstance(category, type) and issubclass(category, Warning) else UserWarning)


def shortened(text: str, most: int) -> str:
    """Return the text, truncated to ``most`` characters."""
    return text if len(text) <= most else text[: most - 3] + "..."
