"""Structural keys of kernel bodies, so that bodies are compared at once."""

from __future__ import annotations

from collections.abc import Hashable

from ..core.argument import Argument
from .instruction import Instruction, Return
from .module import Module

SMALL_BYTES = 64
"""Largest constant (bytes) that is compared by value: a scalar, or a vector of few elements."""


def structure(body: Module) -> Hashable:
    """Return a hashable key of the computation of a module without submodules.

    Operators and shapes are compared by value, and large constants by identity, so the key is valid only while the
    module lives and is unchanged.
    """
    places: dict[Instruction, int] = {}
    row: list[Hashable] = []
    for number, ins in enumerate(body):
        places[ins] = number
        if ins.literal is not None:
            row += (content(ins.literal), ins.shape)
        elif not isinstance(ins.op, Return):  # every @return has its own operator object
            row += (ins.op, ins.shape)
        row += [places[i] for i in ins.inputs]
        row.append(None)
    return tuple(row)


def content(literal: Argument) -> Hashable:
    """Return a constant's key: its value if the constant is small, else its identity."""
    array = literal.array
    return id(literal) if array is None or array.nbytes > SMALL_BYTES else (array.dtype, array.tobytes())
