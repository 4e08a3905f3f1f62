"""Caches of the texts that a `Scheduler` computes: `RowCaches`, a batch of which each text is a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..generation.engine import DecoderBatch
from ..generation.prefixes import PrefixCache
from ..model import LanguageModel


class CachedText:
    """A text whose keys and values are in caches.

    Attributes:
        prompt: the prompt's tokens.
        tokens: tokens whose keys and values are in the caches.
    """

    def __init__(self, prompt: np.ndarray) -> None:
        self.prompt = prompt
        self.tokens: list[int] = []
        self.engine: DecoderBatch | None = None  # of `RowCaches`: caches of its own, until it joins the batch
        self.blocks: list[int] = []  # of `PagedCaches`: the blocks that hold its tokens, in order
        self.digests: list[bytes] = []  # of `PagedCaches`: of the beginnings that end with a full block


class TextCaches(Protocol):
    """Keys and values of texts, and the steps that extend them."""

    @property
    def hits(self) -> int:
        """Return the number of prompts that found a known beginning."""
        ...

    @property
    def reused(self) -> int:
        """Return the number of tokens that were not computed again."""
        ...

    def reuse(self, text: CachedText) -> int:
        """Begin a text with the longest known beginning of its prompt, without the last token; return its length."""
        ...

    def run(self, texts: Sequence[CachedText], ids: np.ndarray) -> np.ndarray:
        """Run the model on the next tokens [texts, tokens] of some texts.

        Texts are one whose prompt is not complete, or all texts that have joined.

        Returns:
            Logits [texts, tokens or 1, vocabulary].
        """
        ...

    def join(self, text: CachedText) -> None:
        """Add a text whose prompt is complete to those that run together."""
        ...

    def end(self, texts: Sequence[CachedText]) -> None:
        """Forget texts; their tokens are known beginnings from now on."""
        ...

    def fail(self, texts: Sequence[CachedText]) -> None:
        """Forget all texts, after a step that failed."""
        ...


class RowCaches:
    """Texts as rows of one batch of caches, for models that are ONNX files: see `TextCaches`."""

    def __init__(self, model: LanguageModel, prefix_bytes: int) -> None:
        self._model = model
        self._prefixes = PrefixCache(prefix_bytes)
        self._engine: DecoderBatch | None = None
        self._rows: list[CachedText] = []

    @property
    def hits(self) -> int:
        """See `TextCaches.hits`."""
        return self._prefixes.hits

    @property
    def reused(self) -> int:
        """See `TextCaches.reused`."""
        return self._prefixes.reused

    def reuse(self, text: CachedText) -> int:
        """See `TextCaches.reuse`."""
        text.engine = DecoderBatch(self._model.decoder, 1, self._model.shares_buffer)
        length = self._prefixes.restore(text.engine, text.prompt)
        text.tokens = text.prompt[:length].tolist()
        return length

    def run(self, texts: Sequence[CachedText], ids: np.ndarray) -> np.ndarray:
        """See `TextCaches.run`."""
        if texts[0].engine is not None:
            logits = texts[0].engine.step(ids)
        else:
            assert self._engine is not None
            place = [self._rows.index(text) for text in texts]
            logits = self._engine.step(ids[np.argsort(place)])[place]
        for text, row in zip(texts, ids, strict=True):
            text.tokens += row.tolist()
        return logits

    def join(self, text: CachedText) -> None:
        """See `TextCaches.join`."""
        assert text.engine is not None
        self._prefixes.remember(text.engine, text.prompt)
        self._rows.append(text)
        if self._engine is None:
            self._engine = text.engine
        else:
            self._engine.join(text.engine)
        text.engine = None

    def end(self, texts: Sequence[CachedText]) -> None:
        """See `TextCaches.end`; the last rows take the places of those that go, so few are copied."""
        gone = [text for text in texts if text in self._rows]
        if not gone or self._engine is None:
            return
        for text in gone:
            self._prefixes.remember(self._engine, np.array(text.tokens), self._rows.index(text))
        rows = [row for row, text in enumerate(self._rows) if text not in gone]
        count = len(rows)
        places, late = set(rows), [row for row in rows if row >= count]
        rows = [row if row in places else late.pop() for row in range(count)]
        self._rows = [self._rows[row] for row in rows]
        if rows:
            self._engine.select(rows)
        else:
            self._engine = None

    def fail(self, texts: Sequence[CachedText]) -> None:
        """See `TextCaches.fail`."""
        self._rows, self._engine = [], None
