"""Calibration observers: choose the range of an activation that 8 bits cover, from values of sample batches.

Four observers choose the range by different methods.

    minmax      the smallest and the largest value
    percentile  the range without the share `LEFT_OUT` of the values at either end
    entropy     the clipping with the least Kullback-Leibler divergence from the quantised values
                (Migacz, "8-bit inference with TensorRT", 2017)
    mse         the clipping with the least mean squared error of the quantised values

Each keeps a histogram of bounded size, so it can observe any number of batches, and observers can be merged. Ranges
depend on the order of the batches by at most the width of a histogram bin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field

import numpy as np

from ..core.types import Type
from ..dataclass import dataclass
from ..errors import OptionError

BINS = 1 << 14
"""Bins of a histogram: enough to resolve values a thousand times smaller than the largest."""
NEARLY_SYMMETRIC = 0.9
"""Least ratio of the shorter to the longer side of a range around 0 at which the zero point becomes the middle of
uint8. That loses at most a twentieth of the steps, and int8 then represents the same values without a zero point."""
LEVELS = 256
"""Number of values of an 8-bit type."""
LEFT_OUT = 1e-5
"""Share of the values that the percentile observer leaves out at either end: 99.999%, as is usual."""
RATIO = 2.0 ** (-1 / 8)
"""Ratio of the widths of successive candidate clippings."""
CLIPPINGS = 80
"""Number of candidate clippings: down to a thousandth of the range."""


@dataclass(frozen=True)
class QuantParameters:
    """Parameters of ``q = saturate(round(x / scale) + zero_point)`` in 8 bits of ``type``.

    Attributes:
        scale: a positive normal float32.
        zero_point: the exact image of 0.
        clipped: share of the observed values outside the range of ``type``.
    """

    scale: float
    zero_point: int
    type: Type = Type.uint8_type
    clipped: float = 0.0


@dataclass
class Observer:
    """A histogram of finite values over ``[-limit, limit]``, and their range.

    Attributes:
        method: how `range` chooses, a key of `OBSERVERS`.
        low, high: smallest and largest finite value.
        seen: number of finite values.
        strange: number of infinities and NaNs, which are left out.
    """

    method: str = "minmax"
    low: float = math.inf
    high: float = -math.inf
    seen: int = 0
    strange: int = 0
    limit: float = 0.0
    counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def observe(self, values: np.ndarray) -> None:
        """Add one batch of values."""
        flat = np.asarray(values, np.float32).reshape(-1)
        finite = flat[np.isfinite(flat)]
        self.strange += flat.size - finite.size
        if not finite.size:
            return
        self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
        self.seen += finite.size
        if self.method != "minmax":
            self._widen(float(np.abs(finite).max()))
            places = ((finite.astype(np.float64) / self.limit + 1) * (BINS // 2)).astype(np.int64)
            self.counts += np.bincount(np.minimum(places, BINS - 1), minlength=BINS)

    def merge(self, other: Observer) -> None:
        """Add the values seen by another observer of the same method.

        Raises:
            OptionError: the other observer's method differs.
        """
        if other.method != self.method:
            raise OptionError(f"an observer by {other.method} cannot be merged into one by {self.method}")
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.seen, self.strange = self.seen + other.seen, self.strange + other.strange
        if other.limit:
            self._widen(other.limit)
            counts, limit = other.counts, other.limit
            while limit < self.limit:
                counts, limit = _halved(counts), 2 * limit
            self.counts = self.counts + counts

    def _widen(self, largest: float) -> None:
        """Extend the histogram to ``largest``: double its limit, a power of two, while merging neighbouring bins."""
        wanted = 2.0 ** math.ceil(math.log2(max(largest, 2.0**-126)))
        if not self.limit:
            self.limit = wanted
        while self.limit < wanted:
            self.counts, self.limit = _halved(self.counts), 2 * self.limit

    def range(self) -> tuple[float, float]:
        """Return the smallest and largest value to be covered; 0 is between them."""
        if not self.seen:
            return 0.0, 0.0
        low, high = OBSERVERS[self.method](self)
        return min(low, 0.0), max(high, 0.0)

    def parameters(self, type: Type = Type.uint8_type) -> QuantParameters:
        """Return scale and zero point for 8 bits; uint8 has a zero point, int8 and fp8e4m3fn are symmetric.

        The scale of fp8e4m3fn is a power of two: floats have the same relative steps at any scale.
        """
        low, high = self.range()
        if type is not Type.uint8_type:
            limit = 448 if type is Type.fp8e4m3fn_type else 127
            step = max(-low, high) / limit
            if type.is_floating and step:
                step = 2.0 ** math.ceil(math.log2(step))
            scale, zero = _scale(step), 0
            low, high = -limit * scale, limit * scale
        else:
            if min(-low, high) >= NEARLY_SYMMETRIC * max(-low, high):
                low, high = min(low, -high), max(high, -low)
                low -= (high - low) / (LEVELS - 2)  # the middle has one more step below than above
            scale = _scale((high - low) / (LEVELS - 1))
            zero = int(np.clip(round(-low / scale), 0, LEVELS - 1))
            low, high = -zero * scale, (LEVELS - 1 - zero) * scale
        return QuantParameters(scale, zero, type, self._outside(low, high))

    def divided(self, low: np.ndarray, high: np.ndarray) -> Observer:
        """Return the observer of the same values with channels divided by factors.

        Args:
            low, high: ends of the channels' ranges after the division. The share of the range that this method covers
                is kept.
        """
        before, after = self.range(), (min(float(low.min()), 0.0), max(float(high.max()), 0.0))
        whole = min(self.low, 0.0), max(self.high, 0.0)
        ends = [a * min(b / w, 1.0) if w else 0.0 for a, b, w in zip(after, before, whole)]
        return Observer("minmax", ends[0], ends[1], self.seen, self.strange)

    def _outside(self, low: float, high: float) -> float:
        if not self.limit or not self.seen:
            return 0.0
        centres = self.centres
        half = self.limit / BINS
        return float(self.counts[(centres < low - half) | (centres > high + half)].sum() / self.seen)

    @property
    def centres(self) -> np.ndarray:
        """Return the centre of each bin."""
        return (np.arange(BINS) + 0.5) * (2 * self.limit / BINS) - self.limit


def _scale(step: float) -> float:
    """Return a step as a positive normal float32; 1 for values that are all 0."""
    return float(max(np.float32(step), np.finfo(np.float32).tiny)) if step else 1.0


def _halved(counts: np.ndarray) -> np.ndarray:
    """Return the histogram over twice the range."""
    inner = counts.reshape(-1, 2).sum(1)
    quarter = np.zeros(BINS // 4, counts.dtype)
    return np.concatenate([quarter, inner, quarter])


def _minmax(seen: Observer) -> tuple[float, float]:
    return seen.low, seen.high


def _percentile(seen: Observer) -> tuple[float, float]:
    share = np.cumsum(seen.counts) / seen.seen
    width = 2 * seen.limit / BINS
    low = float(seen.centres[np.searchsorted(share, LEFT_OUT)] - width / 2)
    high = float(seen.centres[min(int(np.searchsorted(share, 1 - LEFT_OUT)), BINS - 1)] + width / 2)
    return max(low, seen.low), min(high, seen.high)


def _clippings(seen: Observer) -> list[tuple[float, float]]:
    """Return candidate ranges from the whole to narrow ones: both ends shrink by the same ratio."""
    return [(seen.low * RATIO**k, seen.high * RATIO**k) for k in range(CLIPPINGS)]


def _mse(seen: Observer) -> tuple[float, float]:
    centres, counts = seen.centres, seen.counts

    def error(low: float, high: float) -> float:
        low, high = min(low, 0.0), max(high, 0.0)
        step = _scale((high - low) / (LEVELS - 1))
        near = np.clip(np.rint((centres - low) / step), 0, LEVELS - 1) * step + low
        return float((counts * (centres - near) ** 2).sum())

    return min(_clippings(seen), key=lambda ends: error(*ends))


def _entropy(seen: Observer) -> tuple[float, float]:
    return min(_clippings(seen), key=lambda ends: _divergence(seen, *ends))


def _divergence(seen: Observer, low: float, high: float) -> float:
    """Return the Kullback-Leibler divergence between the clipped values and their quantisation to `LEVELS` steps."""
    low, high = min(low, 0.0), max(high, 0.0)
    centres = seen.centres
    inside = (centres >= low) & (centres <= high)
    if not inside.any() or high <= low:
        return math.inf
    given = seen.counts[inside].astype(np.float64)
    given[0] += seen.counts[: int(inside.argmax())].sum()
    given[-1] += seen.counts[len(inside) - int(inside[::-1].argmax()) :].sum()
    levels = np.minimum(((centres[inside] - low) / (high - low) * LEVELS).astype(np.int64), LEVELS - 1)
    filled = seen.counts[inside] > 0
    sums = np.bincount(levels, seen.counts[inside], minlength=LEVELS)
    cells = np.bincount(levels, filled, minlength=LEVELS)
    rough = np.where(filled, sums[levels] / np.maximum(cells[levels], 1), 0)
    p, q = given / given.sum(), rough / max(rough.sum(), 1)
    some = p > 0
    # Clipped values fall where the steps may have no probability: a small one stands in for it.
    floor = 1e-6
    return float((p[some] * np.log(p[some] / np.maximum(q[some], floor))).sum())


OBSERVERS: dict[str, Callable[[Observer], tuple[float, float]]] = {
    "minmax": _minmax,
    "percentile": _percentile,
    "entropy": _entropy,
    "mse": _mse,
}
"""Methods that choose a range, by name."""


def make_observer(method: str) -> Observer:
    """Return a new, empty observer.

    Raises:
        OptionError: the method is unknown.
    """
    if method not in OBSERVERS:
        raise OptionError(f"unknown observer {method!r}; known: {', '.join(OBSERVERS)}")
    return Observer(method)
