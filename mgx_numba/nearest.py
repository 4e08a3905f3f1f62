"""Known names that are near to one that is not known, for messages."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: str, known: Iterable[str], most: int = 3) -> str:
    """What a message ends with: ``; did you mean a, b?``, empty if no name is near."""
    from difflib import get_close_matches  # late: only a mistake needs it

    near = get_close_matches(name, list(known), most)
    return f"; did you mean {', '.join(near)}?" if near else ""
