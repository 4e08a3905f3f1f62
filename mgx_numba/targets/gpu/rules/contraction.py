"""Lower matrix products and convolutions, alone or fused with a prologue and an epilogue of pointwise operations."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from math import gcd, prod
from typing import NamedTuple

import numpy as np

from ....codegen.alternatives import has_lengths, only_where
from ....codegen.body import ScalarBody
from ....codegen.gpu.contraction.block_quant import block_quant_refusal, block_quant_solution, pack_codes
from ....codegen.gpu.contraction.block_quant_mma import (
    block_quant_mma_refusal,
    block_quant_mma_solution,
    chunked,
    pack_chunks,
)
from ....codegen.gpu.contraction.cost import LAUNCH
from ....codegen.gpu.contraction.gpu_contraction import (
    VECTOR_BYTES,
    GpuContraction,
    interleaved,
    line_padded,
    permuted_lanes,
)
from ....codegen.gpu.contraction.im2row import ChannelPadding
from ....codegen.gpu.contraction.right_columns import halves_in_pieces
from ....codegen.gpu.contraction.solvers import SOLVERS, own_candidates
from ....codegen.gpu.contraction.symbolic_lengths import solve_open
from ....codegen.gpu.contraction.weights import WeightOrder, pack_weights, packed_lens
from ....codegen.gpu.contraction.wgmma_operands import PIECE
from ....codegen.gpu.data.unpacking import unpacked_chunks_launch, unpacked_weights_launch
from ....codegen.gpu.machine import machine
from ....codegen.gpu.printer import ThreadPrinter
from ....codegen.gpu.products import product_of
from ....codegen.launch import Launch, Solution
from ....codegen.printer import CodeBuffer
from ....codegen.problems.convolution import ConvProblem
from ....codegen.problems.element_types import ITEMSIZE, ElementTypes
from ....codegen.problems.epilogue import Epilogue
from ....codegen.problems.gemm import BlockWeights, GemmProblem
from ....codegen.space import collapse
from ....codegen.tuning.request import Candidate, Request, least_bytes
from ....core.dim import Length, common_divisor, known_equal, known_in, known_less, known_same, less, negate, typical
from ....core.integers import plain_int
from ....core.shape import Shape, row_major_strides
from ....core.strided import Strided
from ....core.types import Type
from ....errors import UnsupportedError
from ....graph.instruction import Instruction
from ....runtime.memory import ALIGNMENT, address_of, aligned_copy
from ...lowering import contraction_problem
from ...lowering.buffers import View
from ...lowering.contraction_problem import (
    BLOCK_PRODUCTS,
    CONVOLUTIONS,
    PRODUCTS,
    Contraction,
    ContractionSupport,
    accepts_contraction,
)
from ...lowering.lowering import Lowering
from .padded_images import filled_up, images_of
from .table import lowering

FLOATS = (Type.float_type, Type.double_type, Type.half_type, Type.bf16_type)
"""Floating-point types for which contractions have kernels with an epilogue."""


@lowering(*PRODUCTS, *BLOCK_PRODUCTS, *CONVOLUTIONS, "fused_contraction", accepts=accepts_contraction)
def lower_contraction(low: Lowering, ins: Instruction) -> None:
    """Append the contraction with its fused prologue and epilogue."""
    contraction_problem.lower_contraction(low, ins, GPU_SUPPORT)


def _refused(a: Type, b: Type, out: Type, constant: bool) -> str | None:
    """Return why no kernel has these types; None if a kernel does: a single float type, int32, or products of 8-bit
    types."""
    if out in (*FLOATS, Type.int32_type) and a is b is out:
        return None
    names = (t.dtype_name for t in (a, b, out, out))
    if product_of(ElementTypes(*names)) is not None:
        return None
    return f"no kernel is for these element types: {a.name} {b.name} {out.name}"


def joins_halves(precision: str, product: Instruction) -> bool:
    """Return whether the quickest kernel of a product can combine a column of the first half of its result with one of
    the second.

    See `Capabilities.joins_halves`; ``precision`` is as in `GpuContraction`.
    """
    a, b = (i.shape for i in product.inputs)
    (m, k), n, name = a.lens[-2:], b.lens[-1], product.shape.type.dtype_name
    if a.symbolic or b.symbolic:  # either column order suits only some lengths
        return False
    if 0 in product.shape.lens or k == 0 or product.shape.type not in FLOATS:
        return False
    right = (*(0 for _ in a.lens[:-2]), 1, k)
    problem = GemmProblem(m, n, k, a.lens[:-2], b_strides=right, types=ElementTypes(name, name, name, name))
    problem, _ = _planes_as_rows(problem, ())
    contraction = GpuContraction(Request(problem, Epilogue(), (), 1, False), constant=True, precision=precision)
    quickest = own_candidates(contraction)[0].solver.name
    return quickest == "few_rows" or (quickest == "warpgroup" and n % (2 * PIECE) == 0)


def joins_products(precision: str, type: Type, columns: int) -> bool:
    """Return whether products of one input should be joined, for kernels that combine both halves of the result
    (`joins_halves`).

    The caller makes sure that the device has warpgroup tensor cores. See `Capabilities.joins_products`; ``precision``
    is as in `GpuContraction`.
    """
    narrow = type in (Type.half_type, Type.bf16_type) or (type is Type.float_type and precision == "medium")
    return narrow and columns % (2 * PIECE) == 0


def _check(body: ScalarBody) -> None:
    """Raise `UnsupportedError` for a scalar body with an operation that the kernel language lacks."""
    printer = ThreadPrinter(CodeBuffer(), 1)
    body.evaluate(printer, [printer.loaded(f"x{k}", type) for k, type in enumerate(body.parameters)])


def _launch(low: Lowering, ins: Instruction, fused: Contraction) -> None:
    problem, operands, weights = fused.problem, fused.operands, fused.weights
    filled = None
    if isinstance(problem, ConvProblem) and weights is not None:
        filled = images_of(low, problem, operands["x"])
    if filled is not None:
        problem = filled.problem
        operands["x"] = filled_up(low, ins, filled, operands["x"])
    elif isinstance(problem, ConvProblem) and problem.prologue is None:
        x = operands["x"] = contraction_problem.channels_last(low, ins, operands["x"])
        problem = replace(problem, x_strides=(x.strides[0], *x.strides[2:]))
    places = tuple(tuple(plain_int(s) for s in own) for own in fused.strides)
    gated = isinstance(problem, GemmProblem) and fused.epilogue.gated
    if isinstance(problem, GemmProblem) and gated and not known_same(problem.a_strides[-2:], (problem.k, 1)):
        x = operands["x"] = low.materialized(operands["x"], row_major_strides(operands["x"].lens), ins)
        problem = replace(problem, a_strides=x.strides)
    alone: Length = 1
    if isinstance(problem, GemmProblem) and fused.blocks is not None and has_lengths((problem, places)):
        problem, places, alone = _with_open_blocks(low, ins, problem, fused, places, operands)
    elif isinstance(problem, GemmProblem) and fused.blocks is not None:
        problem = _with_blocks(low, ins, problem, fused, places, operands)
    if isinstance(problem, GemmProblem) and weights is not None:
        depth = _packed_depth(problem, low.options.precision)
        problem = replace(problem, b_strides=(*_matrix_strides(weights, depth), 1, depth))
    if isinstance(problem, GemmProblem):
        problem = _in_whole_rows(low, ins, problem, fused, places, operands)
        problem, places = _planes_as_rows(problem, places)
    for name in ("x", "w") if weights is None else ("x",):
        operands[name] = _aligned(low, ins, operands[name])
    request = Request(problem, fused.epilogue, places, low.threads, low.options.fast_math)
    constant = weights is not None
    contraction = GpuContraction(
        request,
        _alignment(fused, operands),
        low.options.precision,
        constant,
        constant and low.shared is None,
        0 if filled is None else filled.first_channel,
    )
    operands |= {f"e{k}": view for k, view in enumerate(fused.extras)}
    if has_lengths(contraction):
        parts, condition = low.solutions.of(("open", contraction), lambda: solve_open(contraction))
        low.require(condition)
        for part in parts:
            solution = only_where(alone, part.solution)
            _append(low, ins, fused, contraction, filled, part.candidate, solution, operands)
        return
    chosen, solution = _solved(low, contraction)
    _append(low, ins, fused, contraction, filled, chosen, solution, operands)
    contraction_problem.note_solver(low, ins, contraction, chosen)


def _append(
    low: Lowering,
    ins: Instruction,
    fused: Contraction,
    contraction: GpuContraction,
    filled: ChannelPadding | None,
    chosen: Candidate,
    solution: Solution,
    operands: dict[str, View],
) -> None:
    """Append a solution's launches, with the weights packed in the order that the launches read."""
    problem, constant = contraction.problem, fused.weights is not None
    operands = dict(operands)
    depth = problem.b_strides[-1] if isinstance(problem, GemmProblem) else 0
    if isinstance(problem, ConvProblem):
        order = chosen.solver.order
        if constant:
            how = _packing(problem, order, filled, solution)
            made = partial(_packed, low, problem, order, filled, solution)
            operands["w"] = low.derived(fused.right, made, how)
        else:
            operands["w"] = _repacked(low, ins, problem, order, operands["w"])
    elif fused.weights is not None and low.values[fused.right].shape.symbolic:  # broadcast along symbolic axes
        operands["w"] = _columns(low, solution, depth, fused.weights)
    elif constant:
        operands["w"] = low.derived(fused.right, partial(_columns, low, solution, depth), _order(solution, depth))
    if not known_equal(solution.scratch, 0):
        operands["scratch"] = low.allocate(Shape(Type.uint8_type, (solution.scratch,)))
    for launch in solution.launches:
        if filled is not None and launch.flops:
            launch = replace(launch, flops=fused.problem.flops, bytes=least_bytes(fused.problem))
        low.launch(launch, operands, ins)


