"""Masks computed from positions become the attribute ``causal`` where they hide exactly the later keys."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mgx_numba.core.dim import Dim, Scope
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import run_passes
from mgx_numba.graph.passes.causal_masks import positions
from mgx_numba.graph.passes.fuse_attention import FuseAttention
from mgx_numba.graph.program import Program
from mgx_numba.graph.substitution import settled
from mgx_numba.graph.symbolic import symbolic_program
from mgx_numba.targets.ref.interpreter import evaluate

from .support import FAST, STRICT, Graph, assert_same, check, find, names, random_inputs

B, H, D = 2, 3, 4


def attend(g: Graph, s: int, t: int, mask: Instruction, **attributes: object) -> Program:
    q, k, v = (g.param(n, (B, H, m, D)) for n, m in (("q", s), ("k", t), ("v", t)))
    return g.ret(g.op("attention", q, k, v, mask, scale=0.5, **attributes))


def key_and_query(g: Graph, s: int, t: int, dtype: object, moved: int = 0) -> tuple[Instruction, Instruction]:
    key = g.spread(g.lit(np.arange(t) + 5, dtype), 1, 1, s, t)
    rows = g.op("unsqueeze", g.lit(np.arange(s) + 5 + t - s, dtype), axes=(1,))
    rows = g.op("add", rows, g.scalar(moved, rows))
    return key, g.spread(rows, 1, 1, s, t)


FORMS = {
    "key <= query": lambda g, key, query, one: g.op("less_or_equal", key, query),
    "query >= key": lambda g, key, query, one: g.op("greater_or_equal", query, key),
    "key < query + 1": lambda g, key, query, one: g.op("less", key, g.op("add", one, query)),
    "query > key - 1": lambda g, key, query, one: g.op("greater", query, g.op("sub", key, one)),
    "not key > query": lambda g, key, query, one: g.op("not", g.op("greater", key, query)),
    "not query < key": lambda g, key, query, one: g.op("not", g.op("less", query, key)),
    "key < query": lambda g, key, query, one: g.op("less", key, query),
    "not key >= query": lambda g, key, query, one: g.op("not", g.op("greater_or_equal", key, query)),
    "query <= key": lambda g, key, query, one: g.op("less_or_equal", query, key),
}
OTHERS = ("key < query", "not key >= query", "query <= key")


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
@pytest.mark.parametrize(("s", "t"), [(5, 5), (3, 7), (7, 3), (1, 4)])
@pytest.mark.parametrize("form", FORMS)
def test_comparisons_of_positions(form: str, s: int, t: int, dtype: object) -> None:
    g = Graph()
    key, query = key_and_query(g, s, t, dtype)
    mask = FORMS[form](g, key, query, g.scalar(1, key))
    after = find(check(attend(g, s, t, mask), FuseAttention()), "attention")
    assert after.op.attributes()["causal"] is (form not in OTHERS)
    assert len(after.inputs) == (4 if form in OTHERS else 3)


@pytest.mark.parametrize("moved", [-1, 1])
def test_positions_that_are_moved_are_another_mask(moved: int) -> None:
    g = Graph()
    key, query = key_and_query(g, 4, 6, np.int64, moved)
    program = attend(g, 4, 6, g.op("less_or_equal", key, query))
    assert not find(check(program, FuseAttention()), "attention").op.attributes()["causal"]


@pytest.mark.parametrize(
    "rows", [[0, 1, 2, 4], [0, 2, 4, 6], [3, 2, 1, 0], [0.5, 1.5, 2.5, 3.5], [np.nan] * 4, [1 << 25] * 4]
)
def test_other_numbers_are_no_positions(rows: list[float]) -> None:
    g = Graph()
    key = g.spread(g.lit(np.arange(4)), 4, 4)
    query = g.spread(g.op("unsqueeze", g.lit(rows), axes=(1,)), 4, 4)
    program = attend(g, 4, 4, g.op("less_or_equal", key, query))
    assert not find(check(program, FuseAttention()), "attention").op.attributes()["causal"]


@pytest.mark.parametrize("fill", [-1e9, float(np.finfo(np.float32).min)])
def test_hidden_scores_that_are_finite_stay(fill: float) -> None:
    g = Graph()
    key, query = key_and_query(g, 5, 5, np.int64)
    program = attend(g, 5, 5, g.op("less_or_equal", key, query), fill=fill)
    assert len(find(check(program, FuseAttention()), "attention").inputs) == 4


@pytest.mark.parametrize("nan_rows", [False, True])
@pytest.mark.parametrize("rest", ["padding", "window", "all", "constant", "whole"])
def test_other_masks_remain(rest: str, nan_rows: bool) -> None:
    s, t = 5, 8
    g = Graph()
    key, query = key_and_query(g, s, t, np.int64)
    masks = [g.op("less_or_equal", key, query)]
    if rest == "padding":
        masks.append(g.spread(g.param("keep", (B, 1, 1, t), "bool"), B, 1, s, t))
    elif rest == "window":
        masks.append(g.op("greater", key, g.op("sub", query, g.scalar(3, query))))
    elif rest == "all":
        masks.append(g.spread(g.lit(True, bool), 1, 1, s, t))
    elif rest == "constant":
        masks.append(g.spread(g.lit(np.arange(t) % 3 > 0, bool), 1, 1, s, t))
    else:
        masks.append(g.param("keep", (B, H, s, t), "bool"))
    lens = (B, H, s, t) if rest == "whole" else (B, 1, s, t)
    masks = [m if m.shape.lens == lens else g.spread(m, *lens) for m in masks]
    program = attend(g, s, t, g.op("logical_and", *masks), nan_rows=nan_rows)
    after = find(check(program, FuseAttention()), "attention")
    assert after.op.attributes()["causal"] and len(after.inputs) == (3 if rest == "all" else 4)
    if rest == "padding":
        assert after.inputs[3].shape.lens == (B, 1, 1, t)


def test_three_masks_lose_one() -> None:
    g = Graph()
    key, query = key_and_query(g, 4, 4, np.int64)
    one, other = (g.spread(g.param(n, lens, "bool"), B, H, 4, 4) for n, lens in (("a", (4,)), ("b", (B, 1, 4, 1))))
    causal = g.spread(g.op("less_or_equal", key, query), B, H, 4, 4)
    program = attend(g, 4, 4, g.op("logical_and", g.op("logical_and", one, causal), other))
    after = check(program, FuseAttention())
    assert names(after).count("logical_and") == 1 and "less_or_equal" not in names(after)


@pytest.mark.parametrize("form", ["operator", "choice", "inverted choice", "sum"])
@pytest.mark.parametrize("past", [0, 2])
def test_symbolic_lengths(form: str, past: int) -> None:
    """A decoder with open lengths: ``t`` keys, of which ``past`` are before the first query."""
    g = Graph()
    open_length = DynamicDimension(1, 64)
    dims = (B, H, open_length, D)
    q = g.module.add_parameter("q", Shape.dynamic(Type.float_type, dims))
    old = g.param("old", (B, H, past, D))
    symbolic = symbolic_program(g.ret(q), scope := Scope(), None)
    module = symbolic.main
    (q, old) = (module.parameter(n) for n in ("q", "old"))
    s = q.shape.lens[2]

    def op(name: str, *inputs: Instruction, **attributes: object) -> Instruction:
        return module.insert_instruction(module.last, name, inputs, **attributes)

    t = s + past
    kv = op("concat", old, q, axis=2)
    key = op("multibroadcast", op("iota", length=t), out_lens=(s, t))
    rows = op("unsqueeze", op("iota", length=s), axes=(1,))
    number = op("multibroadcast", op("lengths", values=(t - s,)), out_lens=(s, 1))
    query = op("multibroadcast", op("add", rows, number), out_lens=(s, t))
    lens = (B, H, s, t)
    if form == "operator":
        mask = op("multibroadcast", op("less_or_equal", key, query), out_lens=(1, 1, s, t))
        y = op("attention", q, kv, kv, mask)
    else:
        scores = op("dot", q, op("transpose", kv, permutation=(0, 1, 3, 2)))
        low = op("multibroadcast", module.add_literal(np.float32(-np.inf)), out_lens=lens)
        if form == "choice":
            keep = op("multibroadcast", op("less_or_equal", key, query), out_lens=lens)
            scores = op("where", keep, scores, low)
        elif form == "inverted choice":
            hide = op("multibroadcast", op("greater", key, query), out_lens=lens)
            scores = op("where", hide, low, scores)
        else:
            zero, low = (op("multibroadcast", module.add_literal(np.float32(n)), out_lens=(s, t)) for n in (0, -np.inf))
            added = op("where", op("greater", key, query), low, zero)
            scores = op("add", scores, op("multibroadcast", added, out_lens=lens))
        y = op("dot", op("softmax", scores, axis=3), kv)
    module.replace_return([y])
    before = symbolic.clone()
    run_passes(symbolic, [FuseAttention.name], validate=True)
    attention = find(symbolic, "attention")
    assert attention.op.attributes()["causal"] and len(attention.inputs) == 3 and not scope.guards
    (symbol,) = {d for d in q.shape.lens if isinstance(d, Dim)}
    for length in (1, 2, 7):
        one, other = (settled(p, {symbol: length}) for p in (before, symbolic))
        values = random_inputs(one, length)
        assert_same(evaluate(one, values), evaluate(other, values))


def test_positions_of_views() -> None:
    g = Graph()
    row = g.lit(np.arange(3, 9), np.int64)
    column = g.op("transpose", g.op("unsqueeze", row, axes=(0,)), permutation=(1, 0))
    assert positions(column, -2) == 3 and positions(column, -1) is None
    assert positions(g.op("reshape", column, dims=(1, 6, 1)), -2) == 3
    assert positions(g.op("reshape", row, dims=(2, 3)), -1) is None
    half = g.op("convert", row, target_type=Type.half_type)
    assert positions(half, -1) is None
    assert positions(g.op("convert", row, target_type=Type.int32_type), -1) == 3
    assert not math.isnan(positions(g.op("sub", row, g.scalar(2, row)), -1) or math.nan)


@pytest.mark.parametrize("form", ["where", "inverted", "constant", "rounded", "finite", "cudnn", "wide"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("fast", [False, True])
def test_zeros_and_minus_infinities_are_truth_values(form: str, causal: bool, fast: bool) -> None:
    """PyTorch's decompositions add such masks."""
    s, t = 4, 6
    g = Graph()
    key, query = key_and_query(g, s, t, np.int64)
    keep = g.op("less_or_equal", key, query) if causal else g.param("keep", (1, 1, s, t), "bool")
    low = {"rounded": float(np.finfo(np.float32).min), "finite": -1e3, "cudnn": -65504.0}.get(form, -math.inf)
    zeros, low_mask = (g.spread(g.lit(n), 1, 1, s, t) for n in (0, low))
    if form == "constant":
        array = np.arange(t) <= np.arange(s)[:, None] + (t - s if causal else 1)
        mask = g.spread(g.lit(np.where(array, 0, low)), B, 1, s, t)
    elif form == "inverted":
        mask = g.op("where", g.op("not", keep), low_mask, zeros)
    else:
        mask = g.op("where", keep, zeros, low_mask)
    if form == "rounded":  # beyond the range of float16
        mask = g.op("convert", mask, target_type=Type.half_type)
    if form == "wide":
        mask = g.spread(mask, B, H, s, t)
    q, k, v = (g.param(n, (B, H, m, D), "half" if form == "rounded" else "float") for n, m in zip("qkv", (s, t, t)))
    program = g.ret(g.op("attention", q, k, v, mask))
    values = random_inputs(program)
    if "keep" in values:
        values["keep"][..., 0] = True  # each row sees a key
    options = FAST if fast else STRICT
    after = find(check(program, FuseAttention(), options=options, rtol=1e-3, atol=1e-3, inputs=values), "attention")
    masks = after.inputs[3:]
    if form == "finite" or (form == "cudnn" and not fast):
        assert masks[0].shape.type is Type.float_type
    else:
        assert after.op.attributes()["causal"] is causal and len(masks) == (not causal)
        assert after.op.attributes().get("fill", -math.inf) == (low if masks and form == "cudnn" else -math.inf)
        assert all(m.shape.type is Type.bool_type for m in masks)


