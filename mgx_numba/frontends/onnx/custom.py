"""Parser of nodes with custom operators that users have registered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

from ...errors import ParseError
from ...graph.instruction import Instruction
from ...ops.base import is_known, make_op, operator_class
from ...ops.custom import custom_name
from ..handlers import Handler
from .builder import Builder
from .node import Node

_READERS: dict[str, Callable[..., object]] = {
    "bool": Node.get_bool,
    "int": Node.get_int,
    "float": Node.get_float,
    "str": Node.get_str,
    "tuple[int, ...]": Node.get_ints,
    "tuple[float, ...]": Node.get_floats,
}
"""Attribute accessors by the kinds of custom operators' attributes."""


def custom_handler(domain: str, op_type: str) -> Handler | None:
    """Return the handler for nodes of a registered custom operator, or None."""
    return Handler(_parse, 0, None) if is_known(custom_name(domain, op_type)) else None


def _parse(g: Builder, node: Node, *inputs: Instruction | None) -> Instruction | Sequence[Instruction]:
    cls = operator_class(custom_name(node.domain, node.op_type))
    kinds = {f.name: (str(f.type), f.default) for f in fields(cls)}
    unknown = [name for name in node.attributes if name not in kinds]
    if unknown:
        raise ParseError(f"attribute {unknown[0]!r} is unknown; the operator has: {', '.join(kinds) or 'none'}")
    values: dict[str, object] = {name: _READERS[kind](node, name, default) for name, (kind, default) in kinds.items()}
    given = [x for x in inputs if x is not None]
    if len(given) < len(inputs):
        raise ParseError(f"input {inputs.index(None)} is missing; custom operators have no optional inputs")
    if cls.pointwise:
        return g.pointwise(make_op(cls.name, **values), *given)
    result = g.op(make_op(cls.name, **values), *given)
    count = len(result.shape.sub_shapes)
    return [g.op("get_tuple_elem", result, index=k) for k in range(count)] if count else result
