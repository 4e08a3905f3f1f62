"""Attention of a decoder's step that computes rotary embeddings and writes the new rows of its caches itself."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.gpu.machine import H200, planning_for
from mgx_numba.core.dim import evaluate
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import reference
from .programs import compiled, interpreter, labels
from .symbolic import SymbolicPlan, open_shape

TYPES = {"float16": Type.half_type, "bfloat16": Type.bf16_type}


def rotated(
    m: Module, x: Instruction, angles: list[Instruction], size: int, rotary: int, norm: bool, pairs: bool
) -> Instruction:
    """Return x [b, h, s, size] with its first ``rotary`` features turned: ``pairs`` of neighbours, or in halves."""
    if norm:
        scale = m.add_instruction("reduce_mean", [m.add_instruction("mul", [x, x])], axes=(3,))
        x = m.add_instruction("div", [x, multibroadcast(m, m.add_instruction("sqrt", [scale]), x)])
    ends = (0, rotary // 2, rotary, size)
    a, b, rest = (
        m.add_instruction("slice", [x], axes=(3,), starts=(i,), ends=(j,)) if i < j else None for i, j in pairwise(ends)
    )
    assert a is not None and b is not None
    if pairs:
        lens = x.shape.lens[:3]
        whole = x if rest is None else m.add_instruction("slice", [x], axes=(3,), starts=(0,), ends=(rotary,))
        whole = m.add_instruction("reshape", [whole], dims=(*lens, rotary // 2, 2))
        a, b = (
            m.add_instruction("reshape", [own], dims=(*lens, rotary // 2))
            for own in (m.add_instruction("slice", [whole], axes=(4,), starts=(k,), ends=(k + 1,)) for k in (0, 1))
        )
    cos, sin = (multibroadcast(m, angle, a) for angle in angles)

    def times(x: Instruction, y: Instruction) -> Instruction:
        return m.add_instruction("mul", [x, y])

    first = m.add_instruction("sub", [times(a, cos), times(b, sin)])
    second = m.add_instruction("add", [times(b, cos), times(a, sin)])
    if pairs:
        apart = [m.add_instruction("unsqueeze", [own], axes=(4,)) for own in (first, second)]
        first = m.add_instruction("concat", apart, axis=4)
        first = m.add_instruction("reshape", [first], dims=(*x.shape.lens[:3], rotary))
        return first if rest is None else m.add_instruction("concat", [first, rest], axis=3)
    return m.add_instruction("concat", [first, second, *([] if rest is None else [rest])], axis=3)


def multibroadcast(m: Module, x: Instruction, like: Instruction) -> Instruction:
    if like.shape.is_dynamic:
        return m.add_instruction("multibroadcast", [x, like])
    return m.add_instruction("multibroadcast", [x], out_lens=like.shape.lens)


def layer(
    b: int | str, s: int | str, t: int | str, kind: str, heads: int = 4, shared: int = 2, size: int = 32,
    rotary: int = 0, norm: bool = False, twice: bool = False, pairs: bool = False, **options: Any,
) -> Program:  # fmt: skip
    """Return attention of a packed projection [b, s, (heads + 2 shared) size] to two caches, which are results, too.

    ``twice``: the rotated queries are a result.
    """
    program, type = Program(), TYPES[kind]
    m = program.main
    packed = m.add_parameter("x", open_shape(type, b, s, heads + 2 * shared, size))
    angles = [m.add_parameter(n, open_shape(type, b, 1, s, (rotary or size) // 2)) for n in ("cos", "sin")]
    places = m.add_parameter("places", open_shape(Type.int64_type, b, s))
    limits = m.add_parameter("limits", open_shape(Type.int64_type, b, 2))
    caches = [m.add_parameter(n, open_shape(type, b, shared, t, size)) for n in ("keys", "values")]
    turned = m.add_instruction("transpose", [packed], permutation=(0, 2, 1, 3))
    ends = (0, heads, heads + shared, heads + 2 * shared)
    q, k, v = (m.add_instruction("slice", [turned], axes=(1,), starts=(i,), ends=(j,)) for i, j in pairwise(ends))
    q, k = (rotated(m, x, angles, size, rotary or size, norm, pairs) for x in (q, k))
    own = [m.add_instruction("update_cache", [cache, x, places]) for cache, x in zip(caches, (k, v))]
    mixed = m.add_instruction("cached_attention", [q, *own, limits], scale=size**-0.5, **options)
    m.add_return([mixed, *own, *([q] if twice else [])])
    return program


def feeds_of(program: Program, b: int, s: int, t: int, starts: list[int], seed: int = 0) -> dict[str, np.ndarray]:
    """Return inputs for new tokens from positions ``starts`` on; rows of the caches behind them are NaN."""
    rng = np.random.default_rng(seed)
    lengths, feeds = {"b": b, "s": s, "t": t}, {}
    for name, shape in program.parameter_shapes().items():
        dims = shape.dyn_dims if shape.is_dynamic else ()
        lens = [lengths[d.symbol] if d.symbol else d.min for d in dims] or list(shape.lens)
        feeds[name] = rng.standard_normal(lens).astype(shape.type.numpy)
    begin = np.array(starts)[:, None]
    feeds["places"] = (begin + np.arange(s)).astype(np.int64)
    feeds["limits"] = np.concatenate([begin, np.minimum(begin + s, t)], 1).astype(np.int64)
    for row, start in enumerate(starts):
        for name in ("keys", "values"):
            feeds[name][row, :, max(start, 0) :] = np.nan
    feeds["limits"] = np.maximum(feeds["limits"], 0)
    return feeds


def agree(found: list[Any], wanted: list[Any], kind: str) -> None:
    for got, right in zip(found, wanted, strict=True):
        tolerance = 4e-3 if kind == "float16" else 3e-2
        np.testing.assert_allclose(
            np.asarray(got, np.float32), np.asarray(right, np.float32), atol=tolerance, rtol=tolerance
        )


def absorbed(names: list[str]) -> list[str]:
    """Return the names of the launches that remain beside attention that writes the cache rows."""
    assert sum("attention_of_new_rows" in name for name in names), names
    own = [part for name in names for part in name.split("+")]
    return [n for n in own if not any(word in n for word in ("attention", "cache_copy", "last_rows", "clear"))]


CASES: dict[str, tuple[dict[str, Any], int, list[int]]] = {
    "one part": ({}, 40, [5, 39]),
    "the first position": ({}, 40, [0, 1]),
    "several parts": ({}, 700, [699, 300]),
    "rows that are not written": ({}, 300, [-1, 300]),
    "window": ({"window": 9}, 600, [599, 4]),
    "bidirectional": ({"causal": False}, 300, [299, 7]),
    "a head for each query head": ({"shared": 4}, 100, [99, 31]),
    "wide": ({"size": 128, "heads": 8}, 300, [255, 256]),
    "narrow halves": ({"size": 8}, 100, [63, 64]),
    "partial rotary": ({"rotary": 16}, 100, [63, 64]),
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_one_launch_computes_what_surrounds_attention(
    case: str, kind: str, on: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, t, starts = CASES[case]
    if on is interpreter():
        monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    program = layer(2, 1, t, kind, **options)
    made = compiled(program, on, fast_math=kind == "float16")
    others = absorbed(labels(made))
    assert not others
    for seed in (0, 1):
        feeds = feeds_of(program, 2, 1, t, starts, seed)
        agree(made.run(feeds), reference(program, feeds).results, kind)


@pytest.mark.parametrize("case", ["norm", "twice", "pairs"])
def test_results_that_others_read_are_computed_apart(case: str, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm before the rotary embedding stays a launch; so do queries that are a result, and turned neighbours, which
    are copied to their places."""
    if on is interpreter():
        monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    program = layer(2, 1, 90, "float16", **{case: True})  # type: ignore[arg-type]
    made = compiled(program, on, fast_math=True)
    assert absorbed(labels(made))
    feeds = feeds_of(program, 2, 1, 90, [5, 89])
    agree(made.run(feeds), reference(program, feeds).results, "float16")


