"""What the site's pages take from the program itself when it is built."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page with what its marks stand for: the driver's commands and flags, or the changes."""
    for mark, text in (("<!-- commands of the driver -->", driver_help), ("<!-- changes -->", changes)):
        if mark in markdown:
            markdown = markdown.replace(mark, text())
    return markdown


def changes() -> str:
    """Return the changelog with links relative to the site's page."""
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")


def driver_help() -> str:
    """Each command's help, as Markdown."""
    from mgx_numba.driver.main import COMMANDS, _parser

    os.environ["COLUMNS"] = "110"  # of argparse's lines: what fits a page without scrolling
    (commands,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    return "\n".join(f"## {name}\n\n```text\n{commands.choices[name].format_help()}```\n" for name in COMMANDS)
