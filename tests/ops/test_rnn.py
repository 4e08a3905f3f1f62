"""Recurrent layers against ONNX Runtime, and the steps around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError, UnsupportedError
from mgx_numba.ops.base import make_op
from mgx_numba.ops.rnn import Recurrent

from .running import call, onnx_runtime, shape, shapes_of

STEPS, BATCH, FEATURES, HIDDEN = 5, 3, 4, 6
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
MISSING = np.zeros((), np.float32)
FUNCTIONS = {
    "Tanh": make_op("tanh"),
    "Sigmoid": make_op("sigmoid"),
    "Relu": make_op("relu"),
    "LeakyRelu": make_op("leaky_relu", alpha=0.1),
    "HardSigmoid": make_op("hard_sigmoid", alpha=0.3, beta=0.4),
    "Elu": make_op("elu", alpha=0.8),
    "Softsign": make_op("softsign"),
    "Affine": make_op("affine", alpha=0.5, beta=0.1),
    "ScaledTanh": make_op("scaled_tanh", alpha=0.7, beta=0.6),
    "ThresholdedRelu": make_op("thresholded_relu", alpha=0.2),
}
ALPHAS = {
    "LeakyRelu": 0.1, "HardSigmoid": 0.3, "Elu": 0.8, "Affine": 0.5, "ScaledTanh": 0.7,
    "ThresholdedRelu": 0.2,
}  # fmt: skip
BETAS = {"HardSigmoid": 0.4, "Affine": 0.1, "ScaledTanh": 0.6}


def layer(kind: str, directions: int) -> list[np.ndarray]:
    """Inputs of a layer: sequence, weights, biases, lengths, initial states, peepholes."""
    rng = np.random.default_rng(4)
    rows = GATES[kind] * HIDDEN

    def normal(*lens: int) -> np.ndarray:
        return (0.5 * rng.standard_normal(lens)).astype(np.float32)

    return [
        normal(STEPS, BATCH, FEATURES),
        normal(directions, rows, FEATURES),
        normal(directions, rows, HIDDEN),
        normal(directions, 2 * rows),
        np.array([5, 2, 3], np.int32),
        normal(directions, BATCH, HIDDEN),
        normal(directions, BATCH, HIDDEN),
        normal(directions, 3 * HIDDEN),
    ][: 8 if kind == "lstm" else 6]


def both(kind: str, args: list[Any], onnx_attributes: dict | None = None, **attributes: Any) -> None:
    """Compare all results with ONNX Runtime's."""
    outputs = 3 if kind == "lstm" else 2
    expected = onnx_runtime(
        kind.upper(), *[None if a is MISSING else a for a in args], outputs=outputs, hidden_size=HIDDEN,
        direction=attributes.get("direction", "forward"), **(onnx_attributes or {}),
    )  # fmt: skip
    op = make_op(kind, hidden_size=HIDDEN, **attributes)
    shapes = [Shape.absent(Type.float_type) if a is MISSING else shapes_of(a)[0] for a in args]
    output = op.compute_shape(shapes)
    y = op.compute(output, args)
    assert (y.shape, y.dtype) == (output.lens, np.float32)
    np.testing.assert_allclose(y, expected[0], rtol=1e-4, atol=1e-6)
    full = Recurrent.of(op)
    for own, other in zip(full.compute(full.compute_shape(shapes), args), expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_layer_with_every_input(kind: str, direction: str) -> None:
    both(kind, layer(kind, 2 if direction == "bidirectional" else 1), direction=direction)


@pytest.mark.parametrize("kind", GATES)
def test_missing_inputs(kind: str) -> None:
    args = layer(kind, 1)
    both(kind, args[:3])
    both(kind, [*args[:3], MISSING, MISSING, args[5]])
    both(kind, [*args[:4], MISSING, *args[5:]])


@pytest.mark.parametrize("kind", GATES)
def test_clip_bounds_the_inputs_of_activations(kind: str) -> None:
    both(kind, layer(kind, 1), {"clip": 0.3}, clip=0.3)


def test_gru_with_linear_before_reset() -> None:
    both("gru", layer("gru", 2), {"linear_before_reset": 1}, linear_before_reset=1, direction="bidirectional")


def test_lstm_with_coupled_gates() -> None:
    both("lstm", layer("lstm", 1)[:7], {"input_forget": 1}, input_forget=1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_activation_functions(name: str) -> None:
    attributes: dict[str, Any] = {"activations": [name, "Tanh"]}
    if name in ALPHAS:
        attributes["activation_alpha"] = [ALPHAS[name]]
    if name in BETAS:
        attributes["activation_beta"] = [BETAS[name]]
    functions = [FUNCTIONS[name], FUNCTIONS["Tanh"]]
    both("rnn", layer("rnn", 2), attributes, actv_func=functions, direction="bidirectional")


def test_functions_of_both_directions() -> None:
    names = ["Sigmoid", "Relu", "Softsign", "Tanh"]
    functions = [FUNCTIONS[n] for n in names]
    both("gru", layer("gru", 2), {"activations": names}, actv_func=functions, direction="bidirectional")


def test_attribute_text_is_that_of_migraphx() -> None:
    assert str(make_op("lstm", hidden_size=20, actv_func=["sigmoid", "tanh", "tanh"])) == (
        "lstm[hidden_size=20,actv_func={sigmoid, tanh, tanh},direction=forward,clip=0,input_forget=0]"
    )


def test_layer_refuses() -> None:
    args = layer("lstm", 1)
    for changed, attributes, message in (
        ([args[0][0], *args[1:]], {}, "sequence must be"),
        ([args[0], args[1][:, 1:], *args[2:]], {}, "axis 1 of w"),
        ([*args[:4], args[4][:2]], {}, "axis 0 of lengths"),
        (args, {"direction": "bidirectional"}, "axis 0 of w"),
        (args, {"actv_func": ["tanh"]}, "activation functions"),
        ([args[0].astype(np.float64), *args[1:]], {}, "w is float_type"),
    ):
        with pytest.raises(ShapeError, match=message):
            shape("lstm", *changed, hidden_size=HIDDEN, **attributes)


def test_layer_of_ranges() -> None:
    args = layer("gru", 1)
    x = Shape.dynamic(Type.float_type, [DynamicDimension(1, 9), DynamicDimension(1, 4), FEATURES])
    assert shape("gru", x, *args[1:4], hidden_size=HIDDEN).dims[0] == DynamicDimension(1, 9)


def test_last_states_are_not_computed_from_hidden_states() -> None:
    states = np.zeros((STEPS, 1, BATCH, HIDDEN), np.float32)
    assert shape("rnn_last_hs_output", states).lens == shape("rnn_last_cell_output", states).lens == (1, BATCH, HIDDEN)
    with pytest.raises(UnsupportedError, match="rewrite_rnn"):
        call("rnn_last_cell_output", states)


def test_steps_around_sequences_of_different_lengths() -> None:
    x = np.arange(1, 13, dtype=np.float32).reshape(4, 3, 1)
    lengths = np.array([4, 1, 2])
    shifted = call("rnn_var_sl_shift_sequence", x, lengths)
    assert shifted[:, :, 0].T.tolist() == [[1, 4, 7, 10], [0, 0, 0, 2], [0, 0, 3, 6]]
    states = np.stack([x, 100 + x], 1)
    moved = call("rnn_var_sl_shift_output", states, lengths, direction="bidirectional")[..., 0]
    assert moved[:, 0].T.tolist() == [[1, 4, 7, 10], [2, 0, 0, 0], [3, 6, 0, 0]]
    assert moved[:, 1].T.tolist() == [[101, 104, 107, 110], [111, 0, 0, 0], [109, 112, 0, 0]]
    last = call("rnn_var_sl_last_output", states, lengths, direction="bidirectional")[..., 0]
    assert last.tolist() == [[10, 2, 6], [101, 102, 103]]
    backward = call("rnn_var_sl_last_output", states[:, :1], lengths, direction="reverse")[..., 0]
    assert backward.tolist() == [[1, 2, 3]]
    with pytest.raises(ShapeError, match="number of lengths"):
        shape("rnn_var_sl_shift_sequence", x, lengths[:2])
