"""`GpuContraction`, a `Request` with what is known of alignment and constants, and `GpuSolver`, the protocol of the
solvers that take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from ....core.dim import Length
from ....core.strided import Strided
from ....dataclass import dataclass
from ...launch import Solution
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem
from ...tuning.record import Problem
from ...tuning.request import Request
from ..cluster.flat_index import whole_vectors, widest
from ..kernel import NAME

VECTOR_BYTES = 16
"""Bytes of the widest load of a thread."""


LINE_BYTES = 128
"""Bytes of a cache line: CUDA C++ programming guide, "Device memory accesses"."""
MOST_PADDING = 4
"""Copies and constants whose rows are padded to whole lines grow by at most one part in so many."""


def line_padded(count: int, itemsize: int) -> int:
    """Return the length to which rows of ``count`` elements are padded where a copy of them is made anyway.

    It is a number of whole cache lines, which TMA loads two to three times as fast (`wgmma_tiles.LINE_RATES`), or of
    whole vectors where that would need too much memory (`MOST_PADDING`).
    """
    vectors, lines = (-(-count * itemsize // size) * size for size in (VECTOR_BYTES, LINE_BYTES))
    return (lines if MOST_PADDING * (lines - count * itemsize) <= count * itemsize else vectors) // itemsize


@dataclass(frozen=True)
class GpuContraction:
    """A contraction request; ``x`` and ``w`` are aligned to `VECTOR_BYTES`.

    Attributes:
        request: the contraction.
        alignment: alignment (bytes) of the result and of the epilogue's operands, at most `VECTOR_BYTES`.
        constant: whether the right operand is a constant, complete before any launch of the program.
        any_order: whether the columns of the right operand may be permuted, see `Solution.turns`.
        precision: of float32 products: ``highest``; ``high`` (three TF32 or bfloat16 products); ``medium`` (one).
        first_channel: for a convolution, the first input channel that the weights of its first tap cover. Earlier
            channels are skipped; the weights are padded with zeros at the end.
    """

    request: Request
    alignment: int = VECTOR_BYTES
    precision: str = "highest"
    constant: bool = False
    any_order: bool = False
    first_channel: int = 0

    @property
    def problem(self) -> GemmProblem | ConvProblem:
        return self.request.problem

    def key(self) -> Problem:
        """See `Asked.key`. Adds this class's fields to the request's; ``precision`` for float32 only."""
        fields = {**self.request.fields(), "backend": NAME, "alignment": self.alignment, "constant": self.constant}
        if "float32" in (self.problem.types.a, self.problem.types.b):
            fields["precision"] = self.precision
        if self.first_channel:
            fields["first_channel"] = self.first_channel
        operation = "dot" if isinstance(self.problem, GemmProblem) else "convolution"
        return Problem.of(operation, self.request.threads, fields)

    def lanes(self, columns: Length, most: int) -> int:
        """Return the vector width (elements) of loads and stores of the epilogue: the largest power of two up to
        ``most`` for which all its operands and the result are aligned and each row is whole vectors."""
        problem, epilogue = self.request.problem, self.request.epilogue
        image = problem.out_strides[:-1] if isinstance(problem, GemmProblem) else problem.out_strides[:1]
        moving = [(ITEMSIZE[epilogue.out_dtype(problem.types.out)], (*image, problem.out_strides[-1]))]
        for operand, strides in zip(epilogue.operands, self.request.strides):
            if operand.access in ("full", "per_n"):
                moving.append((ITEMSIZE[operand.dtype], tuple(strides)))

        def whole(lanes: int) -> Length:
            if any(self.alignment % min(lanes * size, VECTOR_BYTES) for size, _ in moving):
                return 0
            return whole_vectors(lanes, columns, *(s for _, strides in moving for s in strides))

        return widest(most, whole)


def interleaved(columns: np.ndarray, axis: int, together: int) -> np.ndarray:
    """Return a right operand with interleaved halves of its columns: ``together`` columns of the first half, then as
    many of the second half, and so on. A thread then holds the accumulators of both halves (value and gate)."""
    axis %= columns.ndim
    lens = columns.shape
    split = columns.reshape(*lens[:axis], 2, -1, together, *lens[axis + 1 :])
    return split.swapaxes(axis, axis + 1).reshape(lens)


def permuted_lanes(columns: np.ndarray, axis: int, lanes: int) -> np.ndarray:
    """Return a right operand whose columns are permuted so that each thread's warpgroup accumulators are neighbouring
    columns.

    Of each row, four threads hold two accumulators in turn. In each group of ``4 * lanes`` columns, the first two
    columns of each run of ``lanes`` come first, then the next two of each run, and so on.
    """
    axis %= columns.ndim
    lens = columns.shape
    split = columns.reshape(*lens[:axis], -1, 4, lanes // 2, 2, *lens[axis + 1 :])
    return split.swapaxes(axis + 1, axis + 2).reshape(lens)


T = TypeVar("T")
"""A solver's tilings."""


