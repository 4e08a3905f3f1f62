"""Ensembles of random trees against ONNX Runtime, on ``ref`` and on ``cpu``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.errors import ParseError, ShapeError
from mgx_numba.frontends.onnx import parse_onnx

from .onnx_cases import run_compiled
from .support import FLOAT, INT64, assert_like_onnxruntime, run
from .test_onnx_ml import model

MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def forest(
    seed: int, trees: int, scores: list[int], what: str, modes: list[str], *, every: bool = True, negative: bool = True
) -> dict[str, Any]:
    """Attributes of random trees of several depths; leaves add to all ``scores``, or to one of them by turns."""
    random = np.random.default_rng(seed)
    names = "treeids nodeids featureids values modes truenodeids falsenodeids missing_value_tracks_true".split()
    nodes: dict[str, list[Any]] = {f"nodes_{name}": [] for name in names}
    leaves: dict[str, list[Any]] = {f"{what}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}

    def grow(tree: int, depth: int, count: list[int]) -> int:
        own = count[0]
        count[0] += 1
        inner = depth > 0 and (depth > 2 or random.random() < 0.8)
        row = len(nodes["nodes_treeids"])
        mode = modes[int(random.integers(len(modes)))] if inner else "LEAF"
        values = [tree, own, int(random.integers(4)), float(random.integers(-2, 3)) / 2, mode, 0, 0]
        for key, value in zip(nodes, [*values, int(random.integers(2))], strict=True):
            nodes[key].append(value)
        if inner:
            nodes["nodes_truenodeids"][row] = grow(tree, depth - 1, count)
            nodes["nodes_falsenodeids"][row] = grow(tree, depth - 1, count)
        else:
            for score in scores if every else [scores[tree % len(scores)]]:
                weight = float(random.normal()) if negative else float(random.random()) / trees
                for key, value in zip(leaves, [tree, own, score, weight], strict=True):
                    leaves[key].append(value)
        return own

    for tree in range(trees):
        grow(tree, 3, [0])
    return {**nodes, **leaves}


def samples(seed: int, missing: bool = False) -> np.ndarray:
    """Features that meet the thresholds, and NaN."""
    random = np.random.default_rng(seed)
    x = (random.integers(-4, 5, (37, 4)) / 4).astype(np.float32)
    return np.where(random.random(x.shape) < 0.1, np.float32(np.nan), x) if missing else x


@pytest.mark.parametrize("mode", [*MODES, "all"])
def test_every_comparison_and_missing_values(mode: str) -> None:
    attributes = forest(3, 4, [0, 1], "target", MODES if mode == "all" else [mode])
    assert_like_onnxruntime(*model("TreeEnsembleRegressor", [samples(0, True)], n_targets=2, **attributes))


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("base", [[], [0.5, -1.0]])
def test_aggregates(how: str, base: list[float]) -> None:
    attributes = forest(4, 5, [0, 1], "target", MODES[:1], every=False)
    extra = {"base_values": base} if base else {}
    made = model("TreeEnsembleRegressor", [samples(1)], n_targets=2, aggregate_function=how, **attributes, **extra)
    assert_like_onnxruntime(*made)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("scores", [2, 3])
def test_transforms(transform: str, scores: int) -> None:
    attributes = forest(5, 3, [*range(scores)], "target", MODES[:1])
    made = model("TreeEnsembleRegressor", [samples(2)], n_targets=scores, post_transform=transform, **attributes)
    assert_like_onnxruntime(*made)


def test_a_single_score_is_transformed() -> None:
    """ONNX Runtime leaves it as it is."""
    attributes = forest(5, 3, [0], "target", MODES[:1])
    (plain,) = run(*model("TreeEnsembleRegressor", [samples(2)], n_targets=1, **attributes))
    (y,) = run(*model("TreeEnsembleRegressor", [samples(2)], n_targets=1, post_transform="LOGISTIC", **attributes))
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-plain)), rtol=1e-6)


CLASSIFIERS: dict[str, dict[str, Any]] = {
    "three_classes": {"scores": [0, 1, 2], "classes": 3},
    "three_classes_a_tree_each": {"scores": [0, 1, 2], "classes": 3, "every": False},
    "three_classes_one_never_scored": {"scores": [0, 2], "classes": 3},
    "the_second_score": {"scores": [1], "classes": 2},
    "the_second_score_of_positive_weights": {"scores": [1], "classes": 2, "negative": False},
    "one_score": {"scores": [0], "classes": 2},
    "one_score_of_positive_weights": {"scores": [0], "classes": 2, "negative": False},
}


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("based", [False, True])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers(name: str, based: bool, transform: str) -> None:
    options = dict(CLASSIFIERS[name])
    if based and name.startswith("the_second"):
        pytest.skip("a base value of the first class alone")
    scores, classes = options.pop("scores"), options.pop("classes")
    attributes = forest(6, 6, scores, "class", MODES[:1], **options)
    extra = {"base_values": [0.25, -0.5, 0.125][:classes] if len(scores) > 1 else [0.25]} if based else {}
    labels = [10, 20, 30][:classes]
    made = model(
        "TreeEnsembleClassifier",
        [samples(3)],
        [INT64, FLOAT],
        classlabels_int64s=labels,
        post_transform=transform,
        **attributes,
        **extra,
    )
    assert_like_onnxruntime(*made)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX"])
@pytest.mark.parametrize("based", [False, True])
def test_two_classes_with_a_score_each(transform: str, based: bool) -> None:
    """ONNX Runtime has the labels 0 and 1 here, whatever they are called, and one base value for both classes."""
    attributes = forest(6, 6, [0, 1], "class", MODES[:1])
    extra = {"base_values": [0.25, -0.5]} if based else {}
    options = {"classlabels_int64s": [10, 20], "post_transform": transform}
    made = model("TreeEnsembleClassifier", [samples(3)], [INT64, FLOAT], **options, **attributes, **extra)
    if not based:
        assert_like_onnxruntime(*made, skip=[0])
    label, scores = run(*made)
    np.testing.assert_array_equal(label, np.where(scores[:, 1] > scores[:, 0], 20, 10))
    if based:
        options["post_transform"] = "NONE"
        plain = run(*model("TreeEnsembleClassifier", [samples(3)], [INT64, FLOAT], **options, **attributes))[1]
        wanted = plain + np.array([0.25, -0.5], np.float32)
        if transform == "SOFTMAX":
            wanted = np.exp(wanted) / np.exp(wanted).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=1e-6)


def test_features_in_float64() -> None:
    attributes = forest(7, 3, [0], "target", MODES[:1])
    assert_like_onnxruntime(*model("TreeEnsembleRegressor", [samples(4).astype(np.float64)], n_targets=1, **attributes))


def test_integer_features_are_those_numbers() -> None:
    attributes = forest(7, 3, [0], "target", MODES[:1])
    x = (samples(4) * 4).astype(np.int64)
    (y,) = run(*model("TreeEnsembleRegressor", [x], n_targets=1, **attributes))
    (wanted,) = run(*model("TreeEnsembleRegressor", [x.astype(np.float32)], n_targets=1, **attributes))
    np.testing.assert_array_equal(y, wanted)


def test_trees_have_kernels_on_the_cpu() -> None:
    attributes = forest(8, 4, [0, 1, 2], "target", MODES)
    made, feeds = model("TreeEnsembleRegressor", [samples(5, True)], n_targets=3, **attributes)
    (wanted,) = run(made, feeds)
    (y,) = run_compiled(parse_onnx(made), feeds)
    np.testing.assert_allclose(y, wanted, rtol=1e-6, atol=1e-6)


def test_no_samples() -> None:
    made, feeds = model("TreeEnsembleRegressor", [samples(0)[:0]], **forest(8, 2, [0], "target", MODES[:1]))
    (y,) = run(made, feeds)
    assert y.shape == (0, 1)


def test_what_is_wrong_with_a_forest_is_said() -> None:
    attributes = forest(9, 1, [0], "target", MODES[:1])
    x = samples(6)
    inner = attributes["nodes_modes"].index("BRANCH_LEQ")
    circle = {
        **attributes,
        "nodes_truenodeids": [inner if k == inner else v for k, v in enumerate(attributes["nodes_truenodeids"])],
    }
    nowhere = {**attributes, "nodes_truenodeids": [99] * len(attributes["nodes_modes"])}
    for given, message in ((circle, "comes back to a node"), (nowhere, "has no node 99")):
        with pytest.raises(ParseError, match=message):
            run(*model("TreeEnsembleRegressor", [x], **given))
    with pytest.raises(ShapeError, match="the trees compare 4 features"):
        run(*model("TreeEnsembleRegressor", [x[:, :2]], **attributes))
