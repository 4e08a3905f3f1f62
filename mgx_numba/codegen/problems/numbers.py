"""Tensors of numbers that follow from a plan's lengths, as problems."""

from __future__ import annotations

from ...core.dim import SharedLength
from ...dataclass import dataclass
from .cluster import Tensor


@dataclass(frozen=True)
class NumbersProblem:
    """Store ``values``, which may be symbolic lengths, to the operand ``out`` in row-major order."""

    values: tuple[SharedLength, ...]
    out: Tensor
    origin: str = ""


@dataclass(frozen=True)
class RangeProblem:
    """Store ``start``, ``start + step``, ``start + 2 * step``, ... to the one-dimensional operand ``out``.

    A number that is None is an operand: the first element of ``start``, or of ``step``, with the type of ``out``.
    Floats are computed in float64.
    """

    out: Tensor
    start: SharedLength | None = 0
    step: SharedLength | None = 1
    origin: str = ""
