"""Compiled kernels are shared between all tests, tuning records are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.caches import with_kernels


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = with_kernels(tmp_path / "cache")
    monkeypatch.setenv("MGX_CACHE_DIR", str(folder))
    monkeypatch.delenv("MIGRAPHX_PROBLEM_CACHE", raising=False)
    return folder
