"""Programs with many lengths that depend on data, one after another: each is a stage of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import mgx_numba as migraphx
from mgx_numba.api.program import program as public_program
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.passes import base as passes
from mgx_numba.graph.program import Program
from mgx_numba.ops.selection import NonZero
from mgx_numba.runtime.explicit_lengths import is_explicit

from .models import FLOAT, Graph


def chain(stages: int, joined: Sequence[int] = ()) -> Any:
    """Return a model that drops the zeros of a vector and subtracts 1, many times.

    After the stages ``joined`` the sum of a table that is as long as the model's input is added, so that later stages
    have the length of the input.
    """
    g = Graph()
    one, y = g.const(np.float32(1)), "x"
    for stage in range(stages):
        positions = g.op("Squeeze", g.op("NonZero", y), g.ints(0))
        y = g.op("Sub", g.op("Gather", y, positions), one)
        if stage in joined:
            last = g.op("ReduceMax", y, keepdims=1)
            table = g.op("Expand", g.op("Mul", last, g.const(np.zeros(1, np.float32))), g.op("Shape", "x"))
            y = g.op("Add", y, g.op("ReduceSum", table, keepdims=1))
    return g.model({"x": (FLOAT, ["n"])}, [y])


def compiled(model: Any) -> migraphx.program:
    return public_program.wrap(parse_onnx(model)).compile("cpu", num_threads=1)


@pytest.mark.parametrize("joined", [(), (1, 4, 11)], ids=str)
def test_many_lengths_one_after_another_are_those_of_onnx_runtime(joined: Sequence[int]) -> None:
    model = chain(13, joined)
    net, session = compiled(model), onnxruntime.InferenceSession(model.SerializeToString())
    for x in (np.arange(40), np.arange(20)[::-1], np.ones(14), np.arange(14, 15)):
        feeds = {"x": x.astype(np.float32)}
        (found,), (expected,) = net.run(feeds), session.run(None, feeds)
        np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("x", [[], [0], [np.nan, 0, np.inf], [1, 2]], ids=str)
def test_later_stages_of_nothing_give_nothing(x: list[float]) -> None:
    feeds = {"x": np.array(x, np.float32)}
    model = chain(5)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    np.testing.assert_array_equal(np.asarray(compiled(model).run(feeds)[0]), expected)


def test_a_stage_took_the_lengths_of_all_stages_before_it() -> None:
    net = compiled(chain(8))
    told = [sum(map(is_explicit, plan.parameters)) for plan in net.compiled.own_plans()]  # type: ignore[union-attr]
    assert len(told) > 8
    assert max(told) <= 1


def test_compiling_many_stages_copied_and_read_the_whole_program_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    shape_of, run = NonZero.compute_shape, passes.run_passes

    def counted_shape(self: NonZero, *inputs: Any) -> Any:
        counts["shapes"] += 1
        return shape_of(self, *inputs)

    def counted_length(program: Program, *rest: Any, **options: Any) -> None:
        counts["passes"] += len(program.main)
        run(program, *rest, **options)

    monkeypatch.setattr(NonZero, "compute_shape", counted_shape)
    monkeypatch.setattr("mgx_numba.targets.cpu.dynamic.run_passes", counted_length)
    needed = []
    for stages in (6, 12):
        counts.clear()
        compiled(chain(stages))
        needed.append(dict(counts))
    for name, count in needed[0].items():
        assert needed[1][name] < 2.6 * count, name


DIVIDED = """<ir_version: 8, opset_import: ["": 18]>
divided (float[a,b] x, float[b,c] y, float[c] z) => (float[q] r)
<float zero = {0.0}, float[2] values = {0, 1}, int64[1] i0 = {0}, int64[1] i1 = {1}, int64[1] i4 = {4},
 int64[1] last = {-1}, int64[1] far = {1000}, bool yes = {1}, int64 one = {1}> {
  u, u1, u2, counts = Unique<sorted = 1>(x) found = Shape(u) found1 = Max(found, i1) depth = Min(found1, i4)
  places = Cast<to = 7>(y) hot = OneHot(places, depth, values)
  set = Greater(hot, zero) nz = NonZero(set) f = Cast<to = 1>(nz)
  sz = Shape(z) trips1 = Mod(sz, i4) trips = Squeeze(trips1)
  s, sums = Loop(trips, yes, f) <body = b (int64 i, bool c, float[k,l] st) => (bool co, float[k2,l2] so, float row) {
    co = Identity(c) so = Slice(st, i1, far, i0) row = ReduceSum<keepdims = 0>(so) }>
  part = Slice(sums, i0, far, last, i1) t = Transpose<perm = [1, 0]>(s) product = MatMul(s, t)
  lens = Shape(product) width = Gather(lens, i1) number = Shape(counts) more = Less(width, number) flag = Squeeze(more)
  r = If(flag) <then_branch = a () => (float[m] ra) { ra = Neg(part) },
    else_branch = b2 () => (float[m2] rb) { rb = Relu(part) }> }"""
"""A program with a stage fewer where ``x`` has no elements: the count of its distinct values is known then."""


def test_a_plan_with_other_stages_gives_no_example_lengths() -> None:
    """Lengths of values of the last plan's stages were taken for those of the new plan's, which have another rank."""
    data = parser.parse_model(DIVIDED).SerializeToString()
    session = onnxruntime.InferenceSession(data)
    compiled = public_program.wrap(parse_onnx(data)).compile("cpu")
    rng = np.random.default_rng(0)
    for a, b, c in ((2, 8, 3), (1, 1, 1), (4, 4, 4), (0, 9, 16), (3, 0, 2), (0, 3, 2), (5, 2, 2), (0, 0, 1)):
        feeds = {"x": rng.integers(0, 5, (a, b)), "y": rng.integers(0, 4, (b, c)), "z": np.zeros(c)}
        feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
        np.testing.assert_array_equal(np.asarray(compiled.run(feeds)[0]), session.run(None, feeds)[0])