def test_caches_that_others_read_are_written_before(on: Engine) -> None:
    program = layer(2, 1, 90, "float16")
    m = program.main
    keys = next(ins for ins in m if ins.name == "update_cache")
    (_, *rest) = m.results()
    mixed = next(ins for ins in m if ins.name == "cached_attention")
    m.replace_return([m.add_instruction("relu", [keys]), mixed, *rest])
    made = compiled(program, on, fast_math=True)
    assert not any("of_new_rows" in name for name in labels(made))
    feeds = feeds_of(program, 2, 1, 90, [5, 89])
    agree(made.run(feeds), reference(program, feeds).results, "float16")


def test_rows_are_written_at_any_number_of_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for several queries served one query of 17 sequences, whose blocks are not split: no row was written."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    with planning_for(H200):
        program = layer("b", "s", "t", "float16", heads=8, shared=8, size=16)
        made = SymbolicPlan(program, fast_math=True)
        for b in (1, 17):
            feeds = feeds_of(program, b, 1, 300, [299 - n for n in range(b)])
            agree(made.run(feeds), reference(program, feeds).results, "float16")


def test_open_lengths_have_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one query nothing else is launched; with more queries everything stays as it is."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    program = layer("b", "s", "t", "float16")
    made = SymbolicPlan(program, fast_math=True)
    assert any("of_new_rows" in name for name in made.labels), made.labels
    writing = [step for step in made.plan.steps if step.label == "gpu::cache_rows_kernel"]
    assert writing
    for b, s, t, starts in ((2, 1, 40, [3, 39]), (2, 3, 40, [3, 37]), (1, 1, 700, [650]), (1, 40, 64, [0])):
        feeds = feeds_of(program, b, s, t, starts, s)
        agree(made.run(feeds), reference(program, feeds).results, "float16")
        launched = [evaluate(step.geometry.blocks[0], made.values(feeds)) for step in writing]
        assert all(launched) if s > 1 else not any(launched), launched
