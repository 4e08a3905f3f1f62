"""Show the progress of long work on standard error if that is a terminal.

The progress is a bar of ``rich`` if the package is installed, else a line of text. Both are erased when the work ends.
Log records are written to `Screen`, so that they appear above the progress.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from .interrupts import whole_module

Show = Callable[[int, int, str], None]
T = TypeVar("T")

_MOST_COLUMNS = 100
"""Largest number of characters of the line of text; longer lines may wrap."""
_shown = ""
"""The line of text now on the terminal; empty with ``rich``, which itself redraws its bar below other output."""


class Screen:
    """A stream for log records that writes to the current `sys.stderr`, or nowhere if that is None."""

    def write(self, text: str) -> None:
        """Write text above the progress line."""
        if sys.stderr is not None:
            sys.stderr.write(f"{_erasing()}{text}{_shown}")

    def flush(self) -> None:
        """Flush standard error."""
        if sys.stderr is not None:
            sys.stderr.flush()


@contextmanager
def shown_progress(what: str) -> Iterator[Show | None]:
    """Yield a function that shows ``(done, total, name)``, or None if standard error is not a terminal, or in a thread
    other than the main thread: two bars would overwrite each other.

    Args:
        what: a word or two for the work, at the start of the line.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    try:
        import rich  # noqa: F401
    except ImportError:
        with _line(what) as show:
            yield show
        return
    with _bar(what) as show:
        yield show


def track(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yield the items, showing how many of ``total`` are done."""
    with shown_progress(what) as show:
        for done, item in enumerate(items):
            if show is not None:
                show(done, total, "")
            yield item


@contextmanager
def _bar(what: str) -> Iterator[Show]:
    whole_module("rich.progress")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn(what, markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, visible=False)

        def show(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=name, visible=True)

        yield show


@contextmanager
def _line(what: str) -> Iterator[Show]:
    def show(done: int, total: int, name: str) -> None:
        _replace(f"{what} {done}/{total} {name}".rstrip()[:_MOST_COLUMNS])

    try:
        yield show
    finally:
        _replace("")


def _replace(text: str) -> None:
    global _shown
    if sys.stderr is not None:
        sys.stderr.write(_erasing() + text)
        sys.stderr.flush()
    _shown = text


def _erasing() -> str:
    return f"\r{' ' * len(_shown)}\r" if _shown else ""
