"""`History`: the tokens of one sequence, with the counts that penalties need."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


class History:
    """The tokens of one sequence without padding; ``prompt`` tokens are not counted as generated.

    ``counts`` has the number of occurrences of each generated token, ``seen`` all different tokens of the sequence.
    """

    def __init__(self) -> None:
        self._tokens = np.empty(64, np.int64)
        self._count = 0
        self._seen: dict[int, None] = {}
        self._generated = np.zeros(64, bool)
        self.counts: dict[int, int] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def tokens(self) -> np.ndarray:
        """Return the tokens (int64), a view."""
        return self._tokens[: self._count]

    @property
    def seen(self) -> list[int]:
        """Return the different tokens of the sequence."""
        return list(self._seen)

    def extend(self, tokens: Iterable[int], generated: bool) -> None:
        """Append tokens."""
        for token in tokens:
            self.append(int(token), generated)

    def append(self, token: int, generated: bool) -> None:
        """Append one token."""
        if self._count == len(self._tokens):
            self._tokens = np.resize(self._tokens, 2 * self._count)
            self._generated = np.resize(self._generated, 2 * self._count)
        self._tokens[self._count] = token
        self._generated[self._count] = generated
        self._count += 1
        self._seen[token] = None
        if generated:
            self.counts[token] = self.counts.get(token, 0) + 1

    def truncate(self, length: int) -> None:
        """Forget tokens beyond the first ``length``."""
        tokens, generated = self.tokens[:length].tolist(), self._generated[:length].tolist()
        self._count, self._seen, self.counts = 0, {}, {}
        for token, was in zip(tokens, generated, strict=True):
            self.append(token, was)

    def copy(self) -> History:
        """Return an independent copy."""
        other = History()
        other._tokens, other._count = self._tokens.copy(), self._count
        other._generated = self._generated.copy()
        other._seen, other.counts = dict(self._seen), dict(self.counts)
        return other

    def following(self, size: int) -> np.ndarray:
        """Return the tokens that followed each earlier occurrence of the last ``size`` tokens, oldest first.

        With ``size`` 0 these are all tokens.
        """
        return self.tokens[self.places(size)]

    def places(self, size: int) -> np.ndarray:
        """Return the positions behind each earlier occurrence of the last ``size`` tokens, ascending."""
        tokens = self.tokens
        if not 0 <= size < len(tokens):
            return np.zeros(0, np.int64)
        found = np.ones(len(tokens) - size, bool)
        for back in range(1, size + 1):
            found &= tokens[size - back : len(tokens) - back] == tokens[-back]
        return np.flatnonzero(found) + size
