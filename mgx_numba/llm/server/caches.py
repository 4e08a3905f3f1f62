"""Caches of the texts that a `Scheduler` computes: `RowCaches`, a batch of which each text is a row, and
`PagedCaches`, blocks of one pool, which texts with the same beginning share."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..cache_memory import CacheMemory
from ..decoder import PagedDecoder
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


_FIRST = 64
"""Blocks that a pool begins with; it grows by doubling."""


class PagedCaches:
    """Caches in blocks: see `TextCaches`.

    A block holds as many tokens as the decoder's program says. A full block never changes, so it is known by a digest
    of all tokens up to its end, and texts that begin with these tokens share it. A block that no text has any more
    stays known until its memory is needed, or too much memory is so used.

    Attributes:
        hits: number of prompts that found a known beginning.
        reused: number of tokens that were not computed again.
        count: number of blocks.
        free: blocks without content.
        idle: known blocks without texts, the least recently used first.
    """

    def __init__(self, decoder: PagedDecoder, prefix_bytes: int) -> None:
        """Make an empty pool.

        Args:
            prefix_bytes: most bytes of known blocks that no text has.
        """
        self.hits = self.reused = 0
        self._decoder = decoder
        self._size = decoder.block
        block_bytes = sum(np.dtype(c.dtype).itemsize * c.heads * c.size for c in decoder.caches) * self._size
        self._most_idle = prefix_bytes // block_bytes
        self.count = 0
        self.free: list[int] = []
        self._users: list[int] = []  # number of texts, by block
        self._known: dict[bytes, int] = {}
        self._digest: dict[int, bytes] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        self._memory = CacheMemory(decoder, in_place=True)
        self._pool = self._memory.buffers.zeros(decoder.caches, 0, self._size)
        self._grow(_FIRST)

    @property
    def used(self) -> int:
        """Return the number of blocks that texts have."""
        return self.count - len(self.free) - len(self.idle)

    def reuse(self, text: CachedText) -> int:
        """See `TextCaches.reuse`."""
        digest = b""
        for start in range(0, len(text.prompt) - self._size, self._size):
            digest = self._digest_of(digest, text.prompt[start : start + self._size])
            block = self._known.get(digest)
            if block is None:
                break
            self._users[block] += 1
            self.idle.pop(block, None)
            text.blocks.append(block)
            text.digests.append(digest)
        length = len(text.blocks) * self._size
        text.tokens = text.prompt[:length].tolist()
        self.hits += bool(length)
        self.reused += length
        return length

    def run(self, texts: Sequence[CachedText], ids: np.ndarray) -> np.ndarray:
        """See `TextCaches.run`."""
        past = np.array([len(text.tokens) for text in texts], np.int64)
        for text in texts:
            while len(text.blocks) * self._size < len(text.tokens) + ids.shape[1]:
                text.blocks.append(self._taken())
        table = np.full((len(texts), max(len(text.blocks) for text in texts)), -1, np.int64)
        for row, text in zip(table, texts, strict=True):
            row[: len(text.blocks)] = text.blocks
        feeds = {"input_ids": np.ascontiguousarray(ids, np.int64), "past_lengths": past, "block_table": table}
        logits = self._memory.run(feeds, ids)
        for text, row in zip(texts, ids, strict=True):
            text.tokens += row.tolist()
            self._learn(text)
        return logits

    def join(self, text: CachedText) -> None:
        """See `TextCaches.join`: blocks are the same before and after."""

    def end(self, texts: Sequence[CachedText]) -> None:
        """See `TextCaches.end`."""
        for text in texts:
            for block in reversed(text.blocks):  # the end of a text is forgotten before its beginning
                self._users[block] -= 1
                if not self._users[block]:
                    if block in self._digest:
                        self.idle[block] = None
                    else:
                        self.free.append(block)
            text.blocks, text.digests, text.tokens = [], [], []
        while len(self.idle) > self._most_idle:
            self.free.append(self._forgotten())

    def fail(self, texts: Sequence[CachedText]) -> None:
        """See `TextCaches.fail`: blocks that are known were complete before the step."""
        self.end(texts)

    def _digest_of(self, before: bytes, tokens: np.ndarray | Sequence[int]) -> bytes:
        """Return the digest of a beginning that ends with a full block of tokens, after that of the blocks before."""
        return hashlib.blake2b(before + np.asarray(tokens, np.int64).tobytes(), digest_size=32).digest()

    def _learn(self, text: CachedText) -> None:
        """Make the full blocks of a text known."""
        for k in range(len(text.digests), len(text.tokens) // self._size):
            before = text.digests[-1] if text.digests else b""
            digest = self._digest_of(before, text.tokens[k * self._size : (k + 1) * self._size])
            text.digests.append(digest)
            if digest not in self._known:
                self._known[digest] = text.blocks[k]
                self._digest[text.blocks[k]] = digest

    def _taken(self) -> int:
        """Return a block for a text: a free one, else one of the longest unused known block, else of a larger pool."""
        if not self.free and self.idle and len(self.idle) >= self._most_idle:
            self.free.append(self._forgotten())
        if not self.free:
            self._grow(2 * self.count)
        block = self.free.pop()
        self._users[block] = 1
        return block

    def _forgotten(self) -> int:
        """Return the known block without texts that was used longest ago, which is not known any more."""
        block, _ = self.idle.popitem(last=False)
        del self._known[self._digest.pop(block)]
        return block

    def _grow(self, count: int) -> None:
        """Make the pool larger."""
        buffers, before = self._memory.buffers, range(self.count)
        pool = buffers.zeros(self._decoder.caches, count, self._size)
        buffers.copy(pool, before, self._pool, before, self._size)
        self._pool = pool
        self._memory.put(pool)
        self.free += range(count - 1, self.count - 1, -1)  # the first blocks are taken first
        self._users += [0] * (count - self.count)
        self.count = count
