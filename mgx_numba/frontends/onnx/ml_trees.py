"""Ensembles of decision trees: parsers, and the tables of the operator ``tree_ensemble``.

The operator compares by ``<=`` only, a forest by any comparison. ``x < s`` becomes ``x <= t`` with the next smaller
number ``t``. ``>`` and ``>=`` exchange the children of a node. Equality takes two nodes: ``x <= s``, then ``x <= t``.
"""

from __future__ import annotations

import numpy as np

from ...core.types import Type
from ...dataclass import dataclass
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from ...ops.tree_ensemble import MISSING
from .builder import Builder
from .ml_forest import EQ, GT, GTE, LEAF, LT, MEMBER, MODES, NEQ, Forest, check_ways, walk
from .ml_scores import ML, TRANSFORMS, class_labels, features, number_list, post_transform, transformed
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


@dataclass(frozen=True)
class Tables:
    """Inputs of the operator ``tree_ensemble`` after ``x``; see `TreeEnsemble`."""

    features: np.ndarray
    splits: np.ndarray
    children: np.ndarray
    weights: np.ndarray
    roots: np.ndarray
    columns: np.ndarray
    depths: np.ndarray

    @classmethod
    def of(cls, forest: Forest, dtype: np.dtype, weights: np.ndarray, neutral: float) -> Tables:
        """Return the tables of ``forest`` for features of type ``dtype``.

        Args:
            forest: the trees.
            dtype: element type of features, splits and weights.
            weights: the weight of each entry of ``forest.owners``.
            neutral: the weight of a leaf for scores without an entry.
        """
        f = forest
        split = f.split.astype(dtype)
        below = _below(split)
        greater = np.isin(f.mode, (GTE, GT)) & ~np.isnan(split)  # comparisons with NaN are always false
        strict = np.isin(f.mode, (LT, GTE))
        first, second = np.where(greater, f.false, f.true), np.where(greater, f.true, f.false)
        missing = np.where(greater, ~f.tracks, f.tracks)
        nodes = _Nodes(f.feature, np.where(strict, below, split), first, second, missing)
        equal = np.flatnonzero(np.isin(f.mode, (EQ, NEQ)))
        if equal.size:
            other = f.mode[equal] == NEQ
            hit, miss = np.where(other, f.false[equal], f.true[equal]), np.where(other, f.true[equal], f.false[equal])
            place = nodes.append(f.feature[equal], below[equal], miss, hit, np.zeros(equal.size, bool))
            nodes.put(equal, split[equal], place, miss, f.tracks[equal] & ~other)
        nodes.put_sets(f)
        leaf = np.arange(nodes.first.size) < f.mode.size
        leaf[: f.mode.size] &= f.mode == LEAF
        same = leaf.size == f.mode.size  # the forest's nodes, with children exchanged
        depths, leaves, trees = f.walked if same else walk(nodes.first, nodes.second, leaf, f.roots)
        columns, table = _weights(f, leaves, trees, weights.astype(dtype), dtype.type(neutral), leaf.size)
        features = np.where(leaf, 0, nodes.feature + MISSING * nodes.missing)
        children = np.stack([nodes.first, nodes.second], 1)
        whole = (features, nodes.split.astype(dtype), children, table, f.roots, columns, depths)
        return cls(*(a.astype(np.int32) if a.dtype.kind == "i" else a for a in whole))


