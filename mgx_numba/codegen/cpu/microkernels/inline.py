"""Inline kernel text into the code of another intrinsic, whose values are in registers.

A kernel is identified by its text: workers compile it, and the object store finds it by that text. So the statements
that an intrinsic applies to its register values are a literal of its call, in the same kernel language:
`codegen.printer` prints them and this module reads them.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from llvmlite import ir

from ...lang.values import INF, NAN
from ...lang.vector import DEFINITIONS
from ...toolchain.numba_core import TypingError, types

Typed = tuple[types.Type, ir.Value]
"""A Numba type and a value of it."""


def inline(builder: ir.IRBuilder, lines: Sequence[str], names: dict[str, Typed]) -> dict[str, Typed]:
    """Emit the assignments of ``lines`` at the builder's position; return ``names`` with the assigned names.

    The right-hand sides are names, numbers, and calls of intrinsics that `make_intrinsic` made.

    Raises:
        TypingError: for any other right-hand side, or raised by an intrinsic for its operands.
    """
    names = dict(names)

    def value(node: ast.expr) -> Typed:
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DEFINITIONS:
            operands = [value(argument) for argument in node.args]
            signature, emit = DEFINITIONS[node.func.id](*(own for own, _ in operands))
            return signature.return_type, emit(builder, [operand for _, operand in operands])
        try:
            return _number(ast.unparse(node))
        except ValueError as error:
            raise TypingError(f"{ast.unparse(node)} cannot be written inline") from error

    for line in lines:
        (statement,) = ast.parse(line).body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            names[statement.targets[0].id] = value(statement.value)
        else:
            raise TypingError(f"{line} cannot be written inline")
    return names


def _number(text: str) -> Typed:
    """Return a Python number, INF or NAN, as Numba types it."""
    known = {"INF": INF, "-INF": -INF, "NAN": NAN}
    number = known[text] if text in known else ast.literal_eval(text)
    if isinstance(number, bool):
        return types.boolean, ir.Constant(ir.IntType(1), int(number))
    if isinstance(number, int):
        return types.literal(number), ir.Constant(ir.IntType(64), number)
    if not isinstance(number, float):
        raise ValueError(text)
    return types.float64, ir.Constant(ir.DoubleType(), number)
