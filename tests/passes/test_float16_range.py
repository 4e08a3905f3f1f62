"""Values that would overflow in float16 stay correct on every target, for known and unknown lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.api.quantizing import truncate
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import Options, run_passes
from mgx_numba.graph.passes.float16_range import scaled_product
from mgx_numba.graph.passes.truncate_float import TruncateFloat
from mgx_numba.graph.program import Program
from mgx_numba.targets.ref.interpreter import evaluate
from mgx_numba.targets.registry import compile_for

from ..gpu.programs import compiled, interpreter
from .support import Graph, names

HALF = Type.half_type
BATCH = DynamicDimension(1, 8)


class Numbers:
    """A program of one input, whose first axis is 2, or from 1 to 8; binary operations broadcast as ONNX's do."""

    def __init__(self, lens: tuple[int, ...], dynamic: bool) -> None:
        self.g = Graph()
        self.lens = lens
        if dynamic:
            shape = Shape.dynamic(Type.float_type, [BATCH, *(DynamicDimension(n, n) for n in lens[1:])])
        else:
            shape = Shape(Type.float_type, lens)
        self.x = self.g.module.add_parameter("x", shape)

    def both(self, op: str, a: Any, b: Any) -> Instruction:
        made = [i if isinstance(i, Instruction) else self.g.lit(i) for i in (a, b)]
        if op == "dot":
            if made[0].shape.ndim != made[1].shape.ndim or made[0].shape.is_dynamic:
                made = [self.g.op("broadcast_for_dot", *made), self.g.op("broadcast_for_dot", *made[::-1])]
        elif made[0].shape.is_dynamic or made[1].shape.is_dynamic:
            made = [self.g.op("multibroadcast", *made), self.g.op("multibroadcast", *made[::-1])]
        else:
            lens = np.broadcast_shapes(*(i.shape.lens for i in made))
            made = [i if i.shape.lens == lens else self.g.spread(i, *lens) for i in made]
        return self.g.op(op, *made)

    def agree(self, result: Instruction, x: np.ndarray, rtol: float, gpu: bool = False) -> Program:
        """The results of float16 on each target and of float32 are finite and alike; returns the program in float16."""
        before = self.g.ret(result)
        after = before.clone()
        truncate(after, "fp16")
        expected = evaluate(before, {"x": x})[0]
        assert np.isfinite(expected).all()
        with np.errstate(all="ignore"):
            found = [compile_for(target, after.clone()).run({"x": x})[0] for target in ("ref", "cpu")]
        if gpu:
            found.append(compiled(after.clone(), interpreter()).run({"x": x})[0])
        for values in found:
            np.testing.assert_allclose(np.asarray(values), expected, rtol=rtol, atol=rtol * np.abs(expected).max())
        return after


