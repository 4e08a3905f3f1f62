"""Zero points become operands of fused operators: values are unchanged, and layers share submodules' texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.passes.base import Options
from mgx_numba.graph.passes.lift_constants import LiftConstants
from mgx_numba.graph.program import Program
from mgx_numba.graph.validate import validate
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import reference
from .programs import compiled

F32 = Type.float_type


def spread(m: Any, value: Any, dtype: Any, lens: tuple[int, ...]) -> Any:
    return m.add_instruction("multibroadcast", [m.add_literal(np.array([value], dtype))], out_lens=lens)


def quantised_norm(points: tuple[int, ...], dtype: Any, lens: tuple[int, ...] = (3, 40)) -> Program:
    """Values less their mean, in 8 bits, with several zero points."""
    program = Program()
    m = program.main
    x = m.add_parameter("x", Shape(F32, lens))
    mean = m.add_instruction("reduce_mean", [x], axes=(1,))
    less = m.add_instruction("sub", [x, m.add_instruction("multibroadcast", [mean], out_lens=lens)])
    made = [
        m.add_instruction("quantizelinear", [less, spread(m, 0.0371, np.float32, lens), spread(m, p, dtype, lens)])
        for p in points
    ]
    m.add_return(made)
    return program


def quantised_sums(point: int, dtype: Any) -> Program:
    program, rng = Program(), np.random.default_rng(0)
    m = program.main
    x = m.add_parameter("x", Shape(F32, (5, 32)))
    sums = m.add_instruction("dot", [x, m.add_literal(rng.standard_normal((32, 24)).astype(np.float32))])
    lens = sums.shape.lens
    operands = [sums, spread(m, 0.113, np.float32, lens), spread(m, point, dtype, lens)]
    m.add_return([m.add_instruction("quantizelinear", operands)])
    return program


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("make", [lambda p, d: quantised_norm((p, p + 9), d), quantised_sums])
def test_values_stay_and_kernels_are_shared(make: Any, dtype: Any, on: Engine) -> None:
    texts = set()
    for point in (3, 101):
        program = make(point, dtype)
        (given,) = program.parameter_shapes().values()
        x = np.random.default_rng(point).uniform(-9, 9, given.lens).astype(np.float32)
        x.reshape(-1)[[1, 40]] = np.nan, np.inf
        x[-1] = np.random.default_rng(1).uniform(-1, 1, given.lens[1])
        made = compiled(program, on, fast_math=True)
        for got, wanted in zip(made.run({"x": x}), reference(program, {"x": x}).results):
            off = np.abs(np.asarray(got).astype(int) - wanted)
            assert off[np.isfinite(x).all(axis=1)].max() <= 1, off
            assert (off[np.isfinite(x).all(axis=1)] > 0).mean() < 0.02
        texts.add(tuple(sorted(kernel.text for kernel in made.kernels())))
    assert len(texts) == 1


def lifted(number: float, type: Type = Type.uint8_type) -> bool:
    """Whether a number that is added in a pointwise submodule becomes an operand; the program stays valid."""
    program = Program()
    m, body = program.main, program.create_module("main:pointwise0")
    given = body.add_parameter("x0", Shape(F32))
    near = body.add_instruction("nearbyint", [given])
    total = body.add_instruction("add", [near, body.add_literal(np.float32(number))])
    body.add_return([body.add_instruction("convert", [total], target_type=type)])
    x = m.add_parameter("x", Shape(F32, (4, 3)))
    m.add_return([m.add_instruction("pointwise", [x], [body])])
    LiftConstants().run(program, Options())
    again = str(program)
    LiftConstants().run(program, Options())
    assert str(program) == again
    validate(program)
    return len(body.parameters()) == 2


def test_what_is_no_number_of_8_bits_stays() -> None:
    assert lifted(131) and lifted(0) and lifted(-128, Type.int8_type)
    assert not lifted(256) and not lifted(-1) and not lifted(2.5) and not lifted(131, Type.int8_type)
    assert not lifted(3, Type.int32_type) and not lifted(3, Type.fp8e4m3fn_type)


def test_types_that_share_a_sum_have_an_operand_each() -> None:
    program = Program()
    m, body = program.main, program.create_module("main:pointwise0")
    near = body.add_instruction("nearbyint", [body.add_parameter("x0", Shape(F32))])
    total = body.add_instruction("add", [near, body.add_literal(np.float32(5))])
    kinds = (Type.int8_type, Type.uint8_type)
    body.add_return([body.add_instruction("convert", [total], target_type=kind) for kind in kinds])
    pair = m.add_instruction("pointwise", [m.add_parameter("x", Shape(F32, (4, 3)))], [body])
    m.add_return([m.add_instruction("get_tuple_elem", [pair], index=k) for k in range(2)])
    x = np.random.default_rng(0).uniform(-300, 300, (4, 3)).astype(np.float32)
    wanted = reference(program, {"x": x}).results
    LiftConstants().run(program, Options())
    validate(program)
    assert [p.shape.type for p in body.parameters()] == [F32, *kinds]
    for got, one in zip(reference(program, {"x": x}).results, wanted, strict=True):
        np.testing.assert_array_equal(got, one)


def test_names_of_parameters_are_not_taken_twice() -> None:
    """Bodies of reductions in parts have other names: a second ``x1`` was an error."""
    program = Program()
    m, body = program.main, program.create_module("main:pointwise0")
    near = body.add_instruction("nearbyint", [body.add_parameter("x1", Shape(F32))])
    total = body.add_instruction("add", [near, body.add_literal(np.float32(5))])
    body.add_return([body.add_instruction("convert", [total], target_type=Type.int8_type)])
    m.add_return([m.add_instruction("pointwise", [m.add_parameter("x", Shape(F32, (4, 3)))], [body])])
    LiftConstants().run(program, Options())
    validate(program)
    assert len(body.parameters()) == 2
