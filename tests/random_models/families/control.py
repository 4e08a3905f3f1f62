"""If, Loop and Scan whose bodies are graphs of all families and capture outer values."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Builder, Value
from .ranks import of_another_rank
from .reduction import reduce
from .registry import STEPS, step

__all__ = []

DEEPEST = 2
REACH = 4.0
"""Bound of what one iteration hands to the next, so that nothing grows."""


def _body(b: Builder) -> Builder:
    return Builder(0, outer=b)


def _some_steps(body: Builder) -> None:
    for _ in range(body.integer(1, 4)):
        body.pick(body.steps or STEPS)(body)


def _result(body: Builder, like: Value) -> Value | None:
    """Something of the type and lengths of a value that the body has computed, else a function of it."""

    def fits(v: Value) -> bool:
        return v.type == like.type and v.lens == like.lens and not v.constant

    own = {v.name for v in body.outer.pool} if body.outer is not None else set()
    made = body.value(lambda v: fits(v) and v.name not in own)
    if made is None:
        other = body.value(lambda v: v.type == like.type and v.rank == 0) or like
        made = body.node("Add" if like.type != np.bool_ else "Or", [like, other])
    return made


def _bounded(body: Builder, v: Value | None) -> Value | None:
    if v is None or v.type == np.bool_:
        return v
    low, high = (0 if v.type.kind == "u" else -REACH), REACH
    return body.node("Clip", [v, body.constant(low, v.type), body.constant(high, v.type)])


def _condition(b: Builder, given: bool = False) -> Value:
    """Return a bool that is unknown before a run, from an existing value if possible, or as an input of the model."""
    if given and b.outer is None:
        return b.input(np.array(b.chance(2)))
    found = b.value(lambda v: v.type == np.bool_ and v.array.size == 1 and not v.constant)
    if found and b.chance(2):
        return found
    x = b.value(lambda v: v.floating and v.finite and v.array.size > 0 and not v.constant)
    total = reduce(b, x, "Sum", None, 0) if x else None
    made = b.node("Greater", [total, b.constant(0.1, total.type)]) if total else None
    return made or b.new((1,) if b.chance(4) else (), np.bool_)


@step(2)
def if_(b: Builder) -> Any:
    """Add an If whose branches give results of the same types, and of the same rank or of different ranks."""
    if b.depth >= DEEPEST:
        return None
    two_ranks = b.chance(3)
    wanted = [b.tensor() for _ in range(b.integer(1, 2))]
    branches = []
    for name in ("then", "else"):
        body = _body(b)
        if not b.chance(5):
            _some_steps(body)
        results = [_result(body, w) for w in wanted]
        if two_ranks and b.chance(2):
            results = [of_another_rank(body, r) if r else None for r in results]
        if any(r is None for r in results) or len({r.name for r in results if r}) < len(results):
            return None
        branches.append((body, body.graph(body.fresh(name), [], [r for r in results if r])))
    captured = [v for body, _ in branches for v in body.captured()]
    (_, first), (_, second) = branches
    condition = _condition(b, two_ranks and b.chance(2))
    return b.outputs("If", [condition], len(wanted), captured=captured, then_branch=first, else_branch=second)


@step(2)
def loop(b: Builder) -> Any:
    """Add a Loop of a few iterations, which a condition may end early.

    The loop has carried values, whose rank may change, scan outputs and captured values.
    """
    if b.depth >= DEEPEST:
        return None
    carried = [b.tensor(lambda v: v.finite) for _ in range(b.integer(0, 2))]
    if not all(v.finite for v in carried):
        return None
    body = _body(b)
    number, going = body.enter(np.array(0, np.int64)), body.enter(np.array(True))
    entered = [body.enter(v.array) for v in carried]
    _some_steps(body)
    last = body.constant(body.integer(1, 6), np.int64)
    again = body.node("Identity", [going])
    kept = [_bounded(body, _result(body, v)) for v in entered]
    two_ranks = bool(carried) and b.chance(4)
    if two_ranks:
        kept = [of_another_rank(body, v) if v else None for v in kept]
    ends = b.chance(2)  # before all iterations have run, after which scan outputs have rows that ONNX's have not
    scans = [] if (ends or two_ranks) and carried else [body.tensor() for _ in range(b.integer(0 if carried else 1, 2))]
    if not scans:
        again = body.node("Less", [number, last]) if b.chance(2) else again
    scans = [body.node("Identity", [v]) or v for v in scans]
    if again is None or any(v is None for v in kept):
        return None
    graph = body.graph(body.fresh("loop"), [number, going, *entered], [again, *(v for v in kept if v), *scans])
    if two_ranks:  # a declared shape would be taken for that of every iteration
        for given in graph.input[2:]:
            given.type.tensor_type.ClearField("shape")
    trips = (
        b.new((), np.int64)
        if b.chance(9) and not scans
        else b.constant(b.integer(0 if b.chance(9) else 1, 4), np.int64)
    )
    start = _condition(b) if b.chance(9) and not scans else (None if b.chance(2) else b.constant(True))
    return b.outputs("Loop", [trips, start, *carried], len(carried) + len(scans), captured=body.captured(), body=graph)


@step(2)
def scan(b: Builder) -> Any:
    """Slices along any axis, from either end."""
    if b.depth >= DEEPEST:
        return None
    scanned = [b.tensor(lambda v: v.rank > 0 and v.array.size > 0 and v.finite)]
    axis = b.integer(0, scanned[0].rank - 1)
    if not scanned[0].array.size:
        return None
    axes, length = [axis], scanned[0].lens[axis]
    if b.chance(2):
        scanned.append(b.new((length, *b.lens((0, 2), 12, (1, 2, 3))), b.pick((np.float32, np.int64))))
        axes.append(0)
    states = [b.tensor(lambda v: v.finite and v.type.kind in "fi") for _ in range(b.integer(0, 1))]
    ways = [b.integer(0, 1) for _ in scanned]
    if not all(v.finite for v in (*scanned, *states)):
        return None
    body = _body(b)
    entered = [body.enter(v.array) for v in states]
    parts = [body.enter(np.take(v.array, -1 if w else 0, a)) for v, a, w in zip(scanned, axes, ways)]
    _some_steps(body)
    kept = [_bounded(body, _result(body, v)) for v in entered]
    given = [_result(body, b.pick(parts)) for _ in range(b.integer(1, 2))]
    given = [body.node("Identity", [v]) for v in given if v]
    if any(v is None for v in (*kept, *given)) or not given:
        return None
    results = [v for v in given if v]
    if not all(v.array.size for v in results):
        return None  # ONNX Runtime divides by their size, which ends the process
    graph = body.graph(body.fresh("scan"), [*entered, *parts], [*(v for v in kept if v), *results])
    out_axes = [b.integer(-v.rank - 1, v.rank) for v in results]
    return b.outputs(
        "Scan", [*states, *scanned], len(states) + len(results), captured=body.captured(), body=graph,
        num_scan_inputs=len(scanned), scan_input_axes=axes, scan_input_directions=ways, scan_output_axes=out_axes,
        scan_output_directions=[b.integer(0, 1) for _ in results],
    )  # fmt: skip
