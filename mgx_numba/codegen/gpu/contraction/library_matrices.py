"""Describe a contraction as one GEMM call of a vendor library: three matrices, optionally batched."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....errors import UnsupportedError
from ...problems.convolution import ConvProblem
from ...problems.epilogue import NOT_COMPUTED
from ...problems.gemm import GemmProblem
from ...space import collapse
from ..libraries.matrices import Matrices, Matrix


def matrices_of(problem: GemmProblem | ConvProblem, added: Sequence[int] = ()) -> Matrices:
    """Return the matrices of a product or of a 1x1 convolution.

    Args:
        problem: a convolution has weights in the layout `weights.COLUMNS`.
        added: strides of a summand of the result (beta * C); empty for none.

    Raises:
        UnsupportedError: the contraction is not a single GEMM, or the library cannot describe an operand's strides.
    """
    if problem.prologue is not None:
        raise UnsupportedError(NOT_COMPUTED)
    results = [problem.out_strides, *([added] if added else [])]
    if isinstance(problem, ConvProblem):
        return _of_pixels(problem, results)
    if problem.blocks is not None:
        raise UnsupportedError("its weights are in blocks of a few bits")
    rank, (m, n, k) = len(problem.batch), (problem.m, problem.n, problem.k)
    left, right = problem.a_strides, problem.b_strides
    if not any(s for s, length in zip(right[:rank], problem.batch) if length > 1):
        # One right operand for all of the batch: where its matrices follow one another they are one.
        rows = collapse((*problem.batch, m), [left[:-1], *results], order_by=1)
        if rows.rank <= 1:
            m *= prod(problem.batch)
            pitches = [s[0] if s else 0 for s in rows.strides]
            a = _matrix((pitches[0], left[-1]), (m, k))
            return Matrices(m, n, k, 1, a, _matrix(right[rank:], (k, n)), *(_rows(p, (m, n)) for p in pitches[1:]))
    planes = collapse(problem.batch, [s[:rank] for s in (left, right, *results)], order_by=2)
    if planes.rank > 1:
        raise UnsupportedError("matrices of the batch are at no one distance")
    of_left, of_right, *others = (s[0] if s else 0 for s in planes.strides)
    a, b = _matrix(left[rank:], (m, k), of_left), _matrix(right[rank:], (k, n), of_right)
    return Matrices(
        m, n, k, problem.batch_count, a, b, *(_rows(s[rank], (m, n), plane) for s, plane in zip(results, others))
    )


def _of_pixels(problem: ConvProblem, results: Sequence[Sequence[int]]) -> Matrices:
    """Return the matrices of a 1x1 convolution; the pixels are the rows."""
    single = problem.taps == 1 and set(problem.stride) == {1} and not any((*problem.pads_begin, *problem.pads_end))
    if not single or problem.groups > 1 or problem.transposed:
        raise UnsupportedError("it is a convolution of more than single pixels")
    steps = [prod(problem.out_lens[d + 1 :]) for d in range(len(problem.out_lens))]
    walked = [(image, *(pixel * step for step in steps)) for image, pixel in results]
    pixels = collapse((problem.batch, *problem.out_lens), [problem.x_strides, *walked], order_by=1)
    if pixels.rank > 1:
        raise UnsupportedError("pixels are at no one distance")
    rows, k, n = problem.batch * problem.out_pixels, problem.in_channels, problem.out_channels
    of_x, *others = (s[0] if s else 0 for s in pixels.strides)
    return Matrices(rows, n, k, 1, _rows(of_x, (rows, k)), Matrix(k, 0, True), *(_rows(p, (rows, n)) for p in others))


def _rows(pitch: int, lens: tuple[int, int], plane: int = 0) -> Matrix:
    """Return a row-major matrix.

    Raises:
        UnsupportedError: its rows overlap.
    """
    rows, columns = lens
    if rows > 1 and pitch < columns:
        raise UnsupportedError(f"rows of {columns} elements that begin {pitch} apart")
    return Matrix(pitch if rows > 1 else columns, plane)


def _matrix(strides: Sequence[int], lens: tuple[int, int], plane: int = 0) -> Matrix:
    """Return a row-major or column-major matrix with these strides of rows and columns.

    Raises:
        UnsupportedError: neither rows nor columns are contiguous, or they overlap.
    """
    (row, column), (rows, columns) = strides, lens
    if 1 in (column, columns) and (rows == 1 or row >= columns):
        return _rows(row, lens, plane)
    if 1 in (row, rows) and (columns == 1 or column >= rows):
        return Matrix(_rows(column, (columns, rows)).pitch, plane, True)
    raise UnsupportedError(f"a matrix of {rows} by {columns} with strides {row} and {column}")
