"""Products with weights in GGUF's layouts, for few and many rows, against the operator's NumPy meaning."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.cpu.contraction.gemm_block_quant import GemmBlockQuant
from mgx_numba.codegen.cpu.contraction.gemv_block_quant import GemvBlockQuant
from mgx_numba.codegen.problems.gemm import BlockFormat, GemmProblem, StoredBlocks
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.ops.base import make_op
from mgx_numba.ops.block_layouts import LAYOUTS
from mgx_numba.targets.cpu.measuring import _block_weights

from .contracting import run_plan

GEMV, GEMM = GemvBlockQuant(), GemmBlockQuant()
SCALE_PLACES = {"q6_k": (208,)}


def stored(name: str, n: int, depth: int) -> np.ndarray:
    """Rows of random blocks whose float16 scales are small."""
    layout, rng = LAYOUTS[name], np.random.default_rng([n, depth])
    raw = rng.integers(0, 256, (n, layout.row_bytes(depth))).astype(np.uint8)
    blocks = raw.reshape(n, -1, layout.bytes)
    for at in SCALE_PLACES.get(name, (0, 2) if layout.has_offsets else (0,)):
        scales = rng.uniform(0.01, 0.1, blocks.shape[:2]).astype(np.float16)
        blocks[..., at : at + 2] = scales.view(np.uint8).reshape(*blocks.shape[:2], 2)
    return raw


def form_of(name: str, half: bool = False, int8: bool = False) -> BlockFormat:
    layout = LAYOUTS[name]
    return BlockFormat(layout.bits, layout.size, False, int8, half, offsets=layout.has_offsets)


def product(name: str, x: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    op = make_op("matmul_nbits", bits=LAYOUTS[name].bits, block_size=LAYOUTS[name].size, layout=name)
    n = sum(map(len, parts))
    return op.compute(Shape(Type.double_type, (*x.shape[:-1], n)), [x.astype(float), *parts])


def far(out: np.ndarray, right: np.ndarray) -> float:
    return float(np.abs(out - right).max() / np.abs(right).max())


@pytest.mark.parametrize("features", ["", "x86-64-v3", "sse"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_few_rows(name: str, features: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    depth = 2 * max(LAYOUTS[name].stored, 64)
    parts = [stored(name, n, depth) for n in (20, 37)]
    x = np.random.default_rng(1).standard_normal((3, depth)).astype(np.float32)
    right = product(name, x, parts)
    halves = [False, True] if name[-1] in "01" else [False]  # scales of K-quants are no float16 numbers
    cases = [(half, int8, fast) for half in halves for int8, fast in ((False, False), (False, True), (True, True))]
    for half, int8, fast in cases[:: 1 if not features else 2]:
        form = form_of(name, half, int8)
        problem = GemmProblem(3, 57, depth, blocks=form, fast_math=fast)
        packed = GEMV.pack_blocks(problem, StoredBlocks(name, tuple(parts)))
        assert packed.shape == GEMV.packed_lens(problem)
        out = np.full((3, 57), np.nan, np.float32)
        run_plan(GEMV.plan(problem, threads=2), {"x": x, "w": packed, "out": out})
        assert far(out, right) < (2e-2 if int8 else 5e-5 if fast else 3e-6)


@pytest.mark.parametrize("name", LAYOUTS)
def test_many_rows(name: str) -> None:
    depth = 3 * LAYOUTS[name].stored
    parts = [stored(name, n, depth) for n in (3, 40)]
    x = np.random.default_rng(2).standard_normal((30, depth)).astype(np.float32)
    for half in (False, True):
        problem = GemmProblem(30, 43, depth, blocks=form_of(name, half))
        packed = GEMM.pack_blocks(problem, StoredBlocks(name, tuple(parts)))
        out = np.full((30, 43), np.nan, np.float32)
        run_plan(GEMM.plan(problem), {"x": x, "w": packed, "out": out})
        assert far(out, product(name, x, parts)) < (3e-6 if not half or name[-1] in "01" else 2e-3)


@pytest.mark.parametrize("name", LAYOUTS)
def test_measured_weights(name: str) -> None:
    """Tuning makes weights of each format."""
    problem = GemmProblem(1, 20, 512, blocks=form_of(name))
    weights = _block_weights(problem, problem.blocks)
    assert GEMV.pack_blocks(problem, weights).shape == GEMV.packed_lens(problem)


def test_shapes_are_checked() -> None:
    rows, right = Shape(Type.float_type, (2, 64)), Shape(Type.uint8_type, (5, 40))
    op = make_op("matmul_nbits", bits=4, block_size=32, layout="q4_1")
    assert op.compute_shape([rows, right, right]).lens == (2, 10)
    for name, bits, inputs in (
        ("q4_1", 4, [rows]),
        ("q4_1", 4, [rows, Shape(Type.uint8_type, (5, 41))]),
        ("q4_1", 4, [rows, Shape(Type.int8_type, (5, 40))]),
        ("q4_1", 5, [rows, right]),
        ("q4_k", 4, [rows, right]),
        ("q9_9", 4, [rows, right]),
    ):
        with pytest.raises(ShapeError):
            make_op("matmul_nbits", bits=bits, block_size=32, layout=name).compute_shape(inputs)
