"""Let the attention of a decoder's step compute its queries and write its new rows of the caches, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ....codegen.alternatives import only_where
from ....codegen.gpu.attention.flash import takes_rows
from ....codegen.gpu.attention.new_rows import NewRows, RowPart
from ....codegen.launch import Solution
from ....codegen.problems.attention import AttentionProblem
from ....codegen.problems.cluster import CopyProblem, PointwiseProblem, ReductionProblem
from ....core.dim import Dim, equal, known_equal, known_same, negate
from ....graph.instruction import Instruction
from ....runtime.plan import Region
from ...lowering.buffers import View
from ...lowering.lowering import Lowering
from ...lowering.solutions import problem_key
from ...lowering.steps import PendingStep

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


def leave_to_several(queries: int, steps: Sequence[PendingStep]) -> None:
    """Restrict steps to runs with several queries."""
    for step in steps:
        assert step.launch is not None
        (step.launch,) = only_where(negate(equal(queries, 1)), Solution((step.launch,))).launches


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
