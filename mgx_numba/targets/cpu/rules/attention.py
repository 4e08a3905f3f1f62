"""Lower attention to one kernel; short element types are converted before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ....codegen.alternatives import has_lengths
from ....codegen.cpu.attention import AttentionProblem, MaskLayout, plan, reads_transposed_masks
from ....codegen.cpu.contraction.bf16_split_rows import LINE_ELEMENTS
from ....codegen.launch import Launch, Solution
from ....core.dim import known_in
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.attention import Attention
from ...lowering.attention_operands import (
    accepts_attention,
    as_type,
    attention_output,
    convert,
    mask_period,
    mask_strides,
)
from ...lowering.buffers import View
from ...lowering.lowering import Lowering
from ...lowering.solutions import with_origin
from ..bf16_split_values import SplitValue, offer_bf16_split
from .table import lowering


@lowering("attention", accepts=accepts_attention)
def lower_attention(low: Lowering, ins: Instruction) -> None:
    """Append the launches that `plan` chooses, over views in place."""
    op = ins.operator(Attention)
    type = ins.shape.type.compute
    if type not in (Type.float_type, Type.double_type) or any(known_in(n, 0) for i in ins.inputs for n in i.shape.lens):
        low.host(ins, f"kernels take floats, and some elements, not {'; '.join(str(i.shape) for i in ins.inputs)}")
        return
    q, k, v = (as_type(low, ins, view, type) for view in low.inputs(ins)[:3])
    declared = attention_output(low, ins)
    target = declared if declared.type is type else low.allocate(Shape(type, declared.lens, declared.strides))
    operands = {"q": q, "k": k, "v": v, "out": target}
    problem = AttentionProblem(
        batch=q.lens[0], heads=q.lens[1], kv_heads=k.lens[1], queries=q.lens[2], keys=k.lens[2], depth=q.lens[3],
        width=v.lens[3], q_strides=q.strides, k_strides=k.strides, v_strides=v.strides, out_strides=target.strides,
        dtype=type.dtype_name, scale=op.scale, causal=op.causal, fast_math=low.options.fast_math,
        nan_rows=op.nan_rows, bfloat16_products=op.bfloat16_products or low.options.precision == "medium",
        products_in_parts=low.options.precision == "high",
    )  # fmt: skip
    if len(ins.inputs) == 4:
        mask = operands["mask"] = _mask(low, ins, type, reads_transposed_masks(problem))
        strides = mask_strides(mask, problem.scores)
        problem = replace(problem, mask=MaskLayout(mask.type.dtype_name, strides, mask_period(mask), op.fill))
    origin = low.origin(ins)
    chosen = _solution(low, problem, origin)
    low.launch_all(chosen, operands, ins)
    if len(chosen.launches) == 1 and not has_lengths(problem):
        _offer_bf16_split(low, problem, target, origin)
    if target is not declared:
        convert(low, ins, target, declared)


def _solution(low: Lowering, problem: AttentionProblem, origin: str) -> Solution:
    """Return the launches of a problem; equal problems share kernels."""
    return with_origin(low.solve(plan, problem, low.threads, key=(problem, low.threads)), origin)


def _offer_bf16_split(low: Lowering, problem: AttentionProblem, out: View, origin: str) -> None:
    """Let a product that reads the heads' results side by side read them in bfloat16 parts."""
    columns = problem.heads * problem.width
    if out.strides != (problem.queries * columns, problem.width, columns, 1):
        return

    def remake(parts: SplitValue, alone: bool) -> tuple[Launch, Mapping[str, View]]:
        strides = (problem.queries * parts.pitch, problem.width, parts.pitch, 1)
        own = replace(problem, part_strides=strides, parts_alone=alone)
        made = _solution(low, own, origin)
        results = {"high": parts.high, "low": parts.behind} | ({"out": parts.high} if alone else {})
        return made.launches[0], results

    if columns % LINE_ELEMENTS == 0:
        rows = out.with_shape(Shape(out.type, (problem.batch, problem.queries, columns)))
        offer_bf16_split(low, low.draft.steps[-1], rows, columns, remake, besides=True)


def _mask(low: Lowering, ins: Instruction, type: Type, turned: bool) -> View:
    """Return the mask as bool or with the element type; with ``turned`` a constant mask gets queries as its contiguous
    axis."""
    view = low.input(ins, 3)
    type = Type.bool_type if view.type is Type.bool_type else type
    array = low.constant_value(ins.inputs[3])
    if array is None:
        return as_type(low, ins, view, type)
    once = array[tuple(slice(None if stride else 1) for stride in view.strides)]
    turned = turned and once.ndim > 1 and once.shape[-2] > 1
    if not turned and view.type is type:
        return view

    def pack() -> np.ndarray:
        with np.errstate(over="ignore"):
            packed = once.astype(type.numpy)
        return np.ascontiguousarray(packed.swapaxes(-1, -2) if turned else packed)

    packed = low.packed_constant(once, ("attention mask", type, turned), pack)
    strides = list(packed.strides)
    if turned:
        strides[-2:] = strides[-1], strides[-2]
    return packed.with_shape(Shape(type, view.lens, [s if n > 1 else 0 for n, s in zip(once.shape, strides)]))
