"""Products with weights in GGUF's layouts on the interpreter: those without offsets have kernels."""

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


@pytest.mark.parametrize("name", LAYOUTS)
def test_products(name: str) -> None:
    layout, rng, program = LAYOUTS[name], np.random.default_rng(0), Program()
    x = program.main.add_parameter("x", Shape(Type.half_type, (1, 512)))
    parts = [program.main.add_literal(random_blocks(name, (n, 512), rng)) for n in (8, 16)]
    sizes = {"bits": layout.bits, "block_size": layout.size, "layout": name}
    program.main.add_return([program.main.add_instruction("matmul_nbits", [x, *parts], **sizes)])
    feeds = {"x": rng.standard_normal((1, 512)).astype(np.float16)}
    found = compiled(program, interpreter())
    assert bool(hosted(found)) == layout.has_offsets
    (out,), (right,) = found.run(feeds), reference(program, feeds).results
    assert np.abs(out.astype(float) - right).max() < 2e-3 * np.abs(right).max()
