"""Problems of fused clusters, copies and tensors of numbers that follow from a plan's lengths: the computation, and
the operands' memory layout."""

from __future__ import annotations

from dataclasses import field

from ...core.dim import Length, SharedLength, known_in, maximum, minimum
from ...core.types import Type
from ...dataclass import dataclass
from ...graph.module import Module

STRUCTURAL = {"structural": True}
"""Metadata of fields whose integers are not lengths: problems that differ in them share no plan."""


@dataclass(frozen=True)
class Tensor:
    """One operand: element type, lengths, and element strides in the problem's axes. It starts at element ``offset`` of
    a 64-byte aligned buffer."""

    type: Type
    lens: tuple[SharedLength, ...]
    strides: tuple[SharedLength, ...]
    offset: SharedLength = 0

    @property
    def footprint(self) -> Length:
        """Return the bytes accessed; broadcast elements count once."""
        total = self.type.size
        for n, s in zip(self.lens, self.strides):
            total *= minimum(n, 1) if known_in(s, 0) else n
        return total


@dataclass(frozen=True)
class PointwiseProblem:
    """Every result of a module of scalar operations, for each element.

    ``module`` has one scalar parameter per entry of ``inputs``, in order of declaration. All tensors have equal lengths
    and any strides; they are named ``x0``, ``x1``, ... and ``out0``, ``out1``, .... ``origin`` is the printed
    instruction. ``again`` lists results that additional outputs repeat; a float32 result with bfloat16 outputs has two,
    for its high and low parts.
    """

    module: Module
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    fast_math: bool = False
    origin: str = ""
    again: tuple[int, ...] = field(default=(), metadata=STRUCTURAL)


@dataclass(frozen=True)
class ReductionProblem:
    """A module of pointwise operations, reductions over ``axes``, and ``multibroadcast`` of per-row values.

    Per-row parameters and results have length 1 along the reduced axes. Names are as in `PointwiseProblem`.

    Attributes:
        parts: parts of each row with separate results, contiguous in memory; more than one only if the results are
            first-level reductions.
        cut, share: the reduced axes, merged, of which each part has ``share`` elements.
        fold: iterations that count as separate columns, with results between those of parts.
        again: as in `PointwiseProblem`.
    """

    module: Module
    axes: tuple[int, ...] = field(metadata=STRUCTURAL)
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    fast_math: bool = False
    origin: str = ""
    parts: int = 1
    cut: tuple[int, ...] = field(default=(), metadata=STRUCTURAL)
    share: SharedLength = 0
    fold: int = 1
    again: tuple[int, ...] = field(default=(), metadata=STRUCTURAL)


@dataclass(frozen=True)
class CopyProblem:
    """A copy of ``x0`` to ``out0``: equal element types and lengths, any strides."""

    source: Tensor
    target: Tensor
    origin: str = ""


def own_lens(module: Module) -> tuple[SharedLength, ...]:
    """Return the shape of a module's iteration space: of each axis the largest length. Values of another rank, such as
    literals, are ignored."""
    shapes = [ins.shape.lens for ins in module if not ins.is_literal and ins.name != "@return"]
    rank = max(map(len, shapes), default=0)
    return tuple(maximum(*same) for same in zip(*(lens for lens in shapes if len(lens) == rank)))


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
