"""Support vector machines."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from ...core.types import Type
from ...dataclass import dataclass
from ...errors import ParseError
from ...graph.instruction import Instruction
from .builder import Builder
from .ml_linear import product
from .ml_scores import ML, class_labels, features, post_transform, rows_of, transformed
from .node import Node
from .registry import register

CERTAIN = 1e-7
"""Smallest distance of a pair's probability from 0 and 1: LIBSVM's ``min_prob``."""


@register("SVMRegressor", domain=ML)
def svm_regressor(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the kernel matrix of samples and support vectors times the coefficients, plus ``rho``, in float32: [N, 1].

    Without support vectors the coefficients take their place. With ``one_class`` the result is 1 where positive, else
    -1.
    """
    x = g.convert(features(g, x), Type.float_type)
    supports = node.get_int("n_supports", 0)
    coefficients = node.float_array("coefficients", ())
    if supports > 0:
        vectors = rows_of(node.float_array("support_vectors"), supports, "'support_vectors'")
        if coefficients.size != supports:
            raise ParseError(f"{coefficients.size} coefficients for {supports} support vectors")
        y = product(g, _kernel(g, node, x, vectors), coefficients[None])
    else:
        y = product(g, x, coefficients[None])
    rho = node.get_floats("rho", ())
    if rho:
        y = g.pointwise("add", y, g.like(rho[0], y))
    if node.get_bool("one_class"):
        return g.pointwise("where", g.pointwise("greater", y, g.like(0, y)), g.like(1, y), g.like(-1, y))
    return transformed(g, y, post_transform(node))


def _kernel(g: Builder, node: Node, x: Instruction, vectors: np.ndarray) -> Instruction:
    """Emit the kernel function of each sample and each support vector: [N, vectors]."""
    kind = node.get_choice("kernel_type", ("LINEAR", "POLY", "RBF", "SIGMOID"), "LINEAR")
    gamma, offset, degree = (*node.get_floats("kernel_params", ()), 0.0, 0.0, 0.0)[:3]
    if kind == "RBF":
        apart = g.pointwise("sub", g.unsqueeze(x, [1]), g.literal(vectors, x.shape.type))
        distance = g.reduce("reduce_sum", g.op("mul", apart, apart), [2], keep=False)
        return g.op("exp", g.pointwise("mul", distance, g.like(-gamma, x)))
    y = product(g, x, vectors)
    if kind == "LINEAR":
        return y
    y = g.pointwise("add", g.pointwise("mul", y, g.like(gamma, y)), g.like(offset, y))
    return g.op("tanh", y) if kind == "SIGMOID" else g.pointwise("pow", y, g.like(degree, y))


@register("SVMClassifier", domain=ML)
def svm_classifier(g: Builder, node: Node, x: Instruction) -> list[Instruction]:
    """Emit labels [N], and scores in float32, of classes or (without probabilities) of pairs of classes.

    With support vectors each pair of classes votes, and ``prob_a`` and ``prob_b`` turn the pairs' scores into
    probabilities. Without support vectors each class has a row of coefficients.
    """
    x = g.convert(features(g, x), Type.float_type)
    labels = class_labels(node)
    coefficients = node.float_array("coefficients")
    rho = node.float_array("rho", ())
    machine = _Machine(labels, max(len(labels), 1), coefficients, rho, post_transform(node))
    sizes = node.get_ints("vectors_per_class", ())
    if not sum(sizes):
        return machine.linear(g, x)
    if len(sizes) != machine.classes or rho.size != machine.pairs:
        raise ParseError(
            f"{len(sizes)} vectors_per_class and {rho.size} elements of rho for {machine.classes} classes,"
            f" expected {machine.classes} and {machine.pairs}"
        )
    vectors = rows_of(node.float_array("support_vectors"), sum(sizes), "'support_vectors'")
    scores = machine.pair_scores(g, _kernel(g, node, x, vectors), sizes)
    slopes, shifts = node.get_floats("prob_a", ()), node.get_floats("prob_b", ())
    if slopes and (len(slopes), len(shifts)) != (machine.pairs, machine.pairs):
        raise ParseError(f"{len(slopes)} and {len(shifts)} elements of prob_a and prob_b for {machine.pairs} pairs")
    return machine.voted(g, scores, (slopes, shifts) if slopes else None)


