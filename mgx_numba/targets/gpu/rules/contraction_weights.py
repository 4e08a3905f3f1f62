"""Packing of weights, the right-hand operands of products and convolutions, in the order that a solution reads."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from math import prod

import numpy as np

from ....codegen.gpu.contraction.gpu_contraction import (
    VECTOR_BYTES,
    WeightOrder,
    interleaved,
    line_padded,
    pack_weights,
    packed_lens,
    permuted_lanes,
)
from ....codegen.gpu.contraction.im2row import ChannelPadding
from ....codegen.gpu.contraction.right_columns import halves_in_pieces
from ....codegen.gpu.products import product_of
from ....codegen.launch import Solution
from ....codegen.problems.convolution import ConvProblem
from ....codegen.problems.element_types import ITEMSIZE
from ....codegen.problems.gemm import GemmProblem
from ....core.shape import Shape, row_major_strides
from ....core.strided import Strided
from ....graph.instruction import Instruction
from ....runtime.memory import ALIGNMENT, address_of, aligned_copy
from ...lowering.buffers import View
from ...lowering.lowering import Lowering


def repeated_axes(weights: np.ndarray) -> list[bool]:
    """Return for each batch axis of a constant right operand whether all its matrices are the same."""
    return [n == 1 or stride == 0 for n, stride in zip(weights.shape[:-2], weights.strides)]


def packed_depth(problem: GemmProblem, precision: str) -> int:
    """Return the elements from one packed column of constants to the next: k, rounded up to whole vectors or lines
    where tensor cores could read them."""
    lanes = VECTOR_BYTES // ITEMSIZE[problem.types.b]
    in_place = lanes > 4 or precision == "medium"  # float32 in parts has a layout of its own
    read = in_place and product_of(problem.types) is not None
    return line_padded(problem.k, ITEMSIZE[problem.types.b]) if read and problem.k > lanes else problem.k


def matrix_strides(weights: np.ndarray, depth: int) -> tuple[int, ...]:
    """Return the strides, in elements, between the matrices of the result of `packed_columns`."""
    strides: list[int] = []
    size = depth * weights.shape[-1]
    for length, alike in zip(weights.shape[-3::-1], reversed(repeated_axes(weights))):
        strides.insert(0, 0 if alike else size)
        size *= 1 if alike else length
    return tuple(strides)


def packed_columns(low: Lowering, solution: Solution, depth: int, weights: np.ndarray) -> View:
    """Return a constant right operand with contiguous columns of ``depth`` elements, packed for a solution.

    Repeated matrices are stored once, whatever their number, so that plans for other lengths find them in the cache.
    """
    once = weights[tuple(0 if one else slice(None) for one in repeated_axes(weights))]

    def made() -> np.ndarray:
        columns = once.swapaxes(-1, -2)
        if depth > columns.shape[-1]:
            columns = np.pad(columns, [*[(0, 0)] * (columns.ndim - 1), (0, depth - columns.shape[-1])])
        return _in_order(low, columns, -2, solution)

    kept = low.packed_constant(once, column_order(solution, depth), made)
    if solution.halves:
        return kept
    if weights.ndim == 2:
        return kept
    lens = (*weights.shape[:-2], *kept.lens[-2:])
    return kept.with_shape(Shape(kept.type, lens, (*matrix_strides(weights, depth), *kept.strides[-2:])))


def column_order(solution: Solution, depth: int = 0) -> Hashable:
    """Return the key of the packing that `_in_order` applies to columns of ``depth`` elements."""
    return "columns", depth, solution.lane_permutation, solution.gated, solution.halves


def _in_order(low: Lowering, columns: np.ndarray, axis: int, solution: Solution) -> np.ndarray:
    """Return the contiguous columns of a right operand in the order of a solution; contents may be filled when the plan
    is complete.

    ``axis`` is the axis of the columns.
    """

    def ordered(array: np.ndarray, axis: int) -> np.ndarray:
        if solution.gated:
            array = interleaved(array, axis, solution.gated)
        return permuted_lanes(array, axis, solution.lane_permutation) if solution.lane_permutation else array

    if not solution.halves:
        return _contiguous(ordered(columns, axis))
    order = None
    if solution.gated or solution.lane_permutation:
        numbers = np.arange(prod(columns.shape[:-1])).reshape(columns.shape[:-1])
        order = ordered(numbers, axis % columns.ndim).reshape(-1)
    halves, pieces = halves_in_pieces(columns, order)
    low.fill(pieces)
    return halves


def _contiguous(array: np.ndarray) -> np.ndarray:
    """Return the array in row-major order and aligned as plans store constants, so that the next plan finds it by
    identity."""
    return array if array.flags.c_contiguous and not address_of(array) % ALIGNMENT else aligned_copy(array)


def packed_filters(
    low: Lowering,
    problem: ConvProblem,
    order: WeightOrder,
    filled: ChannelPadding | None,
    solution: Solution,
    weights: np.ndarray,
) -> View:
    """Return constant weights in the order that kernels read, with output channels in the order of a solution."""

    def made() -> np.ndarray:
        packed = pack_weights(problem, order, filled.weights(weights) if filled else weights)
        if solution.channels > packed.shape[-1]:
            packed = np.pad(packed, [*[(0, 0)] * (packed.ndim - 1), (0, solution.channels - packed.shape[-1])])
        return _in_order(low, packed, 1, solution)

    return low.packed_constant(weights, filter_packing(problem, order, filled, solution), made)


def filter_packing(
    problem: ConvProblem, order: WeightOrder, filled: ChannelPadding | None, solution: Solution
) -> Hashable:
    """Return the key of a convolution's packed weights."""
    images = filled and (filled.channels, filled.block, filled.folded, filled.first_channel)
    return order, problem.groups, problem.taps, problem.transposed, images, solution.channels, column_order(solution)


def repacked_filters(low: Lowering, ins: Instruction, problem: ConvProblem, order: WeightOrder, view: View) -> View:
    """Append a copy that packs weights, which are not constant, in every run; return the packed weights."""
    pack: Callable[[Strided], Strided] = partial(pack_weights, problem, order)
    packed = view.viewed(pack)
    if packed is None:
        packed = low.materialized(view, row_major_strides(view.lens), ins).viewed(pack)
    assert packed is not None
    return low.materialized(packed, row_major_strides(packed_lens(problem, order)), ins)
