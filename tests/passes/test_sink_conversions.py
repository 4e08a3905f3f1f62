"""Conversions to a wider type move behind views, into the operations that read the values."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import Options, run_passes
from mgx_numba.graph.passes.fuse_contraction import FuseContraction
from mgx_numba.graph.passes.sink_conversions import SinkConversions
from mgx_numba.targets.ref.interpreter import evaluate

from .support import Graph, check, names, random_inputs


def halves(g: Graph, x: Instruction, size: int) -> list[Instruction]:
    last = x.shape.ndim - 1
    return [g.op("slice", x, axes=(last,), starts=(k,), ends=(k + size,)) for k in (0, size)]


@pytest.mark.parametrize("special", [False, True])
def test_halves_of_a_gathered_row_are_converted_by_their_readers(special: bool) -> None:
    g = Graph()
    rows = g.op("gather", g.param("x", (6, 16), "half"), g.lit([4, 1, 1], np.int64), axis=0)
    a, b = halves(g, g.op("convert", rows, target_type=Type.float_type), 8)
    turned = [g.op("transpose", i, permutation=(1, 0)) for i in (a, b)]
    cosine, sine = (g.param(name, (8, 3)) for name in ("c", "s"))
    x = g.op("sub", g.op("mul", turned[0], cosine), g.op("mul", turned[1], sine))
    y = g.op("add", g.op("mul", turned[0], sine), g.op("mul", turned[1], turned[1]))
    after = check(g.ret(x, y), SinkConversions(), special=special)
    converted = [i for i in after.main if i.name == "convert"]
    assert len(converted) == 4  # one of each operand of each product
    assert all(i.inputs[0].name == "transpose" and len(i.users) == 1 for i in converted)


def test_what_stays() -> None:
    def reason(build) -> list[str]:
        g = Graph()
        program = g.ret(*build(g))
        after = check(program, SinkConversions(), rtol=1e-3, atol=1e-3)
        assert names(after) == names(program)
        return [r.reason for r in after.log.refusals("sink_conversions")]

    def wide(g: Graph, x: Instruction, type: Type = Type.float_type) -> Instruction:
        return g.op("convert", x, target_type=type)

    def returned(g: Graph) -> list[Instruction]:
        x = wide(g, g.param("x", (4, 8), "half"))
        return [*(g.op("neg", i) for i in halves(g, x, 4)), x]

    def computed(g: Graph) -> list[Instruction]:
        x = wide(g, g.op("neg", g.param("x", (4, 8), "half")))
        return [g.op("neg", i) for i in halves(g, x, 4)]

    def narrowed(g: Graph) -> list[Instruction]:
        x = wide(g, g.param("x", (4, 8)), Type.half_type)
        return [g.op("neg", i) for i in halves(g, x, 4)]

    def reduced(g: Graph) -> list[Instruction]:
        x = wide(g, g.param("x", (4, 8), "half"))
        return [g.op("reduce_sum", i, axes=(1,)) for i in halves(g, x, 4)]

    assert reason(returned) == ["the converted values are needed"]
    assert reason(computed) == ["the kernel that computes the values converts them"]
    assert reason(narrowed) == ["it is no conversion of computed values to a wider type"]
    assert reason(reduced) == ["an operation reads the converted values that is not pointwise"]
    assert reason(lambda g: [g.op("neg", wide(g, g.param("x", (4, 8), "half")))]) == [
        "its only reader converts the values itself"
    ]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("returned", [False, True])
def test_a_product_stores_narrow_values_that_a_norm_reads_behind_a_view(bias: bool, returned: bool) -> None:
    """Queries are normalised in float32, head by head."""
    g = Graph()
    x = g.op("dot", g.param("x", (6, 8), "half"), g.op("convert", g.random(8, 12), target_type=Type.half_type))
    if bias:
        x = g.op("add", x, g.spread(g.op("convert", g.random(12), target_type=Type.half_type), 6, 12))
    wide = g.op("convert", x, target_type=Type.float_type)
    rows = g.op("reshape", wide, dims=(6, 3, 4))
    mean = g.op("reduce_mean", g.op("mul", rows, rows), axes=(2,))
    scale = g.op("rsqrt", g.op("add", mean, g.scalar(1e-5, mean)))
    y = g.op("mul", rows, g.op("multibroadcast", scale, out_lens=(6, 3, 4)))
    program = g.ret(y, *([wide] if returned else []))
    halves = Options(fast_math=True, epilogue_types=(Type.float_type, Type.half_type))
    after = program.clone()
    run_passes(after, [FuseContraction()], halves)
    converted = [i for i in after.main if i.name == "convert" and i.shape.type is Type.float_type]
    assert all(i.inputs[0].name == "reshape" for i in converted) and bool(converted) != returned
    feeds = random_inputs(program)
    for found, wanted in zip(evaluate(after, feeds), evaluate(program, feeds)):
        np.testing.assert_array_equal(found, wanted)
