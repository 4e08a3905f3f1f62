"""Ensembles of decision trees, walked level by level for all samples and trees at once.

ai.onnx.ml: TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor.
"""

from __future__ import annotations

import numpy as np

from ...core.types import Type
from ...dataclass import dataclass
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from .builder import Builder
from .ml_scores import ML, TRANSFORMS, class_labels, features, number_list, post_transform, transformed
from .node import Node
from .registry import register

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")
LEAF, MEMBER = MODES.index("LEAF"), MODES.index("BRANCH_MEMBER")
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass(frozen=True)
class Forest:
    """Trees as tables over their nodes, leaves among them.

    Attributes:
        feature, split, mode, tracks: of each node what it compares with what and how, and where NaN goes.
        true, false: the nodes that follow; a leaf follows itself.
        members: [nodes, M], the elements of the sets of ``BRANCH_MEMBER``, NaN for none; ``None`` without such nodes.
        roots: the first node of each tree.
        weights: [nodes, K], what leaves add to K scores.
        scored: [nodes, K], whether they add something.
    """

    feature: np.ndarray
    split: np.ndarray
    mode: np.ndarray
    tracks: np.ndarray
    true: np.ndarray
    false: np.ndarray
    members: np.ndarray | None
    roots: np.ndarray
    weights: np.ndarray
    scored: np.ndarray

    @property
    def depth(self) -> int:
        """Comparisons on the longest way to a leaf.

        Raises:
            ParseError: there is no end to a way.
        """
        level, count = np.arange(self.mode.size), 0
        while True:
            level = level[self.mode[level] != LEAF]
            if not level.size:
                return count
            level = np.unique(np.concatenate([self.true[level], self.false[level]]))
            count += 1
            if count > self.mode.size:
                raise ParseError("a way through a tree comes back to a node")

    def always_scored(self) -> np.ndarray:
        """Of each score whether every leaf of some tree adds to it."""
        result = np.zeros(self.weights.shape[1], bool)
        for root in self.roots:
            inside, level = {int(root)}, [int(root)]
            while level:
                level = [int(n) for i in level for n in (self.true[i], self.false[i]) if int(n) not in inside]
                inside.update(level)
            leaves = [i for i in inside if self.mode[i] == LEAF]
            result |= self.scored[leaves].all(axis=0)
        return result


def leaves_of(g: Builder, x: Instruction, forest: Forest) -> Instruction:
    """The leaf, as a node's number, that each sample reaches in each tree: int64 [N, trees]."""
    width = forest.feature[forest.mode != LEAF].max(initial=-1) + 1
    if not x.shape.is_dynamic and x.shape.lens[1] < width:
        raise ShapeError(f"the trees compare {width} features, the input is {x.shape}")
    first = g.slice(x, 1, 0, 1)
    zeros = g.convert(g.pointwise("less", first, first), Type.int64_type)
    at = g.pointwise("add", zeros, g.literal(forest.roots[None]))
    for _ in range(forest.depth):
        value = g.op("gather_elements", x, _at(g, forest.feature, at), axis=1)
        go = _compared(g, forest, value, at)
        if forest.tracks.any():
            go = g.pointwise(
                "logical_or", go, g.pointwise("logical_and", g.op("isnan", value), _at(g, forest.tracks, at))
            )
        at = g.pointwise("where", go, _at(g, forest.true, at), _at(g, forest.false, at))
    return at


def _at(g: Builder, table: np.ndarray, at: Instruction) -> Instruction:
    return g.op("gather", g.literal(table), at, axis=0)


