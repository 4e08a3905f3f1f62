"""Tensors of numbers that a plan knows once it knows its lengths, as problems."""

from __future__ import annotations

from ...core.dim import SharedLength
from ...dataclass import dataclass
from .cluster import Tensor

__all__ = ["NumbersProblem", "RangeProblem"]


@dataclass(frozen=True)
class NumbersProblem:
    """``values``, lengths that may be symbolic, as the elements of the operand ``out`` in row-major order."""

    values: tuple[SharedLength, ...]
    out: Tensor
    origin: str = ""


@dataclass(frozen=True)
class RangeProblem:
    """``start``, ``start + step``, ``start + 2 * step``, ... as the elements of the operand ``out``, of one axis.

    A number that is None is an operand: the first element of ``start``, or of ``step``, of the type of ``out``. Floats
    are computed in float64.
    """

    out: Tensor
    start: SharedLength | None = 0
    step: SharedLength | None = 1
    origin: str = ""
