"""Lower updates of key and value caches, and attention to them."""

from __future__ import annotations

from ....codegen.cpu.attention import AttentionProblem, cached_refusal, plan
from ....codegen.cpu.data.cache_copy import cache_copy_launch
from ....codegen.cpu.data.scatter import scatter_launch
from ....core.dim import known_in
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.caches import CachedAttention
from ...lowering.attention_operands import accepts_attention, as_type, attention_output, convert
from ...lowering.buffers import View
from ...lowering.caches import is_standard, keep_or_copy
from ...lowering.lowering import Lowering
from ...lowering.solutions import with_origin
from .table import lowering


@lowering("update_cache", accepts=lambda ins, shape: is_standard(shape))
def lower_update_cache(low: Lowering, ins: Instruction) -> None:
    """Append a copy of the cache, which a run may skip, then a kernel that writes the new rows."""
    cache, rows, positions = low.inputs(ins)
    if any(known_in(n, 0) for n in (*ins.shape.lens, *cache.lens)):
        low.host(ins, "there is no row to keep")
        return
    out = low.output(ins)
    keep_or_copy(low, cache, out, ins, cache_copy_launch)
    across = (positions.strides[0], 0, positions.strides[1], 0)
    indices = positions.with_shape(Shape(positions.type.unsigned, rows.lens, across))  # negative ones do not wrap
    tensors = (indices.tensor, rows.tensor, out.tensor)
    solution = low.solve(scatter_launch, "none", 2, *tensors, low.origin(ins), False)
    low.launch_all(solution, {"indices": indices, "updates": rows, "out": out}, ins)


@lowering("cached_attention", accepts=accepts_attention)
def lower_cached_attention(low: Lowering, ins: Instruction) -> None:
    """Append the launches that `plan` chooses, which read no key or value beyond the valid rows."""
    op = ins.operator(CachedAttention)
    type = ins.shape.type.compute
    if type not in (Type.float_type, Type.double_type) or any(known_in(n, 0) for i in ins.inputs for n in i.shape.lens):
        low.host(ins, f"kernels take floats, and some elements, not {'; '.join(str(i.shape) for i in ins.inputs)}")
        return
    q, k, v, limits = low.inputs(ins)[:4]
    q = as_type(low, ins, q, type)
    limits = low.materialized(limits, (2, 1), ins)
    declared = attention_output(low, ins)
    target = declared if declared.type is type else low.allocate(Shape(type, declared.lens, declared.strides))
    operands = {"q": q, "k": k, "v": v, "out": target, "limits": limits}
    page = pages = 0
    if op.paged:
        operands["table"] = low.materialized(low.input(ins, 4), low.input(ins, 4).shape.to_standard().strides, ins)
        page, pages = k.lens[2], operands["table"].lens[1]
    if op.sink:
        operands["sink"] = as_type(low, ins, low.inputs(ins)[-1], type)

    def problem(k: View, v: View) -> AttentionProblem:
        return AttentionProblem(
            batch=q.lens[0], heads=q.lens[1], kv_heads=k.lens[1], queries=q.lens[2],
            keys=page * pages if op.paged else k.lens[2], depth=q.lens[3],
            width=v.lens[3], q_strides=q.strides, k_strides=k.strides, v_strides=v.strides, out_strides=target.strides,
            dtype=type.dtype_name, scale=op.scale, causal=op.causal, fast_math=low.options.fast_math,
            limited=True, window=op.window, softcap=op.softcap, kv_dtype=k.type.dtype_name,
            page=page, pages=pages, blocks=k.lens[0], sink_strides=(operands["sink"].strides[0], 0) if op.sink else (),
        )  # fmt: skip

    if op.paged:
        k, v = (low.materialized(x, _with_features_inside(x), ins) for x in (k, v))
        operands |= {"k": k, "v": v}
    elif cached_refusal(problem(k, v)):
        k, v = (as_type(low, ins, x, type) for x in (k, v))
        operands |= {"k": k, "v": v}
    wanted = problem(k, v)
    chosen = with_origin(low.solve(plan, wanted, low.threads, key=(wanted, low.threads)), low.origin(ins))
    low.launch_all(chosen, operands, ins)
    if target is not declared:
        convert(low, ins, target, declared)


def _with_features_inside(view: View) -> tuple[int, ...]:
    """Return the view's strides if the features of a position are contiguous, else row-major strides."""
    inside = known_in(view.lens[3], 1) or known_in(view.strides[3], 1)
    return view.strides if inside else view.shape.to_standard().strides