def _compared(g: Builder, forest: Forest, value: Instruction, at: Instruction) -> Instruction:
    """Whether each sample takes the true branch of its node in each tree."""
    split = _at(g, forest.split.astype(value.shape.type.numpy), at)
    modes = [int(m) for m in np.unique(forest.mode) if m != LEAF]
    result = None
    for mode in modes:
        if mode == MEMBER and forest.members is not None:
            sets = _at(g, forest.members.astype(value.shape.type.numpy), at)
            equal = g.convert(g.pointwise("equal", g.unsqueeze(value, [2]), sets), Type.int8_type)
            go = g.convert(g.reduce("reduce_max", equal, [2], keep=False), Type.bool_type)
        else:
            go = _ordered(g, MODES[mode], value, split)
        if len(modes) > 1:
            go = g.pointwise("logical_and", go, _at(g, forest.mode == mode, at))
        result = go if result is None else g.pointwise("logical_or", result, go)
    assert result is not None
    return result


def _ordered(g: Builder, mode: str, x: Instruction, split: Instruction) -> Instruction:
    if mode == "BRANCH_LT":
        return g.pointwise("less", x, split)
    if mode == "BRANCH_GT":
        return g.pointwise("greater", x, split)
    equal = g.pointwise("equal", x, split)
    if mode == "BRANCH_EQ":
        return equal
    if mode == "BRANCH_NEQ":
        return g.op("not", equal)
    strict = g.pointwise("less" if mode == "BRANCH_LEQ" else "greater", x, split)
    return g.pointwise("logical_or", strict, equal)


def aggregated(g: Builder, forest: Forest, leaves: Instruction, how: str, type: Type) -> Instruction:
    """What the leaves of all trees add up to: [N, K]. A score that no leaf adds to is 0."""
    weights = _at(g, forest.weights.astype(type.numpy), leaves)
    if how in ("MIN", "MAX"):
        none = np.inf if how == "MIN" else -np.inf
        known = _at(g, forest.scored, leaves)
        masked = g.pointwise("where", known, weights, g.literal(none, type))
        value = g.reduce("reduce_min" if how == "MIN" else "reduce_max", masked, [1], keep=False)
        return g.pointwise("where", _has_score(g, forest, leaves), value, g.literal(0, type))
    total = g.reduce("reduce_sum", weights, [1], keep=False)
    return total if how == "SUM" else g.pointwise("div", total, g.literal(forest.roots.size, type))


def _has_score(g: Builder, forest: Forest, leaves: Instruction) -> Instruction:
    scored = g.reduce("reduce_max", _at(g, forest.scored.astype(np.int8), leaves), [1], keep=False)
    return g.convert(scored, Type.bool_type)


