"""Compiled kernels are shared between the tests of this folder, tuning records are not."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kernels_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(autouse=True)
def cache_folder(kernels_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    (kernels_folder / "objects").mkdir(exist_ok=True)
    (folder / "objects").symlink_to(kernels_folder / "objects", target_is_directory=True)
    monkeypatch.setenv("MGX_CACHE_DIR", str(folder))
    monkeypatch.delenv("MIGRAPHX_PROBLEM_CACHE", raising=False)
    return folder
