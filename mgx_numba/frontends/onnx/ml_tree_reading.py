"""Read forests of decision trees from the attributes of ONNX nodes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...errors import ParseError
from .ml_forest import LEAF, MEMBER, MODES, Forest, check_ways
from .ml_scores import number_list
from .node import Node

__all__ = ["indexed_forest", "numbered_forest"]


def _merged(
    owners: np.ndarray, scores: np.ndarray, values: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``(owners, scores, weights)`` with one entry per leaf and score; weights of equal pairs are summed."""
    keys, places = np.unique(owners * count + scores, return_inverse=True)
    return keys // count, keys % count, np.bincount(places, values, keys.size)


def numbered_forest(node: Node, scores: int, what: str) -> Forest:
    """Read the forest of TreeEnsembleRegressor or TreeEnsembleClassifier, which number nodes within each tree."""
    trees, ids = (_integers(node, f"nodes_{name}") for name in ("treeids", "nodeids"))
    if trees.size != ids.size:
        raise ParseError(f"attributes 'nodes_treeids' and 'nodes_nodeids' have {trees.size} and {ids.size} elements")
    count, places = trees.size, _Places(trees, ids)
    mode = _modes(node, count)
    inner = mode != LEAF

    def followers(name: str) -> np.ndarray:
        given = _column(node, name, count)
        result = np.arange(count)
        result[inner] = places.of(trees[inner], given[inner])
        missing = np.flatnonzero(result < 0)
        if missing.size:
            raise ParseError(f"attribute {name!r}: tree {trees[missing[0]]} has no node {given[missing[0]]}")
        return result

    true, false = followers("nodes_truenodeids"), followers("nodes_falsenodeids")
    check_ways(true, false, ~inner)
    followed = np.zeros(count, bool)
    followed[true[inner]] = followed[false[inner]] = True
    roots, (known, first) = np.flatnonzero(~followed), np.unique(trees, return_index=True)
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
    tracks = _tracks(node, count) & inner
    return Forest(
        feature, split, mode, tracks, true, false, {}, roots, *_merged(owners, targets, values, scores), scores
    )


class _Places:
    """Map from the number of a tree and of a node within the tree to the node's index in the attributes."""

    def __init__(self, trees: np.ndarray, ids: np.ndarray) -> None:
        self._trees, tree = np.unique(trees, return_inverse=True)
        self._ids, own = np.unique(ids, return_inverse=True)
        keys = tree * max(self._ids.size, 1) + own
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        if (self._keys[1:] == self._keys[:-1]).any():
            raise ParseError("attributes 'nodes_treeids' and 'nodes_nodeids' name a node twice")

    def of(self, trees: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the index of each node; -1 for a node that does not exist."""
        tree, known = _found(self._trees, trees)
        own, also = _found(self._ids, ids)
        place, there = _found(self._keys, tree * max(self._ids.size, 1) + own)
        if not self._order.size:
            return np.full(place.size, -1)
        return np.where(known & also & there, self._order[place], -1)


def _found(known: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of each value in a sorted array, and whether the array has the value."""
    if not known.size:
        return np.zeros(wanted.size, np.int64), np.zeros(wanted.size, bool)
    place = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    return place, known[place] == wanted


def _integers(node: Node, name: str) -> np.ndarray:
    return np.array(node.get_ints(name, ()), np.int64)


def _modes(node: Node, count: int) -> np.ndarray:
    names = node.get_strs("nodes_modes")
    numbers = {name: number for number, name in enumerate(MODES) if number != MEMBER}
    unknown = set(names) - set(numbers)
    if unknown or len(names) != count:
        raise ParseError(f"attribute 'nodes_modes' has {len(names)} elements for {count} nodes, unknown: {unknown}")
    return np.array([numbers[name] for name in names], np.int64)


def _column(node: Node, name: str, count: int) -> np.ndarray:
    given = np.array(node.get_ints(name), np.int64)
    if given.size != count:
        raise ParseError(f"attribute {name!r} has {given.size} elements for {count} nodes")
    return given


def _tracks(node: Node, count: int) -> np.ndarray:
    name = "nodes_missing_value_tracks_true"
    return _column(node, name, count) != 0 if node.has(name) and node.get_ints(name) else np.zeros(count, bool)


def indexed_forest(node: Node, scores: int) -> Forest:
    """Read the forest of TreeEnsemble, which lists inner nodes and leaves separately.

    The indices of leaves in the result follow the indices of inner nodes.
    """
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
    check_ways(true, false, np.arange(true.size) >= inner)
    roots = np.array(node.get_ints("tree_roots"), np.int64)
    if (roots < 0).any() or (roots >= inner).any():
        raise ParseError(f"attribute 'tree_roots' is {roots.tolist()}, there are {inner} nodes")
    targets = _column(node, "leaf_targetids", outer)
    if (targets < 0).any() or (targets >= scores).any():
        raise ParseError(f"attribute 'leaf_targetids' names a target that does not exist, there are {scores}")
    nothing = np.zeros(outer, np.int64)
    return Forest(
        np.concatenate([_column(node, "nodes_featureids", inner), nothing]),
        np.concatenate([split, np.zeros(outer, split.dtype)]),
        np.concatenate([mode.astype(np.int64), np.full(outer, LEAF)]),
        np.concatenate([_tracks(node, inner), np.zeros(outer, bool)]),
        true,
        false,
        dict(_sets(node, mode)),
        roots,
        *_merged(own, targets, leaf.astype(np.float64), scores),
        scores,
    )


def _sets(node: Node, mode: np.ndarray) -> Iterable[tuple[int, np.ndarray]]:
    """Return each node whose mode is `MEMBER`, with its set of members."""
    from onnx import numpy_helper

    owners = np.flatnonzero(mode == MEMBER)
    if not owners.size:
        return ()
    values = numpy_helper.to_array(node.get_tensor("membership_values")).ravel()
    ends = np.flatnonzero(np.isnan(values))
    if ends.size != owners.size:
        raise ParseError(f"attribute 'membership_values' has {ends.size} sets for {owners.size} nodes")
    return zip(owners.tolist(), np.split(values, ends + 1)[: owners.size])
