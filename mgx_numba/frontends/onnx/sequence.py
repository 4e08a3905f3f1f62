"""Sequences of tensors whose number is known while parsing: a Python tuple of values, no operator of the IR.

ai.onnx: ConcatFromSequence SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert
SequenceLength SplitToSequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from .builder import Builder, rank
from .node import Node
from .registry import register

__all__ = ["SEQUENCE_OPERATORS", "TensorSequence"]

SEQUENCE_OPERATORS = frozenset(
    {"ConcatFromSequence", "SequenceAt", "SequenceErase", "SequenceInsert", "SequenceLength"}
)
"""Operators that take a sequence."""


@dataclass(frozen=True)
class TensorSequence:
    """A value of ONNX's type sequence(tensor)."""

    items: tuple[Instruction, ...] = ()


def _position(g: Builder, x: Instruction, count: int) -> int:
    value = g.int_value(x, "position")
    if not -count <= value < count:
        raise ShapeError(f"position {value} is out of range for a sequence of {count}")
    return value % count


@register("SequenceConstruct")
def sequence_construct(g: Builder, node: Node, *items: Instruction) -> TensorSequence:
    """The inputs as a sequence."""
    return TensorSequence(items)


@register("SequenceEmpty")
def sequence_empty(g: Builder, node: Node) -> TensorSequence:
    """A sequence of nothing."""
    return TensorSequence()


@register("SequenceAt")
def sequence_at(g: Builder, node: Node, sequence: TensorSequence, position: Instruction) -> Instruction:
    """The tensor at a constant position."""
    return sequence.items[_position(g, position, len(sequence.items))]


@register("SequenceErase")
def sequence_erase(
    g: Builder, node: Node, sequence: TensorSequence, position: Instruction | None = None
) -> TensorSequence:
    """Without the tensor at a constant position (the last one by default)."""
    items = list(sequence.items)
    if not items:
        raise ShapeError("the sequence is empty")
    del items[-1 if position is None else _position(g, position, len(items))]
    return TensorSequence(tuple(items))


@register("SequenceInsert")
def sequence_insert(
    g: Builder, node: Node, sequence: TensorSequence, item: Instruction, position: Instruction | None = None
) -> TensorSequence:
    """With a tensor before the one that is at a constant position (at the end by default)."""
    items = list(sequence.items)
    place = len(items) if position is None else g.int_value(position, "position")
    if not -len(items) <= place <= len(items):
        raise ShapeError(f"position {place} is out of range for a sequence of {len(items)}")
    items.insert(place, item)
    return TensorSequence(tuple(items))


@register("SequenceLength")
def sequence_length(g: Builder, node: Node, sequence: TensorSequence) -> Instruction:
    """The number of tensors."""
    return g.literal(np.int64(len(sequence.items)))


@register("SplitToSequence")
def split_to_sequence(g: Builder, node: Node, x: Instruction, sizes: Instruction | None = None) -> TensorSequence:
    """Pieces along ``axis``: of length 1 (``keepdims`` 0 drops the axis), of one size, or of given sizes."""
    axis = g.axis(node.get_int("axis", 0), rank(x))
    length = g.lens(x)[axis]
    if sizes is None:
        pieces = g.split(x, axis, [1] * length)
        keep = node.get_bool("keepdims", True)
        return TensorSequence(tuple(pieces if keep else [g.squeeze(p, [axis]) for p in pieces]))
    given = g.ints(sizes, "split")
    if rank(sizes) == 0:
        if given[0] < 1:
            raise ParseError(f"split is {given[0]}, expected at least 1")
        given = [min(given[0], length - start) for start in range(0, length, given[0])]
    if sum(given) != length or any(n < 0 for n in given):
        raise ParseError(f"split {given} does not fit length {length} of axis {axis}")
    return TensorSequence(tuple(g.split(x, axis, given)))


@register("ConcatFromSequence")
def concat_from_sequence(g: Builder, node: Node, sequence: TensorSequence) -> Instruction:
    """The tensors joined along ``axis``, a new one with ``new_axis``."""
    items = list(sequence.items)
    if not items:
        raise ShapeError("the sequence is empty")
    new = node.get_bool("new_axis")
    axis = g.axis(node.get_int("axis"), rank(items[0]) + new)
    if new:
        items = [g.unsqueeze(i, [axis]) for i in items]
    return g.op("concat", *items, axis=axis) if len(items) > 1 else g.op("identity", items[0])
