"""`StepsAhead`: decoding on a device, in which the host reads a token while the device computes the next one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import MgxError, ParameterError
from .engine import DecoderBatch
from .params import SearchOptions
from .token_choice import MOST_CANDIDATES, NONE, settings, token_choice

if TYPE_CHECKING:
    from ...api.device import device_argument
    from ...api.placing import StandingCall
    from ...runtime.gpu.engine import Queue

_STREAM = 0
"""The device's default stream, in which all steps and choices run in order."""
Choices = dict[tuple[Any, ...], Any]


def chooses_there(batch: DecoderBatch, options: SearchOptions, vocabulary: int, draws: bool) -> bool:
    """Return whether a batch's tokens can be chosen where its steps run: by greedy search or from ``top_k`` tokens."""
    there = batch.shared and batch.on_device and vocabulary > 0
    return there and (not draws or 1 < options.top_k <= min(vocabulary, MOST_CANDIDATES))


class StepsAhead:
    """Steps of a batch whose tokens are chosen on the device, at most one token ahead of the host.

    Tokens, mask, positions and caches stay on the device. The chosen token is the next step's input, so a step is
    enqueued before the host has read the token before.
    """

    def __init__(
        self, batch: DecoderBatch, options: SearchOptions, vocabulary: int, draw: Callable[[], np.ndarray] | None,
        choices: Choices,
    ) -> None:  # fmt: skip
        """Prepare the steps of a batch.

        Args:
            draw: returns a number from 0 to 1 for the next token of each row, float64 [rows, 1]; None for greedy
                search.
            choices: programs that choose tokens, which generators of a model share.
        """
        self._batch, self._draw, self._options, self._vocabulary = batch, draw, options, vocabulary
        self._choices = choices
        self._buffers: list[object] | None = None  # the caches that the calls below are bound to
        self._tokens = 0  # tokens of all rows that the mask on the device has
        self._pending: tuple[np.ndarray, Any] | None = None  # where the next token arrives, and its event
        self._numbers: np.ndarray | None = None  # that the pending token was drawn with
        self._decode: StandingCall
        self._choose: StandingCall | None = None
        self._turn = 0  # of the two slots of pinned memory

    @property
    def pending(self) -> bool:
        """Return whether the device computes a token that the host has not read."""
        return self._pending is not None

    def next(self, last: np.ndarray, goes_on: bool) -> np.ndarray:
        """Return the next token of each row.

        Args:
            last: tokens that the model has not seen [rows, 1]; the device has them if a step is pending.
            goes_on: enqueue the step after the next token, too.

        Raises:
            ParameterError: a logit is NaN, or all tokens are excluded.
        """
        if self._pending is None:
            self._enqueue(last)
        assert self._pending is not None
        told, event = self._pending
        self._pending = None
        if goes_on:
            self._enqueue(None)
        event.wait()
        found = told.view(np.int64).copy()
        if (found == NONE).any():
            self.drop()
            raise ParameterError("no token can be chosen: a logit is NaN or infinite, or every token is excluded")
        return found

    def drop(self) -> np.ndarray | None:
        """Take the pending step back; return the numbers that its token was drawn with, None without a draw."""
        if self._pending is None:
            return None
        self._end()
        self._batch.take_back(1)
        return self._numbers

    def logits(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the logits of the pending step, [rows, vocabulary], and the numbers as `drop` does.

        The step counts as done, its choice as not made.
        """
        self._end()
        return np.asarray(self._read(self._logits))[:, -1], self._numbers

    def _end(self) -> None:
        """Wait for the pending step."""
        assert self._pending is not None
        self._pending[1].wait()
        self._pending = None

    def __del__(self) -> None:
        if self._pending is not None:  # the device still writes to memory of this object
            with contextlib.suppress(MgxError):
                self._pending[1].wait()

    def _enqueue(self, tokens: np.ndarray | None) -> None:
        """Enqueue a step on tokens of the host, or on those that the device chose last, and the choice after it."""
        batch = self._batch
        batch.make_room(1)
        if self._buffers is not batch.buffers or self._tokens != batch.lengths.sum():
            last = None if tokens is not None or self._buffers is None else self._read(self._next)
            self._prepare()
            tokens = last if last is not None else tokens
        engine, rows = self._engine, batch.rows
        with engine.use():
            queue = engine.queue(_STREAM)
            if tokens is None:
                queue.copy(self._ids.address, self._next.address, 8 * rows)
            else:
                self._keep(0, np.ascontiguousarray(tokens, np.int64), self._ids.address, queue)
            room, size = self._mask.shape.lens[1], self._one.nbytes
            for row, column in enumerate(batch.lengths.tolist()):
                queue.upload(self._mask.address + (row * room + column) * size, self._one)
            if self._places is not None:
                places = np.ascontiguousarray(batch.lengths[:, None], self._place_type)
                self._keep(1, places, self._places.address, queue)
            if self._draw is not None:
                self._numbers = self._draw()
                self._keep(2, self._numbers, self._number.address, queue)
        found = self._decode.run({}, _STREAM)
        if self._choose is None:
            self._bind_choice(found[batch.decoder.logits])
        assert self._choose is not None
        self._choose.run({}, _STREAM)
        told, event = self._told[self._turn], self._events[self._turn]
        self._turn = 1 - self._turn
        with engine.use():
            queue = engine.queue(_STREAM)
            queue.download(told, self._next.address)
            event.record(queue)
        self._pending = told, event
        batch.advance(1)
        self._tokens = int(batch.lengths.sum())

    def _keep(self, which: int, array: np.ndarray, address: int, queue: Queue) -> None:
        """Enqueue a copy of a small array through pinned memory that no earlier copy reads any more.

        Two slots take turns: the copy before the last has run, since the host has read the token after it.
        """
        slot = self._pinned[which][self._turn][: array.nbytes]
        slot[:] = array.reshape(-1).view(np.uint8)
        queue.upload(address, slot)

    def _prepare(self) -> None:
        """Bind the calls to the batch's caches, and set up tokens, mask and positions on the device."""
        from ...api.placing import StandingCall
        from ...runtime.gpu.choice import engine
        from ...runtime.gpu.transfers import to_device

        batch, decoder = self._batch, self._batch.decoder
        rows = batch.rows
        self._engine = on = engine(batch.device)
        self._buffers = batch.buffers
        assert decoder.mask is not None
        mask = np.zeros((rows, batch.room), decoder.types[decoder.mask])
        mask[:] = np.arange(batch.room) < batch.lengths[:, None]
        self._one = on.staging(mask.itemsize)
        self._one.view(mask.dtype)[:] = 1
        self._mask = to_device(on, mask, "a mask")
        self._ids, self._next = (to_device(on, np.zeros((rows, 1), np.int64), "tokens") for _ in range(2))
        fixed: dict[str, Any] = {decoder.input_ids: self._ids, decoder.mask: self._mask}
        self._places = None
        if decoder.positions is not None:
            self._place_type = decoder.types[decoder.positions]
            self._places = to_device(on, np.zeros((rows, 1), self._place_type), "positions")
            fixed[decoder.positions] = self._places
        self._number = to_device(on, np.zeros((rows, 1)), "numbers")
        self._pinned = [[on.staging(8 * rows) for _ in range(2)] for _ in range(3)]
        self._told, self._events, self._turn = [on.staging(8 * rows) for _ in range(2)], [on.event(), on.event()], 0
        caches = batch.device_caches
        self._decode = StandingCall(
            decoder.program,
            _shown({**fixed, **{c.name: a for c, a in zip(decoder.caches, caches, strict=True)}}),
            _shown({c.present: a for c, a in zip(decoder.caches, caches, strict=True)}),
        )
        self._choose = None

    def _bind_choice(self, logits: Any) -> None:
        """Bind the choice to the memory of the logits, which later steps use again."""
        from ...api.placing import StandingCall
        from ...runtime.gpu.transfers import to_device

        program = self._batch.decoder.program
        self._logits = logits
        self._decode.keep(program.get_output_names()[self._batch.decoder.logits], _shown({"": logits})[""])
        count = 1 if self._draw is None else self._options.top_k
        key = self._batch.rows, self._vocabulary, logits.shape.type, count
        choice = self._choices.get(key)
        if choice is None:
            choice = token_choice(*key)
            choice.compile("gpu", device_id=self._batch.device)
            self._choices[key] = choice
        given = {"logits": logits}
        if self._draw is not None:
            chosen = to_device(self._engine, settings(self._options), "settings")
            given |= {"number": self._number, "settings": chosen}
        self._choose = StandingCall(choice, _shown(given), _shown({choice.get_output_names()[0]: self._next}))

    def _read(self, tensor: Any) -> np.ndarray:
        from ..cache_buffers import on_host

        return on_host(tensor)


def _shown(arrays: Mapping[str, Any]) -> dict[str, device_argument]:
    """Return device arrays in their public form."""
    from ...api.device import device_argument

    return {name: device_argument.wrap(array) for name, array in arrays.items()}
