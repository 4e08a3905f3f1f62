"""`StepsAhead`: decoding on a device, in which the host reads a token while the device computes the next one.
`token_choice` is the program that chooses tokens on the device."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.shape import Shape
from ...core.types import Type
from ...errors import MgxError, ParameterError
from ...frontends.builder import GraphBuilder
from ...graph.folding import Constants
from ...graph.instruction import Instruction
from ...graph.program import Program
from .engine import DecoderBatch
from .params import SearchOptions

if TYPE_CHECKING:
    from ...api.device import device_argument
    from ...api.placing import StandingCall
    from ...api.program import program
    from ...runtime.gpu.engine import Event, Recording
    from ...targets.base import RecordableCall


_STREAM = 0
"""The device's default stream, in which all steps and choices run in order."""
Choices = dict[tuple[Any, ...], Any]


def chooses_there(batch: DecoderBatch, options: SearchOptions, vocabulary: int, draws: bool) -> bool:
    """Return whether a batch's tokens can be chosen where its steps run: by greedy search or from ``top_k`` tokens."""
    there = batch.shared and batch.on_device and vocabulary > 0
    return there and (not draws or 1 < options.top_k <= min(vocabulary, MOST_CANDIDATES))


class StepsAhead:
    """Steps of a batch whose tokens are chosen on the device, at most one token ahead of the host.

    Tokens, mask, positions and caches stay on the device. A step, the choice of its token, and the preparation of the
    next step are one recording, which is enqueued before the host has read the token before.
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
        self._buffers: list[object] | None = None  # the caches that the recording uses
        self._pending: tuple[np.ndarray, Event] | None = None  # places of the next tokens in `_told`, and their event
        self._numbers: np.ndarray | None = None  # that the pending token was drawn with
        self._turn = 0  # of the two slots of pinned memory
        self._refused = False  # whether the host takes part in the programs
        self._calls: list[RecordableCall] = []
        self._step: Recording

    @property
    def pending(self) -> bool:
        """Return whether the device computes a token that the host has not read."""
        return self._pending is not None

    def next(self, last: np.ndarray, goes_on: bool) -> np.ndarray:
        """Return the next token of each row; `prepare` was true.

        Args:
            last: tokens that the model has not seen [rows, 1]; the device has them if a step is pending.
            goes_on: enqueue the step after the next token, too, if the caches have room for it.

        Raises:
            ParameterError: a logit is NaN, or all tokens are excluded.
        """
        if self._pending is None:
            self._enqueue(last)
        assert self._pending is not None
        places, event = self._pending
        self._pending = None
        if goes_on and self._batch.columns < self._batch.room:
            self._enqueue(None)
        event.wait()
        found = self._told.view(np.int64)[places]
        try:
            for call in self._calls:
                call.raise_fault()
            if (found == NONE).any():
                raise ParameterError("no token can be chosen: a logit is NaN or infinite, or every token is excluded")
        except MgxError:
            self.drop()
            raise
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

    def prepare(self) -> bool:
        """Record a step of the batch, unless it is recorded; return False if the host takes part in its programs."""
        if self._pending is None and not self._refused:
            self._batch.make_room(1)
            self._refused = self._buffers is not self._batch.buffers and not self._record()
        return not self._refused

    def _enqueue(self, tokens: np.ndarray | None) -> None:
        """Enqueue a step on tokens of the host, or on those that the device chose last, and the choice after it."""
        batch = self._batch
        if tokens is not None:
            self._begin(tokens)
        with self._engine.use():
            queue, event = self._engine.queue(_STREAM), self._events[self._turn]
            if self._draw is not None:
                self._numbers = self._draw()
                slot = self._pinned[self._turn]  # the copy before the last has run: the host has read its token
                slot.view(np.float64)[:] = self._numbers.ravel()
                queue.upload(self._tensors["number"].address, slot)
            self._step(queue)
            event.record(queue)
        self._turn = 1 - self._turn
        self._pending = batch.lengths % 2 * batch.rows + np.arange(batch.rows), event
        batch.advance(1)

    def _begin(self, tokens: np.ndarray) -> None:
        """Set tokens, mask and positions of the next step on the device."""
        from ...runtime.gpu.transfers import fill

        lengths = self._batch.lengths
        mask = np.arange(self._batch.room) <= lengths[:, None]
        for name, value in (("ids", tokens), ("lengths", lengths), ("mask", mask), ("places", lengths)):
            if name in self._tensors:
                target = self._tensors[name]
                fill(self._engine, target, np.ascontiguousarray(value, target.shape.type.numpy))

    def _record(self) -> bool:
        """Record a step on the batch's caches; return False if the host takes part in one of the programs."""
        from ...api.placing import StandingCall
        from ...codegen.gpu.data.next_step import NAMES, next_step, next_step_kernel
        from ...runtime.gpu.engines import engine
        from ...runtime.gpu.transfers import to_device

        batch, decoder = self._batch, self._batch.decoder
        rows, room = batch.rows, batch.room
        self._engine = on = engine(batch.device)
        assert decoder.mask is not None
        types = decoder.types
        made: dict[str, tuple[tuple[int, ...], Any]] = {
            "chosen": ((rows, 1), np.int64), "told": ((2, rows), np.int64), "lengths": ((rows,), np.int64),
            "ids": ((rows, 1), types[decoder.input_ids]), "mask": ((rows, room), types[decoder.mask]),
            "number": ((rows, 1), np.float64),
        }  # fmt: skip
        if decoder.positions is not None:
            made["places"] = (rows, 1), types[decoder.positions]
        tensors = self._tensors = {name: to_device(on, np.zeros(*how), name) for name, how in made.items()}
        given = {decoder.input_ids: tensors["ids"], decoder.mask: tensors["mask"]}
        if decoder.positions is not None:
            given[decoder.positions] = tensors["places"]
        caches = batch.device_caches
        given |= {c.name: a for c, a in zip(decoder.caches, caches, strict=True)}
        kept = {c.present: a for c, a in zip(decoder.caches, caches, strict=True)}
        step = StandingCall(decoder.program, _shown(given), _shown(kept)).held()
        if step is None:
            return False
        self._logits = step.results[decoder.logits]
        choice = self._choice().held()
        if choice is None:
            return False
        kinds = {name: tensors[name].shape.type for name in NAMES if name in tensors}
        (function,) = on.load([next_step_kernel(kinds)])
        words, grid = next_step(kinds, {name: tensors[name].address for name in kinds}, rows, room)
        self._told = on.staging(16 * rows)
        self._events, self._turn = [on.event(), on.event()], 0
        self._pinned = [on.staging(8 * rows) for _ in range(2)]
        self._calls, self._buffers = [step, choice], batch.buffers
        with on.use():
            queue = on.queue(_STREAM)

            def ask() -> None:
                for call in self._calls:
                    call.enqueue(queue)
                queue.launch(function, words, grid)
                queue.download(self._told, tensors["told"].address)

            self._step = queue.recorded(ask)
        return True

    def _choice(self) -> StandingCall:
        """Return the choice of tokens from the logits."""
        from ...api.placing import StandingCall
        from ...runtime.gpu.transfers import to_device

        count = 1 if self._draw is None else self._options.top_k
        key = self._batch.rows, self._vocabulary, self._logits.shape.type, count
        program = self._choices.get(key)
        if program is None:
            program = token_choice(*key)
            program.compile("gpu", device_id=self._batch.device)
            self._choices[key] = program
        given = {"logits": self._logits}
        if self._draw is not None:
            chosen = to_device(self._engine, settings(self._options), "settings")
            given |= {"number": self._tensors["number"], "settings": chosen}
        return StandingCall(program, _shown(given), _shown({program.get_output_names()[0]: self._tensors["chosen"]}))

    def _read(self, tensor: Any) -> np.ndarray:
        from ..cache_memory import on_host

        return on_host(tensor)


