"""Linear models and support vector machines.

ai.onnx.ml: LinearClassifier LinearRegressor SVMRegressor.
"""

from __future__ import annotations

import numpy as np

from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from .builder import Builder
from .ml_scores import ML, class_labels, features, number_list, post_transform, rows_of, transformed
from .node import Node
from .registry import register


def _product(g: Builder, x: Instruction, rows: np.ndarray) -> Instruction:
    """``x @ rows^T``."""
    if not x.shape.is_dynamic and x.shape.lens[1] != rows.shape[1]:
        raise ShapeError(f"the model is of {rows.shape[1]} features, the input is {x.shape}")
    return g.op("dot", x, g.literal(np.ascontiguousarray(rows.T), x.shape.type))


@register("LinearRegressor", domain=ML)
def linear_regressor(g: Builder, node: Node, x: Instruction) -> Instruction:
    """``x @ coefficients^T + intercepts`` in float32: [N, targets]."""
    x = g.convert(features(g, x), Type.float_type)
    targets = node.get_int("targets", 1)
    y = _product(g, x, rows_of(number_list(node, "coefficients"), targets, "attribute 'coefficients'"))
    intercepts = number_list(node, "intercepts")
    if intercepts.size:
        if intercepts.size != targets:
            raise ParseError(f"{intercepts.size} intercepts for {targets} targets")
        y = g.pointwise("add", y, g.literal(intercepts, y.shape.type))
    return transformed(g, y, post_transform(node))


@register("LinearClassifier", domain=ML)
def linear_classifier(g: Builder, node: Node, x: Instruction) -> list[Instruction]:
    """Labels [N] by the largest score, and scores [N, classes] in float32.

    One row of coefficients for two classes gives a score s of the second: LOGISTIC transforms -s and s, and whatever
    else the transform is, the scores are 1 - s and s, as ONNX Runtime has it.
    """
    x = g.convert(features(g, x), Type.float_type)
    labels, transform = class_labels(node), post_transform(node)
    intercepts = number_list(node, "intercepts")
    count = intercepts.size or len(labels) or 1
    scores = _product(g, x, rows_of(number_list(node, "coefficients"), count, "attribute 'coefficients'"))
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


@register("SVMRegressor", domain=ML)
def svm_regressor(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Kernel of samples and support vectors (or of the coefficients themselves, without any) times the coefficients,
    plus ``rho``, in float32: [N, 1]. With ``one_class`` 1 where that is positive, else -1."""
    x = g.convert(features(g, x), Type.float_type)
    supports = node.get_int("n_supports", 0)
    coefficients = np.array(node.get_floats("coefficients", ()), np.float32)
    if supports > 0:
        vectors = rows_of(np.array(node.get_floats("support_vectors"), np.float32), supports, "'support_vectors'")
        if coefficients.size != supports:
            raise ParseError(f"{coefficients.size} coefficients for {supports} support vectors")
        y = _product(g, _kernel(g, node, x, vectors), coefficients[None])
    else:
        y = _product(g, x, coefficients[None])
    rho = node.get_floats("rho", ())
    if rho:
        y = g.pointwise("add", y, g.like(rho[0], y))
    if node.get_bool("one_class"):
        return g.pointwise("where", g.pointwise("greater", y, g.like(0, y)), g.like(1, y), g.like(-1, y))
    return transformed(g, y, post_transform(node))


def _kernel(g: Builder, node: Node, x: Instruction, vectors: np.ndarray) -> Instruction:
    """The kernel function of each sample and each support vector: [N, vectors]."""
    kind = node.get_choice("kernel_type", ("LINEAR", "POLY", "RBF", "SIGMOID"), "LINEAR")
    gamma, offset, degree = (*node.get_floats("kernel_params", ()), 0.0, 0.0, 0.0)[:3]
    if kind == "RBF":
        apart = g.pointwise("sub", g.unsqueeze(x, [1]), g.literal(vectors, x.shape.type))
        distance = g.reduce("reduce_sum", g.op("mul", apart, apart), [2], keep=False)
        return g.op("exp", g.pointwise("mul", distance, g.like(-gamma, x)))
    y = _product(g, x, vectors)
    if kind == "LINEAR":
        return y
    y = g.pointwise("add", g.pointwise("mul", y, g.like(gamma, y)), g.like(offset, y))
    return g.op("tanh", y) if kind == "SIGMOID" else g.pointwise("pow", y, g.like(degree, y))
