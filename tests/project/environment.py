"""Writes ``docs/environment.md`` from the table of variables: ``python -m tests.project.environment``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mgx_numba.driver.variables import GROUPS, OWN, Variable

PAGE = Path(__file__).parents[2] / "docs" / "environment.md"

HEAD = """# Environment variables

Made from `mgx_numba/driver/variables.py` by `python -m tests.project.environment`.

MIGraphX declares 83 variables. {count} have an effect here; the others say why they have none, and so does the driver
if one is set. A switch is off if it is empty, `0`, `false`, `no` or `off`, and on if it is anything else. Unless a row
says otherwise a variable is read when a program is parsed or compiled. While one of MIGraphX's is
set that is about compiling, no kept plan is used, so that there is something to be seen.
"""


def page() -> str:
    """The page's text."""
    count = sum(v.works for group in GROUPS.values() for v in group)
    parts = [HEAD.format(count=count)]
    for title, group in {"This package's own, and of guides": OWN, **GROUPS}.items():
        parts.append(
            f"## {title}\n\n| variable | works | what it does, or why nothing |\n| --- | --- | --- |\n{_rows(group)}"
        )
    return "\n".join(parts)


def _rows(group: Iterable[Variable]) -> str:
    return "".join(f"| `{v.full_name}` | {'yes' if v.works else 'no'} | {v.text} |\n" for v in group)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