def _shown(arrays: Mapping[str, Any]) -> dict[str, device_argument]:
    """Return device arrays in their public form."""
    from ...api.device import device_argument

    return {name: device_argument.wrap(array) for name, array in arrays.items()}


MOST_CANDIDATES = 256
"""Most candidates that a program draws from: a quarter of the elements that a kernel of top-k compares at once."""
NONE = -1
"""The token if no token can be chosen: a logit is NaN, or every token is excluded."""


def token_choice(rows: int, vocabulary: int, type: Type, count: int) -> program:
    """Return a program, not compiled, that chooses the next token of each row.

    Its parameters are ``logits`` [rows, 1, vocabulary] and, if ``count`` is above 1, float64 ``number`` [rows, 1] from
    0 to 1 and ``settings`` as `settings` returns them. Its result is int64 [rows, 1].

    Args:
        type: element type of the logits.
        count: number of likeliest tokens to draw from; 1 for the likeliest token.
    """
    from ...api.program import program

    made = Program()
    main = made.main
    g = GraphBuilder(main, Constants(made.allowance))
    logits = main.add_parameter("logits", Shape(type, (rows, 1, vocabulary)))
    if count == 1:
        best, token = _first_largest(g, g.reshape(logits, (rows, vocabulary)))
        valid = g.pointwise("greater", best, g.literal(best.shape.type.numpy.type(-np.inf)))  # false for NaN
    else:
        both = g.op("topk", logits, k=count, axis=2, largest=True)  # a NaN counts as largest
        values, tokens = (g.reshape(g.op("get_tuple_elem", both, index=n), (rows, count)) for n in (0, 1))
        best = g.convert(g.op("slice", values, axes=(1,), starts=(0,), ends=(1,)), Type.double_type)
        valid = g.pointwise("greater", best, g.literal(np.float64(-np.inf)))
        valid = g.pointwise("logical_and", valid, g.pointwise("less", best, g.literal(np.float64(np.inf))))
        number = main.add_parameter("number", Shape(Type.double_type, (rows, 1)))
        given = main.add_parameter("settings", Shape(Type.double_type, (3,)))
        token = _drawn(g, g.convert(values, Type.double_type), best, tokens, number, given)
    main.add_return([g.pointwise("where", valid, token, g.literal(np.int64(NONE)))])
    return program.wrap(made)


