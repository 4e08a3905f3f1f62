"""SVMClassifier against ONNX Runtime, and class probabilities against their definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import mgx_numba as migraphx
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import IndexRangeError, MgxError, ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.ops.base import make_op

from ..values import normal
from .support import FLOAT, INT64, assert_like_onnxruntime, make_model, run

ML = "ai.onnx.ml"
X = normal(7, 4)


def classifier(x: np.ndarray, label: int = INT64, **attributes: Any) -> Any:
    """Return a one-classifier model and its feeds."""
    node = helper.make_node("SVMClassifier", ["x"], ["label", "score"], domain=ML, **attributes)
    model = make_model([node], {"x": x}, {"label": label, "score": FLOAT})
    model.opset_import.append(helper.make_opsetid(ML, 1))
    return model, {"x": x}


def assert_like_evaluator(model: Any, feeds: dict[str, np.ndarray]) -> None:
    """Results agree with those of ONNX's evaluator."""
    for found, wanted in zip(run(model, feeds), ReferenceEvaluator(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def machine(
    classes: int, vectors: list[int], seed: int = 0, positive: bool = False, proba: bool = False
) -> dict[str, Any]:
    """Attributes of a classifier with so many support vectors for each class."""
    total, pairs = sum(vectors), classes * (classes - 1) // 2
    coefficients = normal((classes - 1) * total, seed=seed + 1)
    given: dict[str, Any] = {
        "classlabels_ints": [3 * k + 1 for k in range(classes)],
        "vectors_per_class": vectors,
        "support_vectors": normal(total * 4, seed=seed).tolist(),
        "coefficients": (np.abs(coefficients) if positive else coefficients).tolist(),
        "rho": normal(pairs, seed=seed + 2).tolist(),
        "kernel_type": "RBF",
        "kernel_params": [0.3, 0.0, 3.0],
    }
    if proba:
        given |= {"prob_a": (-np.abs(normal(pairs, seed=4))).tolist(), "prob_b": normal(pairs, seed=5).tolist()}
    return given


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("proba", [False, True])
@pytest.mark.parametrize(("classes", "vectors"), [(2, [3, 2]), (3, [2, 3, 4]), (4, [1, 2, 1, 3])])
def test_support_vectors(classes: int, vectors: list[int], proba: bool, transform: str) -> None:
    model, feeds = classifier(X, post_transform=transform, **machine(classes, vectors, proba=proba))
    if (classes, proba, transform) == (2, False, "SOFTMAX"):  # ONNX Runtime leaves the transform out
        assert_like_evaluator(model, feeds)
    else:
        assert_like_onnxruntime(model, feeds, 1e-4)


@pytest.mark.parametrize("kind", ["LINEAR", "POLY", "SIGMOID"])
def test_kernels(kind: str) -> None:
    given = {**machine(3, [2, 2, 2]), "kernel_type": kind, "kernel_params": [0.3, 0.2, 2.0]}
    assert_like_onnxruntime(*classifier(X, **given), 1e-4)


def test_coefficients_that_are_all_positive() -> None:
    assert_like_onnxruntime(*classifier(X, **machine(2, [3, 2], positive=True)), 1e-4)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_row_of_coefficients_for_each_class(classes: int, positive: bool) -> None:
    """With two classes, ONNX Runtime takes the second if any score is positive; ONNX's evaluator takes the larger
    score."""
    coefficients = normal(classes * 4, seed=1)
    given = {
        "classlabels_ints": list(range(5, 5 + classes)),
        "coefficients": (np.abs(coefficients) if positive else coefficients).tolist(),
        "rho": [0.25],
        "kernel_type": "LINEAR",
        "kernel_params": [0.0, 0.0, 0.0],
    }
    if classes == 2:
        assert_like_evaluator(*classifier(X, **given))
    else:
        assert_like_onnxruntime(*classifier(X, **given))


def test_labels_that_are_strings() -> None:
    names = ["low", "mid", "high"]
    numbers = machine(3, [2, 3, 4])
    texts = {**numbers, "classlabels_strings": names}
    del texts["classlabels_ints"]
    found = {}
    for kind, given, type in (("i", numbers, INT64), ("s", texts, TensorProto.STRING)):
        model, feeds = classifier(X, type, **given)
        found[kind] = migraphx.parse_onnx(model).compile("cpu").run(feeds)
    assert found["s"][0].tolist() == [names[(k - 1) // 3] for k in found["i"][0].tolist()]
    np.testing.assert_array_equal(found["s"][1], found["i"][1])


def test_attributes_that_do_not_fit() -> None:
    for change, message in (
        ({"rho": [0.5]}, "1 elements of rho for 3 classes"),
        ({"coefficients": [1.0] * 4}, "4 coefficients for 9 vectors of 3 classes"),
        ({"prob_a": [1.0]}, "1 and 0 elements of prob_a and prob_b for 3 pairs"),
    ):
        with pytest.raises(MgxError, match=message):
            parse_onnx(classifier(X, **{**machine(3, [2, 3, 4]), **change})[0])


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_probabilities_that_pairs_agree_on(classes: int) -> None:
    """Pairwise probabilities derived from class probabilities give the class probabilities back."""
    p = np.abs(normal(6, classes)) + 0.1
    p /= p.sum(1, keepdims=True)
    i, j = np.triu_indices(classes, 1)
    pairs = (p[:, i] / (p[:, i] + p[:, j])).astype(np.float32)
    op = make_op("pairwise_coupling", classes=classes)
    shape = op.compute_shape([Shape(Type.float_type, pairs.shape)])
    found = op.compute(shape, [pairs])
    assert shape.lens == found.shape == (6, classes)
    np.testing.assert_allclose(found, p, atol=0.01 / classes)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)
    assert op.compute(shape, [pairs[:0]]).shape == (0, classes)
    with pytest.raises(ShapeError, match="expected .n, "):
        op.compute_shape([Shape(Type.float_type, (6, 7))])


@pytest.mark.parametrize("pooled", [(2, 2), (3, 1), (7, 7)])
@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_max_roi_pool(pooled: tuple[int, int], scale: float) -> None:
    x = normal(2, 3, 9, 8)
    rois = np.float32([[0, 0, 0, 7, 8], [1, 2.5, 1, 5.2, 3], [1, 6, 6, 3, 2], [0, -4, 5, 30, 40], [1, 3, 3, 3, 3]])
    node = helper.make_node("MaxRoiPool", ["x", "r"], ["y"], pooled_shape=pooled, spatial_scale=scale)
    feeds = {"x": x, "r": rois}
    assert_like_onnxruntime(make_model([node], feeds, {"y": FLOAT}), feeds)


def test_regions_of_no_image() -> None:
    node = helper.make_node("MaxRoiPool", ["x", "r"], ["y"], pooled_shape=[2, 2])
    feeds = {"x": normal(2, 3, 4, 4), "r": np.float32([[2, 0, 0, 1, 1]])}
    program = migraphx.parse_onnx(make_model([node], feeds, {"y": FLOAT}))
    for target in ("ref", "cpu"):
        with pytest.raises(IndexRangeError, match="index 2 .*is out of range for 2 images"):
            program.clone().compile(target).run(feeds)
    bad = helper.make_node("MaxRoiPool", ["x", "r"], ["y"], pooled_shape=[2])
    with pytest.raises(ShapeError, match="pooled_shape is .2., expected two"):
        parse_onnx(make_model([bad], feeds, {"y": FLOAT}))
