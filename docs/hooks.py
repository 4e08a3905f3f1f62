"""What the site's pages take from the program itself when it is built."""

from __future__ import annotations

import argparse
import os
from typing import Any

_MARK = "<!-- commands of the driver -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page with the driver's commands and flags in the place of their mark."""
    return markdown.replace(_MARK, driver_help()) if _MARK in markdown else markdown


def driver_help() -> str:
    """Each command's help, as Markdown."""
    from mgx_numba.driver.main import COMMANDS, _parser

    os.environ["COLUMNS"] = "110"  # of argparse's lines: what fits a page without scrolling
    (commands,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    return "\n".join(f"## {name}\n\n```text\n{commands.choices[name].format_help()}```\n" for name in COMMANDS)