@dataclass(frozen=True)
class _Machine:
    """The attributes of a classifier except its support vectors."""

    labels: np.ndarray
    classes: int
    coefficients: np.ndarray
    rho: np.ndarray
    transform: str

    @property
    def pairs(self) -> int:
        """Return the number of pairs of classes."""
        return self.classes * (self.classes - 1) // 2

    def linear(self, g: Builder, x: Instruction) -> list[Instruction]:
        """Emit labels and scores of a classifier with a row of coefficients per class."""
        scores = product(g, x, rows_of(self.coefficients, self.classes, "attribute 'coefficients'"))
        if self.rho.size:
            scores = g.pointwise("add", scores, g.like(float(self.rho[0]), scores))
        if self.classes > 1:
            label = self._largest(g, scores)
            if self.classes == 2 and self.rho.size == 1 and self.coefficients.min() >= 0:
                # as in ONNX's reference evaluator and ONNX Runtime, if all weights are positive
                most = g.squeeze(g.op("reduce_max", scores, axes=(1,)), [1])
                sure = g.pointwise("less", most, g.like(0.5, most))
                label = g.pointwise("where", sure, label, g.literal(self.labels[1]))
            return [label, self._transformed(g, scores)]
        positive = g.squeeze(g.pointwise("greater", scores, g.like(0, scores)), [1])
        return [g.convert(positive, Type.int64_type), self._transformed(g, scores)]

    def pair_scores(self, g: Builder, kernels: Instruction, sizes: list[int]) -> Instruction:
        """Emit, for each pair of classes, the sum over the support vectors of both: [N, pairs]."""
        table = rows_of(self.coefficients, self.classes - 1, "attribute 'coefficients'")
        if table.shape[1] != sum(sizes):
            raise ParseError(
                f"{self.coefficients.size} coefficients for {sum(sizes)} vectors of {self.classes} classes"
            )
        ends = np.cumsum([0, *sizes])
        weights = np.zeros((self.pairs, sum(sizes)), np.float32)
        for row, (i, j) in zip(weights, combinations(range(self.classes), 2), strict=True):
            of_i, of_j = slice(ends[i], ends[i + 1]), slice(ends[j], ends[j + 1])
            row[of_i], row[of_j] = table[j - 1, of_i], table[i, of_j]
        return g.pointwise("add", product(g, kernels, weights), g.literal(self.rho))

    def voted(
        self, g: Builder, scores: Instruction, sigmoids: tuple[list[float], list[float]] | None
    ) -> list[Instruction]:
        """Emit labels by votes or probabilities, and scores."""
        label = self._largest(g, self._votes(g, scores))
        if sigmoids is None:
            both = g.op("concat", g.op("neg", scores), scores, axis=1) if self.pairs == 1 else scores
            return [label, self._transformed(g, both)]
        slopes, shifts = (g.literal(np.array(v, np.float32)) for v in sigmoids)
        z = g.pointwise("add", g.pointwise("mul", scores, slopes), shifts)
        pairs = g.op("sigmoid", g.op("neg", z))
        pairs = g.pointwise("clip", pairs, g.like(CERTAIN, pairs), g.like(1 - CERTAIN, pairs))
        return [label, self._transformed(g, g.op("pairwise_coupling", pairs, classes=self.classes))]

    def _votes(self, g: Builder, scores: Instruction) -> Instruction:
        """Emit the number of pairs that each class wins: [N, classes]."""
        won = np.zeros((self.pairs, self.classes), np.float32)
        for row, (i, j) in zip(won, combinations(range(self.classes), 2), strict=True):
            row[i], row[j] = 1, -1
        others = np.maximum(-won, 0).sum(axis=0)
        positive = g.convert(g.pointwise("greater", scores, g.like(0, scores)), scores.shape.type)
        return g.pointwise("add", g.op("dot", positive, g.literal(won)), g.literal(others))

    def _largest(self, g: Builder, scores: Instruction) -> Instruction:
        table = self.labels if len(self.labels) else np.arange(self.classes)
        return g.op("gather", g.literal(table), g.squeeze(g.op("argmax", scores, axis=1), [1]), axis=0)

    def _transformed(self, g: Builder, scores: Instruction) -> Instruction:
        return transformed(g, scores, self.transform)
