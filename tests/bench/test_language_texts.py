"""The comparison of greedy texts."""

from __future__ import annotations

import numpy as np

from bench.language_texts import first_difference, greedy


class Counting:
    """An engine whose likeliest token is the one after the last token."""

    def start(self) -> None:
        self.seen: list[int] = []

    def last(self, ids: list[int]) -> np.ndarray:
        self.seen += ids
        return np.eye(10)[(self.seen[-1] + 1) % 10]


def test_a_greedy_text_ends_at_an_end_or_at_the_most_tokens() -> None:
    engine: object = Counting()
    assert greedy(engine, [1, 2], 4, ()) == [3, 4, 5, 6]  # type: ignore[arg-type]
    assert greedy(engine, [1, 2], 4, (4,)) == [3, 4]  # type: ignore[arg-type]


def test_texts_differ_where_one_ends() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3, 4]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
