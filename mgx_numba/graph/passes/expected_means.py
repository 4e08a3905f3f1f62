"""Estimate the mean operands of products with constant weights, from the program alone.

Each value is represented by a few random draws. Results of products are normal, with the mean and variance that follow
from inputs and weights if all elements vary independently; other operators map draws to draws. Program inputs and
loop-carried values are assumed standard normal, as normalised images and features are. Later values depend little on
that assumption: weights, biases and activations determine their means.

Axes along which draws are alike have length 1, whatever their length in the program: pixels and tokens vary like draws,
channels have means of their own. Axis 0 of all arrays here counts draws; its length is 1 for a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from math import prod
from statistics import NormalDist

import numpy as np

from ...core.shape import Shape, common_lens
from ...core.types import Type
from ...ops.base import Pointwise
from ...ops.pooling import PoolingMode
from ...ops.scalar import NumpyScalar
from ..constants import compact, constant_array
from ..instruction import Instruction, Parameter
from ..module import Module

DRAWS = 32
"""Draws per element, one from each of as many equally probable ranges."""
COLUMNS = 4099
"""Elements with an independent order of draws; longer vectors repeat them. A prime, so that it does not divide layer
sizes."""
MOST = 1 << 20
"""Most draws per value, 4 MiB of float32; larger values are not followed."""
AT_ONCE = 1 << 18
"""Weights squared at once: 1 MiB of float32, to stay in the caches."""
ZERO = 0.05
"""Largest mean, in standard deviations, that counts as zero; the sampling error is smaller."""

Draws = np.ndarray


def expected_means(module: Module, products: Collection[Instruction]) -> dict[Instruction, np.ndarray]:
    """Return the mean left operands of ``dot`` and ``convolution`` with constant weights.

    Returns:
        float32 arrays by product, [k] for ``dot``, [channels] for ``convolution``, length 1 if all are equal; products
        whose left operand cannot be followed or has zero means are omitted.
    """
    left, found = set(products), {}
    last = {i: ins for ins in module for i in ins.inputs} if left else {}
    follower = _Follower()
    for ins in module:
        if not left:
            break
        if ins in left:
            left.discard(ins)
            taken = follower.values.get(ins.inputs[0])
            if taken is not None and (means := _means(taken, taken.ndim - 1 if ins.name == "dot" else 2)) is not None:
                found[ins] = means
        follower.follow(ins)
        for i in ins.inputs:
            if last[i] is ins:
                follower.values.pop(i, None)
    return found


def _means(draws: Draws, axis: int) -> np.ndarray | None:
    means = draws.mean(tuple(k for k in range(draws.ndim) if k != axis), dtype=np.float32)
    with np.errstate(all="ignore"):
        known = np.isfinite(means).all() and np.abs(means).max(initial=0) > ZERO * float(draws.std())
    return means if known else None


@cache
def _normal_table() -> np.ndarray:
    """Return standard normal draws [DRAWS, COLUMNS]: the same numbers in each column, randomly ordered."""
    draws = np.array([NormalDist().inv_cdf((k + 0.5) / DRAWS) for k in range(DRAWS)], np.float32)
    draws /= draws.std()
    return np.random.default_rng(0).permuted(np.repeat(draws[:, None], COLUMNS, 1), axis=0)


class _Follower:
    """Draws of a module's values, in ``values``."""

    def __init__(self) -> None:
        self.values: dict[Instruction, Draws] = {}
        self._order = np.random.default_rng(0)

    def follow(self, ins: Instruction) -> None:
        """Record the draws of an instruction's value if they can be computed."""
        with np.errstate(all="ignore"):
            draws = self._draws(ins)
        if draws is not None and draws.size and (len(draws) == 1 or draws.size <= MOST):
            self.values[ins] = draws

    def _draws(self, ins: Instruction) -> Draws | None:
        shape = ins.shape
        if shape.sub_shapes:
            return None
        if isinstance(ins.op, Parameter):
            return self._normal(0.0, 1.0, [1] * shape.ndim) if shape.type.is_floating else None
        if (array := constant_array(ins)) is not None:
            small = compact(array)[None]
            return small.astype(np.float32, copy=False) if ins.shape.type.is_floating else small
        if ins.name == "softmax" and ins.inputs[0] not in self.values:
            return _shares(ins)
        if (single := SINGLE.get(ins.name)) is not None:
            return single(self, ins, self.values[ins.inputs[0]]) if ins.inputs[0] in self.values else None
        several = _Follower.pointwise if isinstance(ins.op, Pointwise) else SEVERAL.get(ins.name)
        if several is None or not all(i in self.values for i in ins.inputs):
            return None
        return several(self, ins, [self.values[i] for i in ins.inputs])

    def _normal(self, mean: np.ndarray | float, variance: np.ndarray | float, lens: Sequence[int]) -> Draws:
        """Return draws of independent normal elements with the given means and variances."""
        columns = (np.arange(prod(lens)) + self._order.integers(COLUMNS)) % COLUMNS
        draws = _normal_table()[:, columns].reshape(DRAWS, *lens)
        return draws * np.sqrt(np.maximum(variance, 0), dtype=np.float32) + np.asarray(mean, np.float32)

    def _picked(self, draws: Draws, axis: int, length: int) -> Draws:
        """Return, for each draw, a random element along an axis."""
        every = np.broadcast_to(draws, (DRAWS, *draws.shape[1:]))
        places = self._order.permutation(np.arange(DRAWS) * length // DRAWS)
        return np.take_along_axis(every, places.reshape(-1, *[1] * (draws.ndim - 1)), axis)

    def pointwise(self, ins: Instruction, inputs: list[Draws]) -> Draws | None:
        while prod(lens := common_lens(*(d.shape for d in inputs))) > MOST:
            # positions that constants alone tell apart, as those of tokens
            axes = [k for k, n in enumerate(lens) if k and n > 1 and any(d.shape[k] == 1 for d in inputs)]
            if not axes:
                return None
            axis = max(axes, key=lens.__getitem__)
            inputs = [d if d.shape[axis] == 1 else self._picked(d, axis, lens[axis]) for d in inputs]
        return np.asarray(ins.operator(Pointwise).scalar(NumpyScalar(), *inputs))

    def same(self, ins: Instruction, draws: Draws) -> Draws | None:
        """Return the draws of an operator that moves elements along axes that vary like draws."""
        lens = (1, *ins.shape.max_lens)
        alike = len(lens) == draws.ndim and all(n in (1, m) for n, m in zip(draws.shape[1:], lens[1:]))
        return draws.astype(np.float32, copy=False) if alike and ins.shape.type.is_floating else None

    def broadcast(self, ins: Instruction, draws: Draws) -> Draws:
        begin = ins.op.attributes()["axis"] if ins.name == "broadcast" else ins.shape.ndim - draws.ndim + 1
        after = ins.shape.ndim - begin - draws.ndim + 1
        return draws.reshape(draws.shape[0], *[1] * begin, *draws.shape[1:], *[1] * after)

    def transpose(self, ins: Instruction, draws: Draws) -> Draws:
        return draws.transpose(0, *(1 + k for k in ins.op.attributes()["permutation"]))

    def reshape(self, ins: Instruction, draws: Draws) -> Draws | None:
        return _reshaped(draws, ins.inputs[0].shape.max_lens, ins.shape.max_lens)

    def slice(self, ins: Instruction, draws: Draws) -> Draws | None:
        attributes = ins.op.attributes()
        if len(ins.inputs) > 1:
            return None
        at = [slice(None)] * draws.ndim
        steps = attributes.get("steps") or [1] * len(attributes["axes"])
        starts = attributes.get("starts") or [0] * len(attributes["axes"])
        ends = attributes.get("ends") or [None] * len(attributes["axes"])
        for axis, begin, end, step in zip(attributes["axes"], starts, ends, steps):
            if draws.shape[1 + axis] > 1:
                at[1 + axis] = slice(begin, end, step)
        return draws[tuple(at)]

    def concat(self, ins: Instruction, inputs: list[Draws]) -> Draws | None:
        axis = 1 + ins.op.attributes()["axis"] % ins.shape.ndim
        counts = [i.shape.max_lens[axis - 1] for i in ins.inputs]
        lens = list(common_lens(*(np.take(d, [0], axis).shape for d in inputs)))
        if all(d.shape[axis] == 1 for d in inputs):
            every = np.stack([np.broadcast_to(d, (DRAWS, *lens[1:])) for d in inputs])
            places = self._order.permutation(DRAWS) * (sum(counts) / DRAWS)
            return every[np.searchsorted(np.cumsum(counts[:-1]), places, "right"), np.arange(DRAWS)]
        if prod(lens) * sum(counts) > MOST:
            return None
        parts = [np.broadcast_to(d, (*lens[:axis], n, *lens[axis + 1 :])) for d, n in zip(inputs, counts)]
        return np.concatenate(parts, axis)

    def gather(self, ins: Instruction, draws: Draws) -> Draws | None:
        """Return draws of random rows of a table, or of the row at a constant position."""
        axis = 1 + ins.op.attributes()["axis"] % ins.inputs[0].shape.ndim
        places = constant_array(ins.inputs[1])
        if draws.shape[axis] > 1:
            if places is None:
                draws = self._picked(draws, axis, draws.shape[axis])
            elif places.size == 1:
                draws = np.take(draws, places.reshape(-1), axis, mode="wrap")  # out of range: a run says so
            else:
                return None
        chosen = [1] * (ins.shape.ndim - draws.ndim + 2)  # none for a number, whose shape has an axis of stride 0
        return draws.reshape(*draws.shape[:axis], *chosen, *draws.shape[axis + 1 :])

    def pooling(self, ins: Instruction, draws: Draws) -> Draws | None:
        attributes = ins.op.attributes()
        if any(n > 1 for n in draws.shape[3:]) or attributes["mode"] is PoolingMode.lpnorm:
            return None
        lens = ins.inputs[0].shape.max_lens[2:] if attributes["dyn_global"] else attributes["lengths"]
        window = [np.roll(draws, k, 0) for k in range(min(prod(lens), DRAWS))]
        if attributes["mode"] is PoolingMode.max:
            return np.maximum.reduce(window)
        return np.add.reduce(window) / len(window)

    def lrn(self, ins: Instruction, draws: Draws) -> Draws | None:
        if draws.ndim < 3 or draws.shape[1] > 1 or ins.shape.is_dynamic:
            return None
        every = np.broadcast_to(draws[:, 0], (draws.shape[0], ins.shape.max_lens[1], *draws.shape[3:]))
        found = ins.op.compute(Shape(Type.float_type, every.shape), [every])
        return np.asarray(found)[:, None].astype(np.float32)

    def reduce(self, ins: Instruction, draws: Draws) -> Draws | None:
        rank = draws.ndim - 1
        axes = [1 + k % rank for k in ins.op.attributes()["axes"]] or list(range(1, draws.ndim))
        if len(ins.inputs) > 1:
            return None
        spread = [k for k in axes if draws.shape[k] == 1 and ins.inputs[0].shape.max_lens[k - 1] > 1]
        over = (*axes, *([0] if spread else []))
        if ins.name == "reduce_max":
            return draws.max(over, keepdims=True)
        total = draws.mean(over, keepdims=True, dtype=np.float32)
        if ins.name == "reduce_sum":
            total = total * np.float32(prod(ins.inputs[0].shape.max_lens[k - 1] for k in axes))
        return total

    def softmax(self, ins: Instruction, draws: Draws) -> Draws:
        axis = 1 + ins.op.attributes()["axis"] % ins.shape.ndim
        if draws.shape[axis] == 1:
            return _shares(ins)
        powers = np.exp(draws - draws.max(axis, keepdims=True))
        return powers / powers.sum(axis, keepdims=True)

    def dot(self, ins: Instruction, inputs: list[Draws]) -> Draws | None:
        (a, of_a), (b, of_b) = map(_moments, inputs)
        count = max(a.shape[-1], b.shape[-2])
        a, of_a = (np.broadcast_to(v, (*v.shape[:-1], count)) for v in (a, of_a))
        b, of_b = (np.broadcast_to(v, (*v.shape[:-2], count, v.shape[-1])) for v in (b, of_b))
        lens = (*common_lens(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
        if prod(lens) * DRAWS > MOST:
            return None
        mean, variance = a @ b, np.zeros(lens, np.float32)
        step = max(1, AT_ONCE // max(1, b.size // max(1, count)))
        for k in range(0, count, step):
            left, right = (..., slice(k, k + step)), (..., slice(k, k + step), slice(None))
            squares = np.square(b[right])
            variance += of_a[left] @ squares
            if inputs[1].shape[0] > 1:
                variance += (of_a[left] + np.square(a[left])) @ of_b[right]
        times = np.float32(1 if count > 1 else ins.inputs[0].shape.max_lens[-1])
        return self._normal(mean * times, variance * times, lens)

    def convolution(self, ins: Instruction, inputs: list[Draws]) -> Draws | None:
        """Return draws of a convolution with constant weights; padding at the margins is ignored."""
        draws, weights = inputs
        if weights.shape[0] > 1 or any(n > 1 for n in (draws.shape[1], *draws.shape[3:])):
            return None
        shape, groups = ins.inputs[1].shape, ins.op.attributes()["group"]
        if shape.is_dynamic:
            return None
        taps, scattered = prod(shape.lens[2:]), ins.name == "convolution_backwards"
        channels = shape.lens[0] if scattered else shape.lens[1] * groups
        filters = np.broadcast_to(weights[0], shape.lens).reshape(groups, -1, shape.lens[1], taps)
        mean, variance = (
            np.broadcast_to(v.reshape(-1), channels).reshape(groups, -1).astype(np.float32) for v in _moments(draws)
        )
        share = np.float32(1 / prod(ins.op.attributes()["stride"]) if scattered else 1)
        terms = "gcot,gc->go" if scattered else "goct,gc->go"
        sums = (
            np.einsum(terms, filters, mean),
            np.einsum(terms.replace(",", f",{terms[:4]},"), filters, filters, variance),
        )
        lens = (1, sums[0].size, *[1] * (draws.ndim - 3))
        return self._normal(share * sums[0].reshape(lens), share * sums[1].reshape(lens), lens)


def _moments(draws: Draws) -> tuple[np.ndarray, np.ndarray]:
    """Return means and variances of elements."""
    if len(draws) == 1:
        return draws[0], np.broadcast_to(np.float32(0), draws.shape[1:])
    return draws.mean(0, dtype=np.float32), draws.var(0)


def _shares(ins: Instruction) -> Draws:
    """Return the result of softmax along an axis with equal elements."""
    axis = ins.op.attributes()["axis"] % ins.shape.ndim
    return np.full([1] * (ins.shape.ndim + 1), 1 / max(1, ins.shape.max_lens[axis]), np.float32)


def _reshaped(draws: Draws, before: Sequence[int], after: Sequence[int]) -> Draws | None:
    """Return draws of a reshaped value; merged or split axes either keep length 1, or have all their elements."""
    if prod(before) != prod(after) or not prod(before):
        return None
    lens: list[int] = []
    made: list[int] = []
    i, j = 0, 0
    while i < len(before) or j < len(after):
        begin, first, size, other = i, j, 1, 1
        while (i, j) == (begin, first) or size != other or _is_one(before, i) or _is_one(after, j):
            if (size <= other or _is_one(before, i)) and i < len(before):
                size, i = size * before[i], i + 1
            elif j < len(after):
                other, j = other * after[j], j + 1
            else:
                break
        whole = any(n > 1 for n in draws.shape[1 + begin : 1 + i])
        lens += before[begin:i] if whole else [1] * (i - begin)
        made += after[first:j] if whole else [1] * (j - first)
    if prod(lens) * draws.shape[0] > MOST:
        return None
    return np.broadcast_to(draws, (draws.shape[0], *lens)).reshape(draws.shape[0], *made)


def _is_one(lens: Sequence[int], k: int) -> bool:
    return k < len(lens) and lens[k] == 1


SINGLE: dict[str, Callable[[_Follower, Instruction, Draws], Draws | None]] = {
    **dict.fromkeys(("contiguous", "convert", "identity", "layout", "pad", "resize"), _Follower.same),
    **dict.fromkeys(("broadcast", "multibroadcast"), _Follower.broadcast),
    **dict.fromkeys(("flatten", "reshape", "reshape_lazy", "squeeze", "unsqueeze"), _Follower.reshape),
    **dict.fromkeys(("reduce_max", "reduce_mean", "reduce_sum"), _Follower.reduce),
    **dict.fromkeys(("slice", "step"), _Follower.slice),
    "gather": _Follower.gather,
    "lrn": _Follower.lrn,
    "pooling": _Follower.pooling,
    "softmax": _Follower.softmax,
    "transpose": _Follower.transpose,
}
"""Rules of operators with one followed operand; their other inputs are positions or lengths."""
SEVERAL: dict[str, Callable[[_Follower, Instruction, list[Draws]], Draws | None]] = {
    "concat": _Follower.concat,
    "convolution": _Follower.convolution,
    "convolution_backwards": _Follower.convolution,
    "dot": _Follower.dot,
}
"""Rules of operators with several operands; pointwise operators have one common rule."""
