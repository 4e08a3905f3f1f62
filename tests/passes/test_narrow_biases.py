"""Biases of products in 16 bits are rounded to 16 bits too, if the sums have no other reader."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.narrow_biases import NarrowBiases
from mgx_numba.graph.program import Program
from mgx_numba.targets.passes import GPU_PASSES

from .support import FAST, STRICT, Graph, check, find

BF16, FLOAT = Type.bf16_type, Type.float_type
LOOSE = {"rtol": 2e-2, "atol": 2e-2}


def biased(
    g: Graph,
    rows: int = 5,
    turned: bool = False,
    maker: str = "dot",
    bias: Instruction | None = None,
    convert: Callable[[Graph, Instruction, Type], Instruction] = Graph.own,
) -> Program:
    x = g.own(g.param("x", [rows, 7]), BF16)
    weights = g.lit(np.random.default_rng(0).uniform(-1, 1, (7, 7)).astype(BF16.numpy), BF16.numpy)
    product = g.op(maker, x, weights) if maker == "dot" else g.op(maker, x)
    wide = convert(g, product, FLOAT)
    row = g.random(7) if bias is None else bias
    spread = g.spread(row, rows, 7)
    total = g.op("add", *((spread, wide) if turned else (wide, spread)))
    return g.ret(g.op("relu", convert(g, total, BF16)))


def written(g: Graph, x: Instruction, type: Type) -> Instruction:
    """A conversion of the model's author."""
    return g.op("convert", x, target_type=type)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [5, 1, 0])
def test_biases_of_products(rows: int, turned: bool) -> None:
    after = check(biased(Graph(), rows, turned), NarrowBiases(), options=FAST, **LOOSE)
    total = find(after, "add")
    assert total.shape.type is BF16 and {i.shape.type for i in total.inputs} == {BF16}
    assert [u.name for u in find(after, "dot").users] == ["add"]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 3.4e38])
def test_biases_may_be_anything(number: float) -> None:
    g = Graph()
    row = g.lit([number, 0.3, 1, -2, 0, 5, 6])
    with np.errstate(all="ignore"):
        after = check(biased(g, bias=row), NarrowBiases(), options=FAST, **LOOSE)
    assert find(after, "add").shape.type is BF16


@pytest.mark.parametrize("why", ["exact", "no product", "computed", "read otherwise", "author"])
def test_what_stays_in_float32(why: str) -> None:
    g = Graph()
    bias = g.op("tanh", g.param("b", [7])) if why == "computed" else None
    convert = written if why == "author" else Graph.own
    program = biased(g, maker="tanh" if why == "no product" else "dot", bias=bias, convert=convert)
    if why == "read otherwise":
        program.main.replace_return([*program.main.results(), find(program, "add")])
    options = STRICT if why == "exact" else FAST
    assert str(check(program, NarrowBiases(), options=options, **LOOSE)) == str(program)


@pytest.mark.parametrize("number", [7e4, np.inf])
def test_biases_beyond_float16_became_infinite(number: float) -> None:
    g = Graph()
    x = g.own(g.param("x", [5, 7]), Type.half_type)
    weights = g.lit(np.full((7, 7), 0.5, np.float16), np.float16)
    wide = g.own(g.op("dot", x, weights), FLOAT)
    total = g.op("add", wide, g.spread(g.lit([number, 0.3, 1, -2, 0, 5, 6]), 5, 7))
    program = g.ret(g.own(total, Type.half_type))
    with np.errstate(all="ignore"):
        after = check(program, NarrowBiases(), options=FAST, **LOOSE)
    assert find(after, "add").shape.type is (Type.half_type if np.isinf(number) else FLOAT)


def test_a_gpu_has_them_before_it_fuses() -> None:
    assert GPU_PASSES.index("narrow_biases") < GPU_PASSES.index("fuse_contraction")
