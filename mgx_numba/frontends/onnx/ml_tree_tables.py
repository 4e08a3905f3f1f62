"""Build the tables of ``tree_ensemble``, whose nodes compare by ``<=`` only, from a forest with any comparisons.

``x < s`` becomes ``x <= t`` with the next smaller number ``t``. ``>`` and ``>=`` exchange the children of a node.
Equality takes two nodes: ``x <= s``, then ``x <= t``.
"""

from __future__ import annotations

import numpy as np

from ...dataclass import dataclass
from ...ops.tree_ensemble import MISSING
from .ml_forest import EQ, GT, GTE, LEAF, LT, NEQ, Forest, walk

__all__ = ["Tables"]


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
        greater = np.isin(f.mode, (GTE, GT)) & ~np.isnan(split)  # a comparison with NaN is false, exchanged or not
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
            after = np.append(own[1:], forest.false[owner])  # a feature below this member may be the next member
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
    """Return the next smaller number of each split; NaN for minus infinity, as no number is below it."""
    with np.errstate(all="ignore"):
        return np.where(split == -np.inf, np.nan, np.nextafter(split, split.dtype.type(-np.inf)))


def _weights(
    f: Forest, leaves: np.ndarray, trees: np.ndarray, weights: np.ndarray, neutral: np.generic, nodes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``(columns, table)``: the first score that each tree adds to, and the weights of each node.

    ``table`` is [nodes, 1] if the leaves of each tree all add to the same single score, else [nodes, scores].
    """
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
