"""Halves of a product's columns that are combined into one value are fused, if the product has no other reader."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import Options
from mgx_numba.graph.passes.fuse_contraction import FuseContraction
from mgx_numba.graph.passes.fuse_gated import FuseGated
from mgx_numba.graph.passes.fuse_pointwise import FusePointwise
from mgx_numba.graph.program import Program
from mgx_numba.targets.gpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions

from .support import Graph, check, find, names

ROWS, DEPTH, HALF = 5, 6, 8


def options(joins: bool = True) -> Options:
    given = pass_options(TargetOptions())
    assert given.capabilities is not None
    return replace(given, capabilities=replace(given.capabilities, joins_halves=lambda _: joins))


def product(g: Graph, *, constant: bool = True) -> Instruction:
    weights = g.random(DEPTH, 2 * HALF) if constant else g.param("w", [DEPTH, 2 * HALF])
    return g.op("dot", g.param("x", [ROWS, DEPTH]), weights)


def half(g: Graph, y: Instruction, first: int, last: int) -> Instruction:
    return g.op("slice", y, axes=[1], starts=[first], ends=[last])


def fused(program: Program, **given: bool) -> Program:
    return check(program, FuseContraction(), FusePointwise(), FuseGated(), options=options(**given))


def test_a_left_operand_that_is_added_to_its_product_had_no_name_inside() -> None:
    g = Graph()
    x = g.param("x", [ROWS, 2 * HALF])
    y = g.op("add", g.op("dot", x, g.random(2 * HALF, 2 * HALF)), x)
    a, b = half(g, y, 0, HALF), half(g, y, HALF, 2 * HALF)
    after = fused(g.ret(g.op("mul", g.op("sigmoid", a), b)))
    assert find(after, "fused_contraction").shape.lens == (ROWS, HALF) and "pointwise" not in names(after)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("gate", ["gelu_erf", "sigmoid"])
@pytest.mark.parametrize("swapped", [False, True])
def test_units_become_one_instruction(bias: bool, residual: bool, gate: str, swapped: bool) -> None:
    g = Graph()
    y = product(g)
    if bias:
        y = g.op("mul", g.op("add", y, g.spread(g.random(2 * HALF), ROWS, 2 * HALF)), g.scalar(0.5, y))
    if residual:
        y = g.op("add", y, g.param("r", [ROWS, 2 * HALF]))
    a, b = half(g, y, 0, HALF), half(g, y, HALF, 2 * HALF)
    value = g.op("mul", *((g.op(gate, a), b) if swapped else (a, g.op(gate, b))))
    after = fused(g.ret(g.op("add", value, g.scalar(0.3, value))))
    made = find(after, "fused_contraction")
    assert "pointwise" not in names(after) and made.shape.lens == (ROWS, HALF)
    body = [i.name for i in made.module_args[0]]
    assert body.count("dot") == 1 and body.count("slice") == 2 and gate in body


def test_what_is_read_besides_stays_outside() -> None:
    g = Graph()
    y = product(g)
    a, b = half(g, y, 0, HALF), half(g, y, HALF, 2 * HALF)
    after = fused(g.ret(g.op("mul", g.op("mul", a, g.op("gelu_erf", b)), g.param("other", [ROWS, HALF]))))
    assert len(find(after, "fused_contraction").inputs) == 3 and "pointwise" not in names(after)


def left_alone(g: Graph, *results: Instruction, **given: bool) -> None:
    after = fused(g.ret(*results), **given)
    assert not any(i.name == "slice" for made in after.main for body in made.module_args for i in body)


def unit(g: Graph, y: Instruction, at: int = HALF) -> Instruction:
    return g.op("mul", half(g, y, 0, HALF), g.op("gelu_erf", half(g, y, at, at + HALF)))


def test_a_product_that_something_else_reads_stays() -> None:
    g = Graph()
    y = product(g)
    left_alone(g, unit(g, y), g.op("relu", y))


def test_a_half_that_something_else_reads_stays() -> None:
    g = Graph()
    y = product(g)
    a = half(g, y, 0, HALF)
    left_alone(g, g.op("mul", a, g.op("sigmoid", half(g, y, HALF, 2 * HALF))), g.op("reduce_sum", a, axes=[1]))


def test_parts_that_are_no_halves_stay() -> None:
    g = Graph()
    left_alone(g, unit(g, product(g), HALF - 2))


def test_halves_of_rows_stay() -> None:
    g = Graph()
    y = g.op("dot", g.param("x", [2 * HALF, DEPTH]), g.random(DEPTH, 2 * HALF))
    a, b = (g.op("slice", y, axes=[0], starts=[k], ends=[k + HALF]) for k in (0, HALF))
    left_alone(g, g.op("mul", a, g.op("sigmoid", b)))


def test_weights_that_are_computed_stay() -> None:
    g = Graph()
    left_alone(g, unit(g, product(g, constant=False)))


def test_a_target_decides() -> None:
    g = Graph()
    left_alone(g, unit(g, product(g)), joins=False)
    plain = options()
    assert plain.capabilities is not None
    none = replace(plain, capabilities=replace(plain.capabilities, joins_halves=None))
    program = Graph()
    check(program.ret(unit(program, product(program))), FuseContraction(), FusePointwise(), FuseGated(), options=none)
