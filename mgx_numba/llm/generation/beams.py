"""Beam search: the likeliest sequences by the sum of log-probabilities, divided by a power of their length."""

from __future__ import annotations

import heapq
import itertools

import numpy as np


class BeamSearch:
    """The beams of one prompt.

    Attributes:
        scores: sum of log-probabilities of each living beam.
        done: whether no living beam can improve the ended sequences.
    """

    def __init__(self, beams: int, length_penalty: float, early_stopping: bool) -> None:
        self.scores = np.full(beams, -1e9)  # only the first beam counts at first: all are the prompt
        self.scores[0] = 0
        self.done = False
        self._penalty = length_penalty
        self._early = early_stopping
        self._ended: list[tuple[float, int, list[int]]] = []  # the worst first; the number makes entries comparable
        self._number = itertools.count()

    def step(
        self, log_probabilities: np.ndarray, sequences: list[list[int]], ends: frozenset[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Continue the beams by one token.

        Args:
            log_probabilities: (beams, vocabulary).
            sequences: tokens of each beam, prompt included.
            ends: tokens that end a sequence.

        Returns:
            For each new beam the beam that it continues, and its token.
        """
        beams, vocabulary = log_probabilities.shape
        total = (self.scores[:, None] + log_probabilities).ravel()
        # At most one candidate of each beam for each end token ends a sequence, so enough are left to live.
        count = min(beams * (1 + max(1, len(ends))), total.size)
        best = np.argpartition(-total, count - 1)[:count]
        best = best[np.lexsort((best, -total[best]))]
        sources, tokens, scores = [], [], []
        for rank, place in enumerate(best.tolist()):
            beam, token = divmod(place, vocabulary)
            if token in ends:
                if rank < beams:
                    self._add(float(total[place]), sequences[beam])
                continue
            sources.append(beam)
            tokens.append(token)
            scores.append(total[place])
            if len(sources) == beams:
                break
        length = len(sequences[0])
        self.scores = np.array(scores)
        if len(self._ended) == beams:
            reachable = float(total[best[0]]) / length**self._penalty
            self.done = self._early or self._ended[0][0] >= reachable
        return np.array(sources), np.array(tokens)

    def finish(self, sequences: list[list[int]]) -> None:
        """Add the living beams to the ended sequences, at the end of the search."""
        if not self.done:
            for score, sequence in zip(self.scores.tolist(), sequences, strict=True):
                self._add(score, sequence)

    def results(self) -> list[list[int]]:
        """Return the ended sequences, best first."""
        return [sequence for _, _, sequence in sorted(self._ended, key=lambda e: (-e[0], e[1]))]

    def _add(self, score: float, sequence: list[int]) -> None:
        entry = score / len(sequence) ** self._penalty, -next(self._number), list(sequence)
        if len(self._ended) < len(self.scores):
            heapq.heappush(self._ended, entry)
        else:
            heapq.heappushpop(self._ended, entry)
