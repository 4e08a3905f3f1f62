"""Reader of decision tree forests from the attributes of ONNX nodes."""

from __future__ import annotations

import numpy as np

from ...errors import ParseError
from .ml_forest import LEAF, MEMBER, MODES, Forest, check_ways
from .ml_scores import number_list
from .node import Node


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
