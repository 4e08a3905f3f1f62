"""`Scheduler`: continuous batching, in which requests join and leave the batch between steps."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field

import numpy as np

from ...dataclass import dataclass
from ...errors import MgxError, ParameterError
from ..generation.chooser import Chooser
from ..generation.guidance import Guide
from ..generation.logprobs import TokenLogprob, token_logprob
from ..generation.params import LogitsProcessor, SearchOptions
from ..generation.stopping import TextStream
from ..model import LanguageModel
from ..tokenizer import Tokenizer
from .caches import CachedText, PagedCaches, RowCaches, TextCaches
from .metrics import Metrics


class QueueFullError(MgxError):
    """The server has as many waiting requests as it admits."""


@dataclass(frozen=True)
class TextEvent:
    """Progress of a request: a piece of text, its end, or an error.

    ``finish_reason`` is ``stop``, ``length`` or ``error`` at the end, else empty; ``text`` is then the last piece, or
    the error's message. ``logprobs`` are of the tokens since the last event, if the request asks for them.
    """

    text: str
    finish_reason: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(eq=False)
class TextRequest:
    """One text to generate.

    Attributes:
        tokens: the prompt.
        max_tokens: most tokens to generate.
        notify: receives events, in the scheduler's thread.
        guide: the state of a grammar, or None.
        top_logprobs: likeliest tokens of each place whose log-probabilities are told; None for no log-probabilities.
        generated: number of tokens so far.
        reused: tokens of the prompt whose keys and values were known.
    """

    tokens: np.ndarray
    options: SearchOptions
    max_tokens: int
    notify: Callable[[TextEvent], None]
    stops: Sequence[str] = ()
    processors: Sequence[LogitsProcessor] = ()
    guide: Guide | None = None
    top_logprobs: int | None = None
    generated: int = 0
    reused: int = 0
    cancelled: bool = False
    ended: bool = False
    arrived: float = field(default_factory=time.monotonic)

    def cancel(self) -> None:
        """Ask for the end of the request before its next token; no more events come."""
        self.cancelled = True


class _Sequence:
    """A request in the batch, or on the way into it."""

    def __init__(self, request: TextRequest, chooser: Chooser, text: TextStream) -> None:
        self.request, self.chooser, self.text = request, chooser, text
        self.cached = CachedText(request.tokens)
        self.logprobs: list[TokenLogprob] = []  # of tokens whose text was not told

    def event(self, text: str, reason: str = "") -> TextEvent:
        """Return an event with the log-probabilities since the last event."""
        logprobs, self.logprobs = tuple(self.logprobs), []
        return TextEvent(text, reason, logprobs)


class Scheduler:
    """Runs the requests of any number of threads on one model.

    A thread repeats: one step of at most ``chunk`` tokens of the prompt that came first, then one step of all sequences
    of the batch. Requests start in the order of their arrival.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        max_batch: int = 8,
        max_queue: int = 256,
        chunk: int = 256,
        prefix_bytes: int = 1 << 28,
    ) -> None:
        """Start the thread.

        Args:
            max_batch: most sequences of a step.
            max_queue: most requests that wait.
            chunk: most tokens of a prompt in a step: others' next tokens wait for so many.
            prefix_bytes: most bytes of known beginnings of prompts.
        """
        self.model, self.tokenizer = model, tokenizer
        self.metrics = Metrics()
        paged = model.paged_decoder
        self.caches: TextCaches = RowCaches(model, prefix_bytes) if paged is None else PagedCaches(paged, prefix_bytes)
        self._max_batch, self._max_queue, self._chunk = max_batch, max_queue, chunk
        self._waiting: deque[TextRequest] = deque()
        self._entering: deque[_Sequence] = deque()
        self._batch: list[_Sequence] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="mgx-llm-scheduler", daemon=True)
        self._thread.start()

    def submit(self, *requests: TextRequest) -> None:
        """Queue requests, all or none.

        Raises:
            QueueFullError: too many requests wait, or the scheduler is closed.
            ParameterError: a prompt is empty or leaves no room for a token.
        """
        for request in requests:
            room = self.model.context_length - len(request.tokens)
            if not len(request.tokens) or room < 1:
                raise ParameterError(
                    f"the prompt has {len(request.tokens)} tokens; expected at least 1, and fewer than the model's "
                    f"context length {self.model.context_length}"
                )
            request.max_tokens = min(request.max_tokens, room)
        with self._changed:
            if self._closed:
                raise QueueFullError("the server is shutting down")
            if len(self._waiting) + len(requests) > self._max_queue:
                self.metrics.refused += len(requests)
                raise QueueFullError(f"{len(self._waiting)} requests wait, the most that this server admits")
            self._waiting.extend(requests)
            self._changed.notify()

    def close(self) -> None:
        """End the thread; requests that are not finished get an error."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Return the number of requests that are computed."""
        return len(self._entering) + len(self._batch)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._closed or self._waiting or self.running):
                    self._changed.wait()
                if self._closed:
                    break
            try:
                self._admit()
                if self._entering:
                    self._enter()
                if self._batch:
                    self._step()
            except Exception as error:  # the requests of this step fail; the server goes on
                self._fail(f"{type(error).__name__}: {error}")
        self._fail("the server is shutting down")

    def _admit(self) -> None:
        """Begin the requests that came first, as many as there is room for."""
        while self.running < self._max_batch:
            with self._changed:
                if not self._waiting:
                    return
                request = self._waiting.popleft()
            if request.cancelled:
                self.metrics.ended("cancelled", request.arrived)
                continue
            self._entering.append(self._begun(request))

    def _begun(self, request: TextRequest) -> _Sequence:
        options, model = request.options, self.model
        ends = () if options.ignore_eos else model.eos_token_ids
        seed = options.seed()
        chooser = Chooser(options, ends, request.processors, (seed, 0), request.guide)
        chooser.history.extend(request.tokens.tolist(), False)
        return _Sequence(request, chooser, TextStream(self.tokenizer, request.stops))

    def _enter(self) -> None:
        """Run a part of the first prompt; after its last part the sequence joins the batch."""
        sequence = self._entering[0]
        request, cached = sequence.request, sequence.cached
        if request.cancelled:
            self._entering.popleft()
            self.caches.end([cached])
            self.metrics.ended("cancelled", request.arrived)
            return
        if not cached.tokens:  # prompts that came before have been computed, also of texts that go on
            request.reused = self.caches.reuse(cached)
        done = len(cached.tokens)
        part = request.tokens[done : done + self._chunk]
        logits = self.caches.run([cached], part[None])
        self.metrics.prompt_tokens += len(part)
        if done + len(part) < len(request.tokens):
            return
        self._entering.popleft()
        self.metrics.started(request.arrived)
        self.caches.join(cached)
        self._batch.append(sequence)
        if not self._advance(sequence, logits[0, -1]):
            self._leave([sequence])

    def _step(self) -> None:
        """Generate one token of every sequence of the batch."""
        gone = [s for s in self._batch if s.request.cancelled]
        for sequence in gone:
            self.metrics.ended("cancelled", sequence.request.arrived)
        self._leave(gone)
        if not self._batch:
            return
        ids = np.array([s.chooser.history.tokens[-1:] for s in self._batch])
        logits = self.caches.run([s.cached for s in self._batch], ids)
        self.metrics.steps += 1
        self.metrics.batched += len(self._batch)
        done = [s for s, row in zip(self._batch, logits[:, -1], strict=True) if not self._advance(s, row)]
        self._leave(done)

    def _advance(self, sequence: _Sequence, logits: np.ndarray) -> bool:
        """Choose the next token of a sequence and tell its client; return whether the sequence goes on."""
        chooser, request, text = sequence.chooser, sequence.request, sequence.text
        try:
            token = chooser.choose(logits, len(chooser.history))
            chooser.accept(token)
        except MgxError as error:
            self._end(request, TextEvent(str(error), "error"))
            return False
        request.generated += 1
        self.metrics.generated_tokens += 1
        piece, reason = "", ""
        if token not in chooser.ends:
            piece = text.add(token)
            if request.top_logprobs is not None:
                sequence.logprobs.append(token_logprob(logits, token, request.top_logprobs))
        if text.stopped or chooser.ended_by(token):
            reason = "stop"
        elif request.generated >= request.max_tokens:
            reason = "length"
        if reason:
            self._end(request, sequence.event(piece + text.finish(), reason))
            return False
        if piece:
            self._tell(request, sequence.event(piece))
        return True

    def _leave(self, gone: Sequence[_Sequence]) -> None:
        """Remove sequences from the batch, and keep their keys and values for later prompts."""
        self.caches.end([sequence.cached for sequence in gone])
        self._batch = [sequence for sequence in self._batch if sequence not in gone]

    def _end(self, request: TextRequest, event: TextEvent) -> None:
        if request.ended:
            return
        request.ended = True
        self.metrics.ended(event.finish_reason, request.arrived)
        self._tell(request, event)

    def _tell(self, request: TextRequest, event: TextEvent) -> None:
        if request.cancelled:
            return
        try:
            request.notify(event)
        except Exception:  # its client is gone, with the loop that it lived in
            request.cancel()

    def _fail(self, message: str) -> None:
        """End all requests that are computed, and all that wait if the scheduler is closed, with an error."""
        sequences = [*self._entering, *self._batch]
        failed = [s.request for s in sequences]
        self._entering.clear()
        self._batch = []
        self.caches.fail([s.cached for s in sequences])
        with self._changed:
            if self._closed:
                failed += self._waiting
                self._waiting.clear()
        for request in failed:
            self._end(request, TextEvent(message, "error"))
