"""Quantisation of attention's result is fused into attention, across views, if it is the only reader."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.fuse_attention_epilogue import FuseAttentionEpilogue
from mgx_numba.graph.passes.rewrite_quantization import RewriteQuantization

from .support import FAST, STRICT, Graph, check, find, names


def attended(g: Graph) -> Instruction:
    q, k, v = (g.param(n, lens) for n, lens in (("q", [2, 3, 5, 4]), ("k", [2, 3, 7, 4]), ("v", [2, 3, 7, 6])))
    return g.op("attention", q, k, v, scale=0.4)


def merged(g: Graph, x: Instruction) -> Instruction:
    return g.op("reshape", g.op("transpose", x, permutation=(0, 2, 1, 3)), dims=(2, 5, 18))


def quantised(g: Graph, x: Instruction, kind: Type, point: int = 3) -> Instruction:
    zero = [] if kind.is_floating else [g.spread(g.lit(point, kind.numpy), *x.shape.lens)]
    return g.op("quantizelinear", x, g.scalar(0.013, x), *zero, out_type=kind)


@pytest.mark.parametrize("options", [STRICT, FAST])
@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("kind", [Type.uint8_type, Type.int8_type, Type.fp8e4m3fn_type])
def test_quantised_attention(kind: Type, views: bool, options: object) -> None:
    g = Graph()
    x = attended(g)
    y = quantised(g, merged(g, x) if views else x, kind)
    program = g.ret(g.op("convert", y, target_type=Type.float_type))
    after = check(program, RewriteQuantization(), FuseAttentionEpilogue(), options=options)  # type: ignore[arg-type]
    made = find(after, "fused_attention")
    assert made.shape.type is kind and made.shape.lens == (2, 3, 5, 6)
    assert not {"nearbyint", "div", "max"} & set(names(after))
    body = [i.name for i in made.module_args[0]]
    assert body.count("attention") == 1 and body[-1] == "@return"


def left_alone(g: Graph, *results: Instruction) -> None:
    after = check(g.ret(*results), RewriteQuantization(), FuseAttentionEpilogue(), options=FAST)
    assert "attention" in names(after) and "fused_attention" not in names(after)


def test_what_else_reads_the_result_keeps_it() -> None:
    g = Graph()
    x = attended(g)
    left_alone(g, quantised(g, merged(g, x), Type.uint8_type), g.op("relu", x))


def test_steps_that_differ_and_other_arithmetic_stay_outside() -> None:
    g = Graph()
    x = merged(g, attended(g))
    steps = g.spread(g.random(18, low=0.01, high=0.05), 2, 5, 18)
    left_alone(g, g.op("quantizelinear", x, steps, g.spread(g.lit(3, np.uint8), 2, 5, 18)))
    g = Graph()
    left_alone(g, g.op("tanh", attended(g)))


def test_one_number_for_all_operands_is_no_operand_of_a_kernel() -> None:
    g = Graph()
    q, k = (g.param(n, [1, 1, 4, 4]) for n in "qk")
    x = g.op("attention", q, k, g.spread(g.lit(0.5, np.float32), 1, 1, 4, 4), scale=1.0)
    left_alone(g, quantised(g, x, Type.uint8_type))
