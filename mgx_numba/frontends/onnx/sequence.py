"""Sequences of tensors.

Sequences with members known at parse time cost nothing: reading a member gives the tensor itself. Others are values of
the program.
"""

from __future__ import annotations

import numpy as np

from ...core.shape import Shape
from ...errors import ParseError, ShapeError, UnknownValueError
from ...graph.instruction import Instruction, Parameter, Return
from ...graph.module import Module
from .builder import Builder, rank
from .node import Node
from .registry import register
from .tensors import ir_type

SEQUENCE_OPERATORS = frozenset(
    {
        "ConcatFromSequence",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SplitToSequence",
    }
)
"""Operators that take or return a sequence; their parser functions accept inputs of unknown rank."""


def members(x: Instruction) -> list[Instruction] | None:
    """Return the members of a sequence or an optional; ``None`` if known only at run time."""
    return list(x.inputs) if x.name in ("sequence_construct", "optional_construct") else None


def drop_unused(module: Module) -> None:
    """Remove sequences and optionals without users, whose members were read at parse time."""
    for ins in reversed(list(module)):
        if ins.shape.element is not None and not ins.users and not isinstance(ins.op, (Parameter, Return)):
            module.remove_instruction(ins)


def _element(x: Instruction) -> Shape:
    if x.shape.element is None:
        raise ParseError(f"the input is {x.shape}, expected a sequence")
    return x.shape.element


def _position(g: Builder, x: Instruction, count: int, last: int) -> int | None:
    """Return a constant position counted from the front; ``None`` if it is not constant."""
    if x.shape.is_dynamic or g.constants.value(x) is None:
        return None
    value = g.int_value(x, "position")
    if not -count <= value <= last:
        raise ShapeError(f"position {value} is out of range for a sequence of {count}")
    return value + count if value < 0 else value


def _construct(g: Builder, items: list[Instruction], element: Shape) -> Instruction:
    return g.op("sequence_construct", *items, element=element)


@register("SequenceConstruct")
def sequence_construct(g: Builder, node: Node, *items: Instruction) -> Instruction:
    """Emit the inputs as a sequence."""
    return g.op("sequence_construct", *items)


@register("SequenceEmpty")
def sequence_empty(g: Builder, node: Node) -> Instruction:
    """Emit an empty sequence of tensors of type ``dtype``."""
    return _construct(g, [], Shape.unranked(ir_type(node.get_int("dtype", 1))))


@register("SequenceAt")
def sequence_at(g: Builder, node: Node, sequence: Instruction, position: Instruction) -> Instruction:
    """Emit the tensor at a position."""
    items = members(sequence)
    place = None if items is None else _position(g, position, len(items), len(items) - 1)
    return g.op("sequence_at", sequence, position) if items is None or place is None else items[place]


@register("SequenceErase")
def sequence_erase(g: Builder, node: Node, sequence: Instruction, position: Instruction | None = None) -> Instruction:
    """Emit the sequence without the tensor at a position (by default the last)."""
    items = members(sequence)
    if items is not None:
        if not items:
            raise ShapeError("the sequence is empty")
        last = len(items) - 1
        place = last if position is None else _position(g, position, len(items), last)
        if place is not None:
            return _construct(g, items[:place] + items[place + 1 :], _element(sequence))
    return g.op("sequence_erase", *([sequence] if position is None else [sequence, position]))


@register("SequenceInsert")
def sequence_insert(
    g: Builder, node: Node, sequence: Instruction, item: Instruction, position: Instruction | None = None
) -> Instruction:
    """Emit the sequence with a tensor inserted before a position (by default at the end)."""
    items = members(sequence)
    if items is not None:
        count = len(items)
        place = count if position is None else _position(g, position, count, count)
        if place is not None:
            return _construct(g, [*items[:place], item, *items[place:]], _element(sequence))
    return g.op("sequence_insert", *([sequence, item] if position is None else [sequence, item, position]))


@register("SequenceLength")
def sequence_length(g: Builder, node: Node, sequence: Instruction) -> Instruction:
    """Emit the number of tensors."""
    items = members(sequence)
    return g.op("sequence_length", sequence) if items is None else g.literal(np.int64(len(items)))


@register("SplitToSequence")
def split_to_sequence(g: Builder, node: Node, x: Instruction, sizes: Instruction | None = None) -> Instruction:
    """Split along ``axis`` into pieces of length 1 (``keepdims`` 0 drops the axis) or of given sizes."""
    axis, keep = node.get_int("axis", 0), node.get_bool("keepdims", True)
    inputs = [x] if sizes is None else [x, sizes]
    if not x.shape.ranked:
        return g.op("split_to_sequence", *inputs, axis=axis, keepdims=keep)
    axis = g.axis(axis, rank(x))
    try:
        pieces = _pieces(g, x, axis, sizes)
    except UnknownValueError:
        return g.op("split_to_sequence", *inputs, axis=axis, keepdims=keep)
    if sizes is None and not keep:
        pieces = [g.squeeze(p, [axis]) for p in pieces]
    return g.op("sequence_construct", *pieces) if pieces else _construct(g, [], Shape.unranked(x.shape.type))


def _pieces(g: Builder, x: Instruction, axis: int, sizes: Instruction | None) -> list[Instruction]:
    length = g.lens(x)[axis]
    if sizes is None:
        return g.split(x, axis, [1] * length)
    given = g.ints(sizes, "split")
    if rank(sizes) == 0:
        if given[0] < 1:
            raise ParseError(f"split is {given[0]}, expected at least 1")
        given = [min(given[0], length - start) for start in range(0, length, given[0])]
    if sum(given) != length or any(n < 0 for n in given):
        raise ParseError(f"split {given} does not fit length {length} of axis {axis}")
    return g.split(x, axis, given)


@register("ConcatFromSequence")
def concat_from_sequence(g: Builder, node: Node, sequence: Instruction) -> Instruction:
    """Concatenate the tensors along ``axis``, which is a new axis with ``new_axis``."""
    items = members(sequence)
    axis, new = node.get_int("axis"), node.get_bool("new_axis")
    if items is None or any(not i.shape.ranked for i in items):
        return g.op("concat_from_sequence", sequence, axis=axis, new_axis=new)
    if not items:
        raise ShapeError("the sequence is empty")
    axis = g.axis(axis, rank(items[0]) + new)
    if new:
        items = [g.unsqueeze(i, [axis]) for i in items]
    return g.op("concat", *items, axis=axis) if len(items) > 1 else g.op("identity", items[0])
