"""Products of a common input that form a gated linear unit are joined if their results have no further readers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import Options
from mgx_numba.graph.passes.fuse_contraction import FuseContraction
from mgx_numba.graph.passes.fuse_gated import FuseGated
from mgx_numba.graph.passes.fuse_pointwise import FusePointwise
from mgx_numba.graph.passes.join_gates import JoinGates
from mgx_numba.graph.program import Program
from mgx_numba.targets.gpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions

from .support import Graph, check, find, names

ROWS, DEPTH, WIDTH = 5, 6, 8


def options(joins: bool = True) -> Options:
    given = pass_options(TargetOptions())
    assert given.capabilities is not None
    can = replace(given.capabilities, joins_products=lambda _: joins, joins_halves=lambda _: True)
    return replace(given, capabilities=can)


def branch(g: Graph, x: Instruction, bias: bool, seed: int) -> Instruction:
    y = g.op("dot", x, g.random(*x.shape.lens[:-2], DEPTH, WIDTH, seed=seed))
    return g.op("add", g.spread(g.random(WIDTH, seed=seed), *y.shape.lens), y) if bias else y


def left_alone(g: Graph, *results: Instruction, joins: bool = True) -> None:
    after = check(g.ret(*results), JoinGates(), options=options(joins))
    assert names(after).count("dot") == 2 and "slice" not in names(after)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("biases", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("lens", [(ROWS, DEPTH), (2, ROWS, DEPTH)])
def test_two_products_become_one_instruction(first: bool, biases: tuple[bool, bool], lens: tuple[int, ...]) -> None:
    g = Graph()
    x = g.param("x", lens)
    gate, other = g.op("silu", branch(g, x, biases[0], 1)), branch(g, x, biases[1], 2)
    program: Program = g.ret(g.op("mul", *((gate, other) if first else (other, gate))))
    after = check(program, JoinGates(), options=options())
    assert find(after, "dot").shape.lens == (*lens[:-1], 2 * WIDTH)
    whole = check(program, JoinGates(), FuseContraction(), FusePointwise(), FuseGated(), options=options())
    assert find(whole, "fused_contraction").shape.lens == (*lens[:-1], WIDTH) and "pointwise" not in names(whole)


def test_products_of_two_inputs_stay() -> None:
    g = Graph()
    gate, other = (branch(g, g.param(n, [ROWS, DEPTH]), False, k) for k, n in enumerate("xy"))
    left_alone(g, g.op("mul", g.op("silu", gate), other))


def test_a_product_that_something_else_reads_stays() -> None:
    g = Graph()
    x = g.param("x", [ROWS, DEPTH])
    gate, other = (branch(g, x, False, k) for k in (1, 2))
    left_alone(g, g.op("mul", g.op("silu", gate), other), g.op("relu", other))


def test_a_product_with_itself_stays_one() -> None:
    g = Graph()
    y = branch(g, g.param("x", [ROWS, DEPTH]), False, 1)
    after = check(g.ret(g.op("mul", g.op("sigmoid", y), y)), JoinGates(), options=options())
    assert names(after).count("dot") == 1 and "slice" not in names(after)


def test_a_target_decides() -> None:
    g = Graph()
    x = g.param("x", [ROWS, DEPTH])
    left_alone(g, g.op("mul", g.op("silu", branch(g, x, False, 1)), branch(g, x, False, 2)), joins=False)
