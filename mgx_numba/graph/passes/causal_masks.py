"""Recognise masks that hide later keys, in the forms that PyTorch and exporters compute them.

Positions of queries and keys are counted by ``iota`` or a constant, moved by numbers and broadcast; a comparison of
both is a causal mask if the last query sees the last key. The operator's attribute ``causal`` then takes the place of
the mask, which is neither computed nor read, and kernels skip what it hides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...core.dim import Length, is_symbolic, known_equal, known_same
from ...core.types import Type
from ...ops.lengths import Iota, Lengths
from ..constants import compact, constant_array, is_causal, uniform_value
from ..instruction import Instruction

COUNTING = frozenset({Type.int32_type, Type.int64_type, Type.double_type})
"""Types that hold every position, and differences of positions, exactly."""
LONGEST = 1 << 24
"""Largest position that float32 holds exactly."""
VIEWS = frozenset({"multibroadcast", "reshape", "squeeze", "unsqueeze"})
COMPARISONS = {"less_or_equal": (0, 0), "less": (0, -1), "greater_or_equal": (1, 0), "greater": (1, -1)}
"""Operators that keep a key up to a position: which operand is the key, and what is added to the query's position."""


def is_causal_mask(mask: Instruction, scores: Sequence[Length], keeps: bool = True) -> bool:
    """Return whether a bool mask equals ``keeps`` exactly where ``key <= query + t - s``, for scores [..., s, t].

    A mask of one row, which is the same for all queries, is none.
    """
    s, t = scores[-2:]
    if mask.shape.ndim < 2 or mask.shape.is_dynamic or not known_same(mask.shape.lens[-2:], (s, t)):
        return False
    constant = constant_array(mask)
    if constant is not None:
        return not (is_symbolic(s) or is_symbolic(t)) and is_causal(compact(constant) == keeps)
    while mask.name in VIEWS and len(mask.inputs) == 1:
        (mask,) = mask.inputs
        if mask.shape.ndim < 2 or mask.shape.is_dynamic or not known_same(mask.shape.lens[-2:], (s, t)):
            return False
    if mask.name == "not":
        (mask,) = mask.inputs
        keeps = not keeps
    if mask.name not in COMPARISONS:
        return False
    place, moved = COMPARISONS[mask.name]
    if not keeps:  # not (key > query) is key <= query
        place, moved = 1 - place, -1 - moved
    key, query = positions(mask.inputs[place], -1), positions(mask.inputs[1 - place], -2)
    return key is not None and query is not None and known_equal(query + moved - key, t - s)


def leaves(mask: Instruction) -> Iterator[Instruction]:
    """Yield the operands of nested ``logical_and`` operations, or the mask itself if it is none."""
    stack = [mask]
    while stack:
        ins = stack.pop()
        inner = ins
        while inner.name == "multibroadcast" and len(inner.inputs) == 1:
            (inner,) = inner.inputs
        if inner.name == "logical_and":
            stack += reversed(inner.inputs)
        else:
            yield ins


def positions(ins: Instruction, axis: int) -> Length | None:
    """Return n if the elements along an axis are n, n + 1, ... and equal along all others; None if that is not known.

    Args:
        ins: a value of integers, or of floats that are exact for the lengths that occur.
        axis: negative, counted from the last axis.
    """
    shape = ins.shape
    if shape.is_dynamic or -axis > shape.ndim or not _exact(ins):
        return None
    constant = constant_array(ins)
    if constant is not None:
        return _counted(compact(constant), axis, shape.lens[axis])
    if isinstance(ins.op, Iota):
        return 0
    if ins.name == "convert":
        return positions(ins.inputs[0], axis) if _exact(ins.inputs[0]) else None
    if ins.name in VIEWS and len(ins.inputs) == 1:
        return _spread_positions(ins, axis)
    if ins.name == "transpose":
        order = ins.op.attributes()["permutation"]
        return positions(ins.inputs[0], order[shape.ndim + axis] - shape.ndim)
    if ins.name in ("add", "sub"):
        return _moved_positions(ins, axis)
    return None


def _exact(ins: Instruction) -> bool:
    type, lens = ins.shape.type, ins.shape.lens
    return type in COUNTING or (type is Type.float_type and all(n < LONGEST for n in lens if not is_symbolic(n)))


def _counted(array: np.ndarray, axis: int, length: Length) -> Length | None:
    """Return the first of consecutive integers along an axis, of an array of length 1 on axes that repeat."""
    if array.size == 0 or array.size != array.shape[axis] or not known_equal(array.shape[axis], length):
        return None
    row = array.reshape(-1)
    first = row.item(0)
    if not abs(first) <= LONGEST or first != int(first) or not np.array_equal(row, first + np.arange(row.size)):
        return None
    return int(first)


def _spread_positions(ins: Instruction, axis: int) -> Length | None:
    """Return the positions of a value whose axes of length 1 are added, removed or spread."""
    (source,) = ins.inputs
    length = ins.shape.lens[axis]
    if source.shape.is_dynamic:
        return None
    if ins.name == "multibroadcast":
        inside = -axis <= source.shape.ndim and known_equal(source.shape.lens[axis], length)
        return positions(source, axis) if inside else None
    wide = [a - source.shape.ndim for a, n in enumerate(source.shape.lens) if not known_equal(n, 1)]
    if len(wide) != 1 or not known_equal(source.shape.lens[wide[0]], length):
        return None
    return positions(source, wide[0])


def _moved_positions(ins: Instruction, axis: int) -> Length | None:
    """Return the positions of the sum or difference of positions and a number."""
    one, other = ins.inputs
    moved = number_of(other)
    if moved is None and ins.name == "add":
        one, moved = other, number_of(one)
    start = None if moved is None else positions(one, axis)
    if start is None:
        return None
    return start + moved if ins.name == "add" else start - moved


def number_of(ins: Instruction) -> Any:
    """Return the integer, perhaps a symbolic length, that all elements of a value equal; None if that is not known."""
    value = uniform_value(ins)
    if value is not None:
        return int(value) if abs(value) <= LONGEST and value == int(value) else None
    while ins.name in VIEWS | {"convert"} and len(ins.inputs) == 1 and _exact(ins):
        (ins,) = ins.inputs
    return ins.op.values[0] if isinstance(ins.op, Lengths) and len(ins.op.values) == 1 else None
