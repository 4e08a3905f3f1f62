"""Recurrent layers: orders of axes, outputs that are left out, and thresholds, against ONNX Runtime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from mgx_numba.errors import ParseError
from mgx_numba.frontends.onnx import parse_onnx

from ..values import normal
from .support import FLOAT, assert_like_onnxruntime, run, single

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
OUTPUTS = {"RNN": 2, "GRU": 2, "LSTM": 3}


def layer(op_type: str, directions: int = 1) -> list[np.ndarray]:
    """All inputs of a layer of two units: three steps of two sequences, one shorter."""
    rows = 2 * GATES[op_type]
    inputs = [
        normal(3, 2, 3),
        normal(directions, rows, 3, seed=1),
        normal(directions, rows, 2, seed=2),
        normal(directions, 2 * rows, seed=3),
        np.array([3, 2], np.int32),
        normal(directions, 2, 2, seed=4),
    ]
    return inputs + [normal(directions, 2, 2, seed=5), normal(directions, 6, seed=6)] * (op_type == "LSTM")


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op_type", GATES)
def test_any_outputs_may_be_left_out_in_both_orders_of_axes(op_type: str, direction: str) -> None:
    inputs = layer(op_type, 2 if direction == "bidirectional" else 1)
    options: dict[str, Any] = {"opset": 14, "hidden_size": 2, "direction": direction}
    count = OUTPUTS[op_type]
    everything, feeds = single(op_type, inputs, outputs=(FLOAT,) * count, **options)
    assert_like_onnxruntime(everything, feeds)
    states, *last = run(everything, feeds)
    batch_first = [states.transpose(2, 0, 1, 3), *(v.transpose(1, 0, 2) for v in last)]
    moved = [v.transpose(1, 0, 2) if k in (0, 5, 6) else v for k, v in enumerate(inputs)]
    for wanted in itertools.product((0, FLOAT), repeat=count):
        if not any(wanted):
            continue
        for layout, given, results in ((0, inputs, [states, *last]), (1, moved, batch_first)):
            found = run(*single(op_type, given, outputs=wanted, layout=layout, **options))
            expected = [r for r, w in zip(results, wanted, strict=True) if w]
            assert len(found) == len(expected)
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-6)


def test_threshold_0_of_rnn_bounds_everything() -> None:
    model, feeds = single("RNN", layer("RNN"), opset=14, hidden_size=2, outputs=(FLOAT, FLOAT), clip=0.0)
    assert_like_onnxruntime(model, feeds)


@pytest.mark.parametrize("op_type", ["GRU", "LSTM"])
def test_threshold_0_is_the_limit_of_small_ones(op_type: str) -> None:
    options: dict[str, Any] = {"opset": 14, "hidden_size": 2, "outputs": (FLOAT,) * OUTPUTS[op_type]}
    small, feeds = single(op_type, layer(op_type), clip=1e-7, **options)
    assert_like_onnxruntime(small, feeds)
    none, _ = single(op_type, layer(op_type), clip=0.0, **options)
    for a, b in zip(run(none, feeds), run(small, feeds), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("clip", [-1.0, float("nan")])
def test_threshold_below_0_is_refused(op_type: str, clip: float) -> None:
    model, _ = single(op_type, layer(op_type), opset=14, hidden_size=2, outputs=(FLOAT,), clip=clip)
    with pytest.raises(ParseError, match=rf"{op_type}.*'clip' is .*, expected a threshold of at least 0"):
        parse_onnx(model)
