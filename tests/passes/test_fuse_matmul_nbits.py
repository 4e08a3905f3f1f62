"""Products with dequantised constants keep the packed weights, on targets with kernels for packed weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import Options
from mgx_numba.graph.passes.capabilities import Capabilities
from mgx_numba.graph.passes.dead_code_elimination import DeadCodeElimination
from mgx_numba.graph.passes.fuse_contraction import FuseContraction
from mgx_numba.graph.passes.fuse_matmul_nbits import FuseMatMulNBits
from mgx_numba.graph.passes.quantize_int4_weights import QuantizeInt4
from mgx_numba.graph.program import Program
from mgx_numba.targets.cpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions

from .support import Graph, check, find, names

OPTIONS = pass_options(TargetOptions())


def dequantized(g: Graph, k: int, n: int, block: int, kind: Type, low: int, high: int, points: bool) -> Instruction:
    """Random codes [k, n] with scales, and perhaps zero points, for each ``block`` rows."""
    rng = np.random.default_rng([k, n, block])
    shape = (-(-k // block), n)

    def spread(values: np.ndarray) -> Instruction:
        wide = np.repeat(values, block, axis=0)[:k]
        return g.lit(wide, values.dtype)

    q = g.lit(rng.integers(low, high + 1, (k, n)), kind.numpy)
    parts = [spread(rng.uniform(0.01, 0.1, shape).astype(np.float32))]
    if points:
        parts.append(spread(rng.integers(low, high + 1, shape).astype(kind.numpy)))
    return g.op("dequantizelinear", q, *parts)


def fused(program: Program) -> Program:
    return check(program, FuseMatMulNBits(), DeadCodeElimination(), options=OPTIONS, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block, size", [(32, 32), (16, 16), (48, 16), (256, 128), (1000, 128)])
@pytest.mark.parametrize("kind", [Type.int8_type, Type.uint8_type])
@pytest.mark.parametrize("bits", [4, 8])
def test_blocks(block: int, size: int, kind: Type, bits: int) -> None:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind is Type.int8_type else (0, (1 << bits) - 1)
    for k, points in ((300, True), (21, False)):
        g = Graph()
        w = dequantized(g, k, 6, block, kind, low, high, points)
        after = fused(g.ret(g.op("dot", g.param("x", [3, k]), w)))
        op: Any = find(after, "matmul_nbits").op
        assert op.bits == bits and "dot" not in names(after)
        assert op.block_size == size or k == 21


def test_dequantised_weights_are_removed() -> None:
    """A pass that follows would compute them."""
    g = Graph()
    w = dequantized(g, 64, 6, 32, Type.uint8_type, 0, 15, True)
    after = check(
        g.ret(g.op("dot", g.param("x", [3, 64]), w)), FuseMatMulNBits(), options=OPTIONS, rtol=1e-5, atol=1e-5
    )
    assert names(after).count("matmul_nbits") == 1 and "dequantizelinear" not in names(after)


def test_views_and_batches() -> None:
    g = Graph()
    w = g.op("transpose", dequantized(g, 64, 40, 64, Type.uint8_type, 0, 15, True), permutation=(1, 0))
    by_rows = g.ret(g.op("dot", g.param("x", [2, 40]), w))
    assert "dot" in names(fused(by_rows))  # each row of the product's matrix has a scale of its own
    g = Graph()
    inner = g.op("unpack_int4", g.lit(np.arange(32 * 20).reshape(20, 32) % 256, np.uint8), axis=1)
    scales = g.spread(g.lit(np.linspace(0.1, 1, 20).reshape(20, 1)), 20, 64)
    w = g.op("transpose", g.op("dequantizelinear", inner, scales), permutation=(1, 0))
    w = g.spread(g.op("reshape", w, dims=(1, 64, 20)), 5, 64, 20)
    after = fused(g.ret(g.op("dot", g.param("x", [5, 2, 64]), w), g.op("dot", g.param("y", [5, 1, 64]), w)))
    assert names(after).count("matmul_nbits") == 2
    assert sum(i.is_literal for i in after.main) == 3  # codes, scales and zero points, once


def test_weights_that_were_put_into_four_bits() -> None:
    g = Graph()
    program = g.ret(g.op("dot", g.param("x", [2, 3, 70]), g.spread(g.random(1, 70, 12), 2, 70, 12)))
    quantized = check(program, QuantizeInt4(), rtol=1, atol=10)
    assert "matmul_nbits" in names(fused(quantized))


def test_what_is_left_alone() -> None:
    def left(build: Any, options: Options = OPTIONS) -> None:
        g = Graph()
        after = check(g.ret(build(g)), FuseMatMulNBits(), options=options, rtol=1e-5, atol=1e-5)
        assert "dot" in names(after) and "matmul_nbits" not in names(after)

    def plain(g: Graph) -> Instruction:
        return g.op("dot", g.param("x", [2, 32]), dequantized(g, 32, 8, 16, Type.uint8_type, 0, 15, True))

    left(plain, Options())
    left(plain, Options(capabilities=Capabilities(**{**vars(OPTIONS.capabilities), "block_weights": False})))
    left(lambda g: g.op("dot", g.param("x", [2, 32]), g.random(32, 8)))
    left(lambda g: g.op("dot", g.random(2, 32), g.param("w", [32, 8])))
    left(lambda g: g.op("dot", g.param("x", [2, 32]), dequantized(g, 32, 8, 8, Type.uint8_type, 0, 15, True)))
    left(lambda g: g.op("dot", g.param("x", [2, 32]), dequantized(g, 32, 8, 32, Type.int32_type, 0, 15, False)))


def test_what_follows_joins_only_where_there_are_kernels() -> None:
    g = Graph()
    codes, scales = g.lit(np.arange(8 * 2 * 16).reshape(8, 2, 16) % 256, np.uint8), g.random(8, 2)
    program = g.ret(g.op("relu", g.op("matmul_nbits", g.param("x", [2, 64]), codes, scales)))
    assert "fused_contraction" in names(check(program, FuseContraction(), options=OPTIONS))
    assert "fused_contraction" not in names(check(program, FuseContraction()))


def test_products_of_one_input_become_one() -> None:
    """Queries, keys and values are joined; products that an activation follows, or with other forms, are not."""
    assert OPTIONS.capabilities is not None
    options = replace(OPTIONS, capabilities=replace(OPTIONS.capabilities, joins_block_products=True))
    rng = np.random.default_rng(3)

    def product(g: Graph, x: Instruction, n: int, points: bool = False) -> Instruction:
        codes = g.lit(rng.integers(0, 256, (n, 2, 16)), np.uint8)
        more = [g.lit(rng.integers(0, 16, (n, 2)), np.uint8)] if points else []
        return g.op("matmul_nbits", x, codes, g.random(n, 2, seed=n), *more)

    g = Graph()
    x = g.param("x", [3, 5, 64])
    q, k, v, other = (product(g, x, n, points) for n, points in ((8, False), (4, False), (6, False), (8, True)))
    gate = g.op("sigmoid", product(g, x, 8))
    results = [g.op("reshape", i, dims=(15, i.shape.lens[2])) for i in (q, k, v, other, gate)]
    program = g.ret(*results)
    after = check(program, FuseMatMulNBits(), DeadCodeElimination(), options=options, rtol=1e-5, atol=1e-5)
    assert sorted(i.shape.lens[2] for i in after.main if i.name == "matmul_nbits") == [8, 8, 18]
    assert names(fused(program)).count("matmul_nbits") == 5
