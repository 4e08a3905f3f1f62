"""Ensembles of decision trees: a thread for each row."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.gpu.data import tree_ensemble
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.test_trees import COMPARISONS, SPECIAL, grown, model_of, walked
from .operators import hosted
from .programs import compiled


@pytest.mark.parametrize(("scores", "aggregate"), [(1, 1), (3, 3)])
def test_every_way_through_trees(scores: int, aggregate: int, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_ensemble, "THREADS", 32)
    x = np.random.default_rng(1).choice([*SPECIAL, 0.25], (37, 4)).astype(np.float32)
    forest = grown(scores, 4, 3, scores, [*COMPARISONS] if scores > 1 else [0])
    program = parse_onnx(model_of(forest, aggregate, np.float32, 37))
    made = compiled(program, on)
    assert not hosted(made)
    np.testing.assert_allclose(made.run({"x": x})[0], walked(forest, x, aggregate), rtol=1e-5, atol=1e-6)
