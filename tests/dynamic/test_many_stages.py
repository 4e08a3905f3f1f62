"""Programs with many lengths that depend on data, one after another: each is a stage of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest

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
