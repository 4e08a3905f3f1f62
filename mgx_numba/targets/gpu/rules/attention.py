"""Lower attention to one kernel, or to two where the keys are split."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ....codegen.alternatives import has_lengths, only_where
from ....codegen.gpu.attention.flash import ROWS, attention_refusal, attention_solution
from ....codegen.gpu.attention.split_kv import clear_counters_launch
from ....codegen.gpu.contraction.gpu_contraction import VECTOR_BYTES
from ....codegen.launch import Solution
from ....codegen.problems.attention import AttentionProblem, MaskLayout
from ....codegen.problems.epilogue import Epilogue
from ....codegen.problems.fused_contraction import epilogue_parameters, make_epilogue
from ....core.dim import (
    Dim,
    ceil_div,
    common_divisor,
    equal,
    known_equal,
    known_in,
    known_less_equal,
    negate,
    symbols_of,
)
from ....core.shape import Shape, row_major_strides
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.attention import Attention
from ....ops.caches import CachedAttention
from ....runtime.memory import aligned_copy
from ....runtime.plan import Region
from ...lowering.attention_operands import accepts_attention, as_type, attention_output, mask_period, mask_strides
from ...lowering.buffers import View
from ...lowering.lowering import Lowering
from ...lowering.solutions import with_origin
from .new_rows import AbsorbedRows, absorbed_rows, leave_to_several
from .table import lowering

LONG_KEYS = 4096
"""Number of keys of a decoder after a long output, for an additional sample of lengths."""
PART = 512
"""Number of queries of a part of a long prompt, for another one: servers run parts of 256 to 2048 tokens."""
ATTENTION = (Type.half_type, Type.bf16_type, Type.float_type)
"""Element types for which attention has kernels."""


def features_refusal(precision: str, type: Type, depth: int, width: int, limited: bool = False) -> str:
    """Return why no kernel computes attention with this element type and these features; empty if a kernel does.

    Args:
        precision: one of `FLOAT32_PRECISIONS`.
        type: element type.
        depth: features of a key.
        width: features of a value.
        limited: whether the keys are the valid rows of a cache.
    """
    if type not in ATTENTION:
        return "no kernel takes the type"
    if not depth or not width:
        return "there are no features"
    keys, values = row_major_strides((1, 1, 1, depth)), row_major_strides((1, 1, 1, width))
    problem = AttentionProblem(
        1, 1, 1, 1, 1, depth, width, keys, keys, values, values, type.dtype_name, limited=limited
    )  # fmt: skip
    return attention_refusal(problem, precision)


def cache_refusal(precision: str, ins: Instruction) -> str:
    """Return why no kernel computes a ``cached_attention``; empty if a kernel does.

    Args:
        precision: one of `FLOAT32_PRECISIONS`.
        ins: the instruction.
    """
    op, (q, k, v) = ins.operator(CachedAttention), [i.shape for i in ins.inputs[:3]]
    if op.softcap > 0 or op.sink or op.paged:
        return "kernels have no limits of scores, sinks or pages"
    if known_less_equal(k.lens[2], 0) or not q.type is k.type is v.type:
        return "the cache is empty or of another type"
    return features_refusal(precision, q.type, q.lens[3], v.lens[3], limited=True)


@lowering("attention", "fused_attention", "cached_attention", accepts=accepts_attention)
def lower_attention(low: Lowering, ins: Instruction) -> None:
    """Append the launches over views in place; operands that are not aligned to whole vectors are copied."""
    fused = ins.name == "fused_attention"
    core = next(i for i in ins.module_args[0] if i.name == "attention") if fused else ins
    type = core.shape.type
    if type not in ATTENTION or any(known_in(n, 0) for i in ins.inputs for n in i.shape.lens):
        shapes = "; ".join(str(i.shape) for i in ins.inputs)
        low.host(ins, f"kernels take float32 and 16-bit floats, and some elements, not {shapes}")
        return
    given, extras, epilogue = _operands(low, ins, core)
    q, k, v = (_in_vectors(low, ins, view) for view in given[:3])
    out = attention_output(low, ins)
    problem = AttentionProblem(
        batch=q.lens[0], heads=q.lens[1], kv_heads=k.lens[1], queries=q.lens[2], keys=k.lens[2], depth=q.lens[3],
        width=v.lens[3], q_strides=q.strides, k_strides=k.strides, v_strides=v.strides, out_strides=out.strides,
        dtype=type.dtype_name, fast_math=low.options.fast_math, epilogue=epilogue, **_attributes(core),
    )  # fmt: skip
    reason = attention_refusal(problem, low.options.precision)
    if reason:
        low.host(ins, reason)
        return
    operands = {"q": q, "k": k, "v": v, "out": out, **{f"e{k}": view for k, view in enumerate(extras)}}
    if problem.limited:
        operands["limits"] = low.materialized(given[3], (2, 1), ins)
    elif len(given) == 4:
        mask = given[3] if given[3].type in (Type.bool_type, Type.float_type) else as_type(low, ins, given[3], type)
        mask = _keys_in_turn(low, ins, mask)
        strides = mask_strides(mask, problem.scores)
        even = (mask.byte_offset // mask.type.size, problem.keys, *strides[:3])
        pairs = known_in(strides[3], 1) and all(common_divisor(n) % 2 == 0 for n in even)
        fill = core.operator(Attention).fill
        layout = MaskLayout(mask.type.dtype_name, strides, mask_period(mask), fill, pairs and mask.type.size > 1)
        problem = replace(problem, mask=layout)
        operands["mask"] = mask
    pairs = known_equal(out.byte_offset % (2 * type.size), 0)
    absorbed = absorbed_rows(low, ins, problem, q, k, v) if problem.limited else None
    if absorbed is None:
        solutions = [_solution(low, problem, pairs)]
    else:
        operands |= absorbed.operands
        one = equal(problem.queries, 1)
        solutions = [only_where(one, _solution(low, replace(problem, queries=1), pairs, absorbed))]
        if isinstance(one, Dim):
            solutions.append(only_where(negate(one), _solution(low, problem, pairs, several=True)))
    for solution in solutions:
        if any("counters" in launch.operands for launch in solution.launches):
            count = problem.batch * problem.heads * ceil_div(problem.queries, ROWS)
            operands["counters"] = _counters(low, ins, count)
        low.launch_all(with_origin(solution, low.origin(ins)), operands, ins)
    if absorbed is not None:
        leave_to_several(problem.queries, absorbed.steps)


def _solution(
    low: Lowering, problem: AttentionProblem, pairs: bool, absorbed: AbsorbedRows | None = None, several: bool = False
) -> Solution:
    """Return the launches of a problem; arguments as of `attention_solution`."""
    rows, key = (None, None) if absorbed is None else (absorbed.rows, absorbed.key)
    given = problem, low.options.precision, "", pairs, None, rows, several
    question = ("attention", low.options.precision, pairs, problem, key, several)
    if has_lengths(given):
        return low.solve(attention_solution, *given, key=question, samples=_long_keys(problem))
    return low.solutions.of(question, lambda: attention_solution(*given))


def _counters(low: Lowering, ins: Instruction, count: int) -> View:
    """Return int32 counters of blocks for all attention with so many rows of blocks at most. They are 0 at first in
    each run, even after a run that was aborted; kernels set them back to 0."""
    known = low.draft.common.get(("counters", count))
    if known is None:
        known = low.draft.common["counters", count] = low.allocate(Shape(Type.int32_type, (count,)))
        low.launch_all(low.solve(clear_counters_launch, count, low.origin(ins)), {"counters": known}, ins)
    return known


def _attributes(core: Instruction) -> dict[str, Any]:
    """Return the fields of a problem that follow from the operator's attributes."""
    if core.name == "attention":
        op = core.operator(Attention)
        return {"scale": op.scale, "causal": op.causal, "nan_rows": op.nan_rows}
    cached = core.operator(CachedAttention)
    return {"scale": cached.scale, "causal": cached.causal, "window": cached.window, "limited": True}


