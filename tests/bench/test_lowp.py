"""The comparison in lower precision, on sizes that take no time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import lowp
from bench.cases import prepare


def test_a_line_for_each_shape_and_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(lowp, "SHAPES", ((512, 512),))
    monkeypatch.setattr(lowp, "BLOCKS", (32,))
    (line,) = lowp.weights(tmp_path, 1, 0.01)
    assert line.startswith("512 x 512, blocks of 32: read ") and "GB/s, error" in line


def test_a_model_in_8_bits_by_the_quantiser_of_onnx_runtime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    case = prepare("mlp", tmp_path, "tiny")
    wide, narrow = (
        np.asarray(lowp.open_session(lowp.OURS, path, case.feeds, 1).run()[0])
        for path in (case.path, lowp.qdq_file(case, tmp_path))
    )
    assert 0 < np.linalg.norm(wide - narrow) < 0.1 * np.linalg.norm(wide)
