"""Values of host steps, arrays or tuples of them, as lists of arrays and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from .buffers import View

__all__ = ["flatten", "leaves", "rebuild"]


def flatten(value: Any, into: list[View]) -> Any:
    """Append the views of a value tree to a list; returns the tree of their positions."""
    if isinstance(value, View):
        into.append(value)
        return len(into) - 1
    return [flatten(v, into) for v in value]


def rebuild(tree: Any, arrays: list) -> Any:
    """The value whose tree of positions `flatten` gave, of arrays; tuples are tuples of them."""
    return arrays[tree] if isinstance(tree, int) else tuple(rebuild(t, arrays) for t in tree)


def leaves(value: Any) -> list:
    """All arrays of a value, those of tuples one after the other."""
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, (tuple, list)) else [np.asarray(value)]
