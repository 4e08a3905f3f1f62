"""`DecoderBatch`: steps of a decoder over the caches of a batch of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import OptionError
from ..cache_memory import CacheMemory, HostBuffers, on_host
from ..decoder import CompiledDecoder

_ROOM = 64
"""Multiple to which buffers of caches are rounded: a few tens of steps for each growth of a short sequence."""


class Snapshot:
    """Keys and values of the first tokens of one sequence: (1, heads, tokens, size) for each cache.

    They lie where the caches lay; ``bytes`` is their size.
    """

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.arrays = list(arrays)
        self.bytes = sum(a.nbytes if isinstance(a, np.ndarray) else a.shape.bytes for a in self.arrays)


class DecoderBatch:
    """The caches of a batch of sequences, and the steps that extend them.

    Sequences of a batch may have different lengths (``lengths``), each step gives every sequence equally many tokens.
    Two forms of caches exist. A *growing* cache has exactly the columns of past tokens. A *shared* buffer has room for
    more tokens and more sequences, into which the program writes; it reads lengths from the attention mask.
    ``buffers`` are the shared ones, with room for more sequences than there are.
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
        self.buffers: list[Any] = []  # shared buffers, with room for more sequences than there are
        self._mask: np.ndarray | None = None  # (rows, columns); None: all sequences are of one length without gaps
        self._ones = np.ones(0, np.int64)
        if shared:
            self._use(self._memory.buffers.zeros(decoder.caches, rows, _ROOM))
        else:
            self._memory.put(HostBuffers().zeros(decoder.caches, rows, 0))

    def _use(self, buffers: list[Any]) -> None:
        """Use the first rows of shared buffers as the caches."""
        self.buffers = buffers
        self._memory.put([self._memory.buffers.first(buffer, self.rows) for buffer in buffers])

    @property
    def on_device(self) -> bool:
        """Return whether the decoder runs on a device with memory of its own."""
        return self._memory.on_device

    @property
    def device(self) -> int:
        """Return the number of the device."""
        return self._memory.device

    @property
    def device_caches(self) -> list[Any]:
        """Return the first `rows` rows of each shared buffer, as `DeviceArray`."""
        return [self._memory.buffers.first(buffer, self.rows) for buffer in self.buffers]

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
        self.advance(ids.shape[1])
        return logits

    def make_room(self, count: int) -> None:
        """Make shared buffers large enough for ``count`` more tokens of every sequence."""
        total = self.columns + count
        if self.shared and total > self.room:
            self._reserve(self.rows, max(total, 2 * self.room))

    def advance(self, count: int) -> None:
        """Count the tokens of a step."""
        if self._mask is not None:
            self._mask = self._extended(self._mask, count)
        self.lengths += count

    def take_back(self, count: int) -> None:
        """Forget the last tokens of every sequence, in shared buffers."""
        assert self.shared
        self.lengths -= count
        if self._mask is not None:
            self._mask = _begun(self.lengths)

    def inputs(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """Make room for the next tokens, and return the inputs of their step beside the caches."""
        decoder, feeds = self.decoder, dict[str, np.ndarray]()
        count = ids.shape[1]
        total = self.columns + count
        self.make_room(count)
        feeds[decoder.input_ids] = np.ascontiguousarray(ids, decoder.types[decoder.input_ids])
        if decoder.positions is not None:
            places = self.lengths[:, None] + np.arange(count)
            feeds[decoder.positions] = np.ascontiguousarray(places, decoder.types[decoder.positions])
        if decoder.mask is not None:
            mask = self._all_ones(total) if self._mask is None else self._extended(self._mask, count)
            if self.shared and self._memory.on_device:  # steps of equal lengths are launched as recorded
                mask = np.pad(mask, ((0, 0), (0, self.room - mask.shape[1])))
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
            self._memory.put([np.ascontiguousarray(array[:, :, :length]) for array in self._arrays])
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
                self._memory.put([array[chosen] for array in self._arrays])
        else:
            if len(chosen) > self._row_room:
                self._reserve(len(chosen), self.room, columns)
            moved = np.flatnonzero(chosen != np.arange(len(chosen)))
            self._memory.buffers.copy(self.buffers, moved, self.buffers, chosen[moved], columns)
            self._use(self.buffers)
        self._tidy()

    def join(self, other: DecoderBatch) -> None:
        """Append the sequences of another engine over the same decoder, whose caches are copied."""
        assert other.decoder is self.decoder
        masks = [self._columns_of(), other._columns_of()]
        columns = max(mask.shape[1] for mask in masks)
        before, used = self.rows, [self.columns, other.columns]
        rows = before + other.rows
        parts = ([], []) if self.shared else (self._arrays, other._arrays)
        self.lengths = np.concatenate([self.lengths, other.lengths])
        if self.shared:
            if rows > self._row_room or columns > self.room:
                self._reserve(max(rows, 2 * before), max(columns, self.room), used[0])
            self._memory.buffers.copy(self.buffers, range(before, rows), other.buffers, range(other.rows), used[1])
            self._use(self.buffers)
        else:
            self._memory.put(
                [np.concatenate([_padded(a, columns), _padded(b, columns)]) for a, b in zip(*parts, strict=True)]
            )
        self._mask = np.concatenate([np.pad(mask, ((0, 0), (0, columns - mask.shape[1]))) for mask in masks])
        self._tidy()

    def snapshot(self, length: int, row: int = 0) -> Snapshot:
        """Return a copy of the caches of the first ``length`` tokens of a sequence."""
        if self.shared:
            buffers = self._memory.buffers
            copied = buffers.zeros(self.decoder.caches, 1, length)
            buffers.copy(copied, [0], self.buffers, [row], length)
            return Snapshot(copied)
        columns: Any = slice(length)
        if self._mask is not None and not self.decoder.compact:
            columns = np.flatnonzero(self._mask[row])[:length]
        return Snapshot([np.array(array[row : row + 1, :, columns]) for array in self._arrays])

    def restore(self, snapshot: Snapshot, length: int) -> None:
        """Fill the empty caches of the only sequence with the first ``length`` tokens of a snapshot."""
        assert self.rows == 1 and not self.columns
        if self.shared:
            if length > self.room:
                self._reserve(1, length)
            known = [self._memory.buffers.taken(array) for array in snapshot.arrays]
            self._memory.buffers.copy(self.buffers, [0], known, [0], length)
        else:
            self._memory.put([np.ascontiguousarray(on_host(array)[:, :, :length]) for array in snapshot.arrays])
        self.lengths[:] = length

    @property
    def _arrays(self) -> list[np.ndarray]:
        """Return the caches on the host: of shared buffers only the sequences that there are."""
        return self._memory.arrays()

    @property
    def room(self) -> int:
        """Return the number of columns of shared buffers."""
        return self._buffer_lens[2]

    @property
    def _row_room(self) -> int:
        """Return the number of sequences that shared buffers have room for."""
        return self._buffer_lens[0]

    @property
    def _buffer_lens(self) -> Sequence[int]:
        """Return the lengths of the first shared buffer, zeros without buffers."""
        first = self.buffers[0] if self.buffers else np.zeros((0,) * 4)
        return first.shape if isinstance(first, np.ndarray) else first.shape.lens

    def _extended(self, mask: np.ndarray, count: int) -> np.ndarray:
        """Return the mask after ``count`` more tokens of each sequence."""
        if self.decoder.compact:
            return _begun(self.lengths + count)
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
                self._memory.put([np.ascontiguousarray(array[:, :, used]) for array in self._arrays])
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
        buffers, before = self._memory.buffers, range(self._row_room)
        larger = buffers.zeros(self.decoder.caches, max(rows, len(before)), room)
        buffers.copy(larger, before, self.buffers, before, columns)
        self._use(larger)


def _begun(lengths: np.ndarray) -> np.ndarray:
    """Return the mask whose row k begins with `lengths[k]` ones."""
    return (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)


def _padded(array: np.ndarray, length: int) -> np.ndarray:
    """Return an array of ``length`` columns that begins with ``array``, else zeros."""
    result = np.zeros((*array.shape[:2], length, array.shape[3]), array.dtype)
    result[:, :, : array.shape[2]] = array
    return result
