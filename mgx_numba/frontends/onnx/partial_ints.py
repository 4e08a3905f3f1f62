"""Partially known integer vectors at parse time: shapes of values with dynamic dimensions.

Exporters write a reshape's target as Concat of Gather(Shape(x)), Slice(Shape(x)) and constants. If ``x`` has dynamic
dimensions, only these elements of the vector are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ...graph.folding import integers
from ...graph.instruction import Instruction
from .builder import Builder

Vector: TypeAlias = "Sequence[int | None] | None"
LONGEST = 64
"""Largest vector (elements) and largest number of steps that are followed; shapes have as many elements as axes."""


def partial_ints(g: Builder, x: Instruction) -> list[int | None] | None:
    """Return the elements of an integer vector, ``None`` for unknown elements; ``None`` if nothing is known."""
    found = _elements(g, x, 0)
    return None if found is None else list(found)


def _elements(g: Builder, x: Instruction, depth: int) -> Vector:
    value = g.constants.value(x)
    if value is not None:
        return integers(value) if value.size <= LONGEST else None
    if depth > LONGEST or x.shape.is_dynamic or x.shape.elements > LONGEST:
        return None
    name = x.name
    if name == "dimensions_of":
        dims = x.inputs[0].shape.dims[x.op.start : x.op.end]  # type: ignore[attr-defined]
        return [d.min if d.is_fixed else None for d in dims]
    parts = [_elements(g, i, depth + 1) for i in x.inputs]
    if not parts or any(p is None for p in parts):
        return None
    first = list(parts[0] or ())
    if name in ("squeeze", "unsqueeze", "identity", "convert", "reshape", "contiguous"):
        return first
    if name == "concat":
        return [v for p in parts for v in p or ()]
    if name in ("slice", "gather", "step", "reverse"):
        return _rearranged(x, first, parts)
    if name in ("add", "sub", "mul", "div"):
        return _arithmetic(name, first, list(parts[1] or ()))
    return None


def _rearranged(x: Instruction, first: list[int | None], parts: Sequence[Vector]) -> Vector:
    """Return the elements of a rearranged vector, by applying its operator to the positions."""
    if x.inputs[0].shape.ndim != 1 or any(v is None for p in parts[1:] for v in p or ()):
        return None
    others = [
        np.array(p, i.shape.type.numpy).reshape(i.shape.lens) for p, i in zip(parts[1:], x.inputs[1:], strict=False)
    ]
    positions = x.op.compute(x.shape, [np.arange(len(first)), *others])
    return [first[int(p)] for p in np.asarray(positions).ravel()]


def _arithmetic(name: str, a: list[int | None], b: list[int | None]) -> Vector:
    if len(a) != len(b):
        return None

    def combine(p: int | None, q: int | None) -> int | None:
        if name == "mul" and 0 in (p, q):
            return 0
        if p is None or q is None:
            if q == (0 if name in ("add", "sub") else 1):
                return p
            return q if p is not None and p == {"add": 0, "mul": 1}.get(name) else None
        if name == "div":
            return int(p / q) if q else 0
        return {"add": p + q, "sub": p - q, "mul": p * q}[name]

    return [combine(p, q) for p, q in zip(a, b, strict=False)]
