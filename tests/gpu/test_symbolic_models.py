"""Models with open lengths on the interpreter: one plan has no guards, and is correct for any lengths."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from mgx_numba.frontends.onnx import parse_onnx

from ..cpu.agreement import assert_agrees, reference
from ..dynamic import models
from .symbolic import SymbolicPlan


@pytest.mark.parametrize("case, fast_math", [(partial(models.encoder, most=5), True), (models.decoder, False)])
def test_transformers_have_one_plan(
    case: Callable[[], models.Case], fast_math: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    model = case()
    program = parse_onnx(model.model)
    made = SymbolicPlan(program, fast_math=fast_math)
    assert not made.guards
    assert not [label for label in made.labels if label.startswith("ref::")]
    rng = np.random.default_rng(0)
    for _ in range(1 + (not fast_math)):
        inputs = model.draw(rng)
        results, wanted = made.run(inputs), reference(program, inputs)
        if not fast_math:
            assert_agrees(results, wanted)
        for own, other in zip(results, wanted.results):
            np.testing.assert_allclose(own, other, rtol=1e-3, atol=1e-3)
