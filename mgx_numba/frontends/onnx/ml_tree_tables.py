"""The tables of ``tree_ensemble``: of a forest whose nodes compare in several ways, one whose nodes compare by ``<=``.

Strict comparisons are those with the next smaller number, and greater ones exchange what follows a node. Equality takes
two nodes: whether a feature is at most the split, and whether it is below.
"""

from __future__ import annotations

import numpy as np

from ...dataclass import dataclass
from ...ops.tree_ensemble import MISSING
from .ml_forest import EQ, GT, GTE, LEAF, LT, NEQ, Forest, walk

__all__ = ["Tables"]


@dataclass(frozen=True)
class Tables:
    """The inputs of ``tree_ensemble`` after the first; see there."""

    features: np.ndarray
    splits: np.ndarray
    children: np.ndarray
    weights: np.ndarray
    roots: np.ndarray
    columns: np.ndarray
    depths: np.ndarray

    @classmethod
    def of(cls, forest: Forest, dtype: np.dtype, weights: np.ndarray, neutral: float) -> Tables:
        """Return the tables of a forest for features in a dtype.

        Args:
            forest: the trees.
            dtype: of features, splits and weights.
            weights: for each of the forest's ``owners``.
            neutral: what a leaf adds to scores that it does not name.
        """
        f = forest
        split = f.split.astype(dtype)
        below = _below(split)
        greater = np.isin(f.mode, (GTE, GT)) & ~np.isnan(split)  # else never, by a split that is NaN
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
        depths, leaves, trees = walk(nodes.first, nodes.second, leaf, f.roots)
        columns, table = _weights(f, leaves, trees, weights.astype(dtype), dtype.type(neutral), leaf.size)
        features = np.where(leaf, 0, nodes.feature + MISSING * nodes.missing)
        children = np.stack([nodes.first, nodes.second], 1)
        whole = (features, nodes.split.astype(dtype), children, table, f.roots, columns, depths)
        return cls(*(a.astype(np.int32) if a.dtype.kind == "i" else a for a in whole))


class _Nodes:
    """Nodes that compare by ``<=`` alone, to which others are appended."""

    def __init__(
        self, feature: np.ndarray, split: np.ndarray, first: np.ndarray, second: np.ndarray, missing: np.ndarray
    ) -> None:
        self.feature, self.split, self.first, self.second, self.missing = feature, split, first, second, missing

    def append(
        self, feature: np.ndarray, split: np.ndarray, first: np.ndarray, second: np.ndarray, missing: np.ndarray
    ) -> np.ndarray:
        """Append nodes; returns their numbers."""
        start = self.first.size
        more = {"feature": feature, "split": split, "first": first, "second": second, "missing": missing}
        for name, values in more.items():
            setattr(self, name, np.concatenate([getattr(self, name), values]))
        return np.arange(start, self.first.size)

    def put(
        self, at: np.ndarray, split: np.ndarray, first: np.ndarray, second: np.ndarray, missing: np.ndarray
    ) -> None:
        """Change nodes."""
        self.split[at], self.first[at], self.second[at], self.missing[at] = split, first, second, missing

    def put_sets(self, forest: Forest) -> None:
        """Make of each node of `MEMBER` two nodes a member: whether a feature is at most that, and whether it is below.

        The largest member comes first: what is above it leaves.
        """
        rows: list[tuple[np.ndarray, ...]] = []
        start = self.first.size
        for owner, given in forest.sets.items():
            members = np.unique(given[~np.isnan(given)].astype(self.split.dtype))[::-1]
            if not members.size:
                members = np.array([np.nan], self.split.dtype)
            count = members.size
            own = np.append(owner, start + 2 * np.arange(count - 1))
            under = np.append(start + 2 * np.arange(count - 1) + 1, start + 2 * (count - 1))
            false, true = np.full(count, forest.false[owner]), np.full(count, forest.true[owner])
            after = np.append(own[1:], forest.false[owner])  # below this member: maybe the next one
            rows.append((own, members, under, false, _below(members), after, true, np.full(count, owner)))
            start += 2 * count - 1
        if not rows:
            return
        own, members, under, false, below, after, true, owners = (np.concatenate(parts) for parts in zip(*rows))
        new = np.zeros(start - self.first.size, np.int64)
        self.append(new, new.astype(self.split.dtype), new, new, new.astype(bool))
        missing = (own == owners) & forest.tracks[owners]
        self.feature[own] = self.feature[under] = forest.feature[owners]
        self.put(own, members, under, false, missing)
        self.put(under, below, after, true, np.zeros(under.size, bool))


def _below(split: np.ndarray) -> np.ndarray:
    """Return the next smaller numbers; NaN for minus infinity, which nothing is below."""
    with np.errstate(all="ignore"):
        return np.where(split == -np.inf, np.nan, np.nextafter(split, split.dtype.type(-np.inf)))


def _weights(
    f: Forest, leaves: np.ndarray, trees: np.ndarray, weights: np.ndarray, neutral: np.generic, nodes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first score of each tree, and for each node what it adds from there on: one column if the leaves of
    each tree add to one score alone, else one for each score."""
    order = np.argsort(f.owners, kind="stable")
    owners, scores = f.owners[order], f.scores[order]
    once = owners.size == np.unique(owners).size
    place = np.minimum(np.searchsorted(owners, leaves), max(owners.size - 1, 0))
    columns = np.zeros(f.roots.size, np.int64)
    if once and owners.size:
        named = owners[place] == leaves
        columns[trees[named]] = scores[place[named]]
        once = bool((columns[trees[named]] == scores[place[named]]).all())
    if once:
        table = np.full((nodes, 1), neutral, weights.dtype)
        table[owners, 0] = weights[order]
        return columns, table
    table = np.full((nodes, f.count), neutral, weights.dtype)
    table[f.owners, f.scores] = weights
    return np.zeros(f.roots.size, np.int64), table
