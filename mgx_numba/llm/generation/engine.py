"""`DecoderBatch`: steps of a decoder over the caches of a batch of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import OptionError
from ..cache_memory import CacheMemory
from ..decoder import CompiledDecoder

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


class DecoderBatch:
    """The caches of a batch of sequences, and the steps that extend them.

    Sequences of a batch may have different lengths (``lengths``), each step gives every sequence equally many tokens.
    Two forms of caches exist. A *growing* cache has exactly the columns of past tokens. A *shared* buffer has room for
    more tokens and more sequences, into which the program writes; it reads lengths from the attention mask.
    Decoders that are not ``compact`` keep one column for each step of the batch, so a sequence may have columns that
    its mask excludes.
    """

    def __init__(self, decoder: CompiledDecoder, rows: int = 1, shared: bool = False) -> None:
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
        self._memory = CacheMemory(decoder, shared)
        self._stored: list[np.ndarray] = []
        self._mask: np.ndarray | None = None  # (rows, columns); None: all sequences are of one length without gaps
        self._ones = np.ones(0, np.int64)
        room = _ROOM if shared else 0
        self._take([np.zeros((rows, c.heads, room, c.size), c.dtype) for c in decoder.caches])

    def _take(self, arrays: list[np.ndarray]) -> None:
        """Use arrays as the caches; shared buffers may have more sequences than there are."""
        self._stored = arrays if self.shared else []
        self._memory.put([array[: self.rows] for array in arrays])

    @property
    def rows(self) -> int:
        """Return the number of sequences."""
        return len(self.lengths)

    @property
    def columns(self) -> int:
        """Return the number of columns of the caches that hold tokens."""
        if self._mask is not None:
            return self._mask.shape[1]
        return int(self.lengths[0]) if len(self.lengths) else 0

    def step(self, ids: np.ndarray) -> np.ndarray:
        """Run the decoder on the next tokens of every sequence.

        Args:
            ids: (rows, tokens).

        Returns:
            Logits (rows, tokens, vocabulary).
        """
        logits = self._memory.run(self.inputs(ids), ids)
        self.lengths += ids.shape[1]
        return logits

    def inputs(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """Make room for the next tokens, and return the inputs of their step beside the caches."""
        decoder, feeds = self.decoder, dict[str, np.ndarray]()
        count = ids.shape[1]
        total = self.columns + count
        if self.shared and total > self._room:
            self._reserve(self.rows, max(total, 2 * self._room))
        feeds[decoder.input_ids] = np.ascontiguousarray(ids, decoder.types[decoder.input_ids])
        if decoder.positions is not None:
            places = self.lengths[:, None] + np.arange(count)
            feeds[decoder.positions] = np.ascontiguousarray(places, decoder.types[decoder.positions])
        if self._mask is not None:
            self._mask = self._extended(self._mask, count)
        if decoder.mask is not None:
            mask = self._all_ones(total) if self._mask is None else self._mask
            if self.shared and self._memory.on_device:  # steps of equal lengths are launched as recorded
                mask = np.pad(mask, ((0, 0), (0, self._room - mask.shape[1])))
            feeds[decoder.mask] = np.ascontiguousarray(mask, decoder.types[decoder.mask])
        return feeds

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
            self._take([np.ascontiguousarray(array[:, :, :length]) for array in self._arrays])
        self.lengths[:] = length

    def select(self, rows: Sequence[int] | np.ndarray) -> None:
        """Replace the sequences by those at ``rows``, which may repeat a sequence or leave it out.

        Of shared buffers only the sequences are copied that change their place.
        """
        chosen = np.asarray(rows, np.int64)
        columns = self.columns
        self.lengths = self.lengths[chosen]
        if self._mask is not None:
            self._mask = self._mask[chosen]
        if not self.shared:
            if len(chosen) != len(self._arrays[0]) or not np.array_equal(chosen, np.arange(len(chosen))):
                self._take([array[chosen] for array in self._arrays])
        else:
            if len(chosen) > len(self._buffers[0]):
                self._reserve(len(chosen), self._room, columns)
            moved = np.flatnonzero(chosen != np.arange(len(chosen)))
            for buffer in self._buffers:
                buffer[moved, :, :columns] = buffer[chosen[moved], :, :columns]
            self._take(self._buffers)
        self._tidy()

    def join(self, other: DecoderBatch) -> None:
        """Append the sequences of another engine over the same decoder, whose caches are copied."""
        assert other.decoder is self.decoder
        masks = [self._columns_of(), other._columns_of()]
        columns = max(mask.shape[1] for mask in masks)
        before, used = self.rows, [self.columns, other.columns]
        rows = before + other.rows
        parts = self._arrays, other._arrays
        self.lengths = np.concatenate([self.lengths, other.lengths])
        if self.shared:
            if rows > len(self._buffers[0]) or columns > self._room:
                self._reserve(max(rows, 2 * before), max(columns, self._room), used[0])
            for buffer, array in zip(self._buffers, parts[1], strict=True):
                buffer[before:rows, :, : used[1]] = array[:, :, : used[1]]
            self._take(self._buffers)
        else:
            self._take(
                [np.concatenate([_padded(a, columns), _padded(b, columns)]) for a, b in zip(*parts, strict=True)]
            )
        self._mask = np.concatenate([np.pad(mask, ((0, 0), (0, columns - mask.shape[1]))) for mask in masks])
        self._tidy()

    def snapshot(self, length: int, row: int = 0) -> Snapshot:
        """Return a copy of the caches of the first ``length`` tokens of a sequence."""
        columns: Any = slice(length)
        if self._mask is not None and not self.decoder.compact:
            columns = np.flatnonzero(self._mask[row])[:length]
        return Snapshot([np.array(array[row : row + 1, :, columns]) for array in self._arrays])

    def restore(self, snapshot: Snapshot, length: int) -> None:
        """Fill the empty caches of the only sequence with the first ``length`` tokens of a snapshot."""
        assert self.rows == 1 and not self.columns
        if self.shared:
            if length > self._room:
                self._reserve(1, length)
            for buffer, array in zip(self._buffers, snapshot.arrays, strict=True):
                buffer[:1, :, :length] = array[:, :, :length]
        else:
            self._take([np.ascontiguousarray(array[:, :, :length]) for array in snapshot.arrays])
        self.lengths[:] = length

    @property
    def _arrays(self) -> list[np.ndarray]:
        """Return the caches: of shared buffers only the sequences that there are."""
        return self._memory.arrays()

    @property
    def _buffers(self) -> list[np.ndarray]:
        """Return the shared buffers, with all sequences that they have room for."""
        self._memory.arrays()
        return self._stored

    @property
    def _room(self) -> int:
        """Return the number of columns of shared buffers."""
        return self._stored[0].shape[2] if self._stored else 0

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
        if self._mask is None:
            return
        used = self._mask.any(axis=0)
        if not used.all():
            self._mask = self._mask[:, used]
            if not self.shared:
                self._take([np.ascontiguousarray(array[:, :, used]) for array in self._arrays])
        if self._mask.all():
            self._mask = None

    def _reserve(self, rows: int, room: int, columns: int | None = None) -> None:
        """Make shared buffers larger.

        Args:
            rows: sequences that they have room for.
            room: columns, rounded up.
            columns: columns that hold tokens. Default: of the present sequences.
        """
        columns = self.columns if columns is None else columns
        room = -(-room // _ROOM) * _ROOM
        larger = []
        for old, cache in zip(self._buffers, self.decoder.caches, strict=True):
            new = np.zeros((max(rows, len(old)), cache.heads, room, cache.size), cache.dtype)
            new[: len(old), :, :columns] = old[:, :, :columns]
            larger.append(new)
        self._take(larger)


def _padded(array: np.ndarray, length: int) -> np.ndarray:
    """Return an array of ``length`` columns that begins with ``array``, else zeros."""
    result = np.zeros((*array.shape[:2], length, array.shape[3]), array.dtype)
    result[:, :, : array.shape[2]] = array
    return result
