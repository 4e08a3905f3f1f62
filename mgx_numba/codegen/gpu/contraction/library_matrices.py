"""A contraction as one call of a library of products: three matrices, or as many as a batch has."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....errors import UnsupportedError
from ...problems.convolution import ConvProblem
from ...problems.epilogue import NOT_COMPUTED
from ...space import collapse
from ..libraries.matrices import Matrices, Matrix
from .placed import PlacedRequest

__all__ = ["matrices_of"]


def matrices_of(placed: PlacedRequest) -> Matrices:
    """The matrices of a product, or of a convolution whose filter is one pixel.

    Raises:
        UnsupportedError: it is no such contraction, or its operands lie otherwise; the message says how.
    """
    problem = placed.problem
    if problem.prologue is not None:
        raise UnsupportedError(NOT_COMPUTED)
    moving = [(k, s) for k, s in enumerate(placed.request.strides) if s and _full(placed, k)]
    if isinstance(problem, ConvProblem):
        return _of_pixels(problem, moving)
    if problem.blocks is not None:
        raise UnsupportedError("its weights are in blocks of a few bits")
    rank = len(problem.batch)
    left, right, out = problem.a_strides, problem.b_strides, (*problem.out_strides, 1)
    own = [(*s, 1) for _, s in moving]
    if not any(s for s, n in zip(right[:rank], problem.batch) if n > 1):
        # One right operand for the whole batch: rows follow one another from one matrix to the next.
        rows = [(*s[: rank + 1],) for s in (left, out, *own)]
        space = collapse((*problem.batch, problem.m), rows, order_by=1)
        if space.rank <= 1:
            pitches = [s[0] if s else 0 for s in space.strides]
            last = [left[-1], *(1 for _ in range(1 + len(own)))]
            a, d, *extras = (
                _matrix((p, k), (prod(problem.batch) * problem.m, n))
                for p, k, n in zip(pitches, last, (problem.k, *(problem.n for _ in range(1 + len(own)))))
            )
            b = _matrix(right[rank:], (problem.k, problem.n))
            return Matrices(
                prod(problem.batch) * problem.m, problem.n, problem.k, 1, a, b, d,
                tuple((k, e) for (k, _), e in zip(moving, extras)),
            )  # fmt: skip
    space = collapse(problem.batch, [s[:rank] for s in (left, right, out, *own)], order_by=2)
    if space.rank > 1:
        raise UnsupportedError("matrices of the batch are at no one distance")
    planes = [s[0] if s else 0 for s in space.strides]
    lens = [(problem.m, problem.k), (problem.k, problem.n), *((problem.m, problem.n) for _ in range(1 + len(own)))]
    a, b, d, *extras = (
        _matrix(s[rank:], own_lens, plane) for s, own_lens, plane in zip((left, right, out, *own), lens, planes)
    )
    if d.turned:
        raise UnsupportedError("the result's columns are strided")
    found = tuple((k, e) for (k, _), e in zip(moving, extras))
    return Matrices(problem.m, problem.n, problem.k, prod(problem.batch), a, b, d, found)


def _full(placed: PlacedRequest, number: int) -> bool:
    return placed.request.epilogue.operands[number].access == "full"


def _of_pixels(problem: ConvProblem, moving: Sequence[tuple[int, Sequence[int]]]) -> Matrices:
    """A convolution of single pixels, whose rows are pixels; its weights are as `ring.pack_columns` makes them."""
    single = problem.taps == 1 and set(problem.stride) == {1} and not any((*problem.pads_begin, *problem.pads_end))
    if not single or problem.groups > 1 or problem.transposed:
        raise UnsupportedError("it is a convolution of more than single pixels")
    image, *pixels = problem.x_strides
    steps = [prod(problem.out_lens[d + 1 :]) for d in range(len(problem.out_lens))]
    walked = [(own[0], *(own[1] * step for step in steps)) for own in (problem.out_strides, *(s for _, s in moving))]
    space = collapse((problem.batch, *problem.out_lens), [(image, *pixels), *walked], order_by=1)
    if space.rank > 1:
        raise UnsupportedError("pixels are at no one distance")
    rows, k, n = problem.batch * problem.out_pixels, problem.in_channels, problem.out_channels
    pitches = [s[0] if s else 0 for s in space.strides]
    a = _matrix((pitches[0], 1), (rows, k))
    d, *extras = (_matrix((p, 1), (rows, n)) for p in pitches[1:])
    found = tuple((number, e) for (number, _), e in zip(moving, extras))
    return Matrices(rows, n, k, 1, a, Matrix(k, 0, True), d, found)


def _matrix(strides: Sequence[int], lens: tuple[int, int], plane: int = 0) -> Matrix:
    """A matrix with these strides of rows and columns.

    Raises:
        UnsupportedError: neither its rows' nor its columns' elements follow one another, or they overlap.
    """
    (row, column), (rows, columns) = strides, lens
    if 1 in (column, columns) and (rows == 1 or row >= columns):
        return Matrix(row if rows > 1 else columns, plane)
    if 1 in (row, rows) and (columns == 1 or column >= rows):
        return Matrix(column if columns > 1 else rows, plane, True)
    raise UnsupportedError(f"a matrix of {rows} by {columns} with strides {row} and {column}")