def _long_keys(problem: AttentionProblem) -> list[dict[Dim, int]]:
    """Return samples of lengths with `LONG_KEYS` keys: a step of a decoder, whose blocks split the keys, and a part of
    a prompt with `PART` queries."""
    symbols = symbols_of([problem.keys])
    if not symbols:
        return []
    scope = symbols[0].scope
    least = {s: max(s.low or 1, 1) for s in scope.symbols}
    step = least | {s: LONG_KEYS if s.high is None else min(LONG_KEYS, s.high) for s in symbols}
    others = [s for s in symbols_of([problem.queries]) if s not in dict.fromkeys(symbols)]
    return [step, step | {s: PART if s.high is None else min(PART, s.high) for s in others}]


def _operands(low: Lowering, ins: Instruction, core: Instruction) -> tuple[list[View], list[View], Epilogue]:
    """Return the views that attention reads, the views that its epilogue reads, and the epilogue."""
    if ins is core:
        return low.inputs(ins), [], Epilogue()
    body = ins.module_args[0]
    views = dict(zip(body.parameters(), low.inputs(ins)))
    extras = epilogue_parameters(body, core)
    epilogue = make_epilogue(body, core, ["scalar"] * len(extras), low.options.fast_math)
    return [views[p] for p in core.inputs], [views[p] for p in extras], epilogue


def _keys_in_turn(low: Lowering, ins: Instruction, mask: View) -> View:
    """Return the mask if keys follow one another in memory or are broadcast, else a copy in which they do.

    T5's relative positions come from a table with heads side by side: each load brought a sector for 4 of its 32 bytes.
    """
    if known_in(mask.strides[-1], 0, 1) or known_less_equal(mask.lens[-1], 1):
        return mask
    once = mask.without_repeats()
    value = low.constant_of(once) if once.buffer.region is Region.CONSTANT else None
    if value is None:
        copied = low.materialized(once, row_major_strides(once.lens), ins)
    else:
        copied = low.packed_constant(value, "keys in turn", lambda: aligned_copy(value))
    return copied.repeated(mask.lens)


def _in_vectors(low: Lowering, ins: Instruction, view: View) -> View:
    """Return the view if its positions are whole aligned vectors, else a copy."""
    lanes = VECTOR_BYTES // view.type.size
    apart = [0 if known_less_equal(n, 1) else s for n, s in zip(view.lens[:3], view.strides[:3])]
    whole = known_in(view.strides[3], 1) and all(common_divisor(s) % lanes == 0 for s in apart)
    if (whole and known_equal(view.byte_offset % VECTOR_BYTES, 0)) or view.lens[3] % lanes:
        strides = apart
        return view.with_shape(Shape(view.type, view.lens, (*strides, view.strides[3])))
    return low.materialized(view, row_major_strides(view.lens), ins)
