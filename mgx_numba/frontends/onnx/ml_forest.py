"""Forests of decision trees as arrays over their nodes, and functions that traverse the trees."""

from __future__ import annotations

import functools
import itertools

import numpy as np

from ...dataclass import dataclass
from ...errors import ParseError

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF = range(len(MODES))


@dataclass(frozen=True)
class Forest:
    """Decision trees as arrays over all nodes, including leaves.

    Attributes:
        feature: [nodes], index of the feature that the node compares.
        split: [nodes], the value that the feature is compared with.
        mode: [nodes], the comparison, an index into `MODES`.
        tracks: [nodes], whether NaN takes the true branch.
        true, false: [nodes], the next node by the comparison's result; a leaf is its own successor.
        members: ``(nodes, values)``, the members of the sets of the nodes whose mode is `MEMBER`.
        roots: [trees], the root of each tree.
        owners, scores, weights: entries ``(leaf, score, weight)``: the leaf adds the weight to the score. A pair of
            leaf and score has at most one entry. Entries are in the order of leaves.
        count: number of scores.
    """

    feature: np.ndarray
    split: np.ndarray
    mode: np.ndarray
    tracks: np.ndarray
    true: np.ndarray
    false: np.ndarray
    members: tuple[np.ndarray, np.ndarray]
    roots: np.ndarray
    owners: np.ndarray
    scores: np.ndarray
    weights: np.ndarray
    count: int

    @property
    def width(self) -> int:
        """Return the number of features that the trees need: the largest index plus 1."""
        return int(self.feature[self.mode != LEAF].max(initial=-1)) + 1

    @functools.cached_property
    def walked(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the results of `walk` for the nodes of this forest."""
        return walk(self.true, self.false, self.mode == LEAF, self.roots)

    @functools.cached_property
    def always_scored(self) -> bool:
        """Return whether each score has a tree every leaf of which adds to it."""
        _, leaves, trees = self.walked
        entries = np.bincount(self.owners, minlength=self.mode.size)
        first = (np.cumsum(entries) - entries)[leaves]
        spans = entries[leaves]
        within = np.arange(spans.sum()) - np.repeat(np.cumsum(spans) - spans, spans)
        scores = self.scores[np.repeat(first, spans) + within]
        added = np.bincount(np.repeat(trees, spans) * self.count + scores, minlength=self.roots.size * self.count)
        of_tree = np.bincount(trees, minlength=self.roots.size)
        return bool((added.reshape(-1, self.count) == of_tree[:, None]).any(axis=0).all())


def walk(
    first: np.ndarray, second: np.ndarray, leaf: np.ndarray, roots: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the depth of each tree, and the distinct pairs (leaf, tree) as two arrays.

    Every path must end in a leaf; see `check_ways`.
    """
    depths = np.zeros(roots.size, np.int64)
    at, tree = roots.astype(np.int64), np.arange(roots.size)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for level in itertools.count(1):
        ends = leaf[at]
        found.append((at[ends], tree[ends]))
        at, tree = at[~ends], tree[~ends]
        if not at.size:
            break
        depths[tree] = level
        at, tree = np.concatenate([first[at], second[at]]), np.concatenate([tree, tree])
        if at.size > leaf.size:  # nodes with several predecessors repeat
            at, tree = _distinct(at, tree, leaf.size)
    leaves, trees = (np.concatenate(parts) for parts in zip(*found))
    if np.bincount(leaves).max(initial=0) > 1:
        leaves, trees = _distinct(leaves, trees, leaf.size)
    return depths, leaves, trees


def check_ways(first: np.ndarray, second: np.ndarray, leaf: np.ndarray) -> None:
    """Check that no path through the nodes is a cycle, by repeatedly removing nodes without predecessors.

    Raises:
        ParseError: nodes are left, which form a cycle.
    """
    inner = np.flatnonzero(~leaf)
    ways = np.bincount(np.concatenate([first[inner], second[inner]]), minlength=leaf.size)
    trees = ways.max(initial=0) <= 1
    free, left = np.flatnonzero(ways == 0), leaf.size
    while free.size:
        left -= free.size
        going = free[~leaf[free]]
        free = np.concatenate([first[going], second[going]])
        if not trees:
            np.subtract.at(ways, free, 1)
            free = distinct(free[ways[free] == 0])
    if left:
        raise ParseError("a way through a tree comes back to a node")


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the distinct integers in order. `numpy.unique` hashes them, 20 times slower for millions."""
    values = np.sort(values)
    new = np.ones(values.size, bool)
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return values[new]


def _distinct(at: np.ndarray, tree: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct pairs (node, tree)."""
    tree, at = np.divmod(distinct(tree * nodes + at), nodes)
    return at, tree
