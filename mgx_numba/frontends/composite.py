"""Float32 computation inside composite operators whose inputs are 16-bit floats.

ONNX Runtime rounds the results of an operator, but not the values inside the operator. A node is parsed once. If its
instructions round inner values, the node is parsed again on float32 inputs, and its results are converted back. The
conversions are this package's, not the model author's, so passes may remove them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.types import Type
from ..graph.instruction import Instruction
from .builder import GraphBuilder

NARROW = frozenset({Type.half_type, Type.bf16_type})
PRODUCTS = frozenset({"dot", "convolution", "convolution_backwards"})
WHOLE = PRODUCTS | frozenset(
    "quant_dot quant_convolution matmul_nbits rnn gru lstm recurrent attention cached_attention".split()
)
"""Operators that accumulate products in float32 or wider. Matrix units read 16-bit operands directly, so nodes with
such an operator keep their operands, and the result is rounded like the result of MatMul."""
EXACT = frozenset(
    "abs clip concat contiguous fixed_pad gather gather_elements gathernd get_tuple_elem identity layout max min neg"
    " pad reduce_max reduce_min relu reverse scatter_none scatternd_none update_cache where".split()
)
"""Operators, besides views, whose results are elements of their inputs, possibly negated."""


def is_product(x: Instruction) -> bool:
    """Return whether ``x`` is a contraction, a sum with a contraction as operand, or a view of either."""
    while x.op.view:
        x = x.inputs[0]
    return x.name in PRODUCTS or (x.name == "add" and any(i.name in PRODUCTS for i in x.inputs))


def composed(
    g: GraphBuilder,
    parse: Callable[[list[Instruction | None]], Any],
    inputs: Sequence[Instruction | None],
    products: bool = False,
) -> Any:
    """Return the results of a node; its inner values are float32 if an input is a 16-bit float.

    Args:
        g: the builder that ``parse`` uses.
        parse: a function that parses the node on the given inputs.
        inputs: the node's inputs.
        products: whether contractions inside the node get float32 operands, too.
    """
    given = list(inputs)
    if not any(x is not None and x.shape.type in NARROW for x in given):
        return parse(given)
    start = len(g.written)
    results = parse(given)
    written = g.written[start:]
    if any(ins.module_args or (ins.name in WHOLE and not products) for ins in written) or not _rounds_inside(written):
        return results
    listed = [results] if isinstance(results, Instruction) else list(results)
    types = [None if r is None else r.shape.type for r in listed]
    g.take_back(start)
    wide = parse([g.convert(x, Type.float_type) if x is not None and x.shape.type in NARROW else x for x in given])
    values = [wide] if isinstance(results, Instruction) else list(wide)
    narrowed = [g.convert(v, t) if t in NARROW and v is not None else v for v, t in zip(values, types, strict=True)]
    return narrowed[0] if isinstance(results, Instruction) else narrowed


def _rounds_inside(written: Sequence[Instruction]) -> bool:
    """Return whether an instruction computes with a value that another instruction rounded to 16 bits."""
    rounded: set[Instruction] = set()
    for ins in written:
        exact = ins.op.view or ins.name in EXACT
        reads = any(i in rounded for i in ins.inputs)
        if reads and not exact:
            return True
        if ins.shape.type in NARROW and ins.literal is None and (reads or not exact):
            rounded.add(ins)
    return False
