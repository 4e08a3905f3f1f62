"""Progress of long commands: shown when a person watches standard error, silent in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["track"]

T = TypeVar("T")


def track(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items, with a progress line while they are consumed (a bar if ``rich`` is installed)."""
    if not sys.stderr.isatty():
        return iter(items)
    try:
        from rich.console import Console
        from rich.progress import track as rich_track
    except ImportError:
        return _plain(items, total, what)
    return iter(rich_track(items, what, total, console=Console(stderr=True), transient=True))


def _plain(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    try:
        for done, item in enumerate(items):
            sys.stderr.write(f"\r{what} {done}/{total}")
            sys.stderr.flush()
            yield item
    finally:
        sys.stderr.write("\r" + " " * (len(what) + 2 * len(str(total)) + 2) + "\r")
        sys.stderr.flush()
