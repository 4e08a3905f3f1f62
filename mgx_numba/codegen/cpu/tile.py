"""Register tiles as intrinsics: the inner loops of every contraction.

One variant of a tile computes, for the panels ``begin`` to ``end`` of the right-hand side, ROWS rows i and
``VECTORS * LANES`` columns j of

    tile_<dtype>       acc[i, p * columns + j] (+)= sum over taps t, k of  x[o[t, i] + k * x_step] * w[p, t, k, j]
    depthwise_<dtype>  acc[i, p * columns + j] (+)= sum over taps t of     x[o[t, i] + p * columns + j] * w[p, t, j]

A row whose offset o is negative reads from ``zero`` instead of ``x``, which is how padding is done. The sums stay in
registers over all taps and all k. A variant whose tile is too small to hide the latency of the multiply-add units keeps
SPLIT sums of each element, over interleaved k. MASKED variants read no column that does not exist: of the right-hand
side for a product, of the left-hand side for a depthwise one. The operands are in a block of int64 words, `TILE_SLOTS`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from .tile_table import TILE_SLOTS, TILE_TABLE_ROWS
from .tile_writer import DepthwiseWriter, ProductWriter, TileWriter

__all__ = [
    "TILE_SLOTS",
    "TILE_TABLE_ROWS",
    "depthwise_float32",
    "depthwise_float64",
    "put_pointer",
    "tile_float32",
    "tile_float64",
]

_I64 = ir.IntType(64)
_WORDS = types.CPointer(types.int64)
_CONSTANTS = ("ROWS", "VECTORS", "LANES", "SPLIT", "MASKED")


def _literal(name: str, numba_type: types.Type) -> int:
    value = getattr(numba_type, "literal_value", None)
    if not isinstance(value, int) or value < 0:
        raise TypingError(f"{name} must be an integer literal, got {numba_type}")
    return value


def _define(kind: str, writer: type[TileWriter], dtype: str) -> Any:
    """The intrinsic ``<kind>_<dtype>(args, begin, end, ROWS, VECTORS, LANES, SPLIT, MASKED)``."""

    def tile(typingctx, args, begin, end, rows, vectors, lanes, split, masked):
        literals = (rows, vectors, lanes, split, masked)
        shape = [_literal(name, numba_type) for name, numba_type in zip(_CONSTANTS, literals)]
        name = "_".join([kind, dtype, *map(str, shape)])

        def lower(context, builder, signature, values):
            builder.call(_function(builder.module, name, writer, dtype, shape), values[:3])
            return context.get_dummy_value()

        return types.void(_WORDS, types.int64, types.int64, *literals), lower

    tile.__name__ = tile.__qualname__ = f"{kind}_{dtype}"
    return intrinsic(prefer_literal=True)(tile)


def _function(module: ir.Module, name: str, writer: type[TileWriter], dtype: str, shape: list[int]) -> ir.Function:
    """The variant as a function of the module, written on first use."""
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_I64.as_pointer(), _I64, _I64]), name=name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    rows, vectors, lanes, split, masked = shape
    writer(function, dtype, rows, vectors, lanes, split, bool(masked)).write()
    return function


tile_float32 = _define("tile", ProductWriter, "float32")
tile_float64 = _define("tile", ProductWriter, "float64")
depthwise_float32 = _define("depthwise", DepthwiseWriter, "float32")
depthwise_float64 = _define("depthwise", DepthwiseWriter, "float64")


@intrinsic
def put_pointer(typingctx, block, slot, pointer):
    """Store a pointer in word ``slot`` of ``block``."""

    def lower(context, builder, signature, values):
        place = builder.gep(values[0], [values[1]])
        builder.store(values[2], builder.bitcast(place, values[2].type.as_pointer()))
        return context.get_dummy_value()

    return types.void(_WORDS, types.int64, pointer), lower
