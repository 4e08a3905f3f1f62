"""Examples of PyTorch's symbolic lengths."""

from __future__ import annotations

import torch


def hint(length: int | torch.SymInt) -> int | None:
    """Return a length, or the example of a symbolic one, without a guard on it; None if it has no example."""
    if not isinstance(length, torch.SymInt):
        return int(length)
    return int(length.node.hint) if length.node.has_hint() else None
