"""Conversion of nodes of operator sets 1 to 6 to their form of set 7, which the parser functions expect.

ONNX `Changelog.md`: broadcasting by ``broadcast`` and ``axis`` (before 7), shapes as attributes (before 5), types as
names (before 6), ``consumed_inputs`` (before 6), training by ``is_test`` (before 7).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from .builder import Builder, rank
from .model import OLDEST_OPSET
from .node import Node
from .pointwise import BINARY
from .schema import Schema, find_schema
from .tensors import ELEMENT_NAMES

Values: TypeAlias = "list[Instruction | None]"
Adapter: TypeAlias = "Callable[[Builder, Node, Values], Values]"

_IGNORED = frozenset({"consumed_inputs"})


def modernised(g: Builder, node: Node, schema: Schema, inputs: Sequence[Instruction | None]) -> Values:
    """Convert a node of ai.onnx before set 7 to the operator's form of set 7.

    Return the inputs of the new form; attributes that differ are replaced in the node.

    Raises:
        UnsupportedError: the old form has no equivalent in the new form.
        ParseError, ShapeError: the node does not conform to its own operator set.
    """
    later = find_schema("", node.op_type, OLDEST_OPSET)
    if later is None or later.since == schema.since:
        return list(inputs)
    adapter = _ADAPTERS.get(node.op_type)
    if adapter is not None:
        return adapter(g, node, list(inputs))
    if set(schema.attributes) - _IGNORED != set(later.attributes):
        raise UnsupportedError(
            f"the operator's form of operator set {schema.since} is not supported; that of {later.since} is"
        )
    return list(inputs)


def _replace(node: Node, name: str, value: object) -> None:
    from onnx import helper

    node.attributes[name] = helper.make_attribute(name, value)


def _along(g: Builder, a: Instruction, b: Instruction, axis: int) -> Instruction:
    """Append axes to ``b`` so that its first axis aligns with ``axis`` of ``a``."""
    after = rank(a) - axis - rank(b)
    if not 0 <= axis <= rank(a) or after < 0:
        raise ShapeError(f"axis is {axis}, which does not lay {rank(b)} dimensions along those of {a.shape}")
    return g.unsqueeze(b, [rank(b) + k for k in range(after)])


def _binary(g: Builder, node: Node, inputs: Values) -> Values:
    """Align the second operand with the first's axes from ``axis`` on (default: the last) if ``broadcast`` is set.

    Otherwise the lengths must be equal. An ``axis`` without ``broadcast`` implies ``broadcast``.
    """
    a, b, *rest = inputs
    if a is None or b is None or rest:
        return inputs
    if not node.get_bool("broadcast") and not node.has("axis"):
        if a.shape.dims != b.shape.dims or rank(a) != rank(b):
            node.accept(f"the operands are {a.shape} and {b.shape}, which operator sets from 7 on broadcast")
        return [a, b]
    if not node.get_bool("broadcast"):
        node.accept("attribute 'axis' is given without 'broadcast', which is taken to be 1")
    if rank(b) > rank(a):
        raise ShapeError(f"the second operand {b.shape} has more dimensions than the first, {a.shape}")
    axis = node.get_int("axis", rank(a) - rank(b))
    return [a, _along(g, a, b, axis + rank(a) if axis < 0 else axis)]


def _prelu(g: Builder, node: Node, inputs: Values) -> Values:
    """Append axes to a slope per channel; a single slope is unchanged."""
    x, slope, *_ = inputs
    if x is not None and slope is not None and rank(slope) == 1 and rank(x) > 1 and slope.shape.dims[0].max != 1:
        return [x, _along(g, x, slope, 1)]
    return inputs


def _inference(g: Builder, node: Node, inputs: Values) -> Values:
    if not node.get_bool("is_test"):
        raise UnsupportedError("attribute 'is_test' is 0: training in operator sets before 7 is not supported")
    return inputs


def _cast(g: Builder, node: Node, inputs: Values) -> Values:
    attribute = node.attributes["to"]
    if attribute.type == 3:
        name = node.get_str("to")
        if name.lower() not in ELEMENT_NAMES[1:]:
            raise ParseError(f"attribute 'to' is {name!r}, expected one of {', '.join(ELEMENT_NAMES[1:12]).upper()}")
        _replace(node, "to", ELEMENT_NAMES.index(name.lower()))
    return inputs


def _concat(g: Builder, node: Node, inputs: Values) -> Values:
    if not node.has("axis"):
        _replace(node, "axis", 1)
    return inputs


def _pad(g: Builder, node: Node, inputs: Values) -> Values:
    if node.has("paddings"):
        _replace(node, "pads", node.get_ints("paddings"))
    return inputs


def _reshape(g: Builder, node: Node, inputs: Values) -> Values:
    return [*inputs[:1], g.literal(np.array(node.get_ints("shape"), np.int64))] if len(inputs) < 2 else inputs


def _split(g: Builder, node: Node, inputs: Values) -> Values:
    if not node.has("axis"):
        _replace(node, "axis", 0)
    if len(inputs) > 1 and inputs[1] is not None:
        _replace(node, "split", g.ints(inputs[1], "split"))
    return inputs[:1]


def _tile(g: Builder, node: Node, inputs: Values) -> Values:
    """Convert a number of copies along one axis to repeats of all axes."""
    if len(inputs) != 3 or any(x is None for x in inputs):
        return inputs
    x, tiles, axis = (i for i in inputs if i is not None)
    repeats = np.ones(rank(x), np.int64)
    repeats[g.axis(int(g.constant(axis, "axis").item()), rank(x))] = int(g.constant(tiles, "tiles").item())
    return [x, g.literal(repeats)]


def _whole_order(g: Builder, node: Node, inputs: Values) -> Values:
    """Convert the order of a norm, formerly a float, to an integer."""
    if node.has("p") and node.attributes["p"].type == 1:
        order = node.get_float("p")
        if not order.is_integer():
            raise UnsupportedError(f"attribute 'p' is {order}, norms of whole orders are supported")
        _replace(node, "p", int(order))
    return inputs


def _upsample(g: Builder, node: Node, inputs: Values) -> Values:
    if node.has("width_scale"):
        _replace(node, "scales", [1.0, 1.0, node.get_float("height_scale"), node.get_float("width_scale")])
    if node.has("mode") and node.get_str("mode") == "bilinear":
        _replace(node, "mode", "linear")
    return inputs


def _unchanged(g: Builder, node: Node, inputs: Values) -> Values:
    """Return the inputs: the forms differ only in omitted outputs, or in broadcasting that is now always allowed."""
    return inputs


_ADAPTERS: dict[str, Adapter] = {
    **dict.fromkeys((*BINARY, "Pow"), _binary),
    "PRelu": _prelu,
    "BatchNormalization": _inference,
    "Dropout": _inference,
    "Cast": _cast,
    "Concat": _concat,
    "Pad": _pad,
    "Reshape": _reshape,
    "Split": _split,
    "Tile": _tile,
    "LpPool": _whole_order,
    "GlobalLpPool": _whole_order,
    "Upsample": _upsample,
    **dict.fromkeys(("AveragePool", "Gemm", "GRU", "LSTM", "RNN"), _unchanged),
}
