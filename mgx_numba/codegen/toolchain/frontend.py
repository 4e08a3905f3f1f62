"""Frontend of kernels: Python text to LLVM IR, with Numba's typing and lowering of names and operators.

Importing this module imports Numba.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from llvmlite import ir

from .inference import Inference, Refused
from .lowering import StatementWriter
from .numba_core import global_compiler_lock, types
from .overloads import target

__all__ = ["Refused", "write_function"]


@global_compiler_lock
def write_function(
    builder: ir.IRBuilder,
    function: ast.FunctionDef,
    namespace: Mapping[str, object],
    arguments: Sequence[tuple[types.Type, ir.Value]],
    returned: types.Type = types.void,
    unrolled: int = 0,
    hoists: bool = False,
) -> None:
    """Emit a kernel's function at the position of a builder; every path ends in a return.

    Args:
        builder: positioned in an LLVM function with the same return type.
        function: the kernel's function.
        namespace: names that the function may use.
        arguments: type and value of each argument.
        returned: the return type.
        unrolled: most operations, over all copies of the body, of a loop over a literal range that is unrolled.
        hoists: whether the invariant parts of addresses are computed before loops.

    Raises:
        Refused: the function does not type or does not lower.
    """
    known = Inference(namespace, returned)
    known.run(function, [kind for kind, _ in arguments])
    context = target()
    with context.push_code_library(context.codegen().create_library("kernel")):
        StatementWriter(known, builder, unrolled, hoists).run(
            function, [value for _, value in arguments], [kind for kind, _ in arguments]
        )
