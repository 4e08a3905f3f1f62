"""Logging of the driver: records of the logger ``mgx_numba`` go to standard error and into files."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
from collections.abc import Iterator

from ..errors import FormatError, OptionError
from ..messages import NAME, TRACE
from ..progress import Screen

LOG = logging.getLogger(f"{NAME}.driver")

_LEVELS = {
    "none": logging.CRITICAL + 1,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": TRACE,
}
"""Logging levels by MIGraphX's names, in the order of MIGraphX's numbers."""


def add_logging(parser: argparse.ArgumentParser) -> None:
    """Add the logging flags, which every command has."""
    group = parser.add_argument_group("messages")
    levels = ", ".join(_LEVELS)
    group.add_argument("--log-level", metavar="LEVEL", help=f"{levels}, or 0 to 5 (default info)")
    group.add_argument("--log-file", action="append", default=[], metavar="FILE", help="append messages to a file, too")


@contextlib.contextmanager
def logged(args: argparse.Namespace) -> Iterator[None]:
    """Configure logging within the context by the flags, or else by ``MIGRAPHX_LOG_LEVEL``.

    Raises:
        OptionError: the level is unknown.
        FormatError: a file cannot be written.
    """
    logger = logging.getLogger(NAME)
    logging.addLevelName(TRACE, "TRACE")
    before, handlers = logger.level, [_on_screen()]
    try:
        logger.setLevel(_level(args.log_level))
        handlers += map(_in_file, args.log_file)
        for handler in handlers:
            logger.addHandler(handler)
        yield
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


def _level(given: str | None) -> int:
    where, text = ("--log-level", given) if given else ("MIGRAPHX_LOG_LEVEL", os.environ.get("MIGRAPHX_LOG_LEVEL"))
    if not text:
        return logging.INFO
    names = list(_LEVELS)
    name = names[int(text)] if text.isdecimal() and int(text) < len(names) else text.lower()
    if name not in _LEVELS:
        raise OptionError(f"{where} is {text!r}, expected {', '.join(names)}, or 0 to {len(names) - 1}")
    return _LEVELS[name]


class _OnScreen(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return the message; warnings and errors are prefixed by their level."""
        prefix = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return prefix + record.getMessage()


def _on_screen() -> logging.Handler:
    handler: logging.Handler = logging.StreamHandler(Screen())
    handler.setFormatter(_OnScreen())
    return handler


def _in_file(path: str) -> logging.Handler:
    try:
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise FormatError(f"--log-file {path}: cannot be written: {error.strerror or error}") from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler
