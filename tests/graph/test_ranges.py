"""Computed values are within the spans of value-range analysis."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.program import Program
from mgx_numba.graph.ranges import Ranges
from mgx_numba.targets.ref.interpreter import evaluate

FLOATS = [Type.float_type, Type.double_type, Type.half_type, Type.bf16_type]
UNARY = ("abs", "exp", "sqrt", "sigmoid", "relu", "neg", "recip", "tanh")
BINARY = ("add", "sub", "mul", "max", "min", "div")
REDUCTIONS = ("reduce_max", "reduce_min", "reduce_mean", "reduce_sum")


def random_values(type: Type, rng: np.random.Generator) -> tuple[Program, dict[str, np.ndarray]]:
    """Chains of operations on an input with NaN and infinities, and on constants; all values are results."""
    program = Program()
    main = program.main
    lens = (3, 4)
    x = main.add_parameter("x", Shape(type, lens))
    values: list[Instruction] = [x]
    for scale in (1.0, 1e-3, 3e4):
        table = (rng.uniform(0.5, 2, lens) * scale * rng.choice([-1, 1])).astype(type.numpy)
        values.append(main.add_literal(table))
        single = main.add_literal(np.asarray(rng.uniform(-2, 2) * scale).astype(type.numpy))
        values.append(main.add_instruction("multibroadcast", [single], out_lens=lens))
    for _ in range(20):
        kind = rng.integers(4)
        a, b = (values[k] for k in rng.integers(len(values), size=2))
        if kind == 0:
            values.append(main.add_instruction(str(rng.choice(UNARY)), [a]))
        elif kind == 1:
            reduced = main.add_instruction(str(rng.choice(REDUCTIONS)), [a], axes=[int(rng.integers(2))])
            values.append(main.add_instruction("multibroadcast", [reduced], out_lens=lens))
        elif kind == 2:
            low = main.add_instruction("min", [a, b])
            values.append(main.add_instruction("clip", [values[0], low, a]))
        else:
            values.append(main.add_instruction(str(rng.choice(BINARY)), [a, b if rng.integers(2) else a]))
    main.add_return(values)
    array = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -7.5, 6e4, 1e-7], lens).astype(type.numpy)
    return program, {"x": array}


@pytest.mark.parametrize("type", FLOATS, ids=lambda t: t.name)
def test_floats_lie_within_their_spans_and_may_be_nan(type: Type) -> None:
    rng = np.random.default_rng(7)
    told = 0
    for _ in range(60):
        program, inputs = random_values(type, rng)
        ranges = Ranges()
        for ins, array in zip(program.main.results(), evaluate(program, inputs), strict=True):
            span = ranges.span(ins)
            wide = np.asarray(array).astype(np.float64)
            wide = wide[~np.isnan(wide)]
            told += not (math.isinf(span.low) and math.isinf(span.high))
            assert ((span.low <= wide) & (wide <= span.high)).all(), (str(program), str(ins), span)
    assert told > 300


def test_a_mean_of_many_lies_within_what_rounding_adds() -> None:
    program = Program()
    x = program.main.add_literal(np.full((1, 100_003), 0.1, np.float32))
    y = program.main.add_instruction("reduce_mean", [program.main.add_instruction("abs", [x])], axes=[1])
    program.main.add_return([y])
    span, (mean,) = Ranges().span(y), evaluate(program, {})
    assert 0.09 < span.low <= float(np.cumsum(np.full(100_003, 0.1, np.float32))[-1] / np.float32(100_003)) <= span.high
    assert span.low <= float(mean[0, 0]) <= span.high < 0.11


def test_what_becomes_of_nan_bounds_a_maximum() -> None:
    """Kernels may give the other operand of a maximum where one is NaN."""
    program = Program()
    x = program.main.add_parameter("x", Shape(Type.float_type, (2,)))
    three, one = (program.main.add_literal(np.full(2, v, np.float32)) for v in (3, 1))
    inner = program.main.add_instruction("max", [x, three])
    assert Ranges().span(inner).low == 3
    assert Ranges().span(program.main.add_instruction("max", [inner, one])).low == 1


@pytest.mark.parametrize("low, high", [(-math.inf, math.inf), (math.inf, math.inf), (-math.inf, -math.inf)])
def test_sums_of_infinities_say_nothing(low: float, high: float) -> None:
    program = Program()
    a = program.main.add_literal(np.array([low, high], np.float32))
    b = program.main.add_literal(np.array([-low, -high], np.float32))
    span = Ranges().span(program.main.add_instruction("add", [a, b]))
    assert (span.low, span.high) == (-math.inf, math.inf)


def test_reductions_of_nothing_say_nothing() -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape(Type.float_type, (2, 0)))
    positive = program.main.add_instruction("exp", [x])
    for name in REDUCTIONS:
        assert Ranges().span(program.main.add_instruction(name, [positive], axes=[1])).low == -math.inf
