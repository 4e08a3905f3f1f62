"""Contractions lowered once for symbolic lengths: without guards, correct for any lengths including 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.core.dim import known_equal
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from tests.codegen.symbolic import scope_of

from .programs import FUSION
from .symbolic_plans import Lens, SymbolicCase

FLOAT = Type.float_type
ANY, SOME = (0, None), (1, None)
ROWS = [(1, 1), (2, 2), (1, 3), (0, 5), (3, 0), (1, 40), (4, 150)]
"""Batches and rows of each."""


def op(m: Module, name: str, *inputs: Instruction, **attributes: Any) -> Instruction:
    return m.add_instruction(name, list(inputs), **attributes)


def constant(m: Module, *lens: int, dtype: Any = np.float32) -> Instruction:
    rng = np.random.default_rng(lens)
    values = rng.integers(-9, 10, lens).astype(dtype)
    return m.add_literal(values / np.float32(8) if dtype is np.float32 else values)


@pytest.mark.parametrize("fast_math", [False, True])
def test_layers_of_a_network(fast_math: bool) -> None:
    """Products with one matrix of weights, with a bias, an activation and a residual sum."""

    def shapes(n: Lens) -> list[Shape]:
        return [Shape(FLOAT, (n["batch"], n["seq"], 24))]

    def build(m: Module, p: list[Instruction], n: Lens) -> Instruction:
        lens = (n["batch"], n["seq"])
        first = op(m, "multibroadcast", constant(m, 24, 70), out_lens=(n["batch"], 24, 70))
        bias = op(m, "multibroadcast", constant(m, 70), out_lens=(*lens, 70))
        hidden = op(m, "relu", op(m, "add", op(m, "dot", p[0], first), bias))
        second = op(m, "multibroadcast", constant(m, 70, 24), out_lens=(n["batch"], 70, 24))
        return op(m, "add", op(m, "dot", hidden, second), p[0])

    case = SymbolicCase(*scope_of(batch=ANY, seq=ANY), shapes, build, FUSION, fast_math=fast_math)
    assert case.guards == [] and known_equal(case.plan.condition, 1)
    kinds = {name.partition("_")[0] for name in case.kernels}
    assert kinds >= {"gemv", "gemm"}
    for batch, seq in ROWS:
        case.check(2e-4 if fast_math else 1e-5, batch=batch, seq=seq)


def test_products_of_two_inputs() -> None:
    def shapes(n: Lens) -> list[Shape]:
        b, s, t = n["batch"], n["seq"], n["keys"]
        return [Shape(FLOAT, (b, s, 3, 8)), Shape(FLOAT, (b, t, 3, 8)), Shape(FLOAT, (b, t, 3, 8))]

    def build(m: Module, p: list[Instruction], n: Lens) -> Instruction:
        q, v = (op(m, "transpose", i, permutation=(0, 2, 1, 3)) for i in (p[0], p[2]))
        k = op(m, "transpose", p[1], permutation=(0, 2, 3, 1))
        scores = op(m, "relu", op(m, "dot", q, k))
        return op(m, "dot", scores, v)

    case = SymbolicCase(*scope_of(batch=ANY, seq=ANY, keys=SOME), shapes, build, FUSION)
    assert case.guards == [] and known_equal(case.plan.condition, 1)
    for batch, seq, keys in ((1, 1, 1), (2, 1, 65), (1, 70, 3), (0, 4, 4), (2, 0, 3), (1, 33, 200)):
        case.check(1e-4, batch=batch, seq=seq, keys=keys)


@pytest.mark.parametrize("fast_math", [False, True])
def test_weights_in_blocks(fast_math: bool) -> None:
    def shapes(n: Lens) -> list[Shape]:
        return [Shape(FLOAT, (n["batch"], n["seq"], 64))]

    def build(m: Module, p: list[Instruction], n: Lens) -> Instruction:
        rng = np.random.default_rng(4)
        codes = m.add_literal(rng.integers(0, 256, (50, 2, 16), dtype=np.uint8))
        scales = m.add_literal(rng.uniform(0.1, 0.2, (50, 2)).astype(np.float32))
        return op(m, "matmul_nbits", p[0], codes, scales, bits=4, block_size=32)

    case = SymbolicCase(*scope_of(batch=ANY, seq=ANY), shapes, build, fast_math=fast_math)
    assert case.guards == [] and known_equal(case.plan.condition, 1)
    for batch, seq in ROWS:
        case.check(1e-3 if fast_math else 1e-4, batch=batch, seq=seq)


def test_integers_by_integers() -> None:
    def shapes(n: Lens) -> list[Shape]:
        return [Shape(Type.uint8_type, (n["rows"], 30))]

    def build(m: Module, p: list[Instruction], n: Lens) -> Instruction:
        return op(m, "quant_dot", p[0], constant(m, 30, 20, dtype=np.int8))

    case = SymbolicCase(*scope_of(rows=ANY), shapes, build)
    assert case.guards == [] and known_equal(case.plan.condition, 1)
    for rows in (0, 1, 5, 64, 200):
        case.check(rows=rows, make=lambda k, shape: np.random.default_rng(3).integers(0, 256, shape.lens, np.uint8))


CONVOLUTIONS: list[dict[str, Any]] = [
    {"weights": (12, 8, 3, 3), "padding": (1, 1), "stride": (1, 1), "dilation": (1, 1)},
    {"weights": (16, 8, 1, 1), "padding": (0, 0), "stride": (1, 1), "dilation": (1, 1)},
    {"weights": (8, 1, 3, 3), "padding": (1, 1), "stride": (2, 2), "dilation": (1, 1), "group": 8},
    {"weights": (12, 4, 3, 2), "padding": (1, 1), "stride": (1, 2), "dilation": (2, 1), "group": 2},
]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("attributes", CONVOLUTIONS, ids=str)
def test_convolutions(attributes: dict[str, Any], given: bool) -> None:
    """With constant weights, and with ``given`` ones."""
    attributes = dict(attributes)
    weights = attributes.pop("weights")

    def shapes(n: Lens) -> list[Shape]:
        lens = n["batch"], 8, n["height"], n["width"]
        return [Shape(FLOAT, lens), *([Shape(FLOAT, weights)] if given else [])]

    def build(m: Module, p: list[Instruction], n: Lens) -> Instruction:
        w = p[1] if given else constant(m, *weights)
        return op(m, "relu", op(m, "convolution", p[0], w, **attributes))

    symbols = scope_of(batch=ANY, height=(4, None), width=(4, None))
    case = SymbolicCase(*symbols, shapes, build, FUSION)
    assert case.guards == [] and known_equal(case.plan.condition, 1)
    for batch, height, width in ((1, 4, 5), (2, 9, 31), (0, 7, 7), (1, 40, 6)):
        case.check(1e-4, batch=batch, height=height, width=width)


def test_transposed_convolutions() -> None:
    def shapes(n: Lens) -> list[Shape]:
        return [Shape(FLOAT, (n["batch"], 8, n["length"]))]

    def build(m: Module, p: list[Instruction], n: Lens) -> Instruction:
        w = constant(m, 8, 5, 3)
        return op(m, "convolution_backwards", p[0], w, padding=(1,), stride=(2,), dilation=(1,))

    case = SymbolicCase(*scope_of(batch=ANY, length=SOME), shapes, build, FUSION)
    assert case.guards == []
    for batch, length in ((1, 1), (3, 2), (0, 5), (2, 33)):
        case.check(1e-4, batch=batch, length=length)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [((2, 3), (2, 3), (0, 0)), ((4, 3), (2, 1), (1, 2))])
def test_transposed_convolutions_of_few_channels(
    kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> None:
    def shapes(n: Lens) -> list[Shape]:
        return [Shape(FLOAT, (n["batch"], 24, n["height"], n["width"]))]

    def build(m: Module, p: list[Instruction], n: Lens) -> Instruction:
        return op(m, "convolution_backwards", p[0], constant(m, 24, 1, *kernel), stride=stride, padding=padding)

    symbols = scope_of(batch=ANY, height=(2, None), width=(5, None))
    case = SymbolicCase(*symbols, shapes, build, ("rewrite_narrow_convolution", "rewrite_col2im", *FUSION))
    assert case.guards == [] and not any("conv" in name for name in case.kernels)
    for batch, height, width in ((1, 2, 5), (3, 2, 7), (0, 5, 6), (2, 33, 20)):
        case.check(1e-4, batch=batch, height=height, width=width)