class GpuSolver(Protocol[T]):
    """One algorithm for contractions.

    Attributes:
        name: identifier in tuning records.
        order: layout of convolution weights.
        revision: version of the kernels' performance. Raise it with each change that affects times; records of an
            earlier revision become hints and are measured again.
    """

    name: str
    order: WeightOrder
    revision: int

    def refusal(self, contraction: GpuContraction) -> str:
        """Return the reason why the solver does not apply to a contraction; "" if it applies."""

    def tilings(self, contraction: GpuContraction) -> list[T]:
        """Return the tilings (dataclasses of integers) of an applicable contraction."""

    def chosen(self, contraction: GpuContraction) -> T | None:
        """Return the solver's own choice of tiling; None if `plan` chooses it."""

    def estimate(self, contraction: GpuContraction, tiling: T | None = None) -> float:
        """Return the estimated time (s) with ``tiling``, by default with the solver's own choice."""

    def weighed(self, contraction: GpuContraction) -> Sequence[tuple[float, T | None]]:
        """Return (estimated seconds, tiling) of each tiling; the tiling is None if the solver has only one way."""

    def plan(self, contraction: GpuContraction, tiling: T | None = None) -> Solution:
        """Return the launches with ``tiling``, by default with the solver's own choice.

        Raises:
            UnsupportedError: no kernel exists for an operation of the prologue or epilogue.
        """


AnyGpuSolver = GpuSolver[Any]
"""A solver with tilings of any kind."""


Weights = TypeVar("Weights", np.ndarray, Strided)
"""The weights, or a description of their memory."""
WeightOrder = tuple[int, int, int, int]
"""Permutation of the axes (groups, taps, input channels per group, output channels per group), outermost first."""

ROWS: WeightOrder = (0, 1, 2, 3)
"""Per group a row-major ``[k, outputs]`` matrix, k over taps and input channels."""
COLUMNS: WeightOrder = (0, 3, 1, 2)
"""Per group a column-major matrix: k is contiguous."""
CHANNELS: WeightOrder = (1, 0, 2, 3)
"""Depthwise: per tap all channels, contiguous."""


def packed_lens(problem: ConvProblem, order: WeightOrder) -> tuple[int, int, int, int]:
    """Return the lengths of the weights in an order."""
    lens = (problem.groups, problem.taps, problem.group_in, problem.group_out)
    first, second, third, fourth = order
    return lens[first], lens[second], lens[third], lens[fourth]


def pack_weights(problem: ConvProblem, order: WeightOrder, weights: Weights) -> Weights:
    """Return weights of shape `ConvProblem.weight_lens` permuted to an order; a view where strides allow.

    Raises:
        ValueError: ``weights`` is a memory description and the permutation needs a copy.
    """
    groups, taps, inputs, outputs = packed_lens(problem, ROWS)
    if problem.transposed:
        rows = weights.reshape(groups, inputs, outputs, taps).transpose(0, 3, 1, 2)
    else:
        rows = weights.reshape(groups, outputs, inputs, taps).transpose(0, 3, 2, 1)
    return rows.transpose(*order)
