"""Attention is recognised in the forms that exporters write, and not where the meaning would change."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import Options, run_passes
from mgx_numba.graph.passes.fuse_attention import FuseAttention
from mgx_numba.graph.passes.optimize_module import OptimizeModule
from mgx_numba.graph.program import Program
from mgx_numba.targets.cpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions

from .support import FAST, STRICT, Graph, check, find, names

B, H, S, T, D = 2, 4, 5, 7, 8
LOWEST = float(np.finfo(np.float32).min)


def operands(g: Graph, s: int = S, t: int = T) -> tuple[Instruction, Instruction, Instruction]:
    """Queries [b, h, s, d], transposed keys [b, h, d, t] and values [b, h, t, d] from [b, positions, h, d]."""
    q, k, v = (g.param(n, [B, m, H, D]) for n, m in (("q", s), ("k", t), ("v", t)))
    return (
        g.op("transpose", q, permutation=(0, 2, 1, 3)),
        g.op("transpose", k, permutation=(0, 2, 3, 1)),
        g.op("transpose", v, permutation=(0, 2, 1, 3)),
    )


def attend(
    g: Graph, q: Instruction, kt: Instruction, v: Instruction, mask: Callable[[Instruction], Instruction] = lambda x: x
) -> Instruction:
    scores = g.op("dot", q, kt)
    scores = mask(g.op("div", scores, g.scalar(math.sqrt(D), scores)))
    return g.op("dot", g.op("softmax", scores, axis=3), v)


def fused(program: Program, options: object = STRICT, **values: object) -> Program:
    after = check(program, FuseAttention(), options=options, rtol=1e-4, atol=1e-5, **values)  # type: ignore[arg-type]
    assert names(after).count("attention") == 1 and "softmax" not in names(after)
    check(program, OptimizeModule(), FuseAttention(), OptimizeModule(), options=options, rtol=1e-4, atol=1e-5, **values)  # type: ignore[arg-type]
    return after


def test_plain_attention() -> None:
    g = Graph()
    after = fused(g.ret(attend(g, *operands(g))))
    attention = find(after, "attention")
    assert attention.op.attributes() == {"scale": pytest.approx(1 / math.sqrt(D)), "causal": False, "nan_rows": True}
    assert names(after) == ["transpose", "transpose", "transpose", "attention"]


@pytest.mark.parametrize("marked", [(True, True), (True, False), (False, True)])
def test_operands_of_both_products_may_be_rounded_or_of_none(marked: tuple[bool, bool]) -> None:
    g = Graph()
    program = g.ret(attend(g, *operands(g)))
    for dot, rounds in zip([i for i in program.main if i.name == "dot"], marked, strict=True):
        dot.op = dot.op.with_attributes(bfloat16_products=rounds)
    assert find(fused(program), "attention").op.attributes().get("bfloat16_products", False) is all(marked)


@pytest.mark.parametrize("where", ["q", "k", "both", "scores", "before the transpose"])
def test_the_scale_may_be_anywhere(where: str) -> None:
    g = Graph()
    q, kt, v = operands(g)
    root = D**-0.25

    def scaled(x: Instruction, factor: float) -> Instruction:
        return g.op("mul", x, g.scalar(factor, x))

    if where == "before the transpose":
        inner = q.inputs[0]
        q = g.op("transpose", scaled(inner, root * root), permutation=(0, 2, 1, 3))
    q = scaled(q, root * root if where == "q" else root) if where in ("q", "both") else q
    kt = scaled(kt, root * root if where == "k" else root) if where in ("k", "both") else kt
    scores = g.op("dot", q, kt)
    if where == "scores":
        scores = scaled(scores, root * root)
    after = fused(g.ret(g.op("dot", g.op("softmax", scores, axis=3), v)))
    assert find(after, "attention").op.attributes()["scale"] == pytest.approx(1 / math.sqrt(D))
    assert "mul" not in names(after)


def test_three_dimensional_heads() -> None:
    g = Graph()
    q, kt, v = g.param("q", [6, S, D]), g.param("k", [6, D, T]), g.param("v", [6, T, D])
    mask = g.param("mask", [6, S, T])
    scores = g.op("add", g.op("dot", q, kt), mask)
    after = fused(g.ret(g.op("dot", g.op("softmax", scores, axis=2), v)))
    assert find(after, "attention").shape.lens == (1, 6, S, D)


@pytest.mark.parametrize("op", ["mul", "add"])
def test_a_factor_or_mask_of_three_dimensional_scores_without_elements(op: str) -> None:
    g = Graph()
    q, kt, v = g.param("q", [0, 0, D]), g.param("k", [0, D, 0]), g.param("v", [0, 0, D])
    scores = g.op(op, g.op("dot", q, kt), g.spread(g.param("mask", [1]), 0, 0, 0))
    after = check(g.ret(g.op("dot", g.op("softmax", scores, axis=2), v)), FuseAttention())
    assert "attention" not in names(after)


@pytest.mark.parametrize("lens", [(B, 1, 1, T), (1, 1, S, T), (B, H, S, T), (S, T)])
def test_an_added_mask_keeps_its_size(lens: tuple[int, ...]) -> None:
    g = Graph()
    mask = g.param("mask", lens)

    def add(x: Instruction) -> Instruction:
        return g.op("add", x, mask if lens == x.shape.lens else g.spread(mask, *x.shape.lens))

    after = fused(g.ret(attend(g, *operands(g), add)))
    assert find(after, "attention").inputs[3].shape.lens == lens


def test_a_mask_before_the_scale_is_scaled_too() -> None:
    g = Graph()
    q, kt, v = operands(g)
    scores = g.op("dot", q, kt)
    scores = g.op("mul", g.op("add", scores, g.spread(g.param("mask", [S, T]), B, H, S, T)), g.scalar(0.25, scores))
    after = fused(g.ret(g.op("dot", g.op("softmax", scores, axis=3), v)))
    assert find(after, "mul").shape.lens == (S, T)


def causal(s: int, t: int) -> np.ndarray:
    return np.tril(np.ones((s, t), bool), t - s)


@pytest.mark.parametrize("fill", [LOWEST, -1e4, -np.inf])
@pytest.mark.parametrize("inverted", [True, False])
@pytest.mark.parametrize("s", [S, T])
def test_a_constant_causal_choice_becomes_an_attribute(fill: float, inverted: bool, s: int) -> None:
    g = Graph()
    keep = causal(s, T)
    condition = g.spread(g.lit(~keep if inverted else keep, bool), B, H, s, T)

    def choose(x: Instruction) -> Instruction:
        other = g.scalar(fill, x)
        return g.op("where", condition, other, x) if inverted else g.op("where", condition, x, other)

    program = g.ret(attend(g, *operands(g, s), choose))
    after = fused(program.clone(), FAST)
    assert find(after, "attention").op.attributes()["causal"] and len(find(after, "attention").inputs) == 3
    exact = find(fused(program), "attention")
    assert exact.op.attributes()["causal"] == (fill != -1e4) and exact.op.attributes().get("fill", fill) == fill


def test_a_constant_causal_sum_becomes_an_attribute() -> None:
    g = Graph()
    added = g.lit(np.where(causal(S, T), 0, -np.inf))
    after = fused(g.ret(attend(g, *operands(g), lambda x: g.op("add", x, g.spread(added, B, H, S, T)))))
    assert find(after, "attention").op.attributes()["causal"]


def test_another_constant_choice_is_a_boolean_mask() -> None:
    g = Graph()
    keep = np.random.default_rng(0).integers(0, 2, (S, T)).astype(bool)
    keep[:, 2] = True
    condition = g.spread(g.lit(keep, bool), B, H, S, T)
    after = fused(g.ret(attend(g, *operands(g), lambda x: g.op("where", condition, x, g.scalar(-1e9, x)))))
    attention = find(after, "attention")
    assert not attention.op.attributes()["causal"] and attention.inputs[3].shape.lens == (S, T)


@pytest.mark.parametrize("rows", ["some keys", "no key"])
def test_a_choice_at_run_time_is_exact_for_rows_without_keys_too(rows: str) -> None:
    g = Graph()
    condition = g.param("mask", [B, 1, 1, T], "bool")
    wide = g.spread(condition, B, H, S, T)
    program = g.ret(attend(g, *operands(g), lambda x: g.op("where", wide, x, g.scalar(LOWEST, x))))
    mask = np.ones((B, 1, 1, T), bool)
    mask[0, ..., 3:] = False
    mask[1] = rows == "some keys"
    rng = np.random.default_rng(1)
    values = {n: rng.standard_normal((B, m, H, D)).astype(np.float32) for n, m in (("q", S), ("k", T), ("v", T))}
    attention = find(fused(program, inputs={**values, "mask": mask}), "attention")
    assert attention.inputs[3].shape.lens == (B, 1, 1, T) and attention.op.attributes()["fill"] == LOWEST


def test_rows_that_a_mask_hides_wholly_stay_nan() -> None:
    g = Graph()
    added = g.spread(g.param("mask", [B, 1, S, T]), B, H, S, T)
    program = g.ret(attend(g, *operands(g), lambda x: g.op("add", x, added)))
    mask = np.zeros((B, 1, S, T), np.float32)
    mask[0, 0, 1] = mask[1, 0, :, 2:] = -np.inf
    rng = np.random.default_rng(1)
    values = {n: rng.standard_normal((B, m, H, D)).astype(np.float32) for n, m in (("q", S), ("k", T), ("v", T))}
    fused(program, inputs={**values, "mask": mask})


FILLS = [0.0, -3.0, -1e4, -1e9, LOWEST, -np.inf]


def loud_operands(s: int = S, t: int = T) -> dict[str, np.ndarray]:
    """Return queries, keys and values with scores in the hundreds, which survive partly when -1e9 is added."""
    rng = np.random.default_rng(2)
    values = {n: rng.standard_normal((B, m, H, D)).astype(np.float32) for n, m in (("q", s), ("k", t), ("v", t))}
    return {**values, "q": 200 * values["q"]}


def some_rows_hidden(*lens: int) -> np.ndarray:
    """Return a condition that keeps some keys of each row of the first batch, and no key of a row of the last batch."""
    keep = np.random.default_rng(3).random(lens) < 0.5
    keep[..., 0] = True
    keep[-1, ..., -1, :] = False
    return keep


@pytest.mark.parametrize("options", [STRICT, FAST])
@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("fill", FILLS)
def test_a_choice_replaces_scores_that_a_fill_would_not_absorb(fill: float, inverted: bool, options: Options) -> None:
    g = Graph()
    condition = g.spread(g.param("mask", [B, 1, S, T], "bool"), B, H, S, T)

    def choose(x: Instruction) -> Instruction:
        other = g.scalar(fill, x)
        return g.op("where", condition, other, x) if inverted else g.op("where", condition, x, other)

    keep = some_rows_hidden(B, 1, S, T)
    program = g.ret(attend(g, *operands(g), choose))
    after = fused(program, options, inputs={**loud_operands(), "mask": keep != inverted})
    assert find(after, "attention").op.attributes().get("fill", -np.inf) == np.float32(fill)


@pytest.mark.parametrize("fill", [2.0, np.inf, np.nan])
def test_a_fill_above_zero_is_no_mask(fill: float) -> None:
    g = Graph()
    condition = g.spread(g.param("mask", [B, 1, S, T], "bool"), B, H, S, T)
    program = g.ret(attend(g, *operands(g), lambda x: g.op("where", condition, x, g.scalar(fill, x))))
    step = FuseAttention()
    assert "attention" not in names(check(program, step))
    assert "no mask" in step.refusals("find_attention")[0].reason


@pytest.mark.parametrize("fills", [(-1e9, -1e9), (-np.inf, -np.inf), (LOWEST, -np.inf), (-np.inf, LOWEST)])
def test_choices_after_each_other(fills: tuple[float, float]) -> None:
    """Where both masks hide a key the outer fill counts; masks with equal fills are merged."""
    g = Graph()
    inner, outer = g.param("inner", [B, 1, 1, T], "bool"), g.param("outer", [S, T], "bool")

    def choose(x: Instruction) -> Instruction:
        for fill, condition in zip(fills, (inner, outer)):
            x = g.op("where", g.spread(condition, B, H, S, T), x, g.scalar(fill, x))
        return x

    given = {"inner": some_rows_hidden(B, 1, 1, T), "outer": some_rows_hidden(1, S, T)[0]}
    program = g.ret(attend(g, *operands(g), choose))
    attention = find(fused(program, inputs={**loud_operands(), **given}), "attention")
    assert (attention.inputs[3].shape.type is Type.bool_type) == (fills[0] == fills[1])


@pytest.mark.parametrize("first", ["where", "add"])
@pytest.mark.parametrize("fill", [-1e9, LOWEST, -np.inf])
def test_a_choice_and_a_sum_in_either_order(fill: float, first: str) -> None:
    """A fill that scores survive in a sum is left to the operators as they are written."""
    g = Graph()
    condition, added = g.param("mask", [B, 1, 1, T], "bool"), g.param("added", [H, S, T])

    def mask(x: Instruction) -> Instruction:
        for step in (first, {"where": "add", "add": "where"}[first]):
            if step == "add":
                x = g.op("add", g.spread(added, B, H, S, T), x)
            else:
                x = g.op("where", g.spread(condition, B, H, S, T), x, g.scalar(fill, x))
        return x

    program = g.ret(attend(g, *operands(g), mask))
    bias = np.random.default_rng(4).standard_normal((H, S, T)).astype(np.float32)
    given = {**loud_operands(), "mask": some_rows_hidden(B, 1, 1, T), "added": bias}
    if fill != -1e9:
        fused(program, FAST, inputs=given)
        return
    step = FuseAttention()
    assert "attention" not in names(check(program, step, options=FAST, inputs=given))
    assert "combined with other masks" in step.refusals("find_attention")[0].reason


def test_a_scale_outside_of_a_choice_scales_the_fill() -> None:
    g = Graph()
    condition = g.spread(g.param("mask", [B, 1, S, T], "bool"), B, H, S, T)
    q, kt, v = operands(g)
    scores = g.op("dot", q, kt)
    scores = g.op("where", condition, scores, g.scalar(-40.0, scores))
    scores = g.op("mul", scores, g.scalar(0.25, scores))
    program = g.ret(g.op("dot", g.op("softmax", scores, axis=3), v))
    after = fused(program, inputs={**loud_operands(), "mask": some_rows_hidden(B, 1, S, T)})
    assert find(after, "attention").op.attributes()["fill"] == -10


@pytest.mark.parametrize("padded", [True, False])
def test_a_causal_choice_and_an_added_mask_are_combined_once(padded: bool) -> None:
    """GPT-2: where(causal, scores, lowest) + padding; rows whose visible keys are all padding must stay exact."""
    g = Graph()
    keep = g.spread(g.lit(causal(S, T)[None, None], bool), B, H, S, T)
    padding = g.param("padding", [B, 1, 1, T])

    def mask(x: Instruction) -> Instruction:
        chosen = g.op("where", keep, x, g.scalar(LOWEST, x))
        return g.op("add", chosen, g.spread(padding, B, H, S, T))

    program = g.ret(attend(g, *operands(g), mask))
    rng = np.random.default_rng(1)
    values = {n: rng.standard_normal((B, m, H, D)).astype(np.float32) for n, m in (("q", S), ("k", T), ("v", T))}
    added = np.zeros((B, 1, 1, T), np.float32)
    if padded:
        added[0, ..., :4] = LOWEST
    after = fused(program, inputs={**values, "padding": added})
    attention = find(after, "attention")
    assert not attention.op.attributes()["causal"] and attention.inputs[3].shape.lens == (B, 1, S, T)


@pytest.mark.parametrize("form", ["plain", "converted", "merged"])
@pytest.mark.parametrize("shared", [1, 2])
def test_grouped_keys_and_values_are_not_repeated(shared: int, form: str) -> None:
    """Keys are rounded after the repetition; the axis of groups may come from a reshape of several axes."""
    g = Graph()
    q = g.param("q", [B, H, S, D])

    def repeated(x: Instruction) -> Instruction:
        if form == "merged":
            narrow = g.op("reshape", g.op("unsqueeze", x, axes=(0,)), dims=(B, shared, 1, T, D))
        else:
            narrow = g.op("unsqueeze", x, axes=(2,))
        out = g.op("reshape", g.spread(narrow, B, shared, H // shared, T, D), dims=(B, H, T, D))
        return g.op("convert", out, target_type=Type.float_type) if form == "converted" else out

    type = "half" if form == "converted" else "float"
    k, v = (repeated(g.param(n, [B, shared, T, D], type)) for n in "kv")
    program = g.ret(attend(g, q, g.op("transpose", k, permutation=(0, 1, 3, 2)), v))
    after = fused(program)
    assert [i.shape.lens[1] for i in find(after, "attention").inputs] == [H, shared, shared]


WINDOWS, N = 3, 4


def window_operands(g: Graph, batch: int) -> tuple[Instruction, Instruction, Instruction]:
    """Queries, transposed keys and values of ``batch`` images of `WINDOWS` windows of ``N`` positions."""
    q, k, v = (g.param(n, [batch * WINDOWS, N, 2, D]) for n in "qkv")
    return (
        g.op("transpose", q, permutation=(0, 2, 1, 3)),
        g.op("transpose", k, permutation=(0, 2, 3, 1)),
        g.op("transpose", v, permutation=(0, 2, 1, 3)),
    )


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
def test_masks_of_windows_are_added_to_reshaped_scores(batch: int, constant: bool) -> None:
    """Swin: (scores + bias).reshape(b, windows, h, n, n) + mask, reshaped back."""
    g = Graph()
    q, kt, v = window_operands(g, batch)
    if constant:
        bias, mask = g.random(1, 2, N, N), g.random(1, WINDOWS, 1, N, N)
    else:
        bias, mask = g.param("bias", [1, 2, N, N]), g.param("mask", [1, WINDOWS, 1, N, N])
    scores = g.op("dot", q, kt)
    lens = scores.shape.lens
    scores = g.op("add", scores, g.spread(bias, *lens))
    apart = g.op("reshape", scores, dims=(batch, WINDOWS, 2, N, N))
    scores = g.op("reshape", g.op("add", apart, g.spread(mask, *apart.shape.lens)), dims=lens)
    after = fused(g.ret(g.op("dot", g.op("softmax", scores, axis=3), v)))
    # one mask for each window and head, repeated from image to image
    assert find(after, "attention").inputs[3].shape.lens == (WINDOWS, 2, N, N)
    assert ("add" in names(after)) is not constant


def test_masks_of_windows_meet_masks_of_each_batch() -> None:
    g = Graph()
    q, kt, v = window_operands(g, 2)
    scores = g.op("dot", q, kt)
    lens = scores.shape.lens
    scores = g.op("add", scores, g.spread(g.param("own", [lens[0], 1, 1, N]), *lens))
    apart = g.op("reshape", scores, dims=(2, WINDOWS, 2, N, N))
    mask = g.spread(g.param("mask", [WINDOWS, 1, N, N]), *apart.shape.lens)
    scores = g.op("reshape", g.op("add", apart, mask), dims=lens)
    after = fused(g.ret(g.op("dot", g.op("softmax", scores, axis=3), v)))
    assert find(after, "attention").inputs[3].shape.lens == (lens[0], 1, N, N)


@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("softmax", ["with heads", "merged"])
def test_heads_merged_with_the_batch_but_for_the_mask(softmax: str, added: bool) -> None:
    """Scores [b * h, s, t] that are reshaped to [b, h, s, t] to mask them, as Transformers of before 2.0 wrote them."""
    g = Graph()
    q, kt, v = (g.op("reshape", x, dims=(B * H, *x.shape.lens[2:])) for x in operands(g))
    scores = g.op("dot", q, kt)
    apart = g.op("reshape", scores, dims=(B, H, S, T))
    mask = g.spread(g.param("mask", [B, 1, 1, T], "float" if added else "bool"), B, H, S, T)
    if added:
        apart = g.op("add", apart, mask)
    else:
        apart = g.op("where", mask, g.scalar(-np.inf, apart), apart)
    merged = [B * H, S, T]
    if softmax == "merged":
        weights = g.op("softmax", g.op("reshape", apart, dims=merged), axis=2)
    else:
        weights = g.op("reshape", g.op("softmax", apart, axis=3), dims=merged)
    mixed = g.op("reshape", g.op("dot", weights, v), dims=(B, H, S, D))
    rng = np.random.default_rng(1)
    values = {n: rng.standard_normal((B, m, H, D)).astype(np.float32) for n, m in (("q", S), ("k", T), ("v", T))}
    given = rng.standard_normal((B, 1, 1, T)).astype(np.float32)
    given = given if added else np.arange(B * T).reshape(B, 1, 1, T) % 3 == 0
    after = fused(g.ret(mixed), inputs={**values, "mask": given})
    attention = find(after, "attention")
    assert [i.shape.lens for i in attention.inputs] == [(B, H, S, D), (B, H, T, D), (B, H, T, D), (B, 1, 1, T)]
    assert "reshape" not in names(after)


def test_positions_in_rows_and_columns() -> None:
    """Segment Anything: relative positions of rows and of columns, added to scores [b * h, y, x, y, x]."""
    g = Graph()
    y, x = 2, 3
    q, k, v = g.param("q", [6, y * x, D]), g.param("k", [6, D, y * x]), g.param("v", [6, y * x, D])
    scores = g.op("dot", q, k)
    apart = g.op("reshape", scores, dims=(6, y, x, y, x))
    for name, lens in (("rows", [6, y, x, y, 1]), ("columns", [6, y, x, 1, x])):
        apart = g.op("add", apart, g.spread(g.param(name, lens), 6, y, x, y, x))
    scores = g.op("reshape", apart, dims=(6, y * x, y * x))
    after = fused(g.ret(g.op("dot", g.op("softmax", scores, axis=2), v)))
    assert find(after, "attention").inputs[3].shape.lens == (1, 6, y * x, y * x)


def test_scores_of_five_axes() -> None:
    g = Graph()
    q, k, v = (g.param(n, [2, WINDOWS, 2, *m]) for n, m in (("q", (N, D)), ("k", (D, N)), ("v", (N, D))))
    scores = g.op("dot", q, k)
    scores = g.op("add", scores, g.spread(g.param("bias", [2, N, N]), *scores.shape.lens))
    scores = g.op("add", scores, g.spread(g.param("mask", [WINDOWS, 1, N, N]), *scores.shape.lens))
    after = fused(g.ret(g.op("dot", g.op("softmax", scores, axis=4), v)))
    assert find(after, "attention").shape.lens == (2 * WINDOWS, 2, N, D)


@pytest.mark.parametrize("lens", [(H, 1, 1), (B, 1, S, 1)])
def test_a_scale_of_each_head_or_row(lens: tuple[int, ...]) -> None:
    """Swin V2 has a temperature for each head."""
    g = Graph()
    q, kt, v = operands(g)
    scores = g.op("dot", q, kt)
    scores = g.op("mul", scores, g.spread(g.param("scale", lens), B, H, S, T))
    scores = g.op("add", scores, g.spread(g.param("bias", [H, S, T]), B, H, S, T))
    after = fused(g.ret(g.op("dot", g.op("softmax", scores, axis=3), v)))
    assert find(after, "mul").shape.lens == (B, H, S, D)


def test_a_mask_below_a_scale_of_each_head_and_a_scale_of_each_key_are_refused() -> None:
    for lens in ((H, 1, 1), (T,)):
        g = Graph()
        q, kt, v = operands(g)
        scores = g.op("dot", q, kt)
        if lens != (T,):
            scores = g.op("add", scores, g.spread(g.param("bias", [H, S, T]), B, H, S, T))
        scores = g.op("mul", scores, g.spread(g.param("scale", lens), B, H, S, T))
        step = FuseAttention()
        assert "attention" not in names(check(g.ret(g.op("dot", g.op("softmax", scores, axis=3), v)), step))
        assert step.refusals("find_attention")


def test_a_choice_among_positions_in_rows_and_columns_is_not_causal() -> None:
    """Causal between the columns of one row of an image is something else than causal."""
    g = Graph()
    y, x = 1, 4
    q, k, v = g.param("q", [1, 2, y * x, D]), g.param("k", [1, 2, D, y * x]), g.param("v", [1, 2, y * x, D])
    apart = g.op("reshape", g.op("dot", q, k), dims=(1, 2, 2, 2, 2, 2))
    keep = np.tril(np.ones((2, 2), bool))
    condition = g.spread(g.lit(keep, bool), 1, 2, 2, 2, 2, 2)
    apart = g.op("where", condition, apart, g.scalar(-np.inf, apart))
    scores = g.op("reshape", apart, dims=(1, 2, 4, 4))
    after = fused(g.ret(g.op("dot", g.op("softmax", scores, axis=3), v)))
    assert not find(after, "attention").op.attributes()["causal"]


def test_guarded_weights_of_rows_without_keys() -> None:
    g = Graph()
    q, kt, v = operands(g)
    keep = np.ones((S, T), bool)
    keep[2] = False
    scores = g.op("dot", q, kt)
    scores = g.op("add", scores, g.spread(g.lit(np.where(keep, 0, -np.inf)), B, H, S, T))
    weights = g.op("softmax", scores, axis=3)
    weights = g.op("where", g.op("isnan", weights), g.scalar(0.0, weights), weights)
    after = fused(g.ret(g.op("dot", weights, v)))
    assert "isnan" not in names(after)


def test_shared_scores_weights_and_other_axes_are_refused() -> None:
    def refusal(build: Callable[[Graph, Instruction, Instruction, Instruction], list[Instruction]]) -> str:
        g = Graph()
        step = FuseAttention()
        assert "attention" not in names(check(g.ret(*build(g, *operands(g, T))), step))
        return step.refusals("find_attention")[0].reason

    def shared_scores(g: Graph, q: Instruction, kt: Instruction, v: Instruction) -> list[Instruction]:
        scores = g.op("dot", q, kt)
        return [g.op("dot", g.op("softmax", scores, axis=3), v), scores]

    def shared_weights(g: Graph, q: Instruction, kt: Instruction, v: Instruction) -> list[Instruction]:
        weights = g.op("softmax", g.op("dot", q, kt), axis=3)
        return [g.op("dot", weights, v), weights]

    def other_axis(g: Graph, q: Instruction, kt: Instruction, v: Instruction) -> list[Instruction]:
        return [g.op("dot", g.op("softmax", g.op("dot", q, kt), axis=2), v)]

    def between(g: Graph, q: Instruction, kt: Instruction, v: Instruction) -> list[Instruction]:
        return [g.op("dot", g.op("softmax", g.op("tanh", g.op("dot", q, kt)), axis=3), v)]

    assert refusal(shared_scores) == "the scores are used elsewhere too"
    assert refusal(shared_weights) == "the weights are used elsewhere too"
    assert refusal(other_axis) == "the softmax is not over keys"
    assert refusal(between) == "tanh between dot and softmax"


@pytest.mark.parametrize("type", [Type.half_type, Type.bf16_type])
@pytest.mark.parametrize("form", ["plain", "masked", "chosen", "guarded"])
def test_a_softmax_in_float32_between_products_in_16_bits(type: Type, form: str) -> None:
    g = Graph()
    q, kt, v = (g.op("convert", x, target_type=type) for x in operands(g))
    scores = g.op("convert", g.op("dot", q, kt), target_type=Type.float_type)
    if form == "masked":
        scores = g.op("add", scores, g.spread(g.param("mask", [B, 1, 1, T]), *scores.shape.lens))
    elif form == "chosen":
        keep = g.spread(g.param("keep", [S, T], "bool"), *scores.shape.lens)
        scores = g.op("where", keep, scores, g.scalar(LOWEST, scores))
    weights = g.op("softmax", scores, axis=3)
    if form == "guarded":
        weights = g.op("where", g.op("isnan", weights), g.scalar(0, weights), weights)
    result = g.op("dot", g.op("convert", weights, target_type=type), v)
    program = g.ret(g.op("convert", result, target_type=Type.float_type))
    options = Options(fast_math=True)
    rounding = 2e-3 if type is Type.half_type else 2e-2
    after = check(program, FuseAttention(), options=options, rtol=4 * rounding, atol=2 * rounding)
    attention = find(after, "attention")
    assert attention.shape.type is type and "softmax" not in names(after)
    masks = {"masked": [Type.float_type], "chosen": [Type.bool_type]}
    assert [i.shape.type for i in attention.inputs[3:]] == masks.get(form, [])


def test_products_of_different_types_stay_as_they_are() -> None:
    """FlexAttention of float16 on the target gpu: scores of 16 bits, weights and values in float32."""
    g = Graph()
    q, kt, v = operands(g)
    narrow = [g.op("convert", x, target_type=Type.half_type) for x in (q, kt)]
    scores = g.op("convert", g.op("dot", *narrow), target_type=Type.float_type)
    program = g.ret(g.op("dot", g.op("softmax", scores, axis=3), v))
    run_passes(program, [FuseAttention()], FAST, validate=True)
    assert "attention" not in names(program)
    assert any("products of half_type and of float_type" in r.reason for r in program.log.refusals())


def test_weights_in_double_are_not_rounded_on_the_way() -> None:
    g = Graph()
    q, kt, v = operands(g)
    wide = [g.op("convert", x, target_type=Type.double_type) for x in (q, kt)]
    weights = g.op("softmax", g.op("dot", *wide), axis=3)
    program = g.ret(g.op("dot", g.op("convert", weights, target_type=Type.float_type), v))
    run_passes(program, [FuseAttention()], STRICT, validate=True)
    assert "attention" not in names(program)
    assert any("weights of double_type are rounded to float_type" in r.reason for r in program.log.refusals())


def test_what_no_kernel_computes_stays_as_it_is() -> None:
    g = Graph()
    q, kt, v = operands(g)
    program = g.ret(g.op("dot", g.op("softmax", g.op("dot", q, kt), axis=3), v))
    asked = []

    def refuse(type: Type, depth: int, width: int) -> str:
        asked.append((type, depth, width))
        return "too odd"

    run_passes(program, [FuseAttention()], Options(attention_refusal=refuse), validate=True)
    assert asked == [(Type.float_type, q.shape.lens[-1], v.shape.lens[-1])] and "attention" not in names(program)
    assert any("attention of float_type: too odd" in r.reason for r in program.log.refusals())


def test_few_queries_of_keys_whose_positions_are_contiguous_stay_products() -> None:
    """The kernel for many queries took 1.3 ms for 128 heads of one query, ONNX Runtime 0.55 and two products 0.28."""
    options = pass_options(TargetOptions())
    for queries, by_features, is_fused in ((1, False, False), (8, False, False), (9, False, True), (1, True, True)):
        g = Graph()
        q, kt, v = operands(g, queries)
        kt = kt if by_features else g.param("kt", [B, H, D, T])
        after = check(g.ret(attend(g, q, kt, v)), FuseAttention(), options=options, rtol=1e-4, atol=1e-5)
        assert ("attention" in names(after)) == is_fused
