"""The corpus: the models whose kernels ship."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tools.prebuild.corpus import layers, networks, nodes, packages, sequences
from tools.prebuild.corpus.item import Item

__all__ = ["GROUPS", "Item", "corpus"]

GROUPS = {
    "networks": networks.items,
    "packages": packages.items,
    "layers": layers.items,
    "sequences": sequences.items,
    "nodes": nodes.items,
}
"""Functions that give the items of a part of the corpus."""


def corpus(groups: Sequence[str] | None = None) -> Iterator[Item]:
    """Return the items of groups, by default of all."""
    for group in groups or GROUPS:
        yield from GROUPS[group]()
