"""`Chooser` chooses the next tokens of a sequence, after penalties, forbidden tokens and the user's processors have
changed the logits."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np

from ...errors import OptionError
from .guidance import Guide
from .history import History
from .params import LogitsProcessor, SearchOptions
from .sampling import draw, likeliest


class Chooser:
    """Tokens of one sequence, and the state of its random numbers and its grammar.

    A draw depends on the seed and on how many tokens were drawn before, not on other sequences of a batch. ``changes``
    is whether anything beside ``min_length`` may change logits.
    """

    def __init__(
        self,
        options: SearchOptions,
        ends: Iterable[int],
        processors: Iterable[LogitsProcessor] = (),
        seed: tuple[int, ...] | None = None,
        guide: Guide | None = None,
    ) -> None:
        """Make the chooser of an empty sequence.

        Args:
            ends: tokens that end a sequence.
            seed: None for a new seed.
            guide: the state of a grammar.
        """
        self.options = options
        self.ends = frozenset(ends)
        self.history = History()
        self.guide = guide
        self._processors = tuple(processors)
        self._seed = seed
        self.changes = changes_logits(options, self._processors) or guide is not None
        self._numbers: list[float] = []  # that were taken back

    @functools.cached_property
    def _random(self) -> np.random.Generator:
        """Return the random numbers; greedy texts do without loading NumPy's."""
        return np.random.default_rng(self._seed)

    def number(self) -> float:
        """Return the random number of the next draw."""
        return self._numbers.pop() if self._numbers else self._random.random()

    def take_back(self, number: float) -> None:
        """Let the next draw have a number that was drawn for nothing."""
        self._numbers.append(number)

    @property
    def draws(self) -> bool:
        """Return whether tokens are drawn at random."""
        return self.options.do_sample and self.options.temperature > 0 and self.options.top_k != 1

    def processed(self, logits: np.ndarray, length: int) -> np.ndarray:
        """Return the logits of the next token after penalties, processors and grammar.

        Args:
            logits: (vocabulary).
            length: tokens of the sequence, with padding.
        """
        found = np.asarray(logits, np.float32)
        if self.changes or length < self.options.min_length:
            found = processed(found, self.history, length, self.options, tuple(self.ends), self._processors)
        if self.guide is not None and not self.guide.ended:
            self.guide.exclude(found)
        return found

    def choose(self, logits: np.ndarray, length: int) -> int:
        """Return the next token; arguments as of `processed`.

        Raises:
            ParameterError: a logit is NaN, or all tokens are excluded.
        """
        found = self.processed(logits, length)
        return draw(found, self.options, self.number()) if self.draws else likeliest(found)

    def accept(self, token: int) -> None:
        """Append a token that was chosen."""
        self.history.append(token, True)
        if self.guide is not None:
            self.guide.accept(token)

    def ended_by(self, token: int) -> bool:
        """Return whether the sequence ends with ``token``, which was accepted."""
        return token in self.ends or (self.guide is not None and self.guide.ended)

    def rewind(self, length: int) -> None:
        """Forget tokens beyond the first ``length``."""
        if self.guide is not None:
            before = sum(self.history.counts.values())
            self.history.truncate(length)
            self.guide.rollback(before - sum(self.history.counts.values()))
        else:
            self.history.truncate(length)


def changes_logits(options: SearchOptions, processors: Sequence[LogitsProcessor]) -> bool:
    """Return whether `processed` may change logits of a sequence that has at least ``min_length`` tokens."""
    return bool(
        processors
        or options.repetition_penalty != 1
        or options.presence_penalty
        or options.frequency_penalty
        or options.no_repeat_ngram_size
    )


def processed(
    logits: np.ndarray,
    history: History,
    length: int,
    options: SearchOptions,
    ends: Sequence[int],
    processors: Sequence[LogitsProcessor],
) -> np.ndarray:
    """Return the logits of one sequence after all penalties, as a new array of float32.

    Args:
        logits: (vocabulary).
        length: tokens of the sequence, with padding, that ``min_length`` compares.
        ends: tokens that end a sequence.

    Raises:
        OptionError: a processor of the user returned another shape.
    """
    found = np.array(logits, np.float32)
    if options.repetition_penalty != 1 and len(history):
        seen = history.seen
        values = found[seen]
        penalty = np.float32(options.repetition_penalty)
        found[seen] = np.where(values < 0, values * penalty, values / penalty)
    if (options.presence_penalty or options.frequency_penalty) and history.counts:
        tokens = list(history.counts)
        counts = np.fromiter(history.counts.values(), np.float32, len(tokens))
        found[tokens] -= np.float32(options.presence_penalty) + np.float32(options.frequency_penalty) * counts
    if options.no_repeat_ngram_size:
        found[history.following(options.no_repeat_ngram_size - 1)] = -np.inf
    if length < options.min_length:
        found[list(ends)] = -np.inf
    for processor in processors:
        changed = np.asarray(processor(history.tokens, found), np.float32)
        if changed.shape != found.shape:
            raise OptionError(
                f"logits processor {processor!r} returned shape {changed.shape}, expected {found.shape}: one logit for "
                "each token"
            )
        found = changed
    return found
