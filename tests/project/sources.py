"""Syntax trees of the package's modules, parsed once for all tests that read them."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["statements", "tree"]


@functools.cache
def tree(source: str) -> ast.Module:
    """Return the syntax tree of a module's text, which callers do not change."""
    gc.disable()  # it would look at all trees again and again, which takes as long as parsing
    try:
        return ast.parse(source)
    finally:
        gc.freeze()
        gc.enable()


def statements(body: Sequence[Any]) -> Iterator[Any]:
    """Yield all statements of ``body``, nested statements included."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, name, ()))
