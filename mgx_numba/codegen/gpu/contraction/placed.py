"""A contraction as this back end is asked for it: with what it must know of where the operands begin."""

from __future__ import annotations

import numpy as np

from ....core.dim import Length
from ....dataclass import dataclass
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem
from ...tuning.record import Problem
from ...tuning.request import Request
from ..cluster.indexing import whole_vectors, widest
from ..kernel import NAME

__all__ = ["VECTOR_BYTES", "PlacedRequest", "in_turns", "interleaved"]

VECTOR_BYTES = 16
"""Bytes of the widest load of one thread."""


@dataclass(frozen=True)
class PlacedRequest:
    """A request, whose ``x`` and ``w`` begin at multiples of `VECTOR_BYTES`.

    Attributes:
        request: what is computed.
        alignment: bytes of whose multiples the result and the epilogue's operands begin at one, at most `VECTOR_BYTES`.
        constant: whether the right operand was there before anything of the program was launched.
        any_order: whether the right operand's columns may be stored in another order, see `Solution.turns`.
        precision: of products of float32: ``highest``, ``high`` (three products in TF32 or bfloat16) or ``medium``
            (one).
        first_channel: that of a convolution's input which weights of its first tap are for, first of all; what is
            before it is not read, and behind the weights that there are then lie zeros.
    """

    request: Request
    alignment: int = VECTOR_BYTES
    precision: str = "highest"
    constant: bool = False
    any_order: bool = False
    first_channel: int = 0

    @property
    def problem(self) -> GemmProblem | ConvProblem:
        """See `Asked.problem`."""
        return self.request.problem

    def key(self) -> Problem:
        """See `Asked.key`: besides the request's own fields those of this class; ``precision`` of float32 only."""
        fields = {**self.request.fields(), "backend": NAME, "alignment": self.alignment, "constant": self.constant}
        if "float32" in (self.problem.types.a, self.problem.types.b):
            fields["precision"] = self.precision
        if self.first_channel:
            fields["first_channel"] = self.first_channel
        operation = "dot" if isinstance(self.problem, GemmProblem) else "convolution"
        return Problem.of(operation, self.request.threads, fields)

    def lanes(self, columns: Length, most: int) -> int:
        """Elements of the result and of the epilogue's operands, a power of two up to ``most``, that lie together in
        vectors at multiples of their own size (or of `VECTOR_BYTES`), so that a row has whole ones of them."""
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
    """A right operand whose columns, along an axis, are stored so many of the first half at a time, and after these as
    many of the second half: a thread that has sums of some has those of the others."""
    axis %= columns.ndim
    lens = columns.shape
    split = columns.reshape(*lens[:axis], 2, -1, together, *lens[axis + 1 :])
    return split.swapaxes(axis, axis + 1).reshape(lens)


def in_turns(columns: np.ndarray, axis: int, lanes: int) -> np.ndarray:
    """A right operand whose columns, along an axis, are stored in the order in which sums of warpgroups go to threads.

    Four threads have a row's sums in turns, two at a time: each thread's are neighbours if of every ``4 * lanes``
    columns the first two come first, then the first two of the second ``lanes``, and so on.
    """
    axis %= columns.ndim
    lens = columns.shape
    split = columns.reshape(*lens[:axis], -1, 4, lanes // 2, 2, *lens[axis + 1 :])
    return split.swapaxes(axis + 1, axis + 2).reshape(lens)