def _planes_as_rows(
    problem: GemmProblem, places: tuple[tuple[int, ...], ...]
) -> tuple[GemmProblem, tuple[tuple[int, ...], ...]]:
    """Return a product with as many rows as possible: batch axes over which the right operand is shared join the rows.

    Axes join where the left operand, the result and the epilogue's operands have one constant stride over them; of
    several such groups of axes the longest becomes the rows, because tiles are only full where there are many rows.
    ``places`` are the strides of the epilogue's operands, over batch axes and rows.
    """
    if not problem.batch or problem.blocks is not None or problem.prologue is not None:
        return problem, places
    return _all_rows(problem, places)


def _all_rows(
    problem: GemmProblem, places: tuple[tuple[int, ...], ...]
) -> tuple[GemmProblem, tuple[tuple[int, ...], ...]]:
    """Return the product with batch axes merged with the rows, or with each other, where strides allow it."""
    rank = len(problem.batch)
    b = (*problem.b_strides[:rank], 0)
    walked = [problem.out_strides, problem.a_strides[:-1], b, *(own for own in places if own)]
    if not rank or any(len(own) != rank + 1 for own in walked):
        return problem, places
    space = collapse((*problem.batch, problem.m), walked, order_by=0)
    shared = [k for k in range(space.rank) if known_in(space.strides[2][k], 0)]
    if not shared:
        return problem, places
    rows = max(shared, key=lambda k: (typical(space.lens[k]), k))
    order = [*(k for k in range(space.rank) if k != rows), rows]
    lens = [space.lens[k] for k in order]
    out, a, b, *rest = (tuple(own[k] for k in order) for own in space.strides)
    left = iter(rest)
    return replace(
        problem, m=lens[-1], batch=tuple(lens[:-1]), a_strides=(*a, problem.a_strides[-1]),
        b_strides=(*b[:-1], *problem.b_strides[rank:]), out_strides=out,
    ), tuple(next(left) if own else () for own in places)  # fmt: skip


