"""A kernel's Python text as LLVM IR: Numba says what its names and operators are for which types, and writes them.

Importing this module imports Numba.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.compiler_lock import global_compiler_lock

from .inference import Inference, Refused
from .lowering import StatementWriter
from .overloads import target

__all__ = ["Refused", "write_function"]


@global_compiler_lock
def write_function(
    builder: ir.IRBuilder,
    function: ast.FunctionDef,
    namespace: Mapping[str, Any],
    arguments: Sequence[tuple[types.Type, ir.Value]],
    returned: types.Type = types.void,
    unrolled: int = 0,
) -> None:
    """Write a kernel's function at the place of a builder, which is in a function that returns the same; it ends in
    returns. Loops over literal ranges are unrolled whose copies have at most ``unrolled`` operations together.

    Raises:
        Refused: it does not type or does not lower.
    """
    known = Inference(namespace, returned)
    known.run(function, [kind for kind, _ in arguments])
    context = target()
    with context.push_code_library(context.codegen().create_library("kernel")):
        StatementWriter(known, builder, unrolled).run(
            function, [value for _, value in arguments], [kind for kind, _ in arguments]
        )
