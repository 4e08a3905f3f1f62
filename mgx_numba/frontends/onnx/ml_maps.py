"""Maps, which scikit-learn's converters produce from scores and accept as features."""

from __future__ import annotations

import numpy as np

from ...core.types import Type
from ...errors import ParseError
from ...graph.instruction import Instruction
from .builder import Builder
from .cast import cast_to
from .node import Node
from .registry import ML, register

_CASTS = {"TO_FLOAT": Type.float_type, "TO_STRING": Type.string_type, "TO_INT64": Type.int64_type}


def _keys(g: Builder, node: Node, texts: str, numbers: str) -> Instruction:
    """Emit the keys, strings or integers, from one of two attributes."""
    words, integers = node.get_strs(texts, ()), node.int_array(numbers, ())
    if bool(words) is bool(integers.size):
        raise ParseError(f"expected one of the attributes {texts!r} and {numbers!r}")
    return g.literal(np.array(words, object) if words else integers)


@register("ZipMap", domain=ML)
def zip_map(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit class scores as a sequence of maps, one per sample."""
    return g.op("zip_map", x, _keys(g, node, "classlabels_strings", "classlabels_int64s"))


@register("DictVectorizer", domain=ML)
def dict_vectorizer(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the value of each key of a vocabulary."""
    return g.op("dict_vectorizer", x, _keys(g, node, "string_vocabulary", "int64_vocabulary"))


@register("CastMap", domain=ML)
def cast_map(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the values in the order of their keys, or at the positions given by the keys."""
    sparse = node.get_choice("map_form", ("DENSE", "SPARSE"), "DENSE") == "SPARSE"
    values = g.op("map_values", x, length=node.get_int("max_map", 1) if sparse else None)
    return cast_to(g, values, _CASTS[node.get_choice("cast_to", tuple(_CASTS), "TO_FLOAT")], saturate=True)
