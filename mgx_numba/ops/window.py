"""Sliding windows over spatial axes: padding, strides and dilations shared by convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from ..core.dim import Dim, Length, ceil_div, equal, known_equal, maximum, select
from .base import Operator, register_enum


@register_enum
class PaddingMode(IntEnum):
    """Where padding comes from: the attribute, or computed so that lengths become ceil(length / stride).

    An odd number of padding elements puts the extra one before (``same_lower``) or after (``same_upper``).
    """

    default_ = 0
    same_lower = 1
    same_upper = 2


def check_window(op: Operator, rank: int, **attributes: Sequence[int]) -> None:
    """Check that each attribute has a positive value for each of ``rank`` spatial axes.

    Raises:
        ShapeError: naming the attribute.
    """
    for name, values in attributes.items():
        if len(values) != rank:
            raise op.fail(f"{name} {list(values)} needs {rank} values, one for each spatial axis")
        if any(v < 1 for v in values):  # not by `min`, which would compare symbols with each other
            raise op.fail(f"{name} {list(values)} must be positive")


def pad_pairs(op: Operator, padding: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """Return the padding before and after each of ``rank`` axes, from that many values (used twice) or twice as many.

    Raises:
        ShapeError: another number of values.
    """
    if len(padding) == rank:
        return [(p, p) for p in padding]
    if len(padding) == 2 * rank:
        return list(zip(padding[:rank], padding[rank:]))
    raise op.fail(f"padding {list(padding)} needs {rank} or {2 * rank} values")


def same_total(length: Length, kernel: int, stride: int, dilation: int) -> Length:
    """Return the padding of an axis that makes its output length ceil(length / stride)."""
    window = (kernel - 1) * dilation + 1
    if not isinstance(length, Dim):
        return max(0, (-(-length // stride) - 1) * stride + window - length)
    rest = length % stride  # in the last step; the same number, in a form whose range is known
    return select(equal(rest, 0), max(0, window - stride), maximum(0, window - rest))


def auto_padding(
    mode: PaddingMode,
    lens: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> list[tuple[int, int]]:
    """Padding that makes each output length ceil(length / stride) (ONNX ``auto_pad``)."""
    pairs = []
    for n, k, s, d in zip(lens, kernel, stride, dilation):
        total = same_total(n, k, s, d)
        small, large = total // 2, total - total // 2
        pairs.append((large, small) if mode is PaddingMode.same_lower else (small, large))
    return pairs


def fits_nowhere(lens: Sequence[int], counts: Sequence[int]) -> bool:
    """Return whether no window fits: some window count is below 1 although no length is 0.

    For symbolic lengths the answer becomes a guard.
    """
    return not any(known_equal(n, 0) for n in lens) and any(n < 1 for n in counts)


def window_length(length: int, pads: tuple[int, int], kernel: int, stride: int, dilation: int) -> int:
    """Number of whole windows along an axis; negative or 0 when not even one fits."""
    return (length + sum(pads) - (kernel - 1) * dilation - 1) // stride + 1


def window_counts(
    mode: PaddingMode,
    lens: Sequence[int],
    pads: Sequence[tuple[int, int]],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """Numbers of whole windows along axes (below 1 where not even one fits)."""
    if mode is not PaddingMode.default_:
        return [ceil_div(n, s) for n, s in zip(lens, stride)]
    return [window_length(*row) for row in zip(lens, pads, kernel, stride, dilation)]


def known_padding(pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether padding is the same for all lengths."""
    return not any(isinstance(p, Dim) for pair in pairs for p in pair)


def pad_spatial(x: np.ndarray, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return ``x`` [n, c, spatial...] padded with zeros; ``x`` itself if nothing is to be padded."""
    if not any(p for pair in pairs for p in pair):
        return x
    lens = [*x.shape[:2], *(n + a + b for n, (a, b) in zip(x.shape[2:], pairs))]
    padded = np.zeros(lens, x.dtype)
    inside = tuple(slice(a, a + n) for n, (a, _) in zip(x.shape[2:], pairs))
    padded[(slice(None), slice(None), *inside)] = x
    return padded