@register("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Scores in float32: [N, targets]."""
    x = features(g, x)
    forest = _numbered_forest(node, node.get_int("n_targets", 1), "target")
    how = node.get_choice("aggregate_function", AGGREGATES, "SUM")
    y = aggregated(g, forest, leaves_of(g, x, forest), how, x.shape.type)
    base = number_list(node, "base_values")
    if base.size:
        y = g.pointwise("add", y, g.literal(base, y.shape.type))
    return g.convert(transformed(g, y, post_transform(node)), Type.float_type)


@register("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(g: Builder, node: Node, x: Instruction) -> list[Instruction]:
    """Labels [N] of the classes with the largest scores, and scores in float32: [N, classes].

    Two classes may have one score s between them, whichever it is. The second class wins if s is above 0, or above 0.5
    if no weight is negative. Where leaves add to the first class only, s is said of the second, and the scores are as
    ONNX Runtime has them: LOGISTIC transforms -s and s; else they are 1 - s and s if no weight is negative, and -s and
    s if one is, whatever the transform.
    """
    x = features(g, x)
    labels, transform = class_labels(node), post_transform(node)
    if len(labels) < 2:
        raise UnsupportedError(f"{len(labels)} class labels are not supported, 2 and more are")
    forest = _numbered_forest(node, len(labels), "class")
    leaves = leaves_of(g, x, forest)
    y = aggregated(g, forest, leaves, "SUM", x.shape.type)
    base = number_list(node, "base_values")
    given = forest.scored.any(axis=0)
    if len(labels) == 2 and base.size < 2 and not given.all():
        return _one_score(g, y, forest, base, labels, transform)
    if base.size:
        if base.size != len(labels):
            raise ParseError(f"{base.size} base values for {len(labels)} classes")
        y = g.pointwise("add", y, g.literal(base, y.shape.type))
    ranked = y
    if not base.size and not forest.always_scored().all():
        ranked = g.pointwise("where", _has_score(g, forest, leaves), y, g.like(-np.inf, y))
    chosen = g.squeeze(g.op("argmax", ranked, axis=1), [1])
    label = g.op("gather", g.literal(labels), chosen, axis=0)
    return [label, g.convert(transformed(g, y, transform), Type.float_type)]


def _one_score(
    g: Builder, y: Instruction, forest: Forest, base: np.ndarray, labels: np.ndarray, transform: str
) -> list[Instruction]:
    second = bool(forest.scored[:, 1].any())
    if second and base.size:
        raise UnsupportedError("one base value for the second of two classes is not supported")
    score = g.slice(y, 1, int(second), int(second) + 1)
    if base.size:
        score = g.pointwise("add", score, g.literal(base, y.shape.type))
    positive = bool((forest.weights[forest.scored] >= 0).all())
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


def _numbered_forest(node: Node, scores: int, what: str) -> Forest:
    """The forest of the operators that number nodes within their trees."""
    trees, ids = (np.array(node.get_ints(f"nodes_{name}"), np.int64) for name in ("treeids", "nodeids"))
    where = {key: place for place, key in enumerate(zip(trees.tolist(), ids.tolist(), strict=True))}
    count = len(where)
    if count != ids.size:
        raise ParseError("attributes 'nodes_treeids' and 'nodes_nodeids' name a node twice")
    mode = _modes(node, count)
    inner = mode != LEAF

    def followers(name: str) -> np.ndarray:
        given = _column(node, name, count)
        own = np.arange(count)
        missing = next((i for i in own[inner] if (trees[i], given[i]) not in where), None)
        if missing is not None:
            raise ParseError(f"attribute {name!r}: tree {trees[missing]} has no node {given[missing]}")
        return np.array([where[trees[i], given[i]] if inner[i] else i for i in own], np.int64)

    true, false = followers("nodes_truenodeids"), followers("nodes_falsenodeids")
    roots = np.setdiff1d(np.arange(count), np.concatenate([true[inner], false[inner]]))
    if not np.array_equal(trees[roots], np.unique(trees)):
        roots = np.array([np.flatnonzero(trees == t)[0] for t in np.unique(trees)])
    weights, scored = np.zeros((count, scores)), np.zeros((count, scores), bool)
    values = number_list(node, f"{what}_weights")
    owners = [node.get_ints(f"{what}_{name}") for name in ("treeids", "nodeids", "ids")]
    for tree, place, score, value in zip(*owners, values, strict=True):
        if (tree, place) not in where or not 0 <= score < scores:
            raise ParseError(f"a weight is of tree {tree}, node {place}, {what} {score}, which do not exist")
        weights[where[tree, place], score] += value
        scored[where[tree, place], score] = True
    split = number_list(node, "nodes_values")
    if split.size != count:
        raise ParseError(f"attribute 'nodes_values' has {split.size} elements for {count} nodes")
    feature = np.where(inner, _column(node, "nodes_featureids", count), 0)
    return Forest(feature, split, mode, _tracks(node, count) & inner, true, false, None, roots, weights, scored)


def _modes(node: Node, count: int) -> np.ndarray:
    names = node.get_strs("nodes_modes")
    unknown = set(names) - set(MODES) | {"BRANCH_MEMBER"} & set(names)
    if unknown or len(names) != count:
        raise ParseError(f"attribute 'nodes_modes' has {len(names)} elements for {count} nodes, unknown: {unknown}")
    return np.array([MODES.index(name) for name in names])


def _column(node: Node, name: str, count: int) -> np.ndarray:
    given = np.array(node.get_ints(name), np.int64)
    if given.size != count:
        raise ParseError(f"attribute {name!r} has {given.size} elements for {count} nodes")
    return given


def _tracks(node: Node, count: int) -> np.ndarray:
    name = "nodes_missing_value_tracks_true"
    return _column(node, name, count) != 0 if node.has(name) and node.get_ints(name) else np.zeros(count, bool)


@register("TreeEnsemble", domain=ML)
def tree_ensemble(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Scores [N, targets] in the input's type."""
    forest = _indexed_forest(node, node.get_int("n_targets"))
    x = features(g, x) if x.shape.type is not Type.half_type else x
    how = AGGREGATES[_enumerated(node, "aggregate_function", len(AGGREGATES), 1)]
    y = aggregated(g, forest, leaves_of(g, x, forest), how, x.shape.type)
    return transformed(g, y, TRANSFORMS[_enumerated(node, "post_transform", len(TRANSFORMS), 0)])


def _enumerated(node: Node, name: str, count: int, default: int) -> int:
    value = node.get_int(name, default)
    if not 0 <= value < count:
        raise ParseError(f"attribute {name!r} is {value}, expected 0 to {count - 1}")
    return value


def _indexed_forest(node: Node, scores: int) -> Forest:
    """The forest of the operator that lists inner nodes and leaves apart; here leaves come after the inner nodes."""
    from onnx import numpy_helper

    split, mode, leaf = (
        numpy_helper.to_array(node.get_tensor(name)).ravel() for name in ("nodes_splits", "nodes_modes", "leaf_weights")
    )
    inner, outer = split.size, leaf.size
    if mode.size != inner or (mode > MEMBER).any():
        raise ParseError(f"attribute 'nodes_modes' is {mode.tolist()}, expected {inner} of 0 to {MEMBER}")
    own = np.arange(inner, inner + outer)

    def followers(name: str, leaves: str) -> np.ndarray:
        given, is_leaf = _column(node, name, inner), _column(node, leaves, inner) != 0
        if (given < 0).any() or (given >= np.where(is_leaf, outer, inner)).any():
            raise ParseError(f"attribute {name!r} names a node or leaf that does not exist")
        return np.concatenate([np.where(is_leaf, given + inner, given), own])

    true = followers("nodes_truenodeids", "nodes_trueleafs")
    false = followers("nodes_falsenodeids", "nodes_falseleafs")
    roots = np.array(node.get_ints("tree_roots"), np.int64)
    if (roots < 0).any() or (roots >= inner).any():
        raise ParseError(f"attribute 'tree_roots' is {roots.tolist()}, there are {inner} nodes")
    targets = _column(node, "leaf_targetids", outer)
    if (targets < 0).any() or (targets >= scores).any():
        raise ParseError(f"attribute 'leaf_targetids' names a target that does not exist, there are {scores}")
    weights, scored = np.zeros((inner + outer, scores)), np.zeros((inner + outer, scores), bool)
    weights[own, targets], scored[own, targets] = leaf, True
    return Forest(
        np.concatenate([_column(node, "nodes_featureids", inner), np.zeros(outer, np.int64)]),
        np.concatenate([split, np.zeros(outer, split.dtype)]),
        np.concatenate([mode.astype(np.int64), np.full(outer, LEAF)]),
        np.concatenate([_tracks(node, inner), np.zeros(outer, bool)]),
        true,
        false,
        _members(node, mode, inner + outer),
        roots,
        weights,
        scored,
    )


def _members(node: Node, mode: np.ndarray, count: int) -> np.ndarray | None:
    from onnx import numpy_helper

    owners = np.flatnonzero(mode == MEMBER)
    if not owners.size:
        return None
    values = numpy_helper.to_array(node.get_tensor("membership_values")).ravel()
    ends = np.flatnonzero(np.isnan(values))
    if ends.size != owners.size:
        raise ParseError(f"attribute 'membership_values' has {ends.size} sets for {owners.size} nodes")
    sets = np.split(values, ends + 1)[: owners.size]
    table = np.full((count, max(s.size for s in sets)), np.nan, values.dtype)
    for owner, members in zip(owners, sets, strict=True):
        table[owner, : members.size] = members
    return table
