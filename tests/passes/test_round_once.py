"""A value that contractions read in 16 bits is rounded once, by its producer, and kernels read the rounded form."""

from __future__ import annotations

import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import Options
from mgx_numba.graph.passes.fuse_contraction import FuseContraction
from mgx_numba.graph.passes.round_once import RoundOnce
from mgx_numba.graph.program import Program

from .support import FAST, STRICT, Graph, check, find, names

HALF, FLOAT = Type.half_type, Type.float_type
HALVES = Options(fast_math=True, epilogue_types=(FLOAT, HALF))
LOOSE = {"rtol": 5e-3, "atol": 5e-3}


def narrow(g: Graph, x: Instruction, type: Type = HALF) -> Instruction:
    return g.op("convert", x, target_type=type)


def test_epilogues_read_and_leave_16_bits() -> None:
    g = Graph()
    x = narrow(g, g.op("relu", g.param("x", [5, 7])))
    first = narrow(g, g.op("dot", x, narrow(g, g.random(7, 7))), FLOAT)
    second = narrow(g, g.op("dot", x, narrow(g, g.random(7, 7, seed=3))), FLOAT)
    other = narrow(g, g.param("y", [5, 7], "half"), FLOAT)
    total = g.op("add", g.op("add", first, second), other)
    program = g.ret(total, g.op("tanh", other))
    after = check(program, FuseContraction(), options=HALVES, **LOOSE)
    fused = [ins for ins in after.main if ins.name in ("dot", "fused_contraction")]
    assert [ins.shape.type for ins in fused] == [HALF, FLOAT]
    assert {i.shape.type for i in fused[1].inputs} == {HALF} and names(after).count("convert") >= 1
    plain: Program = check(program, FuseContraction(), options=FAST, **LOOSE)
    assert "fused_contraction" not in names(plain)


def test_a_result_in_float32_is_stored_so() -> None:
    g = Graph()
    x = narrow(g, g.op("relu", g.param("x", [5, 7])))
    after = check(g.ret(narrow(g, g.op("dot", x, narrow(g, g.random(7, 7))), FLOAT)), FuseContraction(), options=HALVES)
    assert find(after, "fused_contraction").shape.type is FLOAT


@pytest.mark.parametrize("options", [FAST, STRICT])
def test_what_computes_a_value_rounds_it_although_it_is_seen_otherwise(options: Options) -> None:
    g = Graph()
    x = narrow(g, g.op("dot", narrow(g, g.param("x", [6, 4])), narrow(g, g.random(4, 4))), FLOAT)
    x = g.op("transpose", g.op("reshape", g.op("relu", x), dims=(2, 3, 4)), permutation=(0, 2, 1))
    program = g.ret(g.op("dot", narrow(g, x), narrow(g, g.random(2, 3, 5))))
    after = check(program, RoundOnce(), options=options, **LOOSE)
    (rounded,) = find(after, "relu").users
    assert rounded.name == "convert" and names(after).index("convert") < names(after).index("reshape")
    assert [i.shape.type for i in find(after, "transpose").inputs] == [HALF]


def test_what_is_seen_in_two_ways_or_given_is_rounded_where_it_is_read() -> None:
    def untouched(x: Instruction, g: Graph) -> None:
        turned = g.op("transpose", x, permutation=(1, 0))
        program = g.ret(g.op("dot", narrow(g, turned), narrow(g, g.random(5, 7))), g.op("tanh", turned))
        assert str(check(program, RoundOnce(), **LOOSE)) == str(program)

    g = Graph()
    untouched(g.op("relu", g.param("x", [5, 7])), g)
    g = Graph()
    turned = g.op("transpose", g.param("x", [5, 7]), permutation=(1, 0))
    program = g.ret(g.op("dot", narrow(g, turned), narrow(g, g.random(5, 7))))
    assert str(check(program, RoundOnce(), **LOOSE)) == str(program)
