"""Forests of decision trees as arrays over their nodes, and the ways through them."""

from __future__ import annotations

import itertools

import numpy as np

from ...dataclass import dataclass
from ...errors import ParseError

__all__ = ["EQ", "GT", "GTE", "LEAF", "LT", "MEMBER", "MODES", "NEQ", "Forest", "check_ways", "walk"]

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF = range(len(MODES))


@dataclass(frozen=True)
class Forest:
    """Trees as arrays over their nodes, leaves among them.

    Attributes:
        feature, split, mode, tracks: of each node what it compares with what and how, and whether NaN goes the way that
            is for true.
        true, false: the nodes that follow; a leaf follows itself.
        sets: by the numbers of nodes of `MEMBER`, their sets.
        roots: the first node of each tree.
        owners, scores, weights: what leaves add: the leaf, to which score, and how much, each leaf and score once.
        count: of scores.
    """

    feature: np.ndarray
    split: np.ndarray
    mode: np.ndarray
    tracks: np.ndarray
    true: np.ndarray
    false: np.ndarray
    sets: dict[int, np.ndarray]
    roots: np.ndarray
    owners: np.ndarray
    scores: np.ndarray
    weights: np.ndarray
    count: int

    @property
    def width(self) -> int:
        """Features that the trees compare."""
        return int(self.feature[self.mode != LEAF].max(initial=-1)) + 1

    def always_scored(self) -> np.ndarray:
        """Of each score whether every leaf of some tree adds to it."""
        leaves, trees = walk(self.true, self.false, self.mode == LEAF, self.roots)[1:]
        order = np.argsort(self.owners, kind="stable")
        first, last = (np.searchsorted(self.owners[order], leaves, side) for side in ("left", "right"))
        spans = last - first
        within = np.arange(spans.sum()) - np.repeat(np.cumsum(spans) - spans, spans)
        scores = self.scores[order][np.repeat(first, spans) + within]
        added = np.bincount(np.repeat(trees, spans) * self.count + scores, minlength=self.roots.size * self.count)
        of_tree = np.bincount(trees, minlength=self.roots.size)
        return (added.reshape(-1, self.count) == of_tree[:, None]).any(axis=0)


def walk(
    first: np.ndarray, second: np.ndarray, leaf: np.ndarray, roots: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the depth of each tree, and pairs of leaves and trees: each leaf of each tree once. Ways have ends."""
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
        if at.size > leaf.size:  # nodes that several ways lead to
            at, tree = _once(at, tree, leaf.size)
    leaves, trees = (np.concatenate(parts) for parts in zip(*found))
    return depths, *_once(leaves, trees, leaf.size)


def check_ways(first: np.ndarray, second: np.ndarray, leaf: np.ndarray) -> None:
    """Check that every way through the nodes has an end, by taking away nodes that no node leads to.

    Raises:
        ParseError: some are left.
    """
    inner = np.flatnonzero(~leaf)
    ways = np.bincount(np.concatenate([first[inner], second[inner]]), minlength=leaf.size)
    free, left = np.flatnonzero(ways == 0), leaf.size
    while free.size:
        left -= free.size
        going = free[~leaf[free]]
        next_ = np.concatenate([first[going], second[going]])
        np.subtract.at(ways, next_, 1)
        free = np.unique(next_[ways[next_] == 0])
    if left:
        raise ParseError("a way through a tree comes back to a node")


def _once(at: np.ndarray, tree: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of nodes and trees without repetitions."""
    tree, at = np.divmod(np.unique(tree * nodes + at), nodes)
    return at, tree
