"""A kernel's Python text, executed over the names of a back end's language. Needs neither Numba nor LLVM."""

from __future__ import annotations

import ast
import linecache
import types as python_types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...errors import CompileError
from ..kernel import KernelSource

__all__ = ["executed", "failure"]

_FORBIDDEN = (ast.Raise, ast.Assert, ast.Try, ast.With, ast.Import, ast.ImportFrom, ast.Lambda, ast.ListComp)


@contextmanager
def executed(source: KernelSource, vocabulary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The names that a kernel's text defines over a vocabulary, among them the function ``kernel``; while the block
    runs, error messages can quote the text.

    Raises:
        CompileError: the text is not valid, or has what no kernel may contain.
    """
    filename = f"<{source.name} {source.symbol}>"
    lines = source.text.splitlines(keepends=True)
    linecache.cache[filename] = (len(source.text), None, lines, filename)
    try:
        yield _executed(source, filename, vocabulary)
    finally:
        linecache.cache.pop(filename, None)


def _executed(source: KernelSource, filename: str, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    namespace = dict(vocabulary)
    try:
        tree = ast.parse(source.text, filename)
        for node in ast.walk(tree):
            if isinstance(node, _FORBIDDEN):
                line = source.text.splitlines()[node.lineno - 1].strip()
                raise failure(source, f"line {node.lineno}: a kernel cannot contain {type(node).__name__}: {line}")
        exec(compile(tree, filename, "exec"), namespace)
    except SyntaxError as error:
        raise failure(source, f"line {error.lineno}: {error.msg}: {(error.text or '').strip()}") from error
    except CompileError:
        raise
    except Exception as error:
        raise failure(source, f"its text cannot be executed: {type(error).__name__}: {error}") from error
    if not isinstance(namespace.get("kernel"), python_types.FunctionType):
        raise failure(source, "its text defines no function named kernel")
    return namespace


def failure(source: KernelSource, problem: str) -> CompileError:
    """The error of a kernel that cannot be compiled, with the instructions that it was made from."""
    message = f"kernel {source.name}: {problem}"
    if source.origin:
        message += f"\nIt was made from:\n{source.origin.rstrip()}"
    return CompileError(message)
