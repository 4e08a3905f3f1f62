"""Progress of compilation: shown when a person watches standard error, silent in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..interrupts import whole_module

__all__ = ["compile_progress"]

Show = Callable[[int, int, str], None]


@contextmanager
def compile_progress() -> Iterator[Show | None]:
    """Gives a callback ``(done, total, name)``, or ``None`` when standard error is not a terminal.

    It draws a bar if ``rich`` is installed, else a line of text; both are gone when the context ends.
    """
    if not sys.stderr.isatty():
        yield None
        return
    try:
        import rich  # noqa: F401
    except ImportError:
        with _line() as show:
            yield show
        return
    with _bar() as show:
        yield show


@contextmanager
def _bar() -> Iterator[Show]:
    whole_module("rich.progress")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None, visible=False)

        def show(done: int, total: int, name: str) -> None:
            progress.update(task, completed=done, total=total, description=name, visible=True)

        yield show


@contextmanager
def _line() -> Iterator[Show]:
    width = 0

    def show(done: int, total: int, name: str) -> None:
        nonlocal width
        text = f"compiling kernel {done}/{total} {name}"[:100]
        sys.stderr.write(f"\r{text:<{width}}")
        sys.stderr.flush()
        width = len(text)

    try:
        yield show
    finally:
        if width:
            sys.stderr.write("\r" + " " * width + "\r")
            sys.stderr.flush()
