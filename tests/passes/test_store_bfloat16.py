"""Values read by bfloat16 products are stored in bfloat16, once for all readers, where kernels support it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import Options
from mgx_numba.graph.passes.fuse_contraction import FuseContraction
from mgx_numba.graph.passes.store_bfloat16 import StoreBfloat16
from mgx_numba.graph.program import Program
from mgx_numba.targets.cpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions

from .support import FAST, Graph, check, find, names

NARROW, WIDE = Type.bf16_type, Type.float_type
LOOSE = {"rtol": 3e-2, "atol": 3e-2}


def taking(kernels: tuple[str, ...] = ("convolution", "convolution_backwards", "dot")) -> Options:
    """Return options of a CPU with tiles for ``operators``."""
    known = pass_options(TargetOptions()).capabilities
    assert known is not None
    return Options(fast_math=True, capabilities=replace(known, multiplies_bfloat16=lambda ins: ins.name in kernels))


def weights(g: Graph, *lens: int) -> Instruction:
    values = np.random.default_rng(lens).uniform(-0.4, 0.4, lens).astype(NARROW.numpy)
    return g.own(g.lit(values, NARROW.numpy), WIDE)


def convolution(g: Graph, x: Instruction, channels: int, group: int = 1) -> Instruction:
    w = weights(g, channels, x.shape.lens[1] // group, 3, 3)
    return g.op("convolution", x, w, padding=(1, 1), group=group)


def rounded(program: Program) -> list[str]:
    """Return the operators whose results are stored in bfloat16."""
    return sorted(i.inputs[0].name for i in program.main if i.name == "convert" and i.shape.type is NARROW)


def test_from_layer_to_layer() -> None:
    """A residual block whose input goes through a maximum: what leads to products is rounded once, results are not."""
    g = Graph()
    x = g.op("relu", convolution(g, g.param("x", [1, 3, 8, 6]), 8))
    pooled = g.op("pooling", x, mode="max", lengths=(2, 2), stride=(2, 2))
    inner = g.op("relu", convolution(g, pooled, 8))
    total = g.op("relu", g.op("add", convolution(g, inner, 8), pooled))
    last = g.op("reduce_mean", convolution(g, total, 5), axes=(2, 3))
    after = check(g.ret(last), StoreBfloat16(), options=taking(), **LOOSE)
    assert rounded(after) == ["relu"] * 3
    assert find(after, "pooling").shape.type is NARROW
    assert find(after, "reduce_mean").inputs[0].shape.type is WIDE
    fused = check(after, FuseContraction(), options=taking(), **LOOSE)
    regions = [i for i in fused.main if i.name == "fused_contraction"]
    assert [r.shape.type for r in regions] == [NARROW, NARROW, NARROW, WIDE]
    reads = [{i.shape.type for i in r.inputs if not i.literal and i.shape.ndim == 4} for r in regions[1:]]
    assert reads == [{NARROW}] * 3  # and nothing widens on the way
    assert "convert" not in names(fused)


def test_parts_of_a_concatenation_are_rounded_where_they_are_made() -> None:
    g = Graph()
    x = g.param("x", [1, 4, 6, 6])
    left, right = g.op("relu", convolution(g, x, 6)), convolution(g, x, 4)
    joined = g.op("concat", left, right, axis=1)
    program = g.ret(convolution(g, joined, 3))
    after = check(program, StoreBfloat16(), options=taking(), **LOOSE)
    assert rounded(after) == ["convolution", "relu"]
    assert find(after, "concat").shape.type is NARROW


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_products_that_are_added_one_is_rounded(turned: bool) -> None:
    """The one that is stored before the kernel of the other reads it."""
    g = Graph()
    x = g.op("relu", g.param("x", [1, 4, 6, 6]))
    both = [convolution(g, x, 8), convolution(g, g.op("tanh", x), 8)]
    total = g.op("add", *(reversed(both) if turned else both))
    program = g.ret(g.op("relu", g.op("add", total, g.op("sigmoid", total))))
    after = check(program, StoreBfloat16(), options=taking(), **LOOSE)
    assert rounded(after) == ["convolution", "relu", "tanh"]
    fused = check(after, FuseContraction(), options=taking(), **LOOSE)
    stored, last = (i for i in fused.main if i.name == "fused_contraction")
    assert stored.shape.type is NARROW and stored in last.inputs and last.shape.type is WIDE


@pytest.mark.parametrize("why", ["given", "part is given", "read otherwise", "result", "no kernel", "exact", "author"])
def test_what_stays_in_float32(why: str) -> None:
    g = Graph()
    x = g.param("x", [1, 4, 6, 6])
    made = g.op("relu", x)
    value = {"given": x, "part is given": g.op("concat", x, made, axis=1)}.get(why, made)
    results = [convolution(g, value, 8)]
    if why == "author":  # of a product in float32, whose weights alone are in bfloat16
        wide = results[0].inputs[1]
        g.module.replace_instruction(wide, g.module.insert_instruction(wide, "convert", wide.inputs, target_type=WIDE))
    if why == "read otherwise":
        results.append(g.op("argmax", made, axis=1))
    if why == "result":
        results.append(made)
    options = {"no kernel": taking(("dot",)), "exact": replace(taking(), fast_math=False)}.get(why, taking())
    program = g.ret(*results)
    assert str(check(program, StoreBfloat16(), options=options)) == str(program)
    assert str(check(program, StoreBfloat16(), options=FAST)) == str(program)


def test_means_under_a_window_are_of_rounded_values_where_a_product_reads_them() -> None:
    results = []
    for read in (True, False):
        g = Graph()
        x = g.op("relu", convolution(g, g.param("x", [1, 3, 6, 6]), 8))
        mean = g.op("pooling", x, mode="average", lengths=(3, 3), stride=(1, 1), padding=(1, 1, 1, 1))
        program = g.ret(convolution(g, x, 5), convolution(g, mean, 5) if read else g.op("tanh", mean))
        after = check(program, StoreBfloat16(), options=taking(), **LOOSE)
        results.append((rounded(after), find(after, "pooling").shape.type))
    assert results == [(["relu"], NARROW), ([], WIDE)]


def test_depthwise_convolutions_read_float32() -> None:
    g = Graph()
    x = g.op("relu", g.param("x", [1, 8, 6, 6]))
    deep = g.op("relu", convolution(g, x, 8, group=8))
    program = g.ret(convolution(g, deep, 3))
    options = taking()
    assert options.capabilities is not None
    dense = replace(options.capabilities, multiplies_bfloat16=lambda ins: ins.op.attributes()["group"] == 1)
    after = check(program, StoreBfloat16(), options=replace(options, capabilities=dense), **LOOSE)
    assert len(rounded(after)) == 1
    first, second = (i for i in after.main if i.name == "convolution")
    assert first.inputs[0].name == "relu" and second.inputs[0].name == "convert"


def test_views_of_a_rounded_value_are_read_so() -> None:
    """Both halves of a value, one of them spread to twice the size, lead to products; a third reader takes it wide."""
    g = Graph()
    x = g.op("relu", convolution(g, g.param("x", [1, 3, 6, 6]), 8))
    low, high = (g.op("slice", x, axes=(1,), starts=(start,), ends=(start + 4,)) for start in (0, 4))
    spread = g.spread(g.op("unsqueeze", high, axes=(3, 5)), 1, 4, 6, 2, 6, 2)
    larger = g.op("reshape", spread, dims=(1, 4, 12, 12))
    program = g.ret(convolution(g, low, 5), convolution(g, larger, 5), g.op("reduce_mean", x, axes=(2, 3)))
    after = check(program, StoreBfloat16(), options=taking(), **LOOSE)
    assert rounded(after) == ["relu"]
    assert {i.shape.type for i in after.main if i.name in ("slice", "multibroadcast", "reshape")} == {NARROW}
    only = half_is_a_result()
    assert str(check(only, StoreBfloat16(), options=taking(), **LOOSE)) == str(only)


def half_is_a_result() -> Program:
    """Return a program in which one half of a value leads to a product, and the other half is a result."""
    g = Graph()
    x = g.op("relu", g.param("x", [1, 8, 6, 6]))
    low, high = (g.op("slice", x, axes=(1,), starts=(start,), ends=(start + 4,)) for start in (0, 4))
    return g.ret(convolution(g, low, 5), high)
