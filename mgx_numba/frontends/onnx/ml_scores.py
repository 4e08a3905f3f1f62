"""Common functions of the ai.onnx.ml models: feature matrices, score transforms, class labels."""

from __future__ import annotations

import math

import numpy as np

from ...core.types import Type
from ...errors import ParseError
from ...graph.instruction import Instruction
from .builder import Builder, rank
from .node import Node
from .registry import ML

__all__ = ["ML", "class_labels", "features", "number_list", "post_transform", "rows_of", "transformed"]

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")

# Winitzki's approximation of the inverse error function, as ONNX's evaluator and ONNX Runtime compute PROBIT.
_WINITZKI = 0.147


def features(g: Builder, x: Instruction) -> Instruction:
    """Emit samples [N, F] in float32, or float64 for float64 input; a vector is one sample."""
    if rank(x) == 1:
        x = g.unsqueeze(x, [0])
    if rank(x) != 2:
        raise ParseError(f"the input has {rank(x)} dimensions, expected samples and features")
    return x if x.shape.type in (Type.float_type, Type.double_type) else g.convert(x, Type.float_type)


def number_list(node: Node, name: str) -> np.ndarray:
    """Return a list of floats, given as floats or as a tensor (``name`` with ``_as_tensor``), flat; empty if absent."""
    tensor = f"{name}_as_tensor"
    if node.has(tensor):
        if node.has(name):
            raise ParseError(f"attributes {name!r} and {tensor!r} are both given")
        return node.get_array(tensor).ravel()
    return node.float_array(name, ())


def rows_of(values: np.ndarray, count: int, what: str) -> np.ndarray:
    """Return a flat list as a matrix of ``count`` rows.

    Raises:
        ParseError: the rows would not have equal lengths.
    """
    if count < 1 or values.size % count:
        raise ParseError(f"{what} has {values.size} elements, which do not make {count} equal rows")
    return values.reshape(count, -1)


def class_labels(node: Node) -> np.ndarray:
    """Return the class labels: int64, or strings."""
    texts = [text for name in ("classlabels_strings", "classlabels_string") for text in node.get_strs(name, ())]
    if texts:
        return np.array(texts, object)
    name = "classlabels_int64s" if node.op_type.startswith("Tree") else "classlabels_ints"
    return node.int_array(name, ())


def post_transform(node: Node) -> str:
    """Return the attribute ``post_transform``."""
    return node.get_choice("post_transform", TRANSFORMS, "NONE")


def transformed(g: Builder, scores: Instruction, transform: str) -> Instruction:
    """Transform scores [N, K], each row separately."""
    if transform == "LOGISTIC":
        return g.op("sigmoid", scores)
    if transform == "SOFTMAX":
        return g.op("softmax", scores, axis=1)
    if transform == "SOFTMAX_ZERO":
        return _softmax_zero(g, scores)
    return _probit(g, scores) if transform == "PROBIT" else scores


def _softmax_zero(g: Builder, scores: Instruction) -> Instruction:
    """Emit softmax in which scores of 0 (below 1e-7, as in ONNX Runtime) remain 0."""
    most = g.op("reduce_max", scores, axes=(1,))
    powers = g.op("exp", g.pointwise("sub", scores, most))
    nothing = g.pointwise("mul", scores, g.op("exp", g.op("neg", most)))
    zero = g.pointwise("less", g.like(1e-7, scores), g.op("abs", scores))
    terms = g.pointwise("where", zero, powers, nothing)
    total = g.op("reduce_sum", terms, axes=(1,))
    return g.pointwise("div", terms, total)


def _probit(g: Builder, scores: Instruction) -> Instruction:
    """Emit ``sqrt(2) * erfinv(2 x - 1)``."""
    x = g.pointwise("sub", g.pointwise("mul", scores, g.like(2, scores)), g.like(1, scores))
    one = g.like(1, x)
    log = g.op("log", g.pointwise("mul", g.pointwise("sub", one, x), g.pointwise("add", one, x)))
    half = g.pointwise("mul", log, g.like(0.5, x))
    v = g.pointwise("add", half, g.like(2 / (math.pi * _WINITZKI), x))
    root = g.op("sqrt", g.pointwise("sub", g.op("mul", v, v), g.pointwise("div", log, g.like(_WINITZKI, x))))
    size = g.op("sqrt", g.op("sub", root, v))
    signed = g.pointwise("where", g.pointwise("less", x, g.like(0, x)), g.op("neg", size), size)
    return g.pointwise("mul", signed, g.like(math.sqrt(2), x))
