"""Linear models."""

from __future__ import annotations

import numpy as np

from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from .builder import Builder
from .ml_scores import ML, class_labels, features, number_list, post_transform, rows_of, transformed
from .node import Node
from .registry import register


def product(g: Builder, x: Instruction, rows: np.ndarray) -> Instruction:
    """Emit ``x @ rows^T``."""
    if not x.shape.is_dynamic and x.shape.lens[1] != rows.shape[1]:
        raise ShapeError(f"the model is of {rows.shape[1]} features, the input is {x.shape}")
    return g.op("dot", x, g.literal(np.ascontiguousarray(rows.T), x.shape.type))


@register("LinearRegressor", domain=ML)
def linear_regressor(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``x @ coefficients^T + intercepts`` in float32: [N, targets]."""
    x = g.convert(features(g, x), Type.float_type)
    targets = node.get_int("targets", 1)
    y = product(g, x, rows_of(number_list(node, "coefficients"), targets, "attribute 'coefficients'"))
    intercepts = number_list(node, "intercepts")
    if intercepts.size:
        if intercepts.size != targets:
            raise ParseError(f"{intercepts.size} intercepts for {targets} targets")
        y = g.pointwise("add", y, g.literal(intercepts, y.shape.type))
    return transformed(g, y, post_transform(node))


@register("LinearClassifier", domain=ML)
def linear_classifier(g: Builder, node: Node, x: Instruction) -> list[Instruction]:
    """Emit labels [N] by the largest score, and scores [N, classes] in float32.

    One row of coefficients for two classes gives a score s of the second class. LOGISTIC transforms -s and s; with any
    other transform the scores are 1 - s and s, as in ONNX Runtime.
    """
    x = g.convert(features(g, x), Type.float_type)
    labels, transform = class_labels(node), post_transform(node)
    intercepts = number_list(node, "intercepts")
    count = intercepts.size or len(labels) or 1
    scores = product(g, x, rows_of(number_list(node, "coefficients"), count, "attribute 'coefficients'"))
    if intercepts.size:
        scores = g.pointwise("add", scores, g.literal(intercepts, scores.shape.type))
    if count == 1:
        return _binary(g, scores, labels, transform)
    if len(labels) not in (0, count):
        raise ParseError(f"{len(labels)} class labels for {count} rows of coefficients")
    table = g.literal(labels if len(labels) else np.arange(count))
    chosen = g.squeeze(g.op("argmax", scores, axis=1), [1])
    return [g.op("gather", table, chosen, axis=0), transformed(g, scores, transform)]


def _binary(g: Builder, score: Instruction, labels: np.ndarray, transform: str) -> list[Instruction]:
    if len(labels) not in (0, 2):
        raise ParseError(f"{len(labels)} class labels for one row of coefficients, expected 2")
    if transform == "PROBIT":
        raise UnsupportedError("attribute 'post_transform' is 'PROBIT', which is not defined for one row")
    positive = g.squeeze(g.pointwise("greater", score, g.like(0, score)), [1])
    table = labels if len(labels) else np.arange(2)
    label = g.pointwise("where", positive, g.literal(table[1]), g.literal(table[0]))
    if transform == "LOGISTIC":
        pair = [g.op("sigmoid", g.op("neg", score)), g.op("sigmoid", score)]
    else:
        pair = [g.pointwise("sub", g.like(1, score), score), score]
    return [label, g.op("concat", *pair, axis=1)]
