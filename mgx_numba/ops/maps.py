"""Maps, values that are Python dictionaries, of which a sequence holds one for each sample; class probabilities from
pairwise probabilities.

A map is an array of dtype ``object`` with one element, the dictionary. Its keys and values are Python's numbers and
strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import UNBOUNDED, DynamicDimension, Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register
from .dims import may_be
from .sequence import holding


def _key_and_value(op: Operator, shape: Shape) -> tuple[Type, Type]:
    if shape.type is not Type.map_type or shape.element is None:
        raise op.fail(f"the input is {shape}, expected a map")
    key, value = shape.element.sub_shapes
    return key.type, value.type


@register
@dataclass(frozen=True)
class ZipMap(Operator):
    """Scores [n, c] (or [c], of one sample) and keys [c] as a sequence of a map for each sample."""

    name: ClassVar[str] = "zip_map"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        x, keys = self.expect_inputs(inputs, 2)
        count = keys.dims[0].min if keys.ndim == 1 else -1
        if x.ndim not in (1, 2) or x.without_axes or not may_be(x.dims[-1], count):
            raise self.fail(f"expected scores [n, c] and keys [c], got {x}; {keys}")
        return Shape.sequence(Shape.map(keys.type, x.type))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        keys = args[1].tolist()
        rows = args[0].reshape(-1, len(keys)).tolist()
        return holding(holding([dict(zip(keys, row))]) for row in rows)


@register
@dataclass(frozen=True)
class DictVectorizer(Operator):
    """The value of each key, 0 or an empty string without one: a map and keys [c] give [1, c]."""

    name: ClassVar[str] = "dict_vectorizer"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 2)
        key, value = _key_and_value(self, inputs[0])
        if inputs[1].ndim != 1 or inputs[1].is_dynamic or inputs[1].type is not key:
            raise self.fail(f"the keys are {inputs[1]}, expected a vector of {key.name}")
        return Shape(value, (1, inputs[1].lens[0]))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        given, other = args[0][0], "" if output.type is Type.string_type else 0
        return np.array([[given.get(key, other) for key in args[1].tolist()]], output.type.numpy).reshape(output.lens)


@register
@dataclass(frozen=True)
class MapValues(Operator):
    """The values of a map with keys of int64 in the order of the keys, [1, n]; with ``length`` at the places that the
    keys are, among zeros or empty strings, [1, length]."""

    name: ClassVar[str] = "map_values"
    length: int | None = None

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        key, value = _key_and_value(self, inputs[0])
        if key is not Type.int64_type or (self.length is not None and self.length < 1):
            raise self.fail(f"the input is {inputs[0]}, length is {self.length}; expected keys of int64 and at least 1")
        count = DynamicDimension(0, UNBOUNDED) if self.length is None else self.length
        return Shape.dynamic(value, [1, count])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        given, dtype = args[0][0], output.type.numpy
        if self.length is None:
            return np.array([[given[key] for key in sorted(given)]], dtype).reshape(1, -1)
        result = np.full((1, self.length), "" if output.type is Type.string_type else 0, dtype)
        for key, value in given.items():
            if not 0 <= key < self.length:
                raise self.bad_index(f"key {key} is out of range for {self.length} places")
            result[0, key] = value
        return result


MOST_ITERATIONS = 100
"""LIBSVM's ``max_iter`` of ``multiclass_probability``, which is at least the number of classes."""
TOLERANCE = 0.005
"""LIBSVM's, over the number of classes."""


@register
@dataclass(frozen=True)
class PairwiseCoupling(Operator):
    """Class probabilities [n, classes] that best fit pairwise probabilities [n, pairs]: for classes i < j, in the order
    (0, 1), (0, 2), ..., the probability of i given i or j.

    Second method of Wu, Lin and Weng, "Probability estimates for multi-class classification by pairwise coupling"
    (2004), iterated as in LIBSVM.
    """

    name: ClassVar[str] = "pairwise_coupling"
    classes: int = 2

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        x, pairs = inputs[0], self.classes * (self.classes - 1) // 2
        if x.ndim != 2 or not may_be(x.dims[1], pairs) or self.classes < 2:
            raise self.fail(f"expected [n, {pairs}] for {self.classes} classes, got {x}")
        if x.type not in (Type.float_type, Type.double_type):
            raise self.fail(f"expected float32 or float64, got {x.type.name}")
        return Shape.dynamic(x.type, [x.dims[0], DynamicDimension(self.classes, self.classes)])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        rows = [self._row(row) for row in args[0].astype(np.float64)]
        return np.array(rows, args[0].dtype).reshape(-1, self.classes)

    def _row(self, pairs: np.ndarray) -> np.ndarray:
        count = self.classes
        r = np.zeros((count, count))
        upper = np.triu_indices(count, 1)
        r[upper] = pairs
        r.T[upper] = 1 - pairs
        q = -r * r.T
        np.fill_diagonal(q, (r**2).sum(axis=0))
        p = np.full(count, 1 / count)
        for _ in range(max(MOST_ITERATIONS, count)):
            qp = q @ p
            whole = float(p @ qp)
            if np.abs(qp - whole).max() < TOLERANCE / count:
                break
            for k in range(count):
                step = (whole - qp[k]) / q[k, k]
                p[k] += step
                whole = (whole + step * (step * q[k, k] + 2 * qp[k])) / (1 + step) ** 2
                qp = (qp + step * q[k]) / (1 + step)
                p /= 1 + step
        return p