def _solved(low: Lowering, contraction: GpuContraction) -> tuple[Candidate, Solution]:
    """Return the chosen solver and its launches. Symbolic plans call no libraries, whose calls are for fixed
    lengths."""
    chosen = contraction_problem.chosen_solver(low, contraction)
    if low.shared is not None and chosen.solver not in SOLVERS:
        chosen = own_candidates(contraction)[0]
    tiling = chosen.blocking or chosen.solver.chosen(contraction)
    key = (chosen.solver.name, tiling, contraction)
    return chosen, low.solutions.of(key, lambda: chosen.solver.plan(contraction, tiling))


class _BlockPlans(NamedTuple):
    """How a product with block-quantised weights is computed.

    Attributes:
        refusal: why no kernel reads the codes directly; empty if a kernel does.
        solution: launches of that kernel.
        unpacked: launch that unpacks the weights.
    """

    refusal: Callable[[GpuContraction], str]
    solution: Callable[[GpuContraction], Solution]
    unpacked: Callable[..., Launch]


def _packed_blocks(low: Lowering, problem: GemmProblem, fused: Contraction, operands: dict[str, View]) -> _BlockPlans:
    """Add block-quantised weights to the operands, packed for the kernels of the returned plans."""
    form, blocks = problem.blocks, fused.blocks
    assert form is not None and isinstance(blocks, BlockWeights)
    if chunked(problem):
        operands["w"] = low.packed_blocks(blocks, "chunks", lambda: pack_chunks(form, *blocks))
        return _BlockPlans(block_quant_mma_refusal, block_quant_mma_solution, unpacked_chunks_launch)
    operands["w"] = low.packed_constant(blocks.codes, "codes", lambda: pack_codes(form, blocks.codes))
    operands["scales"] = low.packed_constant(blocks.scales, "scales", lambda: blocks.scales)
    points = blocks.zero_points
    if points is not None:
        operands["points"] = low.packed_constant(points, "points", lambda: points)
    return _BlockPlans(block_quant_refusal, block_quant_solution, unpacked_weights_launch)


