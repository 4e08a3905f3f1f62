"""Replace scatters to constant, evenly spaced positions of one axis by concatenations."""

from __future__ import annotations

import numpy as np

from ....core.dim import is_symbolic, known_equal
from ...constants import constant_array
from ...instruction import Instruction
from ..build import RewriteBuilder
from ..match import Match, constant, op, rule, some

_LEAST_SHARE = 4
"""A part of the axis that makes a concatenation worth it: a scatter copies all of the data first, unless it is updated
in place."""


@rule("scatter_range", op("scatter_none", some("x"), constant("indices"), some("updates")), exact=True)
def scatter_of_range(m: Match, b: RewriteBuilder) -> object:
    """``x[..., i::s] = updates`` as ScatterElements writes it: a concatenation of what is kept and the updates."""
    rank = m.x.shape.ndim
    axis = m.ins.op.attributes()["axis"] % rank
    values = constant_array(m.indices)
    if values is None:
        return "indices are not constant"
    if not all(known_equal(m.updates.shape.lens[k], m.x.shape.lens[k]) for k in range(rank) if k != axis):
        return "updates do not span the other axes"
    row = row_along(values, axis)
    if row is None:
        return "indices differ along another axis"
    count = m.updates.shape.lens[axis]
    if is_symbolic(count) or is_symbolic(m.x.shape.lens[axis]):
        return "the axis has an open length"
    return _spaced(m, b, axis, np.broadcast_to(row, (count,)))


@rule("scatternd_range", op("scatternd_none", some("x"), constant("indices"), some("updates")), exact=True)
def scatternd_of_range(m: Match, b: RewriteBuilder) -> object:
    """``x[..., i::s] = updates`` as ScatterND writes it, with a tuple of indices for each element or slice."""
    values = constant_array(m.indices)
    if values is None or m.x.shape.symbolic or m.updates.shape.symbolic or m.indices.shape.symbolic:
        return "indices or lengths are not constant"
    depth, lens = values.shape[-1], m.x.shape.lens
    if values.ndim != depth + 1 or 0 in values.shape:
        return "there is not one axis of updates for each index of a tuple"
    rows = [row_along(values[..., k], k) for k in range(depth)]
    changed = [k for k, row in enumerate(rows) if row is None or not np.array_equal(row, np.arange(lens[k]))]
    if len(changed) > 1:
        return "updates are part of more than one axis"
    axis = changed[0] if changed else 0
    row = rows[axis]
    return "indices differ along another axis" if row is None else _spaced(m, b, axis, row)


def row_along(values: np.ndarray, axis: int) -> np.ndarray | None:
    """Return the row of ``values`` along an axis if all rows are equal, else None."""
    if not values.size:
        return None
    row = values[tuple(slice(None) if k == axis else slice(0, 1) for k in range(values.ndim))]
    repeated = all(n == 1 or s == 0 for k, (n, s) in enumerate(zip(values.shape, values.strides)) if k != axis)
    return row.reshape(-1) if repeated or (values == row).all() else None


def _spaced(m: Match, b: RewriteBuilder, axis: int, row: np.ndarray) -> object:
    """Return the concatenation for updates at the positions ``row`` of an axis, or the reason why there is none."""
    x, updates, length, count = m.x, m.updates, m.x.shape.lens[axis], len(row)
    places = row.astype(np.int64)
    places = np.where(places < 0, places + length, places)
    if places[0] < 0 or places[-1] >= length:
        return "an index is out of range"
    steps = np.diff(places)
    if steps.size and (steps[0] < 1 or (steps != steps[0]).any()):
        return "indices are not an ascending range"
    if count * _LEAST_SHARE < length:
        return "few elements are updated"
    step = int(steps[0]) if steps.size else 1
    phase = int(places[0]) % step
    start = int(places[0]) - phase
    end = start + count * step
    if end > length:
        return "the last update is not followed by a whole step"
    if step == 1:
        return _joined(b, x, axis, start, updates, end)
    inside = b.reshape(_cut(b, x, axis, start, end), _split(x.shape.lens, axis, (count, step)))
    new = _joined(b, inside, axis + 1, phase, b.op("unsqueeze", updates, axes=(axis + 1,)), phase + 1)
    return _joined(b, x, axis, start, b.reshape(new, _split(x.shape.lens, axis, (count * step,))), end)


def _split(lens: tuple[int, ...], axis: int, parts: tuple[int, ...]) -> tuple[int, ...]:
    return (*lens[:axis], *parts, *lens[axis + 1 :])


def _cut(b: RewriteBuilder, x: Instruction, axis: int, start: int, end: int) -> Instruction:
    """Return ``x[start:end]`` along an axis."""
    whole = start == 0 and end == x.shape.lens[axis]
    return x if whole else b.op("slice", x, axes=(axis,), starts=(start,), ends=(end,))


def _joined(b: RewriteBuilder, x: Instruction, axis: int, start: int, new: Instruction, end: int) -> Instruction:
    """Return ``x`` with ``new`` in place of ``x[start:end]``."""
    parts = [new]
    if start:
        parts.insert(0, _cut(b, x, axis, 0, start))
    if end < x.shape.lens[axis]:
        parts.append(_cut(b, x, axis, end, x.shape.lens[axis]))
    return b.op("concat", *parts, axis=axis) if len(parts) > 1 else new


SCATTER_RULES = (scatter_of_range, scatternd_of_range)
