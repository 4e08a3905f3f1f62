"""Description of an ensemble of decision trees for kernel generators."""

from __future__ import annotations

from ...dataclass import dataclass


@dataclass(frozen=True)
class TreeTables:
    """Sizes of the tables of an ensemble of decision trees.

    Attributes:
        nodes: number of nodes of all trees.
        trees: number of trees.
        weights: number of scores that a leaf adds to.
        depth: comparisons on the longest path to a leaf.
    """

    nodes: int
    trees: int
    weights: int
    depth: int
