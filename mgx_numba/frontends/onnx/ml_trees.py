"""Ensembles of decision trees.

ai.onnx.ml: TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor.
"""

from __future__ import annotations

import numpy as np

from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from ...ops.tree_ensemble import MISSING
from .builder import Builder
from .ml_forest import Forest
from .ml_scores import ML, TRANSFORMS, class_labels, features, number_list, post_transform, transformed
from .ml_tree_reading import indexed_forest, numbered_forest
from .ml_tree_tables import Tables
from .node import Node
from .registry import register

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def ensemble(g: Builder, x: Instruction, forest: Forest, how: str, weights: np.ndarray) -> Instruction:
    """Emit scores ``[N, K]`` of samples; a score that no leaf adds to is 0, or infinite for MIN and MAX."""
    if not x.shape.is_dynamic and x.shape.lens[1] < forest.width:
        raise ShapeError(f"the trees compare {forest.width} features, the input is {x.shape}")
    neutral = {"MIN": np.inf, "MAX": -np.inf}.get(how, 0.0)
    t = Tables.of(forest, x.shape.type.numpy, weights, neutral)
    parts = (t.features, t.splits, t.children, t.weights, t.roots, t.columns, t.depths)
    return g.op(
        "tree_ensemble",
        x,
        *map(g.literal, parts),
        scores=forest.count,
        width=forest.width,
        aggregate=how.lower(),
        missing=bool((t.features >= MISSING).any()),
    )


def aggregated(g: Builder, x: Instruction, forest: Forest, how: str) -> Instruction:
    """Emit the aggregate of the leaves of all trees: [N, K]; a score that no leaf adds to is 0."""
    type = x.shape.type
    if how in ("MIN", "MAX"):
        value = ensemble(g, x, forest, how, forest.weights)
        if forest.always_scored:
            return value
        return g.pointwise("where", _has_score(g, x, forest), value, g.literal(0, type))
    total = ensemble(g, x, forest, "SUM", forest.weights)
    return total if how == "SUM" else g.pointwise("div", total, g.literal(forest.roots.size, type))


def _has_score(g: Builder, x: Instruction, forest: Forest) -> Instruction:
    """Emit whether a leaf adds to each score of each sample."""
    scored = ensemble(g, x, forest, "SUM", np.ones(forest.weights.size))
    return g.pointwise("greater", scored, g.like(0, scored))


@register("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit scores in float32: [N, targets]."""
    x = features(g, x)
    forest = numbered_forest(node, node.get_int("n_targets", 1), "target")
    how = node.get_choice("aggregate_function", AGGREGATES, "SUM")
    y = aggregated(g, x, forest, how)
    base = number_list(node, "base_values")
    if base.size:
        y = g.pointwise("add", y, g.literal(base, y.shape.type))
    return g.convert(transformed(g, y, post_transform(node)), Type.float_type)


@register("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(g: Builder, node: Node, x: Instruction) -> list[Instruction]:
    """Emit labels [N] of the classes with the largest scores, and scores in float32: [N, classes].

    Two classes may share one score s. The second class wins if s is above 0, or above 0.5 if no weight is negative. If
    leaves add to the first class only, s counts as the second class's, and the scores follow ONNX Runtime. LOGISTIC
    transforms -s and s. With any other transform they are 1 - s and s if no weight is negative, else -s and s.
    """
    x = features(g, x)
    labels, transform = class_labels(node), post_transform(node)
    if len(labels) < 2:
        raise UnsupportedError(f"{len(labels)} class labels are not supported, 2 and more are")
    forest = numbered_forest(node, len(labels), "class")
    y = aggregated(g, x, forest, "SUM")
    base = number_list(node, "base_values")
    given = np.bincount(forest.scores, minlength=len(labels)) > 0
    if len(labels) == 2 and base.size < 2 and not given.all():
        return _one_score(g, y, forest, base, labels, transform)
    if base.size:
        if base.size != len(labels):
            raise ParseError(f"{base.size} base values for {len(labels)} classes")
        y = g.pointwise("add", y, g.literal(base, y.shape.type))
    ranked = y
    if not base.size and not forest.always_scored:
        ranked = g.pointwise("where", _has_score(g, x, forest), y, g.like(-np.inf, y))
    chosen = g.squeeze(g.op("argmax", ranked, axis=1), [1])
    label = g.op("gather", g.literal(labels), chosen, axis=0)
    return [label, g.convert(transformed(g, y, transform), Type.float_type)]


def _one_score(
    g: Builder, y: Instruction, forest: Forest, base: np.ndarray, labels: np.ndarray, transform: str
) -> list[Instruction]:
    second = bool((forest.scores == 1).any())
    if second and base.size:
        raise UnsupportedError("one base value for the second of two classes is not supported")
    score = g.slice(y, 1, int(second), int(second) + 1)
    if base.size:
        score = g.pointwise("add", score, g.literal(base, y.shape.type))
    positive = bool((forest.weights >= 0).all())
    above = g.squeeze(g.pointwise("greater", score, g.like(0.5 if positive else 0, score)), [1])
    label = g.pointwise("where", above, g.literal(labels[1]), g.literal(labels[0]))
    if second:
        scores = transformed(g, y, transform)
    else:
        complement = transform != "LOGISTIC" and positive
        other = g.pointwise("sub", g.like(1, score), score) if complement else g.op("neg", score)
        scores = g.op("concat", other, score, axis=1)
        scores = transformed(g, scores, transform) if transform == "LOGISTIC" else scores
    return [label, g.convert(scores, Type.float_type)]


@register("TreeEnsemble", domain=ML)
def tree_ensemble(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit scores [N, targets] in the input's type."""
    forest = indexed_forest(node, node.get_int("n_targets"))
    x = features(g, x) if x.shape.type is not Type.half_type else x
    how = AGGREGATES[_enumerated(node, "aggregate_function", len(AGGREGATES), 1)]
    y = aggregated(g, x, forest, how)
    return transformed(g, y, TRANSFORMS[_enumerated(node, "post_transform", len(TRANSFORMS), 0)])


def _enumerated(node: Node, name: str, count: int, default: int) -> int:
    value = node.get_int(name, default)
    if not 0 <= value < count:
        raise ParseError(f"attribute {name!r} is {value}, expected 0 to {count - 1}")
    return value