def _alignment(fused: Contraction, operands: dict[str, View]) -> int:
    """Return the common alignment in bytes, at most that of a vector, of the result and the epilogue's operands."""
    offsets = [operands["out"].byte_offset, *(view.byte_offset for view in fused.extras)]
    return gcd(VECTOR_BYTES, *map(common_divisor, offsets))


def _with_blocks(
    low: Lowering,
    ins: Instruction,
    problem: GemmProblem,
    fused: Contraction,
    places: tuple[tuple[int, ...], ...],
    operands: dict[str, View],
) -> GemmProblem:
    """Return a product with block-quantised weights, and add its operands. For more than a few rows a launch unpacks
    the weights first."""
    form = problem.blocks
    assert form is not None
    packed = _packed_blocks(low, problem, fused, operands)
    operands["x"] = _aligned(low, ins, operands["x"])
    request = Request(problem, fused.epilogue, places, low.threads, low.options.fast_math)
    if not packed.refusal(GpuContraction(request)):
        return problem
    count = form.blocks(problem.k)
    whole = low.allocate(Shape(operands["x"].type, (problem.n, count * form.size)))
    launch = packed.unpacked(form, problem.n, count, problem.types.b, low.origin(ins))
    low.launch(launch, {**operands, "codes": operands["w"], "out": whole}, ins)
    operands["w"] = whole
    return replace(problem, blocks=None, b_strides=(*(0 for _ in problem.batch), 1, count * form.size))


def _with_open_blocks(
    low: Lowering,
    ins: Instruction,
    problem: GemmProblem,
    fused: Contraction,
    places: tuple[tuple[int, ...], ...],
    operands: dict[str, View],
) -> tuple[GemmProblem, tuple[tuple[int, ...], ...], Length]:
    """Lower the block-quantised part of a product with symbolic lengths.

    A single row (a decoder's step) is multiplied with the codes. For more rows a launch unpacks the weights in every
    run.

    Returns:
        the remaining product over unpacked weights, the strides of the epilogue's operands, and the condition under
        which the product is computed.
    """
    form, blocks = problem.blocks, fused.blocks
    assert form is not None and isinstance(blocks, BlockWeights)
    problem, places = _all_rows(problem, places)
    packed = _packed_blocks(low, problem, fused, operands)
    operands["x"] = _aligned(low, ins, operands["x"])
    more: Length = 1
    single, own = replace(problem, m=1), Request(problem, fused.epilogue, places, low.threads, low.options.fast_math)
    one = GpuContraction(replace(own, problem=single), _alignment(fused, operands), low.options.precision)
    if not problem.batch and not has_lengths(one) and not packed.refusal(one):
        more = less(1, problem.m)
        solution = only_where(negate(more), packed.solution(one))
        extras = {f"e{k}": view for k, view in enumerate(fused.extras)}
        low.launch_all(solution, {**operands, **extras}, ins)
    count = form.blocks(problem.k)
    whole = low.allocate(Shape(operands["x"].type, (problem.n, count * form.size)))
    launch = packed.unpacked(form, problem.n, count, problem.types.b, low.origin(ins))
    for once in only_where(more, Solution((launch,))).launches:
        low.launch(once, {**operands, "codes": operands["w"], "out": whole}, ins)
    operands["w"] = whole
    strides = (*(0 for _ in problem.batch), 1, count * form.size)
    return replace(problem, blocks=None, b_strides=strides), places, more


