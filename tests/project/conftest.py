"""Free the syntax trees of the package when the last test of this folder has ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .sources import tree


@pytest.fixture(scope="package", autouse=True)
def trees_of_these_tests() -> Iterator[None]:
    yield
    tree.cache_clear()
