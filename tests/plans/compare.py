"""Differences between two files of plans."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

__all__ = ["differences"]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """For each plan that differs, or that only one has: its name, where, and how. Each pair of texts is shown once.

    Raises:
        ValueError: they are of different machines.
    """
    if before["about"] != after["about"]:
        raise ValueError(f"plans of different machines: {before['about']} and {after['about']}")
    found, shown = [], set()
    for name in sorted(before["plans"].keys() | after["plans"].keys()):
        if name not in before["plans"] or name not in after["plans"]:
            found.append(f"{name}: only {'before' if name in before['plans'] else 'after'}")
            continue
        lines = []
        for where, old, new in _changes(before["plans"][name], after["plans"][name], ""):
            lines.append(f"{name}{where}: {old} -> {new}")
            if (old, new) not in shown and old in before["kernels"] and new in after["kernels"]:
                shown.add((old, new))
                lines += _text_changes(before["kernels"][old], after["kernels"][new])
        if lines:
            found.append("\n".join(lines))
    return found


def _changes(old: Any, new: Any, where: str) -> list[tuple[str, Any, Any]]:
    """Places at which two JSON values differ: as deep as they have the same form."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        return [change for key in old for change in _changes(old[key], new[key], f"{where}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [change for k in range(len(old)) for change in _changes(old[k], new[k], f"{where}[{k}]")]
    return [] if old == new and type(old) is type(new) else [(where, _hashable(old), _hashable(new))]


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, type(None))) else repr(value)


def _text_changes(old: list[str], new: list[str]) -> list[str]:
    """A kernel's name and text, as lines that go and lines that come."""
    lists = [[name, *text.splitlines()] for name, text in (old, new)]
    return ["    " + line for line in difflib.unified_diff(*lists, lineterm="", n=1)][2:]
