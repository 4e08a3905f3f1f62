"""Which epilogues libraries compute: a bias for each column, a tensor that is added, and ReLU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...problems.epilogue import Epilogue

__all__ = ["Finish", "finish_of"]


@dataclass(frozen=True)
class Finish:
    """``max(sum + bias + added, 0)``, with what there is of it.

    Attributes:
        bias: number of the epilogue's operand with a value for each column, -1 for none.
        added: number of its operand with a value for each result, -1 for none.
        relu: whether negative results become 0.
    """

    bias: int = -1
    added: int = -1
    relu: bool = False

    @property
    def name(self) -> str:
        """As it follows a kernel's name."""
        return "_bias" * (self.bias >= 0) + "_add" * (self.added >= 0) + "_relu" * self.relu


def finish_of(epilogue: Epilogue, out: str) -> Finish | None:
    """What an epilogue of sums that have the dtype ``out`` is; None if libraries have no words for it."""
    body = epilogue.body
    if body is None:
        return Finish()
    if body.dtype.dtype_name != out or any(o.dtype != out for o in epilogue.operands):
        return None
    first, value, found, zeros = len(body.parameters), 0, {"per_n": -1, "full": -1}, set()
    for number, call in enumerate(body.calls, first):
        if call.method == "const":
            if np.frombuffer(call.constant, call.dtype.numpy)[0] == 0:
                zeros.add(number)
            continue
        others = [k for k in call.operands if k != value]
        if len(call.operands) != 2 or len(others) != 1:
            return None
        if call.method == "max" and others[0] in zeros:
            return Finish(found["per_n"], found["full"], True) if body.result == number else None
        access = epilogue.operands[others[0] - 1].access if 0 < others[0] < first else ""
        if call.method != "add" or found.get(access, 0) >= 0:
            return None
        found[access] = others[0] - 1
        value = number
    return Finish(found["per_n"], found["full"]) if body.result == value else None
