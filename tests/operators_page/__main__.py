"""Writes ``docs/operators.md``: ``python -m tests.operators_page``."""

from .page import PAGE, page

PAGE.write_text(page())
