"""Syntax trees of the package's modules, parsed once for all tests that read them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["statements", "tree"]


@functools.cache
def tree(source: str) -> ast.Module:
    """Return the syntax tree of a module's text, which callers do not change."""
    return ast.parse(source)


def statements(body: Sequence[Any]) -> Iterator[Any]:
    """Yield all statements of ``body``, nested statements included."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, name, ()))
