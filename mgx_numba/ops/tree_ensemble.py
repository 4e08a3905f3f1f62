"""Ensembles of decision trees (ONNX TreeEnsemble, TreeEnsembleRegressor, TreeEnsembleClassifier)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register
from .dims import any_dynamic

MISSING = 1 << 30
"""Bit of a node's feature index; if set, NaN goes to the first child."""
AGGREGATES = {"sum": (np.add, 0.0), "min": (np.minimum, np.inf), "max": (np.maximum, -np.inf)}
"""By name: the function that combines scores, and its neutral element."""
BLOCK = 1 << 20
"""Largest number of pairs (row, tree) that `TreeEnsemble.compute` handles at once: 8 MiB per temporary array."""


@register
@dataclass(frozen=True)
class TreeEnsemble(Operator):
    """Scores [N, ``scores``] of the rows of x [N, F], float32 or float64, by trees whose nodes lie in tables.

    The inputs after x, for n nodes and T trees:

        features: int32 [n], the index of a feature, plus `MISSING` or not.
        splits: [n] of x's type. A row goes to the first child where its feature is at most the split, or where the
            feature is NaN and the node has `MISSING`; else to the second child.
        children: int32 [n, 2]. Both children of a leaf are the leaf itself.
        weights: [n, w] of x's type, which a leaf adds to w consecutive scores.
        roots: int32 [T], the root of each tree.
        columns: int32 [T], the first score that the leaves of each tree add to.
        depths: int32 [T], the comparisons on the longest path to a leaf of each tree.

    ``aggregate`` is a name in `AGGREGATES`. Features have indices below ``width``. ``missing`` says whether a node has
    `MISSING`. Scores to which no tree adds are the neutral element of the aggregate.
    """

    name: ClassVar[str] = "tree_ensemble"
    scores: int = 1
    width: int = 0
    aggregate: str = "sum"
    missing: bool = False

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        x, features, splits, children, weights, *trees = self.expect_inputs(inputs, 8)
        if self.aggregate not in AGGREGATES:
            raise self.fail(f"aggregate is {self.aggregate!r}, expected one of {', '.join(AGGREGATES)}")
        if x.type not in (Type.float_type, Type.double_type) or {splits.type, weights.type} != {x.type}:
            raise self.fail(f"x, splits and weights are {x}, {splits} and {weights}, expected float32 or float64")
        if any(s.type is not Type.int32_type for s in (features, children, *trees)) or any_dynamic(inputs[1:]):
            raise self.fail("the tables of nodes and trees must be int32 and of known lengths")
        n = features.elements
        fit = splits.lens == features.lens == (n,) and children.lens == (n, 2) and len({s.lens for s in trees}) == 1
        if not fit or weights.ndim != 2 or weights.lens[0] != n or trees[0].ndim != 1 or not n:
            raise self.fail(f"tables of other lengths than {n} nodes: {splits}, {children}, {weights}, {trees[0]}")
        if not 1 <= weights.lens[1] <= self.scores:
            raise self.fail(f"weights {list(weights.lens)} for {self.scores} scores")
        if x.ndim != 2 or x.dims[1].max < self.width or (not x.is_dynamic and x.lens[1] < self.width):
            raise self.fail(f"the trees compare {self.width} features, the input is {x}")
        if x.is_dynamic:
            return Shape.dynamic(x.type, [x.dims[0], self.scores])
        return Shape(x.type, (x.lens[0], self.scores))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, *tables = args
        weights, columns = tables[3].astype(np.float64), tables[5]
        join, neutral = AGGREGATES[self.aggregate]
        result = np.full(output.lens, neutral, np.float64)
        block = max(1, BLOCK // max(columns.size, 1))
        with np.errstate(all="ignore"):
            for first in range(0, len(x), block):
                rows, part = x[first : first + block], result[first : first + block]
                leaves = self._leaves(rows, *tables[:3], *tables[4::2])
                for column in np.unique(columns):
                    own = weights[leaves[:, columns == column]]
                    target = part[:, column : column + weights.shape[1]]
                    target[...] = join(target, join.reduce(own, axis=1))
            return result.astype(output.type.numpy)

    def _leaves(
        self,
        x: np.ndarray,
        features: np.ndarray,
        splits: np.ndarray,
        children: np.ndarray,
        roots: np.ndarray,
        depths: np.ndarray,
    ) -> np.ndarray:
        """Return the leaf that each row reaches in each tree, [rows, T]."""
        at = np.broadcast_to(roots, (len(x), roots.size))
        rows = np.arange(len(x))[:, None]
        for _ in range(depths.max(initial=0)):
            word = features[at]
            value = x[rows, word & (MISSING - 1)]
            first = value <= splits[at]
            if self.missing:
                first |= np.isnan(value) & (word >= MISSING)
            at = children[at, np.where(first, 0, 1)]
        return at

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return 2 * inputs[0].max_lens[0] * inputs[5].elements


def wrong_tables(op: TreeEnsemble, tables: Sequence[np.ndarray]) -> str:
    """Return which table has indices that are out of range, for an error message; "" if none has."""
    features, _, children, weights, roots, columns, depths = tables
    nodes = features.size
    limits = {
        "features": (features & (MISSING - 1), max(op.width, 1)),
        "children": (children, nodes),
        "roots": (roots, nodes),
        "columns": (columns, op.scores - weights.shape[1] + 1),
        "depths": (depths, nodes + 1),
    }
    for name, (values, end) in limits.items():
        if values.size and (values.min() < 0 or values.max() >= end):
            return f"table {name} has values that are not from 0 to {end - 1}"
    return ""
