"""Operators on strings."""

from __future__ import annotations

from ...graph.instruction import Instruction
from .builder import Builder
from .node import Node
from .registry import register


@register("StringConcat")
def string_concat(g: Builder, node: Node, x: Instruction, y: Instruction) -> Instruction:
    """Emit the concatenation of strings of two tensors, which broadcast."""
    return g.pointwise("string_concat", x, y)


@register("RegexFullMatch")
def regex_full_match(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit whether ``pattern`` matches each whole string."""
    return g.op("regex_full_match", x, pattern=node.get_str("pattern"))


@register("StringSplit")
def string_split(g: Builder, node: Node, x: Instruction) -> list[Instruction]:
    """Emit the parts of each string along a new axis, and their number."""
    limit = node.get_int("maxsplit", -1)
    parts = g.op("string_split", x, delimiter=node.get_str("delimiter", ""), maxsplit=limit)
    return [g.op("get_tuple_elem", parts, index=k) for k in range(2)]


@register("StringNormalizer")
def string_normalizer(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit strings without stop words, in another case; ``locale`` has no effect, case is Unicode's."""
    action = node.get_choice("case_change_action", ("LOWER", "UPPER", "NONE"), "NONE")
    return g.op(
        "string_normalizer",
        x,
        case_change_action=action,
        is_case_sensitive=node.get_bool("is_case_sensitive"),
        stopwords=tuple(node.get_strs("stopwords", ())),
    )
