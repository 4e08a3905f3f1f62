"""Changes of logits before a token is chosen: penalties, forbidden tokens, processors of the user."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import OptionError
from .history import History
from .params import LogitsProcessor, SearchOptions


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
