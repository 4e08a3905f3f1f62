"""`bench.carry` on a small model."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.carry import READERS, carry
from bench.cases import prepare


def test_every_reader_measures_nothing_and_solves_the_same(tmp_path: Path) -> None:
    found = carry(prepare("mlp", tmp_path, "tiny"), tmp_path, threads=2, budget=60.0, rounds=1)
    assert [c.reader for c in found] == list(READERS)
    for c in found:
        assert c.problems > 1 and not c.measurements and c.same and c.equal
        assert c.tuned > 0 and c.seconds > 0
        assert len(c.told) == (c.reader == "elsewhere")


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    case = prepare("mlp", tmp_path, "tiny")
    case.checked.write_bytes(b"no model")
    with pytest.raises(RuntimeError, match="not an ONNX model"):
        carry(case, tmp_path, threads=2, budget=60.0, rounds=1)
