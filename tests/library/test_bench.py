"""The benchmark of libraries, on a small model."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cases import prepare
from bench.library import Library, measure_library

from .support import needs_compiler


@needs_compiler
def test_library_is_measured_against_python(tmp_path: Path) -> None:
    found = measure_library(prepare("mlp", tmp_path, "tiny"), 2, tmp_path, budget=0.0, rounds=2)
    assert set(found.runs) == {"python", "library", "copied"}
    assert [len(seconds) for seconds in found.starts.values()] == [2, 2] and len(found.reading) == 2
    assert found.megabytes > 0 and found.ratio > 0 and found.beyond < min(found.starts["library"])
    path = tmp_path / "lib" / "libmeasured.so"
    Library(path).close()
    (tmp_path / "lib" / "measured.weights").unlink()
    with pytest.raises(RuntimeError, match=r"status 2: measured: the weights .*measured.weights cannot be opened"):
        Library(path)
