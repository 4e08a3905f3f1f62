"""Proposals of the next tokens for speculative decoding.

A proposal is verified: the model runs on all of it in one step, and tokens are chosen from its logits one by one, as
without proposals, for as long as the choice is the proposed token. The text is therefore the text without proposals,
greedy or drawn, up to rounding of the logits of steps with several tokens (on a CPU mostly none).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ..decoder import CompiledDecoder
from .engine import DecoderBatch
from .history import History


class Proposer(Protocol):
    """Guesses how a sequence goes on."""

    def propose(self, history: History, most: int) -> list[int]:
        """Return at most ``most`` tokens that may follow the sequence."""


class PromptLookup:
    """Proposes what followed the last occurrence of the sequence's last tokens in the sequence itself."""

    def __init__(self, size: int) -> None:
        """Look up at most ``size`` last tokens, then fewer until there is an occurrence."""
        self._size = size

    def propose(self, history: History, most: int) -> list[int]:
        """Return at most ``most`` tokens that may follow the sequence."""
        for size in range(self._size, 0, -1):
            places = history.places(size)
            if len(places):
                return history.tokens[places[-1] : places[-1] + most].tolist()
        return []


class DraftModel:
    """Proposes the likeliest tokens of a smaller model."""

    def __init__(self, decoder: CompiledDecoder, shared: bool) -> None:
        self._engine = DecoderBatch(decoder, shared=shared)
        self._tokens = np.zeros(0, np.int64)  # whose keys and values the engine holds

    def propose(self, history: History, most: int) -> list[int]:
        """Return at most ``most`` tokens that may follow the sequence."""
        tokens = history.tokens
        common = min(len(tokens) - 1, len(self._tokens))
        different = np.flatnonzero(tokens[:common] != self._tokens[:common])
        common = int(different[0]) if len(different) else common
        self._engine.truncate(common)
        found: list[int] = []
        following = tokens[common:]
        while len(found) < most:
            logits = self._engine.step(following[None])
            found.append(int(np.argmax(logits[0, -1])))
            following = np.array(found[-1:])
        self._tokens = np.concatenate([tokens, np.array(found[:-1], np.int64)])
        return found
