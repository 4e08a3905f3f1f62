"""`bench.lowp` on small sizes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from bench import lowp


def test_a_line_for_each_shape_and_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(lowp, "SHAPES", ((512, 512),))
    monkeypatch.setattr(lowp, "BLOCKS", (32,))
    (line,) = lowp.weights(tmp_path, 1, 0.01, 0)
    assert line.startswith("1 products, 512 x 512, blocks of 32: read ") and "GB/s, error" in line


def test_chains_of_products_have_the_bytes_that_are_asked_for() -> None:
    for chain, sizes in zip(lowp.chains(100), (lowp.SHAPES[:1], lowp.SHAPES[1:])):
        assert set(chain) == set(sizes) and 100 << 20 <= sum(n * k // 2 for n, k in chain) < 130 << 20
        assert all(before[0] == after[1] for before, after in itertools.pairwise(chain))
