"""Tables of 256 results for pointwise clusters that are functions of one byte, as between quantised layers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dim import Length, known_in, known_less
from ....graph.module import Module
from ....ops.scalar_functions import COSTLY
from ...body import scalar_flops
from ...problems.cluster import Tensor
from ...statements import dtype_name, indent
from .. import host
from ..machine import machine

BYTES = 256
"""Values of a byte."""
LEAST_ELEMENTS = 4 * BYTES
"""Fewest elements for which a table is made, which takes as long as `BYTES` elements without one."""
FURTHER = 9
"""Operations of a costly function beside the first, as in `stages`."""
AT_ONCE = 64
"""Bytes that are looked up together, where a register holds several."""
FLOAT_BITS = 32
"""Width of the lanes in which most operations of such clusters are computed."""


def byte_operand(
    module: Module, inputs: Sequence[Tensor], outputs: Sequence[Tensor], strides: Sequence[Sequence[Length]]
) -> int | None:
    """Return the number of the only input that is not a scalar, if a table of its values is faster; else None.

    A lookup takes about a cycle, with AVX2 half a cycle, and an operation half a cycle for each vector. GELU between
    quantised layers of bert, Zen 5 with AVX2, ns an element: 2.3 by operations, 0.25 by a table.

    Args:
        strides: of inputs, then outputs, after merging dimensions.
    """
    varying = [k for k in range(len(inputs)) if not all(known_in(s, 0) for s in strides[k])]
    if len(varying) != 1 or len(outputs) != 1:
        return None
    byte = varying[0]
    if dtype_name(inputs[byte].type) not in ("uint8", "int8"):
        return None
    if not all(known_in(strides[k][-1], 1) for k in (byte, len(inputs))):
        return None
    lanes = machine().vector_bits // FLOAT_BITS
    operations = scalar_flops(module) + FURTHER * sum(ins.name in COSTLY for ins in module)
    if 2 * operations < 3 * lanes or not known_less(LEAST_ELEMENTS, prod(outputs[0].lens)):
        return None
    return byte


def table_lines(source: Tensor, result: Tensor, name: str, element: Sequence[str], lanes: int) -> list[str]:
    """Return statements that fill ``table`` with the results for all bytes, by their codes without sign.

    Args:
        name: of the byte operand's pointer in ``element``.
        element: statements for the vector at ``c`` of that pointer, with the result at ``r_out0``.
    """
    dtype = dtype_name(source.type)
    return [
        f"table = local_{dtype_name(result.type)}({BYTES})",
        f"{name} = local_{dtype}({BYTES})",
        f"for c in range({BYTES}):",
        f"    store_scalar({name}, c, bits_{dtype}(cast_uint8(c)))",
        "r_out0 = offset(table, 0)",
        f"for c in range(0, {BYTES}, {lanes}):",
        *indent(list(element)),
    ]


def lookup_lines(source: Tensor, result: Tensor, name: str) -> list[str]:
    """Return statements that look up the elements ``first`` to ``last`` of a row."""
    one = f"store_scalar(r_out0, c, load_scalar(table, cast_int64(bits_uint8(load_scalar({name}, c)))))"
    rest = ["for c in range(c, last):", f"    {one}"]
    if not host.has("avx2") or dtype_name(result.type) not in ("uint8", "int8", "bool"):
        return ["c = first", *rest]
    many = f"store(r_out0, c, lookup(table, bits_uint8(load({name}, c, {AT_ONCE}))))"
    return ["c = first", f"while c + {AT_ONCE} <= last:", f"    {many}", f"    c += {AT_ONCE}", *rest]
