"""Operators that move data without reading values."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..builder import Builder, Value
from .registry import step

__all__ = ["reshaped"]


def _any_rank(v: Value) -> bool:
    return v.rank > 0


@step(2)
def transpose(b: Builder) -> Any:
    x = b.tensor()
    return b.node("Transpose", [x], perm=None if b.chance(5) else b.permutation(x.rank))


def factored(b: Builder, lens: tuple[int, ...]) -> list[int]:
    """Other lengths with as many elements."""
    found = list(lens)
    for _ in range(b.integer(1, 3)):
        if not found:
            return [1] * b.integer(0, 2)
        a = b.integer(0, len(found) - 1)
        if b.chance(2) and a + 1 < len(found):
            found[a : a + 2] = [found[a] * found[a + 1]]
        elif len(found) < 5:
            f = b.pick([f for f in (1, 2, 3, 4, 5, 8, 11) if found[a] and found[a] % f == 0] or [1])
            found[a : a + 1] = [f, found[a] // f]
    return found


def reshaped(b: Builder, x: Value) -> Value | None:
    lens = factored(b, x.lens)
    given = list(lens)
    if 0 not in lens:
        for a, (m, n) in enumerate(zip(lens, x.lens)):
            if m == n and b.chance(4):
                given[a] = 0
        if given and b.chance(3):
            given[b.integer(0, len(given) - 1)] = -1
    allow = 1 if 0 in lens else None
    return b.node("Reshape", [x, b.ints(given)], allowzero=allow if b.opset >= 14 else None)


@step(3)
def reshape(b: Builder) -> Any:
    return reshaped(b, b.tensor())


@step()
def flatten(b: Builder) -> Any:
    x = b.tensor()
    return b.node("Flatten", [x], axis=b.integer(-x.rank, x.rank))


@step()
def squeeze(b: Builder) -> Any:
    x = b.tensor(lambda v: 1 in v.lens)
    axes = [a for a, n in enumerate(x.lens) if n == 1 and b.chance(2)]
    return b.node("Squeeze", [x, *([b.ints(axes)] if axes else [])])


@step()
def unsqueeze(b: Builder) -> Any:
    x = b.tensor(lambda v: v.rank < 5)
    more = b.integer(1, 2)
    axes = b.permutation(x.rank + more)[:more]
    return b.node("Unsqueeze", [x, b.ints([a - x.rank - more if b.chance(3) else a for a in axes])])


@step(2)
def expand(b: Builder) -> Any:
    x = b.tensor()
    lens = [b.integer(1, 4) if n == 1 else (1 if b.chance(3) else n) for n in x.lens]
    lens = [b.integer(1, 3) for _ in range(b.integer(0, 1))] + lens
    if not b.shape_elements(*np.broadcast_shapes(tuple(lens), x.lens)):
        return None
    return b.node("Expand", [x, b.ints(lens[b.integer(0, 1) if b.chance(3) else 0 :])])


@step(3)
def concat(b: Builder) -> Any:
    x = b.tensor(_any_rank)
    axis = b.integer(0, x.rank - 1)
    parts = [x]
    for _ in range(b.integer(0, 3)):
        lens = list(x.lens)
        lens[axis] = b.integer(0 if b.chance(9) else 1, 5)

        def fits(v: Value) -> bool:
            same = v.type == x.type and v.rank == x.rank
            return same and all(m == n or a == axis for a, (m, n) in enumerate(zip(v.lens, x.lens)))

        parts.append((b.value(fits) if b.chance(2) else None) or b.new(lens, x.type))
    if b.chance(2):
        parts.reverse()
    return b.node("Concat", parts, axis=axis - x.rank if b.chance(3) else axis)


@step(2)
def split(b: Builder) -> Any:
    x = b.tensor(_any_rank)
    axis = b.integer(0, x.rank - 1)
    n = x.lens[axis]
    if b.chance(2):
        first = b.integer(0, n)
        second = b.integer(0, n - first)
        return b.outputs("Split", [x, b.ints([first, second, n - first - second])], 3, axis=axis)
    count = b.pick([k for k in (1, 2, 3, 4) if n % k == 0] if b.opset < 18 else [k for k in (1, 2, 3) if k <= n] or [1])
    return b.outputs("Split", [x], count, axis=axis - x.rank, num_outputs=count if b.opset >= 18 else None)


@step(4)
def slice_(b: Builder) -> Any:
    """Steps of both signs, starts and ends from either end and beyond."""
    x = b.tensor(_any_rank)
    axes = b.subset(x.rank)
    starts, ends, steps = [], [], []
    for a in axes:
        n = x.lens[a]
        stride = b.pick((1, 1, 1, 2, 3, -1, -1, -2))
        low, high = sorted((b.integer(0, n), b.integer(0, n)))
        if b.chance(2):
            low, high = 0 if b.chance(2) else low, n if b.chance(2) else max(high, 1)
        start, end = (low, high) if stride > 0 else (high - 1, low - 1)
        start = max(start, 0)
        if stride < 0 and end < 0:
            end = -n - 1 - b.integer(0, 1) * 1000
        elif b.chance(4) and n:
            start, end = start - n, (end - n if 0 < end < n else end)
        if stride > 0 and b.chance(6):
            end = np.iinfo(np.int32).max
        elif stride < 0 and b.chance(8):  # from before the axis, backwards
            start, end = -n - b.integer(1, 3), b.pick((-n - 9, np.iinfo(np.int32).min))
        starts.append(start)
        ends.append(end)
        steps.append(stride)
    type = b.pick((np.int64, np.int64, np.int32))
    tail = [b.ints([a - x.rank if b.chance(3) else a for a in axes], type), b.ints(steps, type)]
    return b.node("Slice", [x, b.ints(starts, type), b.ints(ends, type), *tail])


@step(2)
def pad(b: Builder) -> Any:
    x = b.tensor(_any_rank)
    axes = b.subset(x.rank) if b.opset >= 18 and b.chance(2) else list(range(x.rank))
    mode = b.pick(("constant", "constant", "constant", "reflect", "edge", *(["wrap"] if b.opset >= 19 else [])))
    low = -1 if b.chance(4) else 0
    pads = [b.integer(low, 2) if b.chance(2) else 0 for _ in range(2 * len(axes))]
    if mode != "constant":
        pads = [min(p, x.lens[a] - 1) for p, a in zip(pads, [*axes, *axes])]
    if any(x.lens[a] + pads[k] + pads[k + len(axes)] < 0 for k, a in enumerate(axes)):
        return None
    value = None if b.chance(2) or mode != "constant" else b.constant(b.integer(0, 2), x.type)
    given = [x, b.ints(pads), value]
    if len(axes) < x.rank or (b.opset >= 18 and b.chance(4)):
        given.append(b.ints([a - x.rank if b.chance(3) else a for a in axes]))
    return b.node("Pad", given, mode=mode)


@step()
def tile(b: Builder) -> Any:
    x = b.tensor(_any_rank)
    repeats = [b.integer(0 if b.chance(20) else 1, 3) if b.chance(2) else 1 for _ in x.lens]
    return b.node("Tile", [x, b.ints(repeats)]) if b.shape_elements(*x.lens, *repeats) else None


@step()
def depth_and_space(b: Builder) -> Any:
    x = b.tensor(lambda v: v.rank == 4)
    if x.rank != 4:
        return None
    if b.chance(2):
        sizes = [k for k in (1, 2, 3) if x.lens[1] % (k * k) == 0 and x.lens[1]]
        mode = b.pick(("DCR", "CRD"))
        return b.node("DepthToSpace", [x], blocksize=b.pick(sizes), mode=mode) if sizes else None
    sizes = [k for k in (1, 2, 3) if x.lens[2] % k == 0 and x.lens[3] % k == 0]
    return b.node("SpaceToDepth", [x], blocksize=b.pick(sizes))


@step()
def triangle(b: Builder) -> Any:
    x = b.tensor(lambda v: v.rank >= 2)
    if x.rank < 2:
        return None
    return b.node("Trilu", [x, *([b.ints(b.integer(-3, 3))] if b.chance(2) else [])], upper=b.integer(0, 1))


@step()
def reverse_sequence(b: Builder) -> Any:
    x = b.tensor(lambda v: v.rank >= 2 and v.array.size > 0)
    if x.rank < 2 or not prod(x.lens):
        return None
    batch = b.integer(0, 1)
    lengths = b.constant(b.rng.integers(1, x.lens[1 - batch] + 1, x.lens[batch]), np.int64)
    return b.node("ReverseSequence", [x, lengths], batch_axis=batch, time_axis=1 - batch)
