"""`PrefixCache`: keys and values of earlier texts, which new prompts with the same beginning reuse."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np

from .engine import DecoderBatch, Snapshot


class PrefixCache:
    """Caches of texts of one model, up to a number of bytes; those used longest ago are dropped first.

    Attributes:
        hits: number of prompts that found a beginning.
        reused: number of tokens that were not computed again.
    """

    def __init__(self, max_bytes: int = 1 << 30, least: int = 16) -> None:
        """Make an empty cache.

        Args:
            max_bytes: most bytes of keys and values.
            least: shortest beginning that is reused; shorter ones are computed as quickly as copied.
        """
        self._most, self._least = max_bytes, least
        self._known: OrderedDict[bytes, tuple[np.ndarray, Snapshot]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self.hits = 0
        self.reused = 0

    def restore(self, engine: DecoderBatch, tokens: np.ndarray) -> int:
        """Fill an empty engine with the longest known beginning of a prompt, and return its length.

        At least the last token of the prompt is left, whose logits are needed.
        """
        with self._lock:
            best, key = 0, b""
            for name, (known, _) in self._known.items():
                common = min(len(known), len(tokens) - 1)
                different = np.flatnonzero(known[:common] != tokens[:common])
                length = int(different[0]) if len(different) else common
                if length > best:
                    best, key = length, name
            if best < self._least:
                return 0
            self._known.move_to_end(key)
            snapshot = self._known[key][1]
            self.hits += 1
            self.reused += best
        engine.restore(snapshot, best)
        return best

    def remember(self, engine: DecoderBatch, tokens: np.ndarray, row: int = 0) -> None:
        """Keep the caches of an engine's sequence, whose first tokens are ``tokens``."""
        tokens = np.array(tokens[: engine.lengths[row]], np.int64)
        if len(tokens) < self._least:
            return
        key = tokens.tobytes()
        with self._lock:
            if any(known.startswith(key) for known in self._known):
                return
        snapshot = engine.snapshot(len(tokens), row)
        with self._lock:
            for shorter in [known for known in self._known if key.startswith(known)]:
                self._bytes -= self._known.pop(shorter)[1].bytes
            self._known[key] = tokens, snapshot
            self._bytes += snapshot.bytes
            while self._bytes > self._most:
                self._bytes -= self._known.popitem(last=False)[1][1].bytes
