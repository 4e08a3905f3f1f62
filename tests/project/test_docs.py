"""The documentation: the site builds without a warning, and its code blocks work."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guides import FAILS, rows_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_works(page: Path) -> None:
    rows = list(rows_of(page))
    assert [row for row in rows if row[4] == FAILS] == []


def test_most_of_the_pages_show_something() -> None:
    assert sum("```python" in page.read_text() for page in PAGES) >= 10


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="MkDocs is not installed")
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    # Not --quiet: it hides the warnings that --strict counts, so that nothing fails.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    page = (tmp_path / "site" / "reference" / "program" / "index.html").read_text()
    assert "get_output_names" in page and "exhaustive_tune" in page
    driver = (tmp_path / "site" / "reference" / "driver" / "index.html").read_text()
    assert "--enable-offload-copy" in driver
    shutil.rmtree(tmp_path / "site")
