"""Random choice of a token: temperature, then top-k, top-p and min-p, then one uniform number."""

from __future__ import annotations

import numpy as np

from ...errors import ParameterError
from .params import SearchOptions

__all__ = ["candidates", "draw"]

_BLOCK = 128
"""Logits of a block whose maximum bounds the k-th largest logit: about the square root of common vocabularies."""

_FIRST = 512
"""Largest logits that top-p looks at before it sorts all: with common values of top_p they have the mass."""


def draw(logits: np.ndarray, options: SearchOptions, random: np.random.Generator) -> int:
    """Return a token drawn by its probability.

    Args:
        logits: (vocabulary), float32; minus infinity for excluded tokens.

    Raises:
        ParameterError: a logit is NaN, or all tokens are excluded.
    """
    tokens, probabilities = candidates(logits, options)
    # The last sum may be less than the number by rounding; the last candidate then stands for the rest.
    place = np.searchsorted(np.cumsum(probabilities), random.random() * probabilities.sum(), side="right")
    return int(tokens[min(int(place), len(tokens) - 1)])


def candidates(logits: np.ndarray, options: SearchOptions) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens that options admit, likeliest first, and their probabilities (float64, of sum 1).

    ``top_p`` admits the fewest likeliest tokens whose probabilities have at least that sum. Of equal logits the token
    with the smaller number comes first.
    """
    best = logits.max(initial=-np.inf)
    if not np.isfinite(best):
        wrong = "a logit is NaN or infinite" if np.isnan(best) or best > 0 else "every token is excluded"
        raise ParameterError(f"no token can be chosen: {wrong}")
    if options.temperature == 0:
        return np.array([np.argmax(logits)]), np.ones(1)
    count = len(logits)
    top = min(options.top_k or count, count)
    if top < count:
        tokens = _largest(logits, top)
        weights = _weights(logits[tokens], best, options.temperature)
        total = weights.sum()
    elif options.top_p < 1:
        total = _weights(logits, best, options.temperature).sum()
        for first in (_FIRST, count):
            tokens = _largest(logits, min(first, count))
            weights = _weights(logits[tokens], best, options.temperature)
            if weights.sum() >= options.top_p * total:
                break
    else:
        tokens = np.arange(count)
        weights = _weights(logits, best, options.temperature)
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


def _weights(logits: np.ndarray, best: np.floating, temperature: float) -> np.ndarray:
    """Return exp((logits - best) / temperature) in float64."""
    return np.exp((logits.astype(np.float64) - np.float64(best)) / temperature)


def _largest(logits: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the ``count`` largest logits, largest first, equal ones by place.

    The ``count`` largest maxima of blocks are logits, so the smallest of them is no more than the wanted bound; few
    logits reach it.
    """
    size = len(logits)
    blocks = size // _BLOCK
    places = np.arange(size)
    if count <= blocks:
        maxima = logits[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
        places = np.flatnonzero(logits >= np.partition(maxima, blocks - count)[blocks - count])
    return places[np.argsort(-logits[places], kind="stable")[:count]]
