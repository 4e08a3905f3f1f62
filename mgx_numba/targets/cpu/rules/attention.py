"""Attention as one kernel; short element types are converted on the way in and out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....codegen.cpu.attention import AttentionProblem, MaskLayout, plan, reads_turned_masks
from ....codegen.cpu.cluster.pointwise import pointwise_launch
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....graph.module import Module
from ....ops.attention import Attention
from ....ops.base import make_op
from ....runtime.plan import Region
from ...lowering.buffers import Buffer, View
from ...lowering.lowering import Lowering
from ...lowering.solutions import with_origin
from .table import lowering

HEADS_LAST = (0, 2, 1, 3)
"""Permutation between [batch, head, position, feature] and the [batch, position, head, feature] of projections."""


def _accepts(ins: Instruction, shape: Shape) -> bool:
    """Kernels write rows of contiguous features."""
    return shape.lens[3] == 1 or shape.strides[3] == 1


@lowering("attention", accepts=_accepts)
def lower_attention(low: Lowering, ins: Instruction) -> None:
    """The launches that `plan` chooses, over views in place."""
    op = ins.op
    assert isinstance(op, Attention)
    type = ins.shape.type.compute
    if type not in (Type.float_type, Type.double_type) or any(0 in i.shape.lens for i in ins.inputs):
        low.host(ins, f"kernels take floats, and some elements, not {'; '.join(str(i.shape) for i in ins.inputs)}")
        return
    q, k, v = (_as_type(low, ins, view, type) for view in low.inputs(ins)[:3])
    declared = _output(low, ins)
    target = declared if declared.type is type else low.allocate(Shape(type, declared.lens, declared.strides))
    operands = {"q": q, "k": k, "v": v, "out": target}
    problem = AttentionProblem(
        batch=q.lens[0], heads=q.lens[1], kv_heads=k.lens[1], queries=q.lens[2], keys=k.lens[2], depth=q.lens[3],
        width=v.lens[3], q_strides=q.strides, k_strides=k.strides, v_strides=v.strides, out_strides=target.strides,
        dtype=type.numpy.name, scale=op.scale, causal=op.causal, fast_math=low.options.fast_math,
        nan_rows=op.nan_rows,
    )  # fmt: skip
    if len(ins.inputs) == 4:
        mask = operands["mask"] = _mask(low, ins, type, reads_turned_masks(problem))
        period = mask.lens[0] if len(mask.lens) == 4 and mask.lens[0] > 1 else None
        problem = replace(problem, mask=MaskLayout(mask.type.numpy.name, _mask_strides(mask), period))
    origin = low.origin(ins)
    chosen = with_origin(low.solutions.of((problem, low.threads), lambda: plan(problem, low.threads, origin)), origin)
    if chosen.scratch:
        operands["scratch"] = View(Buffer(Region.ARENA, 0, chosen.scratch), Shape(Type.uint8_type, (chosen.scratch,)))
    for launch in chosen.launches:
        low.launch(launch, operands, ins)
    if target is not declared:
        _convert(low, ins, target, declared)


def _output(low: Lowering, ins: Instruction) -> View:
    """Where the result goes: the memory lent to it, else the order in which its users merge heads without a copy."""
    if ins in low.destinations or not any(_merges_heads(user) for user in ins.users):
        return low.output(ins)
    view = low.allocate(Shape.from_permutation(ins.shape.type, ins.shape.lens, HEADS_LAST))
    low.values[ins] = view
    return view


def _merges_heads(ins: Instruction) -> bool:
    return ins.name == "transpose" and tuple(ins.op.attributes()["permutation"]) == HEADS_LAST


def _mask(low: Lowering, ins: Instruction, type: Type, turned: bool) -> View:
    """The mask as bool or with the element type; with ``turned`` a constant one lies with queries side by side."""
    view = low.input(ins, 3)
    type = Type.bool_type if view.type is Type.bool_type else type
    array = low.constant_value(ins.inputs[3])
    if array is None:
        return _as_type(low, ins, view, type)
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


def _mask_strides(mask: View) -> tuple[int, ...]:
    """Strides of a mask broadcast to [batch, heads, queries, keys]."""
    missing = 4 - len(mask.lens)
    return (0,) * missing + tuple(s if n > 1 else 0 for n, s in zip(mask.lens, mask.strides))


def _as_type(low: Lowering, ins: Instruction, view: View, type: Type) -> View:
    """The view itself if it has the element type, else a copy that has; what is broadcast is converted once."""
    if view.type is type:
        return view
    lens = tuple(n if s else 1 for n, s in zip(view.lens, view.strides))
    stored = view.with_shape(Shape(view.type, lens, view.strides))
    target = low.allocate(Shape(type, lens))
    _convert(low, ins, stored, target)
    strides = [s if n > 1 else 0 for n, s in zip(lens, target.strides)]
    return target.with_shape(Shape(type, view.lens, strides))


def _convert(low: Lowering, ins: Instruction, source: View, target: View) -> None:
    module = Module("convert")
    parameter = module.add_parameter("x0", Shape(source.type))
    module.add_return([module.add_instruction(make_op("convert", target_type=target.type), [parameter])])
    launch = pointwise_launch(module, [source.tensor], [target.tensor], origin=low.origin(ins))
    low.launch(launch, {"x0": source, "out0": target}, ins)