def test_a_row_before_the_first_key_keeps_its_finite_mask() -> None:
    """Its scores are all hidden: they are lowered alike, and their softmax stays."""
    s, t = 6, 4
    g = Graph()
    key, query = key_and_query(g, s, t, np.int64)
    zeros, low = (g.spread(g.lit(n), 1, 1, s, t) for n in (0, -65504))
    program = attend(g, s, t, g.op("where", g.op("less_or_equal", key, query), zeros, low))
    assert len(find(check(program, FuseAttention(), options=FAST, rtol=2e-2, atol=2e-2), "attention").inputs) == 4


@pytest.mark.parametrize("where", ["mask", "conjunction", "sum"])
def test_one_row_for_all_queries_is_no_causal_mask(where: str) -> None:
    """The row is that of the last query, which sees all keys; ``causal`` would hide keys from the others."""
    s, t = 4, 6
    g = Graph()
    rest = g.spread(g.param("keep", (B, 1, 1, t), "bool"), B, 1, 1, t)
    q, k, v = (g.param(n, (B, H, m, D)) for n, m in zip("qkv", (s, t, t)))
    symbolic = symbolic_program(g.ret(q, k, v, rest), Scope(), None)
    module = symbolic.main

    def op(name: str, *inputs: Instruction, **attributes: object) -> Instruction:
        return module.insert_instruction(module.last, name, inputs, **attributes)

    q, k, v, rest = (module.parameter(n) for n in ("q", "k", "v", "keep"))
    last = op("multibroadcast", module.add_literal(np.int64(t - 1)), out_lens=(1, 1, 1, t))
    row = op("less_or_equal", op("multibroadcast", op("iota", length=t), out_lens=(1, 1, 1, t)), last)
    if where == "conjunction":
        row = op("logical_and", op("multibroadcast", row, out_lens=(B, 1, 1, t)), rest)
        row = op("multibroadcast", row, out_lens=(B, 1, s, t))
    if where == "sum":
        zeros, low = (
            op("multibroadcast", module.add_literal(np.float32(n)), out_lens=(1, 1, 1, t)) for n in (0, -np.inf)
        )
        added = op("multibroadcast", op("where", row, zeros, low), out_lens=(B, H, s, t))
        scores = op("add", op("dot", q, op("transpose", k, permutation=(0, 1, 3, 2))), added)
        y = op("dot", op("softmax", scores, axis=3), v)
    else:
        y = op("attention", q, k, v, row)
    module.replace_return([y])
    before = symbolic.clone()
    run_passes(symbolic, [FuseAttention.name], validate=True)
    assert not find(symbolic, "attention").op.attributes()["causal"]
    values = random_inputs(before)
    assert_same(evaluate(before, values), evaluate(symbolic, values))


@pytest.mark.parametrize("type", ["half", "bf16"])
def test_constant_masks_of_16_bits(type: str) -> None:
    s, t = 4, 6
    g = Graph()
    q, k, v = (g.param(n, (B, H, m, D), type) for n, m in zip("qkv", (s, t, t)))
    causal = np.arange(t) <= np.arange(s)[:, None] + (t - s)
    mask = g.lit(np.where(causal, 0, -np.inf), q.shape.type.numpy)
    after = find(check(g.ret(g.op("attention", q, k, v, mask)), FuseAttention(), rtol=2e-2, atol=2e-2), "attention")
    assert after.op.attributes()["causal"] and len(after.inputs) == 3
