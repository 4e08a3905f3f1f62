"""Perplexity of a text: how well a model predicts each token from those before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..dataclass import dataclass
from ..errors import ParameterError

PIECE = 64
"""Tokens of one run: logits of more take memory that is better spent on weights (64 MB for 262144 words)."""

Step = Callable[[np.ndarray, "list[Any] | None"], "tuple[np.ndarray, list[Any]]"]


@dataclass(frozen=True)
class Perplexity:
    """``value`` is ``exp`` of the mean negative log-likelihood of ``tokens`` tokens, ``error`` its standard error."""

    value: float
    error: float
    tokens: int


def perplexity(step: Step, ids: Sequence[int], window: int = 512, bos_id: int = -1) -> Perplexity:
    """Return the perplexity of a text in windows, as llama.cpp's ``perplexity`` computes it.

    The text is cut into windows without overlap. Of each the tokens of the second half count, which the model predicts
    from at least half a window.

    Args:
        step: takes tokens [1, count] and caches (None at the beginning), returns logits [1, count, vocabulary] and
            caches.
        ids: tokens of the text.
        window: tokens of a window.
        bos_id: token that replaces the first one of each window; -1 for none.

    Raises:
        ParameterError: the window is shorter than 4, or the text than a window.
    """
    if window < 4:
        raise ParameterError(f"window is {window}, expected at least 4 tokens")
    if len(ids) < window:
        raise ParameterError(f"the text has {len(ids)} tokens, fewer than a window of {window}")
    losses: list[np.ndarray] = []
    for start in range(0, len(ids) - window + 1, window):
        own = np.array(ids[start : start + window], np.int64)
        following = own[1:].copy()
        if bos_id >= 0:
            own[0] = bos_id
        caches: list[object] | None = None
        for first in range(0, window, PIECE):
            last = min(first + PIECE, window)
            logits, caches = step(own[None, first:last], caches)
            scored = np.arange(max(first, window // 2), min(last, window - 1))
            if len(scored):
                losses.append(_losses(logits[0, scored - first], following[scored]))
    found = np.concatenate(losses)
    value = math.exp(found.mean())
    return Perplexity(value, value * found.std() / math.sqrt(len(found)), len(found))


def _losses(logits: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the negative log-likelihoods of the right tokens."""
    wide = logits.astype(np.float64)
    top = wide.max(-1)
    total = top + np.log(np.exp(wide - top[:, None]).sum(-1))
    return total - np.take_along_axis(wide, right[:, None], -1)[:, 0]
