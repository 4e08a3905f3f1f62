"""Lower attention to one kernel, or to two where the keys are split. In a decoder's step the launch also computes the
queries and writes the new rows of the caches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from ....codegen.alternatives import has_lengths, only_where
from ....codegen.gpu.attention.flash import ROWS, attention_refusal, attention_solution, takes_rows
from ....codegen.gpu.attention.mask_bits import mask_bits_launch, packed_bits, words_of
from ....codegen.gpu.attention.new_rows import NewRows, RowPart
from ....codegen.gpu.attention.split_kv import clear_counters_launch
from ....codegen.gpu.attention.warpgroups import fits_warpgroups
from ....codegen.gpu.contraction.gpu_contraction import VECTOR_BYTES
from ....codegen.launch import Solution
from ....codegen.problems.attention import AttentionProblem, MaskLayout
from ....codegen.problems.cluster import CopyProblem, PointwiseProblem, ReductionProblem
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
    known_same,
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
from ...lowering.solutions import problem_key, with_origin
from ...lowering.steps import PendingStep
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
        bits = _in_bits(low, ins, _mask_of(ins, core), mask, problem)
        if bits is not None:
            mask, layout = bits, replace(layout, bits=True, strides=(*mask_strides(bits, problem.scores)[:3], 1))
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
        for step in absorbed.steps:
            assert step.launch is not None
            (step.launch,) = only_where(negate(equal(problem.queries, 1)), Solution((step.launch,))).launches


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


def _mask_of(ins: Instruction, core: Instruction) -> Instruction:
    """Return the mask of an attention; ``core`` is the operator itself, which a fused attention has in its body."""
    if ins is core:
        return ins.inputs[3]
    return dict(zip(ins.module_args[0].parameters(), ins.inputs))[core.inputs[3]]


def _in_bits(
    low: Lowering, ins: Instruction, source: Instruction, mask: View, problem: AttentionProblem
) -> View | None:
    """Return a mask of truth values in bits, which all attentions with this mask share; None to leave it in bytes."""
    if mask.type is not Type.bool_type or has_lengths(problem) or not fits_warpgroups(problem):
        return None
    once = mask.without_repeats()
    if once.lens[-1] != problem.keys or not known_in(once.strides[-1], 1):
        return None
    lens = (*once.lens[:-1], words_of(once.lens[-1]))
    key = ("mask in bits", source, once.lens, once.strides, once.offset)
    if key not in low.draft.common:
        value = low.constant_of(once) if once.buffer.region is Region.CONSTANT else None
        if value is not None:
            low.draft.common[key] = low.packed_constant(value, "bits of keys", lambda: aligned_copy(packed_bits(value)))
        else:
            bits = low.draft.common[key] = low.allocate(Shape(Type.int32_type, lens))
            launch = low.solve(mask_bits_launch, once.tensor, low.origin(ins))
            low.launch_all(launch, {"mask": once, "bits": bits}, ins)
    bits = low.draft.common[key]
    return bits.repeated((*mask.lens[:-1], lens[-1]))


def _in_vectors(low: Lowering, ins: Instruction, view: View) -> View:
    """Return the view if its positions are whole aligned vectors, else a copy."""
    lanes = VECTOR_BYTES // view.type.size
    apart = [0 if known_less_equal(n, 1) else s for n, s in zip(view.lens[:3], view.strides[:3])]
    whole = known_in(view.strides[3], 1) and all(common_divisor(s) % lanes == 0 for s in apart)
    if (whole and known_equal(view.byte_offset % VECTOR_BYTES, 0)) or view.lens[3] % lanes:
        strides = apart
        return view.with_shape(Shape(view.type, view.lens, (*strides, view.strides[3])))
    return low.copied(view, row_major_strides(view.lens), ins)


VIEWS = frozenset(("concat", "contiguous", "reshape", "squeeze", "transpose", "unsqueeze"))
"""Operators through which a result may come to its reader."""


class AbsorbedRows(NamedTuple):
    """What the launch for one query computes itself.

    Attributes:
        rows: its description; ``key`` identifies it.
        operands: views by operand.
        steps: the steps that are for several queries alone then.
    """

    rows: NewRows
    key: object
    operands: dict[str, View]
    steps: list[PendingStep]


def absorbed_rows(
    low: Lowering, ins: Instruction, problem: AttentionProblem, q: View, k: View, v: View
) -> AbsorbedRows | None:
    """Return the rows that attention to two updated caches can compute itself: nothing else reads the caches before."""
    updates = ins.inputs[1:3]
    if ins.name != "cached_attention" or any(u.name != "update_cache" for u in updates) or not takes_rows(problem):
        return None
    if not isinstance(problem.queries, Dim) and problem.queries != 1:
        return None
    if any({u.name for u in own.users if u is not ins} - {"@return"} for own in updates):
        return None
    writes = [[s for s in low.draft.steps if s.instruction is own and "rows" in s.operands] for own in updates]
    if not all(writes) or updates[0] is updates[1]:
        return None
    first = [own[0].operands for own in writes]
    places = first[0]["places"]
    if first[1]["places"] is not places or any(_apart(own["out"], to) for own, to in zip(first, (k, v))):
        return None
    parts: list[tuple[RowPart, ...]] = []
    steps, operands, keys = [*writes[0], *writes[1]], {"places": places}, []
    for kind, view, reader in (("q", q, ins), ("k", first[0]["rows"], updates[0]), ("v", first[1]["rows"], updates[1])):
        found = _computed(low, view, reader)
        sources = [[step.operands[f"x{x}"] for x in range(len(part.inputs))] for step, part in found]
        if not found and kind != "q":
            sources, found = [[view]], []
            parts.append((RowPart(None, (view.tensor,), 0),))
        else:
            parts.append(tuple(part for _, part in found))
        steps += [step for step, _ in found]
        keys.append(tuple(problem_key(step.problem) for step, _ in found if step.problem is not None))
        for n, views in enumerate(sources):
            operands |= {f"{kind}{n}x{x}": own for x, own in enumerate(views)}
    rows = NewRows(parts[0], parts[1], parts[2], places.strides[0])
    copied = tuple(part.inputs for own in parts for part in own)
    return AbsorbedRows(rows, (tuple(keys), copied, places.strides[0]), operands, steps)


def _same_places(a: View, b: View, axes: int = 4) -> bool:
    """Return whether indices of the first axes lead equally far from the start of both views."""
    pairs = list(zip(a.lens, a.strides, b.strides))[:axes]
    return known_same(a.lens[:axes], b.lens[:axes]) and all(
        known_equal(n, 1) or known_equal(own, other) for n, own, other in pairs
    )


def _apart(a: View, b: View) -> bool:
    """Return whether two views may differ in their memory."""
    return a.buffer is not b.buffer or not known_equal(a.offset, b.offset) or not _same_places(a, b)


def _computed(low: Lowering, view: View, reader: Instruction) -> list[tuple[PendingStep, RowPart]]:
    """Return the steps that compute a view for ``reader`` alone, in the order of features; none if something else does,
    or if a later step may overwrite what they read."""
    steps = low.draft.steps
    writers = [n for n, step in enumerate(steps) if _writes(step, view)]
    found: list[tuple[PendingStep, RowPart]] = []
    for n in writers:
        step, problem = steps[n], steps[n].problem
        if step.launch is None or problem is None:
            return []
        part = _part(problem)
        if part is None:
            return []
        out, inputs = step.operands["out0"], [step.operands[f"x{x}"] for x in range(len(part.inputs))]
        begin = out.offset - view.offset
        if isinstance(begin, Dim) or isinstance(out.lens[-1], Dim) or len(out.lens) != 4:
            return []
        if not _same_places(out, view, 3) or not known_equal(out.strides[3], 1) or out.type is not view.type:
            return []
        if not _only_for(step.instruction, reader) or not inputs:
            return []
        if any(_writes(later, own) for later in steps[n:] for own in inputs):
            return []
        found.append((step, replace(part, first=begin)))
    found.sort(key=lambda own: own[1].first)
    ends = [0, *(part.first + part.count for _, part in found)]
    whole = [part.first for _, part in found] == ends[:-1] and ends[-1] == view.lens[3]
    return found if whole and view.buffer.region is Region.ARENA else []


def _part(problem: PointwiseProblem | ReductionProblem | CopyProblem) -> RowPart | None:
    """Return how a block computes the only result of a problem, from feature 0 on; None if it cannot."""
    if isinstance(problem, CopyProblem):
        return RowPart(None, (problem.source,), 0)
    if isinstance(problem, ReductionProblem) or len(problem.outputs) != 1 or problem.again:
        return None
    return RowPart(problem.module, problem.inputs, 0, problem.fast_math)


def _only_for(ins: Instruction, reader: Instruction) -> bool:
    """Return whether a result is read by ``reader`` alone, perhaps through views."""
    return all(user is reader or (user.name in VIEWS and _only_for(user, reader)) for user in ins.users) and bool(
        ins.users
    )


def _writes(step: PendingStep, view: View) -> bool:
    """Return whether a step may write to the memory of a view."""
    own = [v for name, v in step.operands.items() if name.startswith("out") or name in ("scratch", "high", "low")]
    return any(v.buffer is view.buffer for v in (*own, *step.outputs))
