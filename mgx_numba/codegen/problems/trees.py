"""Ensembles of decision trees, as kernels are asked for them."""

from __future__ import annotations

from ...dataclass import dataclass

__all__ = ["TreeTables"]


@dataclass(frozen=True)
class TreeTables:
    """Sizes of the tables of an ensemble.

    Attributes:
        nodes: of all trees.
        trees: of the ensemble.
        weights: of a leaf.
        depth: comparisons on the longest way to a leaf.
    """

    nodes: int
    trees: int
    weights: int
    depth: int
