"""Take the statements of a kernel into the text of another kernel."""

from __future__ import annotations

import ast
import functools

from ..kernel import KernelSource
from ..toolchain.nodes import nodes_in


def function_of(text: str) -> ast.FunctionDef:
    """Return the function of a kernel's text."""
    return next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))


@functools.lru_cache(maxsize=1024)
def renamed_statements(kernel: KernelSource, prefix: str) -> str:
    """Return the statements of a kernel, with a prefix to the names of ``args`` and of its own variables."""
    function = function_of(kernel.text)
    nodes = list(nodes_in(function))
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)} | {"args"}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in own:
            node.id = prefix + node.id
    return "\n".join(ast.unparse(statement) for statement in function.body)
