"""Log-probabilities of chosen tokens and of the likeliest tokens at their places."""

from __future__ import annotations

import numpy as np

from ...dataclass import dataclass
from ...errors import OptionError
from .chooser import largest

MOST_LOGPROBS = 20
"""Most likeliest tokens of a place, as OpenAI's interface limits top_logprobs."""


@dataclass(frozen=True)
class TokenLogprob:
    """The model's natural logarithm of a token's probability, before penalties, temperature and constraints.

    Attributes:
        top: the likeliest tokens and their logarithms, likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprob(logits: np.ndarray, token: int, count: int) -> TokenLogprob:
    """Return the logarithms of a token's probability and of the ``count`` likeliest tokens.

    Args:
        logits: (vocabulary), of the model.
    """
    values = logits.astype(np.float64)
    values -= values.max()
    total = np.log(np.exp(values).sum())
    top = largest(logits, min(count, len(logits))).tolist() if count else []
    return TokenLogprob(token, float(values[token] - total), tuple((t, float(values[t] - total)) for t in top))


def check_logprobs(count: object) -> None:
    """Raise if a number of likeliest tokens is no integer or out of range.

    Raises:
        OptionError: the message names the range.
    """
    if count is not None and not (isinstance(count, (int, np.integer)) and 0 <= count <= MOST_LOGPROBS):
        raise OptionError(f"logprobs={count!r}: expected an integer from 0 to {MOST_LOGPROBS}, or None")