class _Nodes:
    """Arrays over nodes that compare by ``<=``; nodes can be appended."""

    def __init__(
        self, feature: np.ndarray, split: np.ndarray, first: np.ndarray, second: np.ndarray, missing: np.ndarray
    ) -> None:
        self.feature, self.split, self.first, self.second, self.missing = feature, split, first, second, missing

    def append(
        self, feature: np.ndarray, split: np.ndarray, first: np.ndarray, second: np.ndarray, missing: np.ndarray
    ) -> np.ndarray:
        """Append nodes; return their indices."""
        start = self.first.size
        more = {"feature": feature, "split": split, "first": first, "second": second, "missing": missing}
        for name, values in more.items():
            setattr(self, name, np.concatenate([getattr(self, name), values]))
        return np.arange(start, self.first.size)

    def put(
        self, at: np.ndarray, split: np.ndarray, first: np.ndarray, second: np.ndarray, missing: np.ndarray
    ) -> None:
        """Set all but the feature of the nodes ``at``."""
        self.split[at], self.first[at], self.second[at], self.missing[at] = split, first, second, missing

    def put_sets(self, forest: Forest) -> None:
        """Replace each node whose mode is `MEMBER` by two nodes per member: ``x <= member``, then ``x < member``.

        Members are in descending order: a feature above the current member is no member.
        """
        sets = np.flatnonzero(forest.mode == MEMBER)
        if not sets.size:
            return
        owner, member = _descending(sets, forest.members[0], forest.members[1].astype(self.split.dtype))
        count = np.diff(np.searchsorted(owner, sets), append=owner.size)
        place = np.arange(owner.size) - np.repeat(np.cumsum(count) - count, count)  # index of a member in its set
        new = np.cumsum(2 * count - 1) - (2 * count - 1) + self.first.size  # the first node that a set appends
        new, last = np.repeat(new, count), place == np.repeat(count, count) - 1
        own = np.where(place == 0, owner, new + 2 * (place - 1))
        under = np.where(last, new + 2 * place, new + 2 * place + 1)
        false, true = forest.false[owner], forest.true[owner]
        after = np.where(last, false, new + 2 * place)  # a feature below this member may be the next member
        more = np.zeros(int((2 * count - 1).sum()), np.int64)
        self.append(more, more.astype(self.split.dtype), more, more, more.astype(bool))
        self.feature[own] = self.feature[under] = forest.feature[owner]
        self.put(own, member, under, false, (place == 0) & forest.tracks[owner])
        self.put(under, _below(member), after, true, np.zeros(under.size, bool))


