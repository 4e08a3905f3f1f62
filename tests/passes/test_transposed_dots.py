"""Layers over another axis than the last, written between two transposes, multiply from the left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.eliminate_common_subexpression import EliminateCommonSubexpression
from mgx_numba.graph.passes.simplify_reshapes import SimplifyReshapes
from mgx_numba.graph.program import Program

from .support import Graph, check, names

SWAP = (0, 2, 1)


def left(program: Program, **options: Any) -> list[str]:
    """Return the operators that are left of a program, after checking its values."""
    after = check(program, EliminateCommonSubexpression(), SimplifyReshapes(), rtol=1e-4, atol=1e-4, **options)
    return names(after, views=True)


def layer(g: Graph, x: Instruction, columns: int, seed: int) -> Instruction:
    weights = g.spread(g.random(x.shape.lens[-1], columns, seed=seed), *x.shape.lens[:-2], x.shape.lens[-1], columns)
    y = g.op("dot", x, weights)
    return g.op("add", y, g.spread(g.random(columns, seed=seed + 50), *y.shape.lens))


def tokens(between: Callable[[Graph, Instruction], Instruction], lens: tuple[int, ...] = (2, 5, 3)) -> Program:
    g = Graph()
    y = between(g, layer(g, g.op("transpose", g.param("x", lens), permutation=SWAP), 4, 1))
    return g.ret(g.op("transpose", y, permutation=SWAP))


def gelu(g: Graph, x: Instruction) -> Instruction:
    return g.op("mul", x, g.op("add", g.op("erf", g.op("mul", x, g.scalar(0.7, x))), g.scalar(1, x)))


PLAIN: dict[str, Callable[[Graph, Instruction], Instruction]] = {
    "nothing": lambda g, y: y,
    "GELU": gelu,
    "a second layer": lambda g, y: layer(g, gelu(g, y), 6, 2),
    "a transposed operand": lambda g, y: g.op("mul", g.op("transpose", g.param("u", (2, 4, 3)), permutation=SWAP), y),
}


@pytest.mark.parametrize("lens", [(2, 5, 3), (2, 1, 3), (2, 0, 3)])
@pytest.mark.parametrize("name", PLAIN)
def test_a_transpose_cancels_a_later_one(name: str, lens: tuple[int, ...]) -> None:
    found = left(tokens(PLAIN[name], lens), special=lens[1] != 0)
    assert found.count("dot") == 1 + (name == "a second layer")
    assert "transpose" not in found or 1 in lens  # a transpose of one row is a reshape, which cancels nothing


def test_values_are_moved_exactly() -> None:
    assert "transpose" not in left(tokens(PLAIN["a second layer"], (3, 40, 30)))


KEPT: dict[str, Callable[[Graph, Instruction], Instruction]] = {
    "a reduction": lambda g, y: g.op("sub", y, g.spread(g.op("reduce_max", y, axes=[2]), *y.shape.lens)),
    "another operand": lambda g, y: g.op("mul", g.param("u", y.shape.lens), y),
    "weights that are computed": lambda g, y: g.op("dot", y, g.param("u", (2, 4, 4))),
    "weights on the left": lambda g, y: g.op("dot", g.random(2, 3, 3), y),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_operators_between_need_rows(name: str) -> None:
    assert "transpose" in left(tokens(KEPT[name]))


def test_a_result_that_is_read_as_it_is() -> None:
    g = Graph()
    y = layer(g, g.op("transpose", g.param("x", (2, 5, 3)), permutation=SWAP), 4, 1)
    after = left(g.ret(g.op("transpose", y, permutation=SWAP), y))
    assert after.count("transpose") == 2


def test_other_permutations_stay() -> None:
    g = Graph()
    x = g.op("transpose", g.param("x", (3, 5, 3)), permutation=(2, 1, 0))
    y = g.op("transpose", layer(g, x, 4, 1), permutation=(2, 1, 0))
    assert left(g.ret(y)).count("transpose") == 2


def test_weights_of_each_batch() -> None:
    g = Graph()
    x = g.op("transpose", g.param("x", (2, 5, 3)), permutation=SWAP)
    y = g.op("transpose", g.op("dot", x, g.random(2, 5, 4)), permutation=SWAP)
    assert left(g.ret(y)) == ["dot"]


@pytest.mark.parametrize("type", ["int32", "double", "half"])
def test_other_types(type: str) -> None:
    g = Graph()
    x = g.op("transpose", g.param("x", (1, 6, 3), type), permutation=SWAP)
    weights = np.arange(24).reshape(1, 6, 4) - 9
    y = g.op("dot", x, g.lit(weights, x.shape.type.numpy))
    assert left(g.ret(g.op("transpose", y, permutation=SWAP))) == ["dot"]
