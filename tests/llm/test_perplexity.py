"""Perplexity of a model whose likelihoods are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.errors import ParameterError
from mgx_numba.llm.perplexity import perplexity


def test_second_halves_of_windows_count() -> None:
    """The model knows the next token with a probability of 3 / 5, from the number of tokens that it has seen."""
    ids = np.random.default_rng(0).integers(1, 3, 700)
    seen: list[tuple[int, int]] = []

    def step(own: np.ndarray, caches: list[Any] | None) -> tuple[np.ndarray, list[Any]]:
        start, place = caches or (len(seen) // 5 * 300, 0)
        seen.append((start, place))
        assert own[0, 0] == (0 if place == 0 else ids[start + place])
        logits = np.zeros((1, own.shape[1], 3), np.float32)
        for k in range(own.shape[1]):
            if place + k + 1 < 300:
                logits[0, k, ids[start + place + k + 1]] = np.log(3)
        return logits, [start, place + own.shape[1]]

    found = perplexity(step, ids.tolist(), 300, bos_id=0)
    assert found.tokens == 2 * 149 and found.error < 1e-6
    assert found.value == pytest.approx(5 / 3, rel=1e-6)
    assert len(seen) == 10


def test_short_texts_are_refused() -> None:
    for count, window in ((10, 11), (10, 3)):
        with pytest.raises(ParameterError):
            perplexity(lambda ids, caches: (ids, []), [1] * count, window)
