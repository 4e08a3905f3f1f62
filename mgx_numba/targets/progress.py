"""A progress line for compilation: shown when a person watches standard error, silent in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["compile_progress"]


@contextmanager
def compile_progress() -> Iterator[Callable[[int, int, str], None] | None]:
    """Gives a callback ``(done, total, name)``, or ``None`` when standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
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
