"""Products with weights in GGUF's layouts on the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.ops.block_layouts import LAYOUTS

from ..cpu.agreement import reference
from ..llm.writing import random_blocks
from .operators import hosted
from .programs import compiled, interpreter

ALLOWED = {Type.float_type: 1e-5, Type.half_type: 2e-3, Type.bf16_type: 1e-2}


@pytest.mark.parametrize(
    ("type", "rows"),
    [(Type.half_type, 1), (Type.bf16_type, 3), (Type.half_type, 9), (Type.float_type, 1), (Type.float_type, 9)],
)
@pytest.mark.parametrize("name", LAYOUTS)
def test_products(name: str, type: Type, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    layout, rng, program = LAYOUTS[name], np.random.default_rng(0), Program()
    # nine rows of float32 run on FMA units: the interpreter takes 0.7 s for each 64 columns
    depth = max(128, layout.stored) if type is Type.float_type and rows > 1 else 512
    x = program.main.add_parameter("x", Shape(type, (rows, depth)))
    parts = [program.main.add_literal(random_blocks(name, (n, depth), rng)) for n in (8, 16)]
    sizes = {"bits": layout.bits, "block_size": layout.size, "layout": name}
    program.main.add_return([program.main.add_instruction("matmul_nbits", [x, *parts], **sizes)])
    feeds = {"x": rng.standard_normal((rows, depth)).astype(type.numpy)}
    found = compiled(program, interpreter())
    assert not hosted(found)
    (out,), (right,) = found.run(feeds), reference(program, feeds).results
    assert np.abs(out.astype(float) - right).max() < ALLOWED[type] * np.abs(right).max()
