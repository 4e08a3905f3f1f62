"""Calibration results of a program: an observer of the range, and channel statistics, of each value to be quantised.

Calibrations of the same program can be merged in any order, and are saved in an ``.mxr`` file.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ..dataclass import dataclass
from ..errors import FormatError, OptionError
from ..json_types import JsonObject
from .observers import BINS, Observer, make_observer


def _none() -> np.ndarray:
    return np.zeros(0, np.float64)


@dataclass
class ChannelStatistics:
    """Per channel of a value: range, sum, sum of squares and number of finite elements, all float64."""

    low: np.ndarray = field(default_factory=_none)
    high: np.ndarray = field(default_factory=_none)
    total: np.ndarray = field(default_factory=_none)
    squares: np.ndarray = field(default_factory=_none)
    seen: np.ndarray = field(default_factory=_none)

    def observe(self, values: np.ndarray, axis: int) -> None:
        """Add one batch of values; ``axis`` is the channel axis."""
        if not values.size:
            return
        wide = np.moveaxis(np.asarray(values, np.float32), axis, 0).reshape(values.shape[axis], -1).astype(np.float64)
        finite = np.isfinite(wide)
        if not finite.any():
            return
        kept = np.where(finite, wide, 0)
        self.merge(
            ChannelStatistics(
                np.where(finite, wide, np.inf).min(1),
                np.where(finite, wide, -np.inf).max(1),
                kept.sum(1),
                (kept * kept).sum(1),
                finite.sum(1).astype(np.float64),
            )
        )

    def merge(self, other: ChannelStatistics) -> None:
        """Add the statistics of the same channels from another calibration.

        Raises:
            OptionError: the numbers of channels differ.
        """
        if not other.seen.size:
            return
        if not self.seen.size:
            self.__dict__.update(other.__dict__)
            return
        if self.seen.size != other.seen.size:
            raise OptionError(f"{other.seen.size} channels cannot be merged into {self.seen.size}")
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        self.total, self.squares = self.total + other.total, self.squares + other.squares
        self.seen = self.seen + other.seen

    @property
    def means(self) -> np.ndarray:
        """Mean of each channel, float64; 0 for a channel without finite elements."""
        return self.total / np.maximum(self.seen, 1)

    @property
    def mean_squares(self) -> np.ndarray:
        """Mean square of each channel, float64."""
        return self.squares / np.maximum(self.seen, 1)


@dataclass
class ValueStatistics:
    """Statistics of one value.

    Attributes:
        label: names the layers that read the value; calibrations are matched by label.
        axis: channel axis, from 0 on.
    """

    label: str
    axis: int
    observer: Observer
    channels: ChannelStatistics = field(default_factory=ChannelStatistics)

    def merge(self, other: ValueStatistics) -> None:
        """Add the statistics of the same value from another calibration; see `Observer.merge`."""
        self.observer.merge(other.observer)
        self.channels.merge(other.channels)


@dataclass
class Calibration:
    """Statistics of all values to be quantised, in program order.

    Attributes:
        batches: number of observed batches.
    """

    values: list[ValueStatistics]
    batches: int = 0

    def observe(self, results: Sequence[np.ndarray]) -> None:
        """Add one batch: the values in program order."""
        for one, result in zip(self.values, results, strict=True):
            one.observer.observe(result)
            one.channels.observe(result, one.axis)
        self.batches += 1

    def merge(self, other: Calibration) -> None:
        """Add the statistics of ``other``, a calibration of the same program.

        Raises:
            OptionError: the calibrations differ in their values or in their method.
        """
        self.expect([one.label for one in other.values], "the other calibration")
        for one, more in zip(self.values, other.values):
            one.merge(more)
        self.batches += other.batches

    def expect(self, labels: Sequence[str], whose: str) -> None:
        """Check that the statistics are those of the values with ``labels``.

        Raises:
            OptionError: the labels differ; the message names the first difference.
        """
        own = [one.label for one in self.values]
        if own != list(labels):
            pairs = zip([*own, "nothing"], [*labels, "nothing"])
            at, (a, b) = next((k, p) for k, p in enumerate(pairs) if p[0] != p[1])
            raise OptionError(f"the calibration has {a!r} as value {at} where {whose} has {b!r}")

    def to_json(self) -> dict[str, object]:
        """Return a value tree that `from_json` reads."""
        return {"batches": self.batches, "values": [_value_to_json(v) for v in self.values]}

    @classmethod
    def from_json(cls, tree: Any) -> Calibration:
        """Return the calibration in a value tree of `to_json`.

        Raises:
            FormatError: the tree is malformed.
        """
        try:
            return cls([_value_from_json(v) for v in tree["values"]], int(tree["batches"]))
        except (KeyError, TypeError, ValueError, OptionError, zlib.error) as error:
            raise FormatError(f"the calibration is malformed: {error!r}") from None


_CHANNELS = ("low", "high", "total", "squares", "seen")
_RANGE = ("low", "high", "seen", "strange", "limit")


def _value_to_json(value: ValueStatistics) -> dict[str, object]:
    seen = value.observer
    return {
        "label": value.label,
        "axis": value.axis,
        "observer": seen.method,
        **{name: float(getattr(seen, name)) for name in _RANGE if seen.seen},
        **({"counts": _packed(seen.counts)} if seen.limit else {}),
        "channels": {name: _packed(getattr(value.channels, name)) for name in _CHANNELS},
    }


def _value_from_json(tree: JsonObject) -> ValueStatistics:
    observer = make_observer(str(tree["observer"]))
    if "seen" in tree:
        observer.low, observer.high, observer.limit = (float(tree[name]) for name in ("low", "high", "limit"))
        observer.seen, observer.strange = int(tree["seen"]), int(tree["strange"])
    if "counts" in tree:
        observer.counts = _unpacked(tree["counts"], np.int64, BINS)
    columns = {name: _unpacked(tree["channels"][name], np.float64) for name in _CHANNELS}
    if len({column.size for column in columns.values()}) != 1:
        raise ValueError("channels are of different numbers")
    return ValueStatistics(str(tree["label"]), int(tree["axis"]), observer, ChannelStatistics(**columns))


def _packed(array: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(array.astype(array.dtype.newbyteorder("<")).tobytes())).decode("ascii")


def _unpacked(text: Any, dtype: type, size: int | None = None) -> np.ndarray:
    """Return the array that `_packed` encoded; decompression is bounded by the largest admissible size."""
    most = (BINS if size is None else size) * np.dtype(dtype).itemsize * (1 if size else _MOST_CHANNELS // BINS)
    inflate = zlib.decompressobj()
    data = inflate.decompress(base64.b64decode(text, validate=True), most)
    if inflate.unconsumed_tail or (size is not None and len(data) != most):
        raise ValueError("an array is not of the expected size")
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).astype(dtype)


_MOST_CHANNELS = 1 << 20
"""Largest number of channels of a value in a file: far more than any model has."""
