"""Figures of a benchmark, printed and saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

__all__ = ["tell"]


def tell(figures: Mapping[str, Mapping[str, float]], file: Path | None) -> None:
    """Print rows of figures under their names; save them as JSON if there is a ``file``."""
    for name, rows in figures.items():
        print(name)
        for what, value in rows.items():
            print(f"  {what:40} {value:12.2f}")
    if file is not None:
        file.write_text(json.dumps(figures, indent=1))