def _descending(sets: np.ndarray, owner: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct members of each set, the largest first, and NaN for a set without members.

    Args:
        sets: the nodes that have sets, in order.
        owner: [members], the node of each member.
        member: [members], in any order.
    """
    order = np.lexsort((-member, owner))
    owner, member = owner[order], member[order]
    new = np.ones(owner.size, bool)
    new[1:] = (owner[1:] != owner[:-1]) | (member[1:] != member[:-1])
    empty = np.setdiff1d(sets, owner, assume_unique=False)
    owner = np.concatenate([owner[new], empty])
    member = np.concatenate([member[new], np.full(empty.size, np.nan, member.dtype)])
    order = np.argsort(owner, kind="stable")
    return owner[order], member[order]


def _below(split: np.ndarray) -> np.ndarray:
    """Return the next smaller number of each split; NaN for minus infinity, as no number is below it."""
    with np.errstate(all="ignore"):
        return np.where(split == -np.inf, np.nan, np.nextafter(split, split.dtype.type(-np.inf)))


def _weights(
    f: Forest, leaves: np.ndarray, trees: np.ndarray, weights: np.ndarray, neutral: np.generic, nodes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``(columns, table)``: the first score that each tree adds to, and the weights of each node.

    ``table`` is [nodes, 1] if the leaves of each tree all add to the same single score, else [nodes, scores].
    """
    entries = np.bincount(f.owners, minlength=nodes)
    columns = np.zeros(f.roots.size, np.int64)
    if entries.max(initial=0) <= 1:
        score = np.full(nodes, -1)
        score[f.owners] = f.scores
        own = score[leaves]
        columns[trees[own >= 0]] = own[own >= 0]
        if ((own < 0) | (own == columns[trees])).all():
            table = np.full((nodes, 1), neutral, weights.dtype)
            table[f.owners, 0] = weights
            return columns, table
    table = np.full((nodes, f.count), neutral, weights.dtype)
    table[f.owners, f.scores] = weights
    return np.zeros(f.roots.size, np.int64), table


def _merged(
    owners: np.ndarray, scores: np.ndarray, values: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``(owners, scores, weights)`` with one entry per leaf and score; weights of equal pairs are summed."""
    keys = owners * count + scores
    if (keys[1:] > keys[:-1]).all():
        return owners, scores, values.astype(np.float64)
    keys, places = np.unique(keys, return_inverse=True)
    return keys // count, keys % count, np.bincount(places, values, keys.size)


def numbered_forest(node: Node, scores: int, what: str) -> Forest:
    """Read the forest of TreeEnsembleRegressor or TreeEnsembleClassifier, which number nodes within each tree."""
    trees, ids = (_integers(node, f"nodes_{name}") for name in ("treeids", "nodeids"))
    if trees.size != ids.size:
        raise ParseError(f"attributes 'nodes_treeids' and 'nodes_nodeids' have {trees.size} and {ids.size} elements")
    count, places = trees.size, _Places(trees, ids)
    mode = _modes(node, count)
    inner = mode != LEAF

    inside = trees[inner]

    def followers(name: str) -> np.ndarray:
        given = _column(node, name, count)[inner]
        result = np.arange(count)
        result[inner] = found = places.of(inside, given)
        missing = np.flatnonzero(found < 0)
        if missing.size:
            k = missing[0]
            raise ParseError(f"attribute {name!r}: tree {inside[k]} has no node {given[k]}")
        return result

    true, false = followers("nodes_truenodeids"), followers("nodes_falsenodeids")
    check_ways(true, false, ~inner)
    followed = np.zeros(count, bool)
    followed[true[inner]] = followed[false[inner]] = True
    roots, (known, first) = np.flatnonzero(~followed), places.first_nodes()
    roots = roots[np.argsort(trees[roots], kind="stable")]
    if not np.array_equal(trees[roots], known):
        roots = first
    values = number_list(node, f"{what}_weights")
    owner_trees, owner_ids, targets = (_integers(node, f"{what}_{name}") for name in ("treeids", "nodeids", "ids"))
    if not owner_trees.size == owner_ids.size == targets.size == values.size:
        names = ", ".join(f"{what}_{name}" for name in ("treeids", "nodeids", "ids", "weights"))
        raise ParseError(f"attributes {names} have different numbers of elements")
    owners = places.of(owner_trees, owner_ids)
    wrong = np.flatnonzero((owners < 0) | (targets < 0) | (targets >= scores))
    if wrong.size:
        k = wrong[0]
        raise ParseError(
            f"a weight is of tree {owner_trees[k]}, node {owner_ids[k]}, {what} {targets[k]}, which do not exist"
        )
    split = number_list(node, "nodes_values")
    if split.size != count:
        raise ParseError(f"attribute 'nodes_values' has {split.size} elements for {count} nodes")
    feature = np.where(inner, _column(node, "nodes_featureids", count), 0)
    tracks, no_members = _tracks(node, count) & inner, (np.zeros(0, np.int64), np.zeros(0, split.dtype))
    merged = _merged(owners, targets, values, scores)
    return Forest(feature, split, mode, tracks, true, false, no_members, roots, *merged, scores)


class _Places:
    """Map from the number of a tree and of a node within the tree to the node's index in the attributes."""

    def __init__(self, trees: np.ndarray, ids: np.ndarray) -> None:
        starts = _run_starts(trees)
        rising = ids[1:] > ids[:-1]
        rising[starts[1:] - 1] = True
        self._order: np.ndarray | None = None
        if not rising.all() or not (np.diff(trees[starts]) > 0).all():
            self._order = np.lexsort((ids, trees))
            trees, ids = trees[self._order], ids[self._order]
            starts = _run_starts(trees)
            if ((trees[1:] == trees[:-1]) & (ids[1:] == ids[:-1])).any():
                raise ParseError("attributes 'nodes_treeids' and 'nodes_nodeids' name a node twice")
        self._starts, self._trees, self._ids = starts, trees, ids

    def of(self, trees: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the index of each node; -1 for a node that does not exist."""
        count = self._trees.size
        if not count:
            return np.full(ids.size, -1)
        run = np.minimum(np.searchsorted(self._trees[self._starts], trees), self._starts.size - 1)
        # Most files number the nodes of a tree without gaps; otherwise binary search is used.
        first = self._starts[run]
        place = np.clip(first + (ids - self._ids[first]), 0, count - 1)
        wrong = np.flatnonzero((self._trees[place] != trees) | (self._ids[place] != ids))
        if wrong.size:
            place[wrong] = self._searched(run[wrong], trees[wrong], ids[wrong])
        return place if self._order is None else np.where(place < 0, -1, self._order[place])

    def _searched(self, run: np.ndarray, trees: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the place in sorted order of each node of a tree that has the number ``run``, else -1."""
        low = self._starts[run]
        high = np.append(self._starts[1:], self._trees.size)[run]
        while (low < high).any():
            middle = (low + high) // 2
            below = (low < high) & (self._ids[np.minimum(middle, self._ids.size - 1)] < ids)
            low, high = np.where(below, middle + 1, low), np.where(below, high, np.minimum(middle, high))
        place = np.minimum(low, self._trees.size - 1)
        return np.where((self._trees[place] == trees) & (self._ids[place] == ids), place, -1)

    def first_nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of the trees in order, and the smallest index of a node of each tree."""
        known = self._trees[self._starts]
        if self._order is None or not known.size:
            return known, self._starts
        return known, np.minimum.reduceat(self._order, self._starts)


def _run_starts(values: np.ndarray) -> np.ndarray:
    """Return the index of the first element of each run of equal values."""
    new = np.ones(values.size, bool)
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return np.flatnonzero(new)


def _integers(node: Node, name: str) -> np.ndarray:
    return node.int_array(name, ())


def _modes(node: Node, count: int) -> np.ndarray:
    mode = node.codes("nodes_modes", MODES)
    if mode is None or mode.size != count or (mode == MEMBER).any():
        names = node.get_strs("nodes_modes")
        unknown = set(names) - set(MODES) | {MODES[MEMBER]} & set(names)
        raise ParseError(f"attribute 'nodes_modes' has {len(names)} elements for {count} nodes, unknown: {unknown}")
    return mode


def _column(node: Node, name: str, count: int) -> np.ndarray:
    given = node.int_array(name)
    if given.size != count:
        raise ParseError(f"attribute {name!r} has {given.size} elements for {count} nodes")
    return given


def _tracks(node: Node, count: int) -> np.ndarray:
    name = "nodes_missing_value_tracks_true"
    return _column(node, name, count) != 0 if node.int_array(name, ()).size else np.zeros(count, bool)


def indexed_forest(node: Node, scores: int) -> Forest:
    """Read the forest of TreeEnsemble, which lists inner nodes and leaves separately.

    The indices of leaves in the result follow the indices of inner nodes.
    """
    split, mode, leaf = (node.get_array(name).ravel() for name in ("nodes_splits", "nodes_modes", "leaf_weights"))
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
    check_ways(true, false, np.arange(true.size) >= inner)
    roots = node.int_array("tree_roots")
    if (roots < 0).any() or (roots >= inner).any():
        raise ParseError(f"attribute 'tree_roots' is {roots.tolist()}, there are {inner} nodes")
    targets = _column(node, "leaf_targetids", outer)
    if (targets < 0).any() or (targets >= scores).any():
        raise ParseError(f"attribute 'leaf_targetids' names a target that does not exist, there are {scores}")
    nothing = np.zeros(outer, np.int64)
    return Forest(
        np.concatenate([_column(node, "nodes_featureids", inner), nothing]),
        np.concatenate([split, np.zeros(outer, split.dtype)]),
        np.concatenate([mode.astype(np.int8), np.full(outer, LEAF, np.int8)]),
        np.concatenate([_tracks(node, inner), np.zeros(outer, bool)]),
        true,
        false,
        _members(node, mode, split.dtype),
        roots,
        *_merged(own, targets, leaf.astype(np.float64), scores),
        scores,
    )


def _members(node: Node, mode: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes whose mode is `MEMBER`, one for each member of their sets, and the members."""
    owners = np.flatnonzero(mode == MEMBER)
    if not owners.size:
        return owners, np.zeros(0, dtype)
    values = node.get_array("membership_values").ravel()
    ends = np.isnan(values)
    if np.count_nonzero(ends) != owners.size:
        raise ParseError(f"attribute 'membership_values' has {ends.sum()} sets for {owners.size} nodes")
    number = np.cumsum(ends) - ends
    inside = ~ends & (number < owners.size)
    return owners[number[inside]], values[inside]
