"""Parsing of a kernel's Python text with the names of a back end's language. Needs neither Numba nor LLVM."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from ...errors import CompileError
from ..kernel import KernelSource
from .assignment import Unassigned, check_assignments

__all__ = ["failure", "read_text"]


def read_text(source: KernelSource, vocabulary: Mapping[str, object]) -> tuple[ast.FunctionDef, dict[str, Any]]:
    """Parse a kernel's text; return its function ``kernel`` and the names that it may use.

    The names are the vocabulary and the constants that the text defines.

    Raises:
        CompileError: the text is invalid, has no function ``kernel``, or reads a variable that may have no value.
    """
    try:
        tree = ast.parse(source.text)
    except SyntaxError as error:
        raise failure(source, f"line {error.lineno}: {error.msg}: {(error.text or '').strip()}") from error
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "kernel"]
    tree.body = [node for node in tree.body if not isinstance(node, ast.FunctionDef)]
    namespace = dict(vocabulary)
    try:
        exec(compile(tree, f"<{source.name}>", "exec"), namespace)
    except Exception as error:
        raise failure(source, f"its text cannot be executed: {type(error).__name__}: {error}") from error
    if not functions:
        raise failure(source, "its text defines no function named kernel")
    try:
        check_assignments(functions[-1])
    except Unassigned as error:
        raise failure(source, str(error)) from None
    return functions[-1], namespace


def failure(source: KernelSource, problem: str) -> CompileError:
    """Return the error for a kernel that cannot be compiled, with the instructions that it was generated from."""
    message = f"kernel {source.name}: {problem}"
    if source.origin:
        message += f"\nIt was made from:\n{source.origin.rstrip()}"
    return CompileError(message)