def _alike(weights: np.ndarray) -> list[bool]:
    """Return for each batch axis of a constant right operand whether all its matrices are the same."""
    return [n == 1 or stride == 0 for n, stride in zip(weights.shape[:-2], weights.strides)]


def _packed_depth(problem: GemmProblem, precision: str) -> int:
    """Return the elements from one packed column of constants to the next: k, rounded up to whole vectors or lines
    where tensor cores could read them."""
    lanes = VECTOR_BYTES // ITEMSIZE[problem.types.b]
    in_place = lanes > 4 or precision == "medium"  # float32 in parts has a layout of its own
    read = in_place and product_of(problem.types) is not None
    return line_padded(problem.k, ITEMSIZE[problem.types.b]) if read and problem.k > lanes else problem.k


def _in_whole_rows(
    low: Lowering,
    ins: Instruction,
    problem: GemmProblem,
    fused: Contraction,
    places: tuple[tuple[int, ...], ...],
    operands: dict[str, View],
) -> GemmProblem:
    """Return the product with operands copied into rows of whole vectors, if tensor cores gain more than copies take.

    TMA and vector loads read no other rows: of odd length, unaligned, or walked across.
    """
    if problem.prologue is not None or product_of(problem.types) is None or has_lengths((problem, places)):
        return problem
    views = {"x": operands["x"]} if fused.weights is not None else {"x": operands["x"], "w": operands["w"]}
    lanes = VECTOR_BYTES // ITEMSIZE[problem.types.a]
    strides = {
        name: _padded_strides(view, lanes)
        for name, view in views.items()
        if not _in_vectors(view, lanes, either=name == "w") and ITEMSIZE[view.type.dtype_name] * lanes == VECTOR_BYTES
    }
    if not strides:
        return problem
    padded = replace(
        problem, a_strides=strides.get("x", problem.a_strides), b_strides=strides.get("w", problem.b_strides)
    )
    moved = 2 * sum(views[name].shape.bytes for name in strides)
    copies = moved / machine().bandwidth + len(strides) * LAUNCH / machine().clock
    if _estimate(low, padded, fused, places) + copies >= _estimate(low, problem, fused, places):
        return problem
    for name, own in strides.items():
        view = views[name]
        once = [n if s else 1 for n, s in zip(view.lens, own)]
        rows = [s or prod(view.lens) * lanes for s in own]
        copied = low.materialized(view.with_shape(Shape(view.type, once, view.strides)), rows, ins)
        operands[name] = copied.with_shape(Shape(view.type, view.lens, own))
    return padded


def _in_vectors(view: View, lanes: int, either: bool) -> bool:
    """Return whether the last axis (``either``: one of the last two) is contiguous, and all others move by whole
    vectors of ``lanes`` elements."""
    for axis in (-1, -2) if either else (-1,):
        rest = [s for k, (n, s) in enumerate(zip(view.lens, view.strides)) if k != len(view.lens) + axis and n > 1]
        if view.strides[axis] == 1 and not any(s % lanes for s in rest):
            return True
    return False


