"""Tests of PyTorch are left out where it is not installed; pytest says so."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


def pytest_report_header() -> str | None:
    """Say that these tests do not run."""
    return "tests/torch: skipped, PyTorch is not installed" if collect_ignore_glob else None


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Let no test see what Dynamo has compiled for another."""
    import torch

    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
