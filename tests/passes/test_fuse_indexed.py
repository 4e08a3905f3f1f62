"""The pass that fuses gathers with pointwise operators, and these with scatters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import Options
from mgx_numba.graph.passes.fuse_indexed import FuseIndexed
from mgx_numba.graph.passes.fuse_pointwise import FusePointwise
from mgx_numba.graph.program import Program
from mgx_numba.targets.gpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions

from .support import Graph, check, find, names

NODES, EDGES, WIDTH = 5, 9, 4


def options(updates: bool = True) -> Options:
    given = pass_options(TargetOptions())
    assert given.capabilities is not None
    return replace(given, capabilities=replace(given.capabilities, computes_updates=lambda _: updates))


def indices(g: Graph, *lens: int, nodes: int = NODES) -> Instruction:
    return g.lit(np.random.default_rng(len(lens)).integers(-nodes, nodes, lens), np.int64)


def gathered(g: Graph, name: str = "x") -> Instruction:
    return g.op("gather", g.param(name, (NODES, WIDTH)), indices(g, EDGES), axis=0)


def scattered(g: Graph, updates: Instruction, combine: str = "add") -> Instruction:
    at = g.op("multibroadcast", indices(g, EDGES, 1), out_lens=(EDGES, WIDTH))
    return g.op(f"scatter_{combine}", g.random(NODES, WIDTH), at, updates, axis=0)


def fused(program: Program, updates: bool = True) -> list[str]:
    return names(check(program, FusePointwise(), FuseIndexed(), options=options(updates)))


@pytest.mark.parametrize("combine", ["add", "mul", "min", "max"])
def test_updates_are_computed_by_the_scatter(combine: str) -> None:
    g = Graph()
    messages = g.op("mul", gathered(g), g.op("relu", gathered(g, "y")))
    after = fused(g.ret(scattered(g, messages, combine)))
    assert "fused_scatter" in after and not {"gather", "pointwise", f"scatter_{combine}"} & set(after)


def test_what_a_scatter_does_not_compute_is_fused_before_it() -> None:
    g = Graph()
    after = fused(g.ret(scattered(g, g.op("relu", gathered(g)))), updates=False)
    assert {"fused_gather", "scatter_add"} <= set(after) and "fused_scatter" not in after


def test_one_gather_serves_both_inputs() -> None:
    g = Graph()
    x = gathered(g)
    after = check(g.ret(g.op("mul", g.op("exp", x), x)), FusePointwise(), FuseIndexed(), options=options())
    assert len(find(after, "fused_gather").inputs) == 2 and "gather" not in names(after)


def test_what_others_read_stays() -> None:
    g = Graph()
    x = gathered(g)
    assert "gather" in fused(g.ret(g.op("relu", x), x))
    g = Graph()
    updates = g.op("relu", gathered(g))
    after = fused(g.ret(scattered(g, updates), scattered(g, updates, "max")))
    assert {"fused_gather", "scatter_add", "scatter_max"} <= set(after)
    g = Graph()
    assert "scatter_none" in fused(g.ret(scattered(g, gathered(g), "none")))


def test_rows_beside_columns_stay() -> None:
    """The kernel of a pointwise operator transposes such columns."""
    g = Graph()
    turned = g.op("transpose", g.param("y", (WIDTH, EDGES)), permutation=(1, 0))
    assert "gather" in fused(g.ret(g.op("add", gathered(g), turned)))


def test_gathers_of_other_lengths_stay() -> None:
    g = Graph()
    one = g.op("gather", g.param("x", (NODES,)), indices(g, EDGES), axis=0)
    wide = g.op("multibroadcast", g.op("unsqueeze", one, axes=(1,)), out_lens=(EDGES, WIDTH))
    assert "gather" in fused(g.ret(g.op("mul", wide, g.param("y", (EDGES, WIDTH)))))
