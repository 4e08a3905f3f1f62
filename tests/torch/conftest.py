"""Tests of PyTorch are left out where it is not installed; pytest says so."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


def pytest_report_header() -> str | None:
    """Say that these tests do not run."""
    return "tests/torch: skipped, PyTorch is not installed" if collect_ignore_glob else None


@pytest.fixture(scope="session", autouse=True)
def _operators_are_looked_up_once() -> Iterator[None]:
    """Keep what PyTorch otherwise does for each export: it looks up its thousand composite operators of C++, in case
    that a library with more of them was loaded."""
    from torch._export import utils

    with pytest.MonkeyPatch.context() as patch:
        name = "_materialize_cpp_cia_ops"
        patch.setattr(utils, name, functools.cache(getattr(utils, name)))
        yield


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no test see what was compiled for another, and none pass because a graph ran in eager mode."""
    import torch

    from mgx_numba.torch import backend, logs

    monkeypatch.setattr(backend, "kept_path", lambda *args: None)
    lines: set[str] = set()
    monkeypatch.setattr(logs, "_warned", lines)
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
    failed = [line for line in lines if "cannot be compiled: " in line and not line.startswith("PyTorch runs")]
    assert not failed


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that the backend compiles during a test."""
    from mgx_numba.torch import region

    made: list[Any] = []
    own = region.compiled_program

    def noting(*args: Any) -> Any:
        made.append(own(*args))
        return made[-1]

    monkeypatch.setattr(region, "compiled_program", noting)
    return made
