"""Suggestions of similar names for error messages."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], most: int = 3) -> str:
    """Return ``; did you mean a, b?`` with the known names similar to ``name``; empty if there are none."""
    from difflib import get_close_matches  # late: only errors need it

    near = get_close_matches(name, list(known), most)
    return f"; did you mean {', '.join(near)}?" if near else ""
