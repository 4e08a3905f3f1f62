"""Map epilogues to library epilogues: a summand, a bias and an activation."""

from __future__ import annotations

import numpy as np

from ....core.types import Type
from ....dataclass import dataclass
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import Epilogue

_ACTIVATIONS = ("relu", "gelu_tanh")


@dataclass(frozen=True)
class Finish:
    """``activation(sum + bias + added)``.

    Attributes:
        bias: number of the epilogue's per-column operand, -1 for none.
        added: number of its operand with one element per result, -1 for none.
        activation: ``relu``, ``gelu_tanh``, or "".
    """

    bias: int = -1
    added: int = -1
    activation: str = ""

    @property
    def name(self) -> str:
        """Return the suffix of a kernel's display name."""
        return "_bias" * (self.bias >= 0) + "_add" * (self.added >= 0) + "_" * bool(self.activation) + self.activation


def finish_of(epilogue: Epilogue) -> Finish | None:
    """Return the library epilogue that equals ``epilogue``; None if there is none. Conversions to wider types, and the
    final one to the stored type, are implied: libraries compute in float32."""
    body = epilogue.body
    if body is None:
        return Finish()
    first, value = len(body.parameters), 0
    types: list[Type] = [*body.parameters, *(call.dtype for call in body.calls)]
    found, activation = {"per_n": -1, "full": -1}, ""
    same, zeros = {k: k for k in range(first)}, set()
    for number, call in enumerate(body.calls, first):
        if call.method == "const":
            if np.frombuffer(call.constant, call.dtype.numpy)[0] == 0:
                zeros.add(number)
            continue
        if call.method in ("cast", "cast_loosely"):
            (source,) = call.operands
            wider = _widens(types[source], types[number])
            if not wider and not (source == value and number == body.result):
                return None
            if wider and source == value and call.method == "cast" and types[source] is not types[number]:
                return None  # bits that the sums' type has no room for would be kept
            if source == value:
                value = number
            elif source in same:
                same[number] = same[source]
            continue
        others = [k for k in call.operands if k != value]
        if activation or len(others) != len(call.operands) - 1:
            return None
        if call.method in _ACTIVATIONS and not others:
            activation = call.method
        elif call.method == "max" and len(others) == 1 and others[0] in zeros:
            activation = "relu"
        else:
            operand = same.get(others[0], 0) if call.method == "add" and len(others) == 1 else 0
            access = epilogue.operands[operand - 1].access if operand else ""
            if found.get(access, 0) >= 0:
                return None
            found[access] = operand - 1
        value = number
    return Finish(found["per_n"], found["full"], activation) if body.result == value else None


def _widens(source: Type, target: Type) -> bool:
    """Return whether every number of float type ``source`` is representable in ``target``."""
    sizes = (ITEMSIZE.get(t.dtype_name, 0) for t in (source, target))
    low, high = sizes
    return source.is_floating and target.is_floating and (source is target or 0 < low < high)
