"""Writer of the HTML page: embeds data, style and scripts of this folder in a template, as one self-contained file."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from ...errors import FormatError
from .data import FORMAT

_FOLDER = Path(__file__).parent
SCRIPTS = ("dom.js", "roofline.js", "times.js", "graph.js", "memory.js", "comparison.js", "main.js")
"""Scripts of the page, in order of dependence."""
_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def write_page(path: str, data: dict[str, Any], other: dict[str, object] | None = None) -> None:
    """Write the page of a measured program, compared with ``other``, the data of an earlier page.

    Raises:
        FormatError: the file cannot be written.
    """
    known = None if other is None else {k: v for k, v in other.items() if k not in ("other", "kernels", "memory")}
    text = json.dumps({**data, "other": known}).replace("<", "\\u003c")  # text must not close the script element
    parts = {
        "title": html.escape(data["title"]),
        "style": (_FOLDER / "page.css").read_text(encoding="utf-8"),
        "data": text,
        "script": "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS),
    }
    template = (_FOLDER / "page.html").read_text(encoding="utf-8")
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from None


def write_json(path: str, data: dict[str, object]) -> None:
    """Write the data of a page as a JSON file.

    Raises:
        FormatError: the file cannot be written.
    """
    try:
        Path(path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from None


def read_page(path: str) -> dict[str, object]:
    """Return the data of a page that `write_page` wrote.

    Raises:
        FormatError: the file cannot be read, or is not a page.
    """
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    found = _DATA.search(text)
    try:
        data = json.loads(found[1]) if found is not None else None
    except ValueError:
        data = None
    if not isinstance(data, dict) or "format" not in data:
        raise FormatError(f"{path}: not a page that perf --html wrote")
    if data["format"] != FORMAT:
        raise FormatError(f"{path}: its format is {data['format']}, expected {FORMAT}")
    return data