def random(*lens: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(lens).astype(np.float32)


DYNAMIC = pytest.mark.parametrize("dynamic", [False, True])


@DYNAMIC
@pytest.mark.parametrize("kind", ["sub", "sqdiff", "rms", "max"])
def test_norms_of_numbers_beyond_65504(kind: str, dynamic: bool) -> None:
    n = Numbers((2, 3, 33), dynamic)
    x, g = n.x, n.g
    if kind == "max":
        apart = n.both("sub", x, g.op("reduce_max", x, axes=(2,)))
        value = g.op("tanh", n.both("mul", apart, np.float32(1e-5)))
    elif kind == "rms":
        variance = g.op("reduce_mean", g.op("mul", x, x), axes=(2,))
        value = n.both("div", x, g.op("sqrt", variance))
    else:
        mean = g.op("reduce_mean", x, axes=(2,))
        apart = n.both("sub", x, mean)
        squares = n.both("sqdiff", x, mean) if kind == "sqdiff" else g.op("mul", apart, apart)
        variance = n.both("add", g.op("reduce_mean", squares, axes=(2,)), np.float32(1e-5))
        value = n.both("mul", apart, g.op("rsqrt", variance))
    result = n.both("add", n.both("mul", value, random(33)), random(33, seed=4))
    n.agree(result, random(2, 3, 33) * 3e4 + 1e5, 4e-3, gpu=not dynamic)


def test_what_a_norm_made_small_is_scaled_in_float16() -> None:
    n = Numbers((2, 33), False)
    variance = n.g.op("reduce_mean", n.g.op("mul", n.x, n.x), axes=(1,))
    scaled = n.both("max", n.both("div", n.x, n.g.op("sqrt", variance)), random(33))
    after = n.agree(scaled, random(2, 33), 4e-3)
    found = {ins.name: ins.shape.type for ins in after.main}
    assert found["rsqrt"] is found["mul"] is Type.float_type and found["max"] is HALF


@DYNAMIC
@pytest.mark.parametrize("op", ["mul", "div"])
@pytest.mark.parametrize("views", [False, True])
def test_scores_beyond_65504(op: str, views: bool, dynamic: bool) -> None:
    n = Numbers((2, 5, 16), dynamic)
    scores = n.both("dot", n.both("dot", n.x, random(16, 16)), n.g.op("transpose", n.x, permutation=(0, 2, 1)))
    if views:
        scores = n.g.op("unsqueeze", scores, axes=(1,))
    scaled = n.both(op, scores, np.float32(1e-4 if op == "mul" else 1e4))
    if views:
        scaled = n.g.op("squeeze", scaled, axes=(1,))
    result = n.both("dot", n.g.op("softmax", scaled, axis=2), n.x)
    after = n.agree(result, random(2, 5, 16) * 300, 1e-2, gpu=not dynamic and not views)
    assert [i.shape.type for i in after.main if i.name == "dot"] == [HALF] * 3


def test_scores_that_something_else_takes_are_not_scaled_first() -> None:
    g = Graph()
    q, k = g.param("q", [2, 3, 4]), g.param("k", [2, 4, 5])
    for viewed in (False, True):
        dot = g.op("dot", q, k)
        scores = g.op("reshape", dot, dims=(6, 5)) if viewed else dot
        scaled = g.op("mul", scores, g.scalar(0.5, scores))
        assert scaled_product(scaled) == (dot, scores, np.float32(0.5))
        g.op("abs", dot)
        assert scaled_product(scaled) is None


@DYNAMIC
@pytest.mark.parametrize(
    "first, second",
    [
        (np.float32(1e5), np.float32(1e-5)),
        (np.float32(1e-9), np.float32(1e9)),
        (np.linspace(1e5, 2e5, 7, dtype=np.float32), np.linspace(1e-5, 2e-5, 7, dtype=np.float32)),
        (np.linspace(1e-9, 2e-9, 7, dtype=np.float32), np.linspace(1e9, 2e9, 7, dtype=np.float32)),
    ],
    ids=["large", "small", "large vector", "small vector"],
)
def test_constants_beyond_the_range(first: np.ndarray, second: np.ndarray, dynamic: bool) -> None:
    n = Numbers((2, 7), dynamic)
    result = n.both("mul", n.g.op("relu", n.both("mul", n.x, first)), second)
    n.agree(result, random(2, 7), 2e-3, gpu=not dynamic)


@DYNAMIC
@pytest.mark.parametrize("size", [1e6, 1e-6])
def test_weights_beyond_the_range(size: float, dynamic: bool) -> None:
    n = Numbers((2, 7), dynamic)
    value = n.both("dot", n.x, random(7, 9) * np.float32(size))
    result = n.both("mul", n.g.op("relu", value), np.float32(1 / size))
    n.agree(result, random(2, 7), 4e-3, gpu=not dynamic)


@DYNAMIC
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, 1e-10])
def test_constants_that_lose_nothing(odd: float, dynamic: bool) -> None:
    """Infinities, NaN, and numbers that vanish in sums with larger numbers."""
    n = Numbers((2, 3), dynamic)
    value = n.both("mul", n.x, np.array([0.5, odd, 1.0], np.float32))
    program = n.g.ret(n.both("add", n.g.op("relu", value), np.array([1e-10, 0.0, 1e-9], np.float32)))
    run_passes(program, [TruncateFloat(), "optimize_module"], Options(), validate=True)
    assert {i.shape.type for i in program.main if i.name in ("mul", "relu", "add")} == {HALF}


@DYNAMIC
def test_the_pass_changes_nothing_when_run_again(dynamic: bool) -> None:
    n = Numbers((2, 3), dynamic)
    mean = n.g.op("reduce_mean", n.x, axes=(1,))
    program = n.g.ret(n.both("add", n.both("mul", n.both("sub", n.x, mean), random(3)), np.float32(1e5)))
    texts = []
    for _ in range(2):
        run_passes(program, [TruncateFloat(), "optimize_module"], Options(), validate=True)
        texts.append(str(program))
    assert texts[0] == texts[1] and "sub" in names(program)


def test_an_empty_value() -> None:
    n = Numbers((0, 3), False)
    mean = n.g.op("reduce_mean", n.x, axes=(1,))
    program = n.g.ret(n.both("mul", n.both("sub", n.x, mean), np.zeros((0, 3), np.float32)))
    run_passes(program, [TruncateFloat()], Options(), validate=True)
    assert evaluate(program, {"x": np.zeros((0, 3), np.float32)})[0].shape == (0, 3)


def test_a_product_of_any_batch_that_is_kept_sees_no_rounded_values() -> None:
    n = Numbers((2, 3, 5), True)
    program = n.g.ret(n.both("dot", n.g.op("relu", n.x), random(5, 4)))
    kept = [ins for ins in program.main if ins.name == "dot"]
    run_passes(program, [TruncateFloat(kept=kept), "optimize_module"], Options(), validate=True)
    assert all(ins.shape.type is Type.float_type for ins in program.main if ins.name != "@return")
