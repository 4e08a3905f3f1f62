"""What the site's pages take from the program itself when it is built."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = re.compile(r"^::: mgx_numba\.(\w+)", re.MULTILINE)


def on_startup(**_: Any) -> None:
    """Read only the subpackages that pages of the reference show: all of them take half of a build."""
    shown = {name for page in (ROOT / "docs").rglob("*.md") for name in PACKAGE.findall(page.read_text("utf-8"))}
    every = griffe.ModuleFinder.submodules

    def submodules(self: griffe.ModuleFinder, module: griffe.Module) -> list[Any]:
        return [(names, path) for names, path in every(self, module) if module.name != "mgx_numba" or names[0] in shown]

    griffe.ModuleFinder.submodules = submodules


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
