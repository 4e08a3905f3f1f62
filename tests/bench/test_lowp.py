"""The comparison in lower precision, on sizes that take no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import lowp


def test_a_line_for_each_shape_and_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(lowp, "SHAPES", ((512, 512),))
    monkeypatch.setattr(lowp, "BLOCKS", (32,))
    (line,) = lowp.weights(tmp_path, 1, 0.01)
    assert line.startswith("512 x 512, blocks of 32: read ") and "GB/s, error" in line
