"""What a body of a kernel computes, to be compared with others at once."""

from __future__ import annotations

from collections.abc import Hashable

from ..core.argument import Argument
from .instruction import Instruction, Return
from .module import Module

__all__ = ["content", "structure"]

SMALL_BYTES = 64
"""Of a constant that is known by its value: a scalar, or a vector of few elements."""


def structure(body: Module) -> Hashable:
    """What a module without submodules computes. Operators and shapes count as equal if they are one object, as those
    of equal layers are in replayed programs: it says nothing once the module is gone, or changed."""
    changes, known = body.structure
    if changes == body.changes and known is not None:
        return known
    places: dict[Instruction, int] = {}
    row: list[Hashable] = []
    for number, ins in enumerate(body):
        places[ins] = number
        if ins.literal is not None:
            row += (content(ins.literal), id(ins.shape))
        elif not isinstance(ins.op, Return):  # each has one of its own
            row += (id(ins.op), id(ins.shape))
        row += [places[i] for i in ins.inputs]
        row.append(None)
    return tuple(row)


def content(literal: Argument) -> Hashable:
    """What is compared of a constant: its value if it is small, else which object it is."""
    array = literal.array
    return id(literal) if array is None or array.nbytes > SMALL_BYTES else (array.dtype, array.tobytes())
