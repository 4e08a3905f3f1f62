"""Fused clusters and copies, as problems: what is computed, and how the operands lie in memory."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ...core.dim import SharedLength, known_in, maximum, minimum
from ...core.types import Type
from ...dataclass import dataclass
from ...graph.module import Module

__all__ = [
    "STRUCTURAL",
    "CopyProblem",
    "PointwiseProblem",
    "ReductionProblem",
    "Tensor",
    "own_lens",
]


STRUCTURAL = {"structural": True}
"""Metadata of fields whose integers are no lengths: problems that differ in them have nothing in common."""


@dataclass(frozen=True)
class Tensor:
    """One operand: element type, lengths and element strides in the problem's own dimensions.

    Its first element is the ``offset``-th of a buffer that begins at a multiple of 64 bytes.
    """

    type: Type
    lens: tuple[SharedLength, ...]
    strides: tuple[SharedLength, ...]
    offset: SharedLength = 0

    @property
    def footprint(self) -> Any:
        """Bytes touched: each stored element once, however often a broadcast repeats it."""
        total: Any = self.type.size
        for n, s in zip(self.lens, self.strides):
            total *= minimum(n, 1) if known_in(s, 0) else n
        return total


@dataclass(frozen=True)
class PointwiseProblem:
    """Every result of a module of scalar operations, for each element.

    ``module`` has one scalar parameter for each of ``inputs``, in order of declaration. All tensors have equal lengths
    and any strides; they are called ``x0``, ``x1``, ... and ``out0``, ``out1``, .... ``origin`` is the printed
    instruction, for readers of the kernel. ``again`` has the numbers of results that further outputs are for. A result
    of float32 with an output of bfloat16 has two of them, for its high and low parts.
    """

    module: Module
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    fast_math: bool = False
    origin: str = ""
    again: tuple[int, ...] = field(default=(), metadata=STRUCTURAL)


@dataclass(frozen=True)
class ReductionProblem:
    """A module of pointwise operations, reductions over ``axes`` and ``multibroadcast`` of what is one value a row.

    Row parameters and results have length 1 on the reduced axes. Names are as in `PointwiseProblem`.

    Attributes:
        parts: parts that rows are reduced in, each with results of its own, which follow one another in memory; more
            than one only where the results are reductions of what depends on none.
        cut, share: the reduced axes, as one, that parts have ``share`` elements of, if there are several.
        fold: steps that count as columns of their own, with results of their own between those of parts.
        again: as of a `PointwiseProblem`.
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
    """``x0`` copied to ``out0``: tensors of one element type and equal lengths, of any strides."""

    source: Tensor
    target: Tensor
    origin: str = ""


def own_lens(module: Module) -> tuple[SharedLength, ...]:
    """The lengths that a module's values together have, which are those of its problem's operands: of each axis the
    largest. Values of another rank, such as literals, do not count."""
    shapes = [ins.shape.lens for ins in module if not ins.is_literal and ins.name != "@return"]
    rank = max(map(len, shapes), default=0)
    return tuple(maximum(*same) for same in zip(*(lens for lens in shapes if len(lens) == rank)))
