"""Products with 4-bit weights prefetch those of the next product."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.gpu.weights_ahead import LINE_BYTES
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program

from ..cpu.agreement import reference
from ..interpreter import run as interpreter_run
from ..interpreter.names import memory_names
from .programs import compiled, interpreter

DEPTH, BLOCK = 256, 32


def products(m: Module, columns: tuple[int, ...]) -> None:
    """Add products in a row, of `DEPTH` terms each."""
    rng = np.random.default_rng(0)
    x = m.add_parameter("x", Shape(Type.half_type, (1, DEPTH)))
    for n in columns:
        codes = rng.integers(0, 256, (n, DEPTH // BLOCK, BLOCK // 2)).astype(np.uint8)
        scales = m.add_literal(rng.uniform(0.001, 0.002, (n, DEPTH // BLOCK)).astype(np.float32))
        x = m.add_instruction("matmul_nbits", [x, m.add_literal(codes), scales], bits=4, block_size=BLOCK)
    m.add_return([x])


def test_each_product_prefetches_the_weights_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    asked: list[int] = []
    names = {**memory_names(), "prefetch_l2": lambda place, index: asked.append(int(index))}
    monkeypatch.setattr(interpreter_run, "memory_names", lambda: names)
    program = Program()
    products(program.main, (DEPTH, DEPTH, 48))
    made = compiled(program, interpreter())
    inputs = {"x": np.random.default_rng(1).standard_normal((1, DEPTH)).astype(np.float16)}
    (found,), (wanted,) = made.run(inputs), reference(program, inputs).results
    np.testing.assert_allclose(found.astype(float), wanted.astype(float), rtol=2e-2, atol=2e-3)
    chunk = 16 * 128 // 2 + 16 * 4 * 4  # bytes of 128 codes of 16 columns, and of their scales
    lines = [columns // 16 * DEPTH // 128 * chunk // LINE_BYTES for columns in (DEPTH, 48)]
    assert sorted(asked) == sorted(32 * line for count in lines for line in range(count))
