"""`Chooser` chooses the next tokens of a sequence, after penalties, forbidden tokens and the user's processors have
changed the logits. Random choice: temperature, then top-k, top-p and min-p, then one uniform number."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np

from ...errors import OptionError, ParameterError
from .guidance import Guide
from .history import History
from .params import LogitsProcessor, SearchOptions


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


_BLOCK = 128
"""Logits of a block whose maximum bounds the k-th largest logit: about the square root of common vocabularies."""

_FIRST = (512, 8192)
"""Numbers of largest logits that top-p looks at before it sorts all: of common models and values they have the mass."""


def draw(logits: np.ndarray, options: SearchOptions, number: float) -> int:
    """Return a token drawn by its probability.

    Args:
        logits: (vocabulary), float32; minus infinity for excluded tokens.
        number: a random number from 0 to 1.

    Raises:
        ParameterError: a logit is NaN, or all tokens are excluded.
    """
    if options.temperature and not (0 < options.top_k < len(logits) or options.top_p < 1 or options.min_p):
        return _drawn_of_all(logits, options.temperature, number)
    tokens, probabilities = candidates(logits, options)
    return int(tokens[_place(probabilities, number)])


def _drawn_of_all(logits: np.ndarray, temperature: float, number: float) -> int:
    """Return the token at a number from 0 to 1 in the cumulated probabilities, in the vocabulary's order.

    Weights are float32 and their sums float64: the cumulated sum of a whole vocabulary is never formed.
    """
    weights = _float32_weights(logits, _best(logits), temperature)
    sums = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.float64)
    ends = np.cumsum(sums)
    wanted = number * ends[-1]
    block = min(int(np.searchsorted(ends, wanted, side="right")), int(np.flatnonzero(sums)[-1]))
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK].astype(np.float64)
    rest = (wanted - (ends[block] - sums[block])) / inside.sum()
    return block * _BLOCK + _place(inside, rest)


def _place(weights: np.ndarray, number: float) -> int:
    """Return the place at a number from 0 to 1 in the cumulated weights; its weight is positive."""
    ends = np.cumsum(weights)
    found = int(np.searchsorted(ends, number * ends[-1], side="right"))
    # By rounding the number may be at the end of all weights: the last positive weight has it.
    return found if found < len(ends) and weights[found] > 0 else int(np.flatnonzero(weights)[-1])


def likeliest(logits: np.ndarray) -> int:
    """Return the token of the largest logit, the first one of equal logits.

    Raises:
        ParameterError: a logit is NaN, or all tokens are excluded.
    """
    token = int(np.argmax(logits))  # of a NaN, if there is one
    if not logits[token] > -np.inf:
        _best(logits)
    return token


def _best(logits: np.ndarray) -> np.floating:
    """Return the largest logit.

    Raises:
        ParameterError: a logit is NaN or infinite, or all tokens are excluded.
    """
    best = logits.max(initial=-np.inf)
    if not np.isfinite(best):
        wrong = "a logit is NaN or infinite" if np.isnan(best) or best > 0 else "every token is excluded"
        raise ParameterError(f"no token can be chosen: {wrong}")
    return best


def candidates(logits: np.ndarray, options: SearchOptions) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens that options admit, likeliest first, and their probabilities (float64, of sum 1).

    ``top_p`` admits the fewest likeliest tokens whose probabilities have at least that sum. Of equal logits the token
    with the smaller number comes first.
    """
    best = _best(logits)
    if options.temperature == 0:
        return np.array([np.argmax(logits)]), np.ones(1)
    count = len(logits)
    top = min(options.top_k or count, count)
    if top < count:
        tokens = largest(logits, top)
        weights = _weights(logits[tokens], best, options.temperature)
        total = weights.sum()
    elif options.top_p < 1:
        # float32 is enough for the sum of all, and several times as quick.
        total = _float32_weights(logits, best, options.temperature).sum(dtype=np.float64)
        for first in (*_FIRST, count):
            tokens = largest(logits, min(first, count))
            weights = _weights(logits[tokens], best, options.temperature)
            if weights.sum() >= options.top_p * total:
                break
    else:
        tokens = np.arange(count)
        if options.min_p:  # most tokens are far from it; the rest is decided by exact weights below
            tokens = np.flatnonzero(logits >= best + options.temperature * np.log(options.min_p) - 1)
        weights = _weights(logits[tokens], best, options.temperature)
        total = weights.sum()
    if options.top_p < 1:
        # The first place where the sum reaches top_p is the last token that is admitted.
        last = int(np.searchsorted(np.cumsum(weights), options.top_p * total))
        tokens, weights = tokens[: last + 1], weights[: last + 1]
    if options.min_p:
        admitted = weights >= options.min_p  # the likeliest token's weight is 1
        tokens, weights = tokens[admitted], weights[admitted]
    present = weights > 0
    if not present.all():
        tokens, weights = tokens[present], weights[present]
    return tokens, weights / weights.sum()


def _float32_weights(logits: np.ndarray, best: np.floating, temperature: float) -> np.ndarray:
    """Return exp((logits - best) / temperature) in float32, with one new array."""
    found = np.asarray(logits - best)
    if temperature != 1:
        found /= np.maximum(np.float32(temperature), np.finfo(np.float32).tiny)
    return np.exp(found, out=found)


def _weights(logits: np.ndarray, best: np.floating, temperature: float) -> np.ndarray:
    """Return exp((logits - best) / temperature) in float64."""
    return np.exp((logits.astype(np.float64) - np.float64(best)) / temperature)


def largest(logits: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the ``count`` largest logits (``count`` >= 1), in descending order; ties by index.

    The logits are divided into groups. The ``count``-th largest of the group maxima is a lower bound of the result's
    smallest logit, and few other logits reach it: only these are sorted. A group takes every ``size // _BLOCK``-th
    logit, because NumPy computes strided maxima several times faster than maxima of neighbours.
    """
    size = len(logits)
    if count == size:
        return np.argsort(-logits, kind="stable")
    groups = size // _BLOCK
    bounds = logits if count > groups else logits[: groups * _BLOCK].reshape(_BLOCK, groups).max(axis=0)
    places = np.flatnonzero(logits >= np.partition(bounds, len(bounds) - count)[len(bounds) - count])
    return places[np.argsort(-logits[places], kind="stable")[:count]]