def _padded_strides(view: View, lanes: int) -> tuple[int, ...]:
    """Return strides of a copy whose rows are whole vectors of ``lanes`` elements, or whole lines; batch axes without a
    stride keep none."""
    strides, size = [1], line_padded(view.lens[-1], VECTOR_BYTES // lanes)
    for axis in range(len(view.lens) - 2, -1, -1):
        repeated = axis < len(view.lens) - 2 and view.strides[axis] == 0
        strides.insert(0, 0 if repeated else size)
        size *= 1 if repeated else view.lens[axis]
    return tuple(strides)


def _estimate(low: Lowering, problem: GemmProblem, fused: Contraction, places: tuple[tuple[int, ...], ...]) -> float:
    """Return the estimated seconds of the best kernel of a product."""
    problem, places = _planes_as_rows(problem, places)
    request = Request(problem, fused.epilogue, places, low.threads, low.options.fast_math)
    constant = fused.weights is not None
    contraction = GpuContraction(
        request, VECTOR_BYTES, low.options.precision, constant, constant and low.shared is None
    )
    found = own_candidates(contraction)
    return found[0].solver.estimate(contraction) if found else float("inf")


def _matrix_strides(weights: np.ndarray, depth: int) -> tuple[int, ...]:
    """Return the strides, in elements, between the matrices of the result of `_columns`."""
    strides: list[int] = []
    size = depth * weights.shape[-1]
    for length, alike in zip(weights.shape[-3::-1], reversed(_alike(weights))):
        strides.insert(0, 0 if alike else size)
        size *= 1 if alike else length
    return tuple(strides)


def _columns(low: Lowering, solution: Solution, depth: int, weights: np.ndarray) -> View:
    """Return a constant right operand with contiguous columns of ``depth`` elements, packed for a solution.

    Repeated matrices are stored once, whatever their number, so that plans for other lengths find them in the cache.
    """
    once = weights[tuple(0 if one else slice(None) for one in _alike(weights))]

    def made() -> np.ndarray:
        columns = once.swapaxes(-1, -2)
        if depth > columns.shape[-1]:
            columns = np.pad(columns, [*[(0, 0)] * (columns.ndim - 1), (0, depth - columns.shape[-1])])
        return _in_order(low, columns, -2, solution)

    kept = low.packed_constant(once, _order(solution, depth), made)
    if solution.halves:
        return kept
    if weights.ndim == 2:
        return kept
    lens = (*weights.shape[:-2], *kept.lens[-2:])
    return kept.with_shape(Shape(kept.type, lens, (*_matrix_strides(weights, depth), *kept.strides[-2:])))


def _order(solution: Solution, depth: int = 0) -> Hashable:
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


def _aligned(low: Lowering, ins: Instruction, view: View) -> View:
    """Return the view if it is aligned to vectors, else an aligned copy with the same strides."""
    if known_equal(view.byte_offset % VECTOR_BYTES, 0):
        return view
    if view.shape.broadcasted or known_less(2 * view.shape.elements, view.shape.element_space):
        raise UnsupportedError("an operand that begins between vectors and repeats elements")
    copied = low.allocate(view.shape)
    low.copy(view, copied, ins)
    return copied


def _packed(
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

    return low.packed_constant(weights, _packing(problem, order, filled, solution), made)


def _packing(problem: ConvProblem, order: WeightOrder, filled: ChannelPadding | None, solution: Solution) -> Hashable:
    """Return the key of a convolution's packed weights."""
    images = filled and (filled.channels, filled.block, filled.folded, filled.first_channel)
    return order, problem.groups, problem.taps, problem.transposed, images, solution.channels, _order(solution)


def _repacked(low: Lowering, ins: Instruction, problem: ConvProblem, order: WeightOrder, view: View) -> View:
    """Append a copy that packs weights, which are not constant, in every run; return the packed weights."""
    pack: Callable[[Strided], Strided] = partial(pack_weights, problem, order)
    packed = view.viewed(pack)
    if packed is None:
        packed = low.materialized(view, row_major_strides(view.lens), ins).viewed(pack)
    assert packed is not None
    return low.materialized(packed, row_major_strides(packed_lens(problem, order)), ins)


GPU_SUPPORT = ContractionSupport(_refused, _check, _launch, any_order=True)
