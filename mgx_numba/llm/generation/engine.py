"""`Engine`: steps of a decoder over the caches of a batch of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import OptionError
from ..decoder import Decoder

__all__ = ["Engine", "Snapshot"]

_ROOM = 64
"""Multiple to which buffers of caches are rounded: a few tens of steps for each growth of a short sequence."""


class Snapshot:
    """Keys and values of the first tokens of one sequence: an array (1, heads, tokens, size) for each cache."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.arrays = list(arrays)

    @property
    def bytes(self) -> int:
        """Return the size in bytes."""
        return sum(array.nbytes for array in self.arrays)


class Engine:
    """The caches of a batch of sequences, and the steps that extend them.

    Sequences of a batch may have different lengths (``lengths``), each step gives every sequence equally many tokens.
    Two forms of caches exist. A *growing* cache has exactly the columns of past tokens. A *shared* buffer has room for
    more tokens; past and present are the same length, and the program reads lengths from the attention mask.
    Decoders that are not ``compact`` keep one column for each step of the batch, so a sequence may have columns that
    its mask excludes.
    """

    def __init__(self, decoder: Decoder, rows: int = 1, shared: bool = False) -> None:
        """Make empty caches.

        Args:
            rows: number of sequences.
            shared: use shared buffers; only a compact decoder has them.

        Raises:
            OptionError: ``shared`` with a decoder that is not compact.
        """
        if shared and not decoder.compact:
            raise OptionError(
                "past_present_share_buffer needs a model whose attention reads lengths from the mask "
                "(GroupQueryAttention); this model has growing caches"
            )
        self.decoder = decoder
        self.shared = shared
        self.lengths = np.zeros(rows, np.int64)
        self._moves = [(cache.name, cache.result) for cache in decoder.caches]
        self._room = _ROOM if shared else 0
        self._feeds: dict[str, Any] = {
            c.name: np.zeros((rows, c.heads, self._room, c.size), c.dtype) for c in decoder.caches
        }
        self._mask: np.ndarray | None = None  # (rows, columns); None: all sequences are of one length without gaps
        self._ones = np.ones(0, np.int64)

    @property
    def rows(self) -> int:
        """Return the number of sequences."""
        return len(self.lengths)

    @property
    def columns(self) -> int:
        """Return the number of columns of the caches that hold tokens."""
        return int(self.lengths.max(initial=0)) if self._mask is None else self._mask.shape[1]

    def step(self, ids: np.ndarray) -> np.ndarray:
        """Run the decoder on the next tokens of every sequence.

        Args:
            ids: (rows, tokens).

        Returns:
            Logits (rows, tokens, vocabulary).
        """
        decoder, feeds = self.decoder, self._feeds
        count = ids.shape[1]
        total = self.columns + count
        if self.shared and total > self._room:
            self._resize(max(total, 2 * self._room))
        feeds[decoder.input_ids] = np.ascontiguousarray(ids, decoder.types[decoder.input_ids])
        if decoder.positions is not None:
            places = self.lengths[:, None] + np.arange(count)
            feeds[decoder.positions] = np.ascontiguousarray(places, decoder.types[decoder.positions])
        if self._mask is not None:
            self._mask = self._extended(self._mask, count)
        if decoder.mask is not None:
            mask = self._all_ones(total) if self._mask is None else self._mask
            feeds[decoder.mask] = np.ascontiguousarray(mask, decoder.types[decoder.mask])
        found: Any = decoder.program.run(feeds)
        for name, place in self._moves:
            feeds[name] = found[place]
        self.lengths += count
        return found[decoder.logits]

    def prefill(self, ids: np.ndarray, chunk: int = 0) -> np.ndarray:
        """Run the decoder on many tokens, at most ``chunk`` in a step (0: all), and return the last step's logits."""
        size = chunk or ids.shape[1]
        for start in range(0, ids.shape[1], size):
            logits = self.step(ids[:, start : start + size])
        return logits

    def truncate(self, length: int) -> None:
        """Forget the tokens of each sequence beyond the first ``length``; all sequences must be equally long."""
        assert self._mask is None
        assert length <= self.columns
        if length < self.columns and not self.shared:
            self._change(lambda array: array[:, :, :length])
        self.lengths[:] = length

    def select(self, rows: Sequence[int] | np.ndarray) -> None:
        """Replace the sequences by those at ``rows``, which may repeat a sequence or leave it out."""
        chosen = np.asarray(rows, np.int64)
        if len(chosen) == self.rows and np.array_equal(chosen, np.arange(self.rows)):
            return
        self.lengths = self.lengths[chosen]
        self._change(lambda array: array[chosen])
        if self._mask is not None:
            self._mask = self._mask[chosen]
            self._tidy()

    def join(self, other: Engine) -> None:
        """Append the sequences of another engine over the same decoder, whose caches are copied."""
        assert other.decoder is self.decoder
        masks = [self._columns_of(), other._columns_of()]
        columns = max(mask.shape[1] for mask in masks)
        room = max(columns, self._room) if self.shared else columns
        self._room = room if self.shared else 0
        for name, _ in self._moves:
            self._feeds[name] = np.concatenate([_padded(e._feeds[name], e.columns, room) for e in (self, other)])
        self.lengths = np.concatenate([self.lengths, other.lengths])
        self._mask = np.concatenate([np.pad(mask, ((0, 0), (0, columns - mask.shape[1]))) for mask in masks])
        self._tidy()

    def snapshot(self, length: int, row: int = 0) -> Snapshot:
        """Return a copy of the caches of the first ``length`` tokens of a sequence."""
        columns: Any = slice(length)
        if self._mask is not None and not self.decoder.compact:
            columns = np.flatnonzero(self._mask[row])[:length]
        return Snapshot([np.array(self._feeds[name][row : row + 1, :, columns]) for name, _ in self._moves])

    def restore(self, snapshot: Snapshot, length: int) -> None:
        """Fill the empty caches of the only sequence with the first ``length`` tokens of a snapshot."""
        assert self.rows == 1 and not self.columns
        if self.shared:
            self._room = max(self._room, -(-length // _ROOM) * _ROOM)
        for (name, _), array in zip(self._moves, snapshot.arrays, strict=True):
            self._feeds[name] = _padded(array, length, self._room if self.shared else length)
        self.lengths[:] = length

    def _extended(self, mask: np.ndarray, count: int) -> np.ndarray:
        """Return the mask after ``count`` more tokens of each sequence."""
        if self.decoder.compact:
            after = self.lengths + count
            return (np.arange(after.max()) < after[:, None]).astype(np.int64)
        return np.concatenate([mask, np.ones((self.rows, count), np.int64)], axis=1)

    def _all_ones(self, columns: int) -> np.ndarray:
        if len(self._ones) < self.rows * columns:
            self._ones = np.ones(2 * self.rows * columns, np.int64)
        return self._ones[: self.rows * columns].reshape(self.rows, columns)

    def _columns_of(self) -> np.ndarray:
        """Return the mask of the present columns."""
        return np.ones((self.rows, self.columns), np.int64) if self._mask is None else self._mask

    def _tidy(self) -> None:
        """Remove columns that no sequence uses, and the mask if every sequence uses every column."""
        assert self._mask is not None
        used = self._mask.any(axis=0)
        if not used.all():
            self._mask = self._mask[:, used]
            if not self.shared:
                self._change(lambda array: array[:, :, used])
        if self._mask.all():
            self._mask = None

    def _resize(self, room: int) -> None:
        used, self._room = self.columns, -(-room // _ROOM) * _ROOM
        self._change(lambda array: _padded(array, used, self._room))

    def _change(self, changed: Any) -> None:
        for name, _ in self._moves:
            self._feeds[name] = np.ascontiguousarray(changed(self._feeds[name]))


def _padded(array: np.ndarray, used: int, length: int) -> np.ndarray:
    """Return an array of ``length`` columns with the first ``used`` columns of ``array``, else zeros."""
    if used == length == array.shape[2]:
        return array
    result = np.zeros((*array.shape[:2], length, array.shape[3]), array.dtype)
    result[:, :, :used] = array[:, :, :used]
    return result
