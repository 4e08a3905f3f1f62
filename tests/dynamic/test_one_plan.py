"""What fuzzing of plans with symbols on the CPU has found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mgx_numba.api.program import program as public_program
from mgx_numba.frontends.onnx import parse_onnx

from ..values import normal
from .models import FLOAT, Graph


@pytest.mark.parametrize(
    ("build", "heights"),
    [
        *[
            (lambda g, m=mode: g.op("Pad", "x", g.ints(0, 0, 1, 0, 0, 0, 2, 0), mode=m), 4)
            for mode in ("edge", "reflect")
        ],
        *[
            (lambda g, m=mode, s=scale: g.op("Resize", "x", "", g.const([1, 1, s, 1], np.float32), mode=m), height)
            for mode in ("nearest", "linear")
            for scale, height in ((2.0, 4), (1.5, 1))
        ],
    ],
)
def test_a_table_of_positions_on_an_axis_of_fixed_length_has_no_symbolic_steps(
    build: Callable[[Graph], str], heights: int
) -> None:
    """Its positions times the open length of an axis inside were a constant, whose memory a kernel read as numbers."""
    g = Graph()
    model = g.model({"x": (FLOAT, ["n", 3, heights, "w"])}, [build(g)])
    compiled = public_program.wrap(parse_onnx(model)).compile("cpu")
    for lens in ((2, 3, heights, 5), (1, 3, heights, 1), (3, 3, heights, 40)):
        x = normal(*lens)
        wanted = public_program.wrap(parse_onnx(model, map_input_dims={"x": list(lens)})).compile("ref").run({"x": x})
        np.testing.assert_allclose(np.asarray(compiled.run({"x": x})[0]), np.asarray(wanted[0]), rtol=1e-5, atol=1e-6)
    assert len(compiled.open_plans()) == 1
