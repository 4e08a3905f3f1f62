"""Factors by which channels are divided before they are quantised, and their weights multiplied.

Channels of one value share a scale, so that a channel with a large range takes the steps of all others. Moving a part
of the range into the weights, ``(x / s) (s w) = x w``, is SmoothQuant (Xiao et al., 2022) where the value is a norm's,
and cross-layer equalisation (Nagel et al., 2019) where the weights are depthwise, whose scales are one a channel.
Whoever computes x divides by s on the way, so that no layer before has to be scaled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..calibration import ChannelStatistics

__all__ = ["channel_factors"]

SHARES = (0.25, 0.5, 0.75, 1.0)
"""How much of a channel's range the weights take; 0.5 is SmoothQuant's own, 1 makes all channels alike."""
WORTH = 0.3
"""Share of the expected error that must be left at most. One channel has few elements to judge by, and later ones are
clipped: of all-MiniLM-L6-v2's sentences the lowest similarity to float32 is 0.9917 without factors, 0.9955 with 0.3,
and 0.986 and 0.984 with 0.5 and 0.8."""
STEPS, WEIGHT_STEPS = 255, 254  # from the smallest to the largest value of 8 bits; weights are symmetric


def channel_factors(seen: ChannelStatistics, weights: Sequence[np.ndarray]) -> np.ndarray | None:
    """Factors s > 0 of the channels, float32, or None where they gain little.

    Args:
        seen: the value's channels.
        weights: of each contraction that reads it, ``[out, in of a group, taps]``; a contraction has as many groups as
            the channels hold its inputs.
    """
    if not seen.seen.size or not (seen.seen > 0).all():
        return None
    sizes = np.maximum(np.abs(seen.low), np.abs(seen.high))
    largest = np.zeros_like(sizes)
    for w in weights:
        np.maximum.at(largest, _inputs(w, sizes.size), np.abs(w).max(2, initial=0))
    some = (sizes > 0) & (largest > 0)
    if not some.any():
        return None
    best, least = None, WORTH * _expected_error(np.ones_like(sizes), seen, weights)
    for share in SHARES:
        factors = np.ones_like(sizes)
        factors[some] = sizes[some] ** share / largest[some] ** (1 - share)
        factors /= np.exp(np.log(factors[some]).mean())
        factors[~some] = 1
        error = _expected_error(factors, seen, weights)
        if error < least:
            best, least = factors.astype(np.float32), error
    return best


def _inputs(w: np.ndarray, channels: int) -> np.ndarray:
    """The channel that each weight ``[out, in]`` multiplies."""
    out, inside, _ = w.shape
    groups = channels // inside
    return (np.arange(out) // (out // groups))[:, None] * inside + np.arange(inside)


def _expected_error(factors: np.ndarray, seen: ChannelStatistics, weights: Sequence[np.ndarray]) -> float:
    """Mean square of what rounding changes, summed over outputs: that of a value is its step squared over 12."""
    low = min(float((seen.low / factors).min()), 0.0)
    high = max(float((seen.high / factors).max()), 0.0)
    step = (high - low) / STEPS
    total = 0.0
    for w in weights:
        inputs = _inputs(w, factors.size)
        scaled = np.abs(w) * factors[inputs][:, :, None]
        own = 2 * scaled.max((1, 2), initial=0) / WEIGHT_STEPS
        squares = (seen.mean_squares / factors**2)[inputs].sum(1) * w.shape[2]
        total += float((step**2 * (scaled**2).sum() + (own**2 * squares).sum()) / 12)
    return total
