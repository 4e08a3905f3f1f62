"""All passes in the order of a target, on models of every kind and on random programs."""

from __future__ import annotations

import numpy as np
import pytest

from bench.models import MODELS, build, inputs
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import run_passes
from mgx_numba.graph.program import Program
from mgx_numba.targets.passes import PASSES
from mgx_numba.targets.ref.interpreter import evaluate

from .support import FAST, STRICT, Graph, assert_same, check, flat, names, random_inputs

BEFORE_FUSION = PASSES[: PASSES.index("fuse_contraction")]
"""The passes before fusion, which keep operators countable."""

EXPECTED: dict[str, dict[str, int]] = {
    "bert": {"attention": 2, "gelu_erf": 2, "dot": 9},
    "gpt2": {"attention": 2, "gelu_tanh": 2, "dot": 9},
    "vit": {"attention": 2, "gelu_erf": 2, "dot": 9},
    "mobilenet_v2": {"layout": 1, "mul": 0},
    "efficientnet_b0": {"layout": 1, "reduce_mean": 6},
    "unet": {"layout": 1, "mul": 0},
    "yolo": {"layout": 1, "resize": 0},
    "lstm": {"lstm": 0},
    "gru": {"gru": 0},
    "crnn": {"lstm": 0},
}
ROUNDING = frozenset({"mul", "gelu_erf", "gelu_tanh"})
"""Operators whose number depends on rules that change rounding, so on fast_math."""


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_models_keep_their_values(name: str, fast: bool) -> None:
    model = build(name, batch=2, scale="tiny")
    program = parse_onnx(model)
    after = program.clone()
    run_passes(after, BEFORE_FUSION, FAST if fast else STRICT, validate=True)
    run_passes(program, ["merge_rnn_outputs"])
    values = inputs(name, model)
    for expected, actual in zip(flat(evaluate(program, values)), flat(evaluate(after, values)), strict=True):
        assert expected.shape == actual.shape and expected.dtype == actual.dtype
        largest = float(np.abs(expected).max()) if expected.size else 0.0
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * largest)
    found, expected_counts = names(after), EXPECTED.get(name, {})
    for op, count in expected_counts.items():
        assert (found.count(op) == count) is (fast or op not in ROUNDING), op
    again = after.clone()
    run_passes(again, BEFORE_FUSION, FAST if fast else STRICT, validate=True)
    assert str(again) == str(after)


def random_program(rng: np.random.Generator) -> Program:
    """Pointwise operations, broadcasts, reductions and dots over random values and constants."""
    g = Graph()
    m, n = (int(v) for v in rng.integers(1, 5, 2))
    pool = [g.param("x", [m, n]), g.param("y", [m, n])]
    for _ in range(int(rng.integers(3, 14))):
        pool.append(random_step(g, pool, rng, m, n))
    return g.ret(*pool[-2:])


def random_step(g: Graph, pool: list[Instruction], rng: np.random.Generator, m: int, n: int) -> Instruction:
    def pick() -> Instruction:
        return pool[int(rng.integers(max(0, len(pool) - 4), len(pool)))]

    x = pick()
    kind = rng.integers(8)
    if kind == 0:
        return g.op(str(rng.choice(["relu", "neg", "abs", "tanh", "sigmoid", "exp", "sqrt", "recip"])), x)
    if kind == 1:
        return g.op(str(rng.choice(["add", "sub", "mul", "div", "max", "min"])), x, pick())
    if kind == 2:
        value = float(rng.choice([0.0, 1.0, -1.0, 2.0, 0.5, 3.0]))
        operands = [x, g.scalar(value, x)]
        if rng.integers(2):
            operands.reverse()
        return g.op(str(rng.choice(["add", "sub", "mul", "div", "pow"])), *operands)
    if kind == 3:
        lens = [(1, n), (m, 1), (n,)][int(rng.integers(3))]
        return g.op(
            str(rng.choice(["add", "mul", "sub"])), x, g.spread(g.random(*lens, seed=int(rng.integers(99))), m, n)
        )
    if kind == 4:
        axis = int(rng.integers(2))
        reduced = g.op(str(rng.choice(["reduce_sum", "reduce_max", "reduce_mean"])), x, axes=(axis,))
        return g.op(str(rng.choice(["sub", "add", "mul"])), x, g.spread(reduced, m, n))
    if kind == 5:
        return g.op("dot", x, g.random(n, n, seed=int(rng.integers(99))))
    if kind == 6:
        turned = g.op("transpose", x, permutation=(1, 0))
        return g.op("transpose", g.op("relu", turned), permutation=(1, 0))
    return g.op("softmax", x, axis=int(rng.integers(2)))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("special", [False, True])
def test_random_programs_keep_their_values(seed: int, special: bool) -> None:
    rng = np.random.default_rng([seed, special])
    for _ in range(8):
        program = random_program(rng)
        after = program.clone()
        run_passes(after, BEFORE_FUSION, validate=True)
        for k in range(2):
            values = random_inputs(program, k, special, low=0.1)
            with np.errstate(all="ignore"):
                expected, actual = evaluate(program, values), evaluate(after, values)
            assert_close_where_stable(expected, actual)


def assert_close_where_stable(expected: list[np.ndarray], actual: list[np.ndarray]) -> None:
    """Equal up to rounding; sums that cancel or overflow may differ at the scale of the largest finite value."""
    for a, b in zip(flat(expected), flat(actual), strict=True):
        finite = np.isfinite(a)
        scale = float(np.abs(a[finite]).max()) if finite.any() else 0.0
        if scale > 1e30:
            continue
        np.testing.assert_array_equal(np.isnan(b), np.isnan(a))
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4 * max(scale, 1.0))


def test_half_precision_programs_keep_their_values() -> None:
    g = Graph()
    x = g.param("x", [4, 8], "half")
    w = g.lit(np.random.default_rng(0).uniform(-1, 1, (8, 8)), np.float16)
    y = g.op("dot", x, w)
    y = g.op("mul", g.op("add", y, g.scalar(0.25, y)), g.scalar(2.0, y))
    y = g.op("softmax", g.op("div", y, g.scalar(3.0, y)), axis=1)
    # The weights that are left in 16 bits would be folded if constants were folded once more.
    after = check(g.ret(y), *map_passes(), rtol=5e-3, atol=2e-3, idempotent=False)
    assert "softmax" not in names(after)


def map_passes() -> list:
    from mgx_numba.graph.passes.base import make_pass

    return [make_pass(name) for name in BEFORE_FUSION]


def test_a_module_without_return_is_left_valid() -> None:
    g = Graph()
    x = g.param("x", [3])
    g.op("mul", g.op("add", g.op("identity", x), g.scalar(0.0, x)), g.scalar(1.0, x))
    run_passes(g.program, BEFORE_FUSION, validate=True)
    values = random_inputs(g.program)
    assert_same([values["x"]], evaluate(g.program, values))