def _first_largest(g: GraphBuilder, x: Instruction) -> tuple[Instruction, Instruction]:
    """Emit the largest element [rows, 1] of each row, and the position of the first one; NaN if there is a NaN.

    A kernel of ``argmax`` has one team of threads for a row, so rows are searched in parts of about as many elements as
    there are parts.
    """
    rows, count = x.shape.lens
    size = next(n for n in range(math.isqrt(count), count + 1) if count % n == 0)
    parts, lens = g.reshape(x, (rows, count // size, size)), (rows, count // size)
    most = g.reshape(g.reduce("reduce_max", parts, [2], keep=True), lens)
    within = g.reshape(g.op("argmax", parts, axis=2, select_last_index=False), lens)
    places = g.pointwise("add", within, g.literal(np.arange(0, count, size)))
    best = g.reduce("reduce_max", most, [1], keep=True)
    places = g.pointwise("where", g.pointwise("equal", most, best), places, g.literal(np.int64(count)))
    return best, g.reduce("reduce_min", places, [1], keep=True)


def settings(options: SearchOptions) -> np.ndarray:
    """Return temperature, top-p and min-p as a program takes them; of a top-p of 1 every candidate is admitted."""
    top_p = np.inf if options.top_p >= 1 else options.top_p
    return np.array([options.temperature, top_p, options.min_p], np.float64)


def _drawn(
    g: GraphBuilder,
    values: Instruction,
    best: Instruction,
    tokens: Instruction,
    number: Instruction,
    given: Instruction,
) -> Instruction:
    """Emit the token at ``number`` in the cumulated weights of the admitted tokens, which are the first ones."""
    count = tokens.shape.lens[1]
    temperature, top_p, min_p = (g.op("slice", given, axes=(0,), starts=(k,), ends=(k + 1,)) for k in range(3))
    places = g.literal(np.arange(count))

    def total(x: Instruction) -> Instruction:
        return g.reduce("reduce_sum", x, [1], keep=True)

    def counted(condition: Instruction) -> Instruction:
        return total(g.convert(condition, Type.int64_type))

    def sums(x: Instruction, exclusive: bool) -> Instruction:
        return g.op("prefix_scan_sum", x, axis=1, exclusive=exclusive, reverse=False)

    weights = g.pointwise("exp", g.pointwise("div", g.pointwise("sub", values, best), temperature))
    before = g.pointwise("less", sums(weights, True), g.pointwise("mul", total(weights), top_p))
    admitted = g.pointwise("logical_or", before, g.pointwise("equal", places, g.literal(np.int64(0))))
    admitted = g.pointwise("logical_and", admitted, g.pointwise("greater_or_equal", weights, min_p))
    zero = g.literal(np.float64(0))
    weights = g.pointwise("where", admitted, weights, zero)
    passed = counted(g.pointwise("less_or_equal", sums(weights, False), g.pointwise("mul", total(weights), number)))
    last = g.pointwise("sub", counted(g.pointwise("greater", weights, zero)), g.literal(np.int64(1)))
    here = g.pointwise("equal", places, g.pointwise("min", passed, last))
    return total(g.pointwise("where", here, tokens, g.literal(np.int64(0))))
