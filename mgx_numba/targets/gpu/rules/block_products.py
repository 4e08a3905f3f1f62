"""Lower products with block-quantised weights: kernels multiply few rows with the codes; for more rows a launch unpacks
the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ....codegen.alternatives import has_lengths, only_where
from ....codegen.gpu.cluster.reduction_rows import reduction_launch
from ....codegen.gpu.contraction.block_quant import block_quant_refusal, block_quant_solution, pack_codes
from ....codegen.gpu.contraction.block_quant_mma import (
    ROW,
    THREADS,
    block_quant_mma_refusal,
    block_quant_mma_solution,
    chunked,
    computes_row,
    halves_hold,
    joins_blocks,
    open_rows,
    pack_chunks,
    scale_type,
)
from ....codegen.gpu.contraction.gpu_contraction import GpuContraction
from ....codegen.gpu.data.unpacking import unpacked_chunks_launch, unpacked_weights_launch
from ....codegen.launch import Launch, Solution
from ....codegen.problems.cluster import ReductionProblem, Tensor
from ....codegen.problems.gemm import BlockWeights, GemmProblem
from ....codegen.tuning.request import Request
from ....core.dim import Dim, Length, all_of, less, less_equal, negate
from ....core.shape import Shape
from ....graph.instruction import Instruction
from ....runtime.memory import address_of
from ...lowering.buffers import View
from ...lowering.contraction_problem import Contraction
from ...lowering.lowering import Lowering
from ...lowering.steps import PendingStep
from .product_rows import aligned, alignment, all_rows


def joins_blocks_of(product: Instruction, columns: int) -> bool:
    """Return whether a kernel combines both halves of ``columns`` columns of block-quantised weights."""
    op: Any = product.op
    shape = product.inputs[0].shape
    return joins_blocks(op, len(product.inputs) > 3, shape.lens[-1], columns, shape.type.dtype_name)


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


def _with_stored_scales(low: Lowering, problem: GemmProblem, fused: Contraction) -> GemmProblem:
    """Return the problem of block-quantised weights, with float16 scales where chunks hold them exactly."""
    blocks = fused.blocks
    assert isinstance(blocks, BlockWeights) and problem.blocks is not None
    if not chunked(problem):
        return problem
    identity = address_of if low.shared is None else low.shared.identity
    stored = [values for values in (blocks.scales, blocks.offsets) if values is not None]
    question = ("chunks hold halves", *((identity(array), array.shape, array.strides) for array in stored))
    half = low.solutions.of(question, lambda: halves_hold(blocks))
    return replace(problem, blocks=replace(problem.blocks, half_scales=half))


def _packed_blocks(low: Lowering, problem: GemmProblem, fused: Contraction, operands: dict[str, View]) -> _BlockPlans:
    """Add block-quantised weights to the operands, packed for the kernels of the returned plans."""
    form, blocks = problem.blocks, fused.blocks
    assert form is not None and isinstance(blocks, BlockWeights)
    if chunked(problem):
        how = f"chunks, scales in {scale_type(form)}"
        operands["w"] = low.packed_blocks(blocks, how, lambda: pack_chunks(form, *blocks))
        return _BlockPlans(block_quant_mma_refusal, block_quant_mma_solution, unpacked_chunks_launch)
    operands["w"] = low.packed_constant(blocks.codes, "codes", lambda: pack_codes(form, blocks.codes))

    def add(name: str, values: np.ndarray | None) -> None:
        if values is not None:
            operands[name] = low.packed_constant(values, name, lambda: values)

    add("scales", blocks.scales)
    add("points", blocks.zero_points)
    add("offsets", blocks.offsets)
    return _BlockPlans(block_quant_refusal, block_quant_solution, unpacked_weights_launch)


def with_blocks(
    low: Lowering,
    ins: Instruction,
    problem: GemmProblem,
    fused: Contraction,
    places: tuple[tuple[int, ...], ...],
    operands: dict[str, View],
) -> GemmProblem:
    """Return a product with block-quantised weights, and add its operands. For more than a few rows a launch unpacks
    the weights first."""
    problem = _with_stored_scales(low, problem, fused)
    packed = _packed_blocks(low, problem, fused, operands)
    operands["x"] = aligned(low, ins, operands["x"])
    request = Request(problem, fused.epilogue, places, low.threads, low.options.fast_math)
    if not packed.refusal(GpuContraction(request)):
        return problem
    return _unpacked(low, ins, problem, packed, operands, 1)


def _unpacked(
    low: Lowering, ins: Instruction, problem: GemmProblem, packed: _BlockPlans, operands: dict[str, View], where: Length
) -> GemmProblem:
    """Append the launch that unpacks block-quantised weights under a condition; return the product with them."""
    form = problem.blocks
    assert form is not None
    count = form.blocks(problem.k)
    whole = low.allocate(Shape(operands["x"].type, (problem.n, count * form.size)))
    launch = packed.unpacked(form, problem.n, count, problem.types.b, low.origin(ins))
    for once in only_where(where, Solution((launch,))).launches:
        low.launch(once, {**operands, "codes": operands["w"], "out": whole}, ins)
    operands["w"] = whole
    return replace(problem, blocks=None, b_strides=(*(0 for _ in problem.batch), 1, count * form.size))


def with_open_blocks(
    low: Lowering,
    ins: Instruction,
    problem: GemmProblem,
    fused: Contraction,
    places: tuple[tuple[int, ...], ...],
    operands: dict[str, View],
) -> tuple[GemmProblem, tuple[tuple[int, ...], ...], Length]:
    """Lower the block-quantised part of a product with symbolic lengths.

    A single row (a decoder's step) is multiplied with the codes, and so are few rows where tensor cores read the codes.
    For more rows a launch unpacks the weights in every run.

    Returns:
        the remaining product over unpacked weights, the strides of the epilogue's operands, and the condition under
        which the product is computed.
    """
    problem, places = all_rows(_with_stored_scales(low, problem, fused), places)
    packed = _packed_blocks(low, problem, fused, operands)
    operands["x"] = aligned(low, ins, operands["x"])
    more: Length = 1
    single, own = replace(problem, m=1), Request(problem, fused.epilogue, places, low.threads, low.options.fast_math)
    one = GpuContraction(replace(own, problem=single), alignment(fused, operands), low.options.precision)
    if not problem.batch and not has_lengths(one) and not packed.refusal(one):
        more = less(1, problem.m)
        extras = {f"e{k}": view for k, view in enumerate(fused.extras)}
        row = _absorbed_row(low, ins, operands["x"], fused.extras, one, more) if chunked(problem) else None
        if row is None:
            launched = [only_where(negate(more), packed.solution(one))]
        else:
            launched = [only_where(negate(more), block_quant_mma_solution(one, row[0]))]
            extras |= {ROW + name: view for name, view in row[1].items()}
        if chunked(problem):
            few = GpuContraction(own, alignment(fused, operands), low.options.precision)
            for most in open_rows(few):
                solution = block_quant_mma_solution(few, most=most)
                launched.append(only_where(all_of(more, less_equal(problem.m, most)), solution))
                more = less(most, problem.m)
        for solution in launched:
            low.launch_all(solution, {**operands, **extras}, ins)
    return _unpacked(low, ins, problem, packed, operands, more), places, more


def _absorbed_row(
    low: Lowering, ins: Instruction, x: View, extras: Sequence[View], product: GpuContraction, more: Length
) -> tuple[Launch, dict[str, View]] | None:
    """Return the launch that computes the only row of a product's left operand, such as a norm, and its operands, if
    the product's blocks can compute the row, and nothing else reads it. The launch for several rows then runs under the
    condition ``more`` alone."""
    step = next((s for s in reversed(low.draft.steps) if s.problem is not None and _writes(s, x)), None)
    if step is None or step.launch is None or set(step.instruction.users) != {ins}:
        return None
    problem, rows = step.problem, x.lens[:-1]
    if not isinstance(problem, ReductionProblem) or len(problem.outputs) != 1 or problem.parts > 1:
        return None
    if any(view.buffer is x.buffer for view in extras) or any(not isinstance(n, Dim) and n != 1 for n in rows):
        return None
    lens = {id(n) for tensor in problem.inputs for n in tensor.lens if isinstance(n, Dim)}
    if not lens <= set(map(id, rows)):
        return None
    inputs, outputs = (tuple(map(_of_one_row, own)) for own in (problem.inputs, problem.outputs))
    row = reduction_launch(replace(problem, inputs=inputs, outputs=outputs), THREADS)
    if not computes_row(product, row):
        return None
    (step.launch,) = only_where(more, Solution((step.launch,))).launches
    return row, step.operands


def _writes(step: PendingStep, x: View) -> bool:
    """Return whether a step that computes a cluster has a result in the memory of a view."""
    return any(name.startswith("out") and view.buffer is x.buffer for name, view in step.operands.items())


def _of_one_row(tensor: Tensor) -> Tensor:
    """Return a tensor with length 1 along its open axes."""
    axes = [(1, 0) if isinstance(n, Dim) else (n, s) for n, s in zip(tensor.lens, tensor.strides)]
    return replace(tensor, lens=tuple(n for n, _ in axes), strides=tuple(s for _, s in axes))
