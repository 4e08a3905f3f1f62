"""Products with a common left operand and constant weights become one product."""

from __future__ import annotations

import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.optimize_module import OptimizeModule

from .support import Graph, check, names


def normalised(g: Graph, x: Instruction) -> Instruction:
    """Return rows by their mean square, in float32."""
    wide = g.op("convert", x, target_type=Type.float_type)
    mean = g.op("reduce_mean", g.op("mul", wide, wide), axes=(x.shape.ndim - 1,))
    scale = g.op("rsqrt", g.op("add", mean, g.scalar(1e-5, mean)))
    return g.op("mul", wide, g.op("multibroadcast", scale, out_lens=x.shape.lens))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_queries_keys_and_values_are_one_product(batch: int, bias: bool) -> None:
    """Queries and keys are normalised before heads are split; values are a product of rows."""
    g = Graph()
    x = g.op("neg", g.param("x", (batch, 6, 8), "half"))
    rows = g.op("reshape", x, dims=(batch * 6, 8))

    def product(seed: int) -> Instruction:
        y = g.op("dot", rows, g.op("convert", g.random(8, 12, seed=seed), target_type=Type.half_type))
        if not bias:
            return y
        constant = g.op("convert", g.random(12, seed=seed + 9), target_type=Type.half_type)
        return g.op("add", y, g.spread(constant, batch * 6, 12))

    q, k = (normalised(g, g.op("reshape", product(seed), dims=(batch, 6, 12))) for seed in (1, 2))
    v = g.op("transpose", g.op("reshape", product(3), dims=(batch, 6, 3, 4)), permutation=(0, 2, 1, 3))
    after = check(g.ret(q, k, v), OptimizeModule(), rtol=2e-2, atol=2e-2, idempotent=False)
    assert names(after).count("dot") == 1


def test_products_with_an_epilogue_of_their_own_stay_apart() -> None:
    g = Graph()
    x = g.param("x", (6, 8))
    a, b = (g.op("dot", x, g.random(8, 12, seed=seed)) for seed in (1, 2))
    after = check(g.ret(g.op("mul", a, g.param("y", (6, 12))), b), OptimizeModule(), rtol=1e-4, atol=1e-5)
    assert names(after).count("dot") == 2
