"""Attention shares heads of keys and values among groups of queries."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.fuse_attention import FuseAttention

from .support import STRICT, Graph, check

B, S, T, D = 2, 5, 7, 8


@pytest.mark.parametrize("shared", [1, 2, 3])
@pytest.mark.parametrize("values", [True, False])
def test_an_operator_of_attention_takes_shared_heads(shared: int, values: bool) -> None:
    g = Graph()

    def repeated(x: Instruction) -> Instruction:
        wide = g.op("multibroadcast", g.op("unsqueeze", x, axes=(2,)), out_lens=(B, shared, 2, T, D))
        return g.op("reshape", wide, dims=(B, 2 * shared, T, D))

    q, k = g.param("q", [B, 2 * shared, S, D]), repeated(g.param("k", [B, shared, T, D]))
    v = repeated(g.param("v", [B, shared, T, D])) if values else g.param("v", [B, 2 * shared, T, D])
    mask = g.op("less", g.param("m", [S, T]), g.lit(np.zeros((S, T), np.float32)))
    program = g.ret(g.op("attention", q, k, v, g.op("multibroadcast", mask, out_lens=(B, 2 * shared, S, T))))
    after = check(program, FuseAttention(), options=STRICT, special=True, rtol=1e-4, atol=1e-5)
    (found,) = (i for i in after.main if i.name == "attention")
    assert found.inputs[1].shape.lens[1] == (shared if values else 2 * shared)
