"""Products with an odd number of columns get columns of zeros, so that their rows are stored in vectors."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes import pad_columns
from mgx_numba.graph.passes.pad_columns import PadColumns

from .support import Graph, check, find, names


def half(g: Graph, *lens: int) -> Instruction:
    return g.lit(np.random.default_rng(0).normal(size=lens), np.float16)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pad_columns, "LEAST_ROWS", 6)
    monkeypatch.setattr(pad_columns, "LEAST_COLUMNS", 4)


@pytest.mark.parametrize("lens", [(6, 5), (2, 3, 5), (2, 1, 3, 5)])
@pytest.mark.parametrize("columns", [5, 7, 9, 15])
@pytest.mark.parametrize("turned", [False, True])
def test_odd_columns_are_padded(lens: tuple[int, ...], columns: int, turned: bool) -> None:
    g = Graph()
    w = g.op("transpose", half(g, columns, 5), permutation=(1, 0)) if turned else half(g, 5, columns)
    w = g.op("multibroadcast", w, out_lens=(*lens[:-2], 5, columns))
    program = g.ret(g.op("relu", g.op("dot", g.param("x", lens, "half"), w)))
    after = check(program, PadColumns(), special=True, rtol=1e-3, atol=1e-3)
    product = find(after, "dot")
    assert product.shape.lens[-1] == -(-columns // 8) * 8
    assert find(after, "pad").shape.ndim == 2, "a batch of equal weights is padded once"


def test_what_stays() -> None:
    g = Graph()
    x, wide = g.param("x", (6, 5), "half"), g.param("y", (6, 5))
    kept = [
        g.op("dot", x, half(g, 5, 6)),
        g.op("dot", x, half(g, 5, 3)),
        g.op("dot", g.op("slice", x, axes=(0,), starts=(0,), ends=(5,)), half(g, 5, 7)),
        g.op("dot", x, g.param("w", (5, 7), "half")),
        g.op("dot", wide, g.random(5, 7)),
    ]
    after = check(g.ret(*kept), PadColumns(), rtol=1e-3, atol=1e-3)
    assert all(i.shape.lens[-1] in (3, 6, 7) for i in after.main if i.name == "dot")
    assert names(after).count("dot") == len(kept)
