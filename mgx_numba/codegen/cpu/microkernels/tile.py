"""Register tiles as intrinsics: the inner loops of every contraction.

One variant of ``tile_<dtype>`` computes, for the panels ``begin`` to ``end`` of the right-hand side, ROWS rows i and
``VECTORS * LANES`` columns j of

    acc[i, p * columns + j] (+)= sum over taps t, k of  x[o[t, i] + k * x_step] * w[p, t, k, j]

A row whose offset o is negative reads from ``zero`` instead of ``x``, which implements padding. The accumulators stay
in registers over all taps and all k. A variant whose tile is too small to hide the latency of the multiply-add units
keeps SPLIT accumulators of each element, over interleaved k. MASKED variants read no missing column of the right-hand
side. The operands are in a block of int64 words, `TILE_BLOCK`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ...lang.vector import Definition, KernelFunction, Values, make_intrinsic
from ...toolchain.numba_core import TypingError, types
from .tile_writer import IntegerWriter, ProductWriter

_I64 = ir.IntType(64)
_WORDS = types.CPointer(types.int64)
_CONSTANTS = ("ROWS", "VECTORS", "LANES", "SPLIT", "MASKED")


def literal_shape(names: Sequence[str], literals: Sequence[types.Type]) -> list[int]:
    """Return the values of an intrinsic's literal arguments.

    Raises:
        TypingError: an argument is not a literal, or is negative.
    """
    values = []
    for name, numba_type in zip(names, literals):
        value = getattr(numba_type, "literal_value", None)
        if not isinstance(value, int) or value < 0:
            raise TypingError(f"{name} must be an integer literal, got {numba_type}")
        values.append(value)
    return values


def written_function(
    module: ir.Module,
    name: str,
    write: Callable[[ir.Function], None],
    arguments: Sequence[ir.Type] = (_I64.as_pointer(), _I64, _I64),
) -> ir.Function:
    """Return the module's function ``void name(i64 *block, i64 begin, i64 end)``, or with other arguments.

    It is written on first use and never inlined.
    """
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), list(arguments)), name=name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    write(function)
    return function


def tile_intrinsic(called: str, dtype: str, writer: type[ProductWriter]) -> KernelFunction:
    """Return the intrinsic ``called(args, begin, end, ROWS, VECTORS, LANES, SPLIT, MASKED)`` over words of
    ``dtype``."""

    def define(*operands: types.Type) -> Definition:
        literals = operands[3:]
        shape = literal_shape(_CONSTANTS, literals)
        name = "_".join([called, *map(str, shape)])

        def emit(builder: ir.IRBuilder, values: Values) -> None:
            count, width, vector, split, mask = shape
            function = written_function(
                builder.module, name, lambda f: writer(f, dtype, count, width, vector, split, bool(mask)).write()
            )
            builder.call(function, values[:3])

        return types.void(_WORDS, types.int64, types.int64, *literals), emit

    return make_intrinsic(called, define, 3 + len(_CONSTANTS), literal=True)


tile_float32 = tile_intrinsic("tile_float32", "float32", ProductWriter)
tile_float64 = tile_intrinsic("tile_float64", "float64", ProductWriter)
tile_int32, tile_uint32, tile_int64, tile_uint64 = (
    tile_intrinsic(f"tile_{dtype}", dtype, IntegerWriter) for dtype in ("int32", "uint32", "int64", "uint64")
)
