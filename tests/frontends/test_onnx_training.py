"""Optimiser steps against ONNX's evaluator, determinants against ONNX Runtime, optionals with known values."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import mgx_numba.backend as backend
from mgx_numba.errors import ParseError, ShapeError

from ..values import normal
from .support import FLOAT, assert_like_onnxruntime, make_model, run, single

TRAINING = "ai.onnx.preview.training"
STEPS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "adagrad": ("Adagrad", 1, {"norm_coefficient": 0.01, "decay_factor": 0.1, "epsilon": 1e-5}),
    "adam": ("Adam", 2, {"norm_coefficient": 0.01, "norm_coefficient_post": 0.1, "alpha": 0.8, "beta": 0.9}),
    "momentum": ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.5, "mode": "standard"}),
    "nesterov": ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.5, "mode": "nesterov"}),
}


@pytest.mark.parametrize("tensors", [1, 2])
@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("name", STEPS)
def test_steps_agree_with_onnx(name: str, count: int, tensors: int) -> None:
    op_type, states, attributes = STEPS[name]
    given = [normal(2, 1 + k % tensors, seed=k) for k in range((2 + states) * tensors)]
    given[2 * tensors :] = [np.abs(v) for v in given[2 * tensors :]]
    feeds = {"r": np.float32(0.1), "t": np.int64(count)} | {f"x{k}": v for k, v in enumerate(given)}
    outputs = [f"y{k}" for k in range((1 + states) * tensors)]
    node = helper.make_node(op_type, list(feeds), outputs, domain=TRAINING, **attributes)
    model = make_model([node], {k: np.asarray(v) for k, v in feeds.items()}, dict.fromkeys(outputs, FLOAT))
    model.opset_import.append(helper.make_opsetid(TRAINING, 1))
    for result, wanted in zip(run(model, feeds), ReferenceEvaluator(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=2e-6, atol=1e-6)


def test_a_wrong_number_of_tensors() -> None:
    node = helper.make_node("Adagrad", ["r", "t", "a", "b"], ["y"], domain=TRAINING)
    with pytest.raises(ParseError, match="got 2 inputs after rate and count, expected 3 for each tensor"):
        backend.run_node(node, [np.float32(1), np.int64(0), normal(2), normal(2)], target="ref")


@pytest.mark.parametrize("target", ["ref", "cpu"])
@pytest.mark.parametrize("lens", [(3, 3), (2, 4, 2, 2), (0, 3, 3), (1, 1)])
def test_determinants(lens: tuple[int, ...], target: str) -> None:
    x = normal(*lens)
    (y,) = backend.run_node(helper.make_node("Det", ["x"], ["y"]), [x], target=target)
    assert y.shape == lens[:-2]
    np.testing.assert_allclose(y, np.linalg.det(x.astype(np.float64)), rtol=1e-4, atol=1e-5)


def test_determinants_agree_with_onnxruntime() -> None:
    assert_like_onnxruntime(*single("Det", [normal(2, 4, 4)], opset=11))


def test_a_determinant_needs_square_matrices() -> None:
    with pytest.raises(ShapeError, match="expected square matrices"):
        run(*single("Det", [normal(2, 3)], opset=11))


def test_an_optional_holds_what_is_put_into_it() -> None:
    x = normal(2, 3)
    nodes = [
        helper.make_node("Optional", ["x"], ["o"]),
        helper.make_node("OptionalHasElement", ["o"], ["known"]),
        helper.make_node("OptionalGetElement", ["o"], ["y"]),
        helper.make_node("OptionalHasElement", [], ["nothing"]),
    ]
    outputs = {"known": TensorProto.BOOL, "y": FLOAT, "nothing": TensorProto.BOOL}
    known, y, nothing = run(make_model(nodes, {"x": x}, outputs, opset=18), {"x": x})
    assert (bool(known), bool(nothing), known.shape) == (True, False, ())
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_float4_is_rounded_as_ml_dtypes_does(target: str) -> None:
    x = np.concatenate([np.linspace(-8, 8, 1025), [0.25, 2.5, 5, -0.1, 1e9, -np.inf, np.inf, np.nan]]).astype(
        np.float32
    )
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT4E2M1)
    (y,) = backend.run_node(node, [x], target=target)
    assert y.dtype == ml_dtypes.float4_e2m1fn
    np.testing.assert_array_equal(y.view(np.uint8), x.astype(ml_dtypes.float4_e2m1fn).view(np.uint8))
