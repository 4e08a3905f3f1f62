"""Construction of the tables of ``tree_ensemble``, which compares by ``<=`` only, from a forest with any comparisons.

``x < s`` becomes ``x <= t`` with the next smaller number ``t``. ``>`` and ``>=`` exchange the children of a node.
Equality takes two nodes: ``x <= s``, then ``x <= t``.
"""

from __future__ import annotations

import numpy as np

from ...dataclass import dataclass
from ...ops.tree_ensemble import MISSING
from .ml_forest import EQ, GT, GTE, LEAF, LT, MEMBER, NEQ, Forest, walk


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
