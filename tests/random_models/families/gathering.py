"""Gathers and scatters with valid indices, of either sign."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Builder, Value
from .elementwise import like
from .registry import step

__all__ = []


def _filled(v: Value) -> bool:
    return v.rank > 0 and v.array.size > 0


def indices(b: Builder, lens: Any, below: int, type: Any = None) -> Value:
    """Return indices of an axis with ``below`` elements."""
    array = np.asarray(b.rng.integers(-below if b.chance(2) else 0, below, lens), type or b.pick((np.int64, np.int32)))
    return b.constant(array) if b.outer is not None or b.chance(2) else b.input(array)


@step(3)
def gather(b: Builder) -> Any:
    x = b.tensor(_filled)
    if not x.array.size:
        return None
    axis = b.integer(0, x.rank - 1)
    lens = () if b.chance(4) else b.lens((1, 2), 12, (1, 2, 3, 4))
    if not b.shape_elements(*x.lens[:axis], *x.lens[axis + 1 :], *lens):
        return None
    return b.node("Gather", [x, indices(b, lens, x.lens[axis])], axis=axis - x.rank if b.chance(3) else axis)


@step()
def gather_computed(b: Builder) -> Any:
    """Indices that the graph itself computes."""
    x = b.tensor(_filled)
    i = b.value(lambda v: v.type in (np.int64, np.int32) and v.array.size > 0 and v.rank < 3 and not v.constant)
    if i is None or not x.array.size:
        return None
    axis = b.integer(0, x.rank - 1)
    if not b.shape_elements(*x.lens[:axis], *x.lens[axis + 1 :], *i.lens):
        return None
    safe = b.node("Mod", [i, b.constant(x.lens[axis], i.type)])
    return b.node("Gather", [x, safe], axis=axis) if safe else None


@step()
def gather_elements(b: Builder) -> Any:
    x = b.tensor(_filled)
    if not x.array.size:
        return None
    axis = b.integer(0, x.rank - 1)
    lens = [b.integer(1, 5) if a == axis else b.integer(1, n) for a, n in enumerate(x.lens)]
    return b.node("GatherElements", [x, indices(b, lens, x.lens[axis])], axis=axis)


@step()
def index_out_of_range(b: Builder) -> Any:
    """Append indices, from the caller or constant, one of which is out of range; a result needs them, so this is an
    error."""
    x = b.tensor(_filled)
    if not x.array.size or b.outer is not None:
        return None
    axis = b.integer(0, x.rank - 1)
    n = x.lens[axis]
    op = b.pick(("Gather", "GatherElements", "ScatterElements"))
    lens = (
        b.lens((1, 2), 12, (1, 2, 3, 4))
        if op == "Gather"
        else tuple(1 if a == axis else m for a, m in enumerate(x.lens))
    )
    if not np.prod(lens) or not b.shape_elements(*x.lens[:axis], *x.lens[axis + 1 :], *lens):
        return None
    if x.type == np.bool_ and op == "ScatterElements":
        return None
    where = b.input(np.asarray(b.rng.integers(-n, n, lens), b.pick((np.int64, np.int32))))
    made = b.node(op, [x, where, *([b.new(lens, x.type)] if op == "ScatterElements" else [])], axis=axis)
    if made is None:
        return None
    wrong = where.array.copy()
    wrong.reshape(-1)[b.integer(0, wrong.size - 1)] = b.pick((n, n + 3, -n - 1, np.iinfo(wrong.dtype).max))
    b.wrong[where.name] = wrong
    return b.leaf(made)


def _tuples(b: Builder, lens: tuple[int, ...], depth: int, batch: tuple[int, ...], rows: tuple[int, ...]) -> np.ndarray:
    columns = [b.rng.integers(-n if b.chance(3) else 0, n, (*batch, *rows)) for n in lens[len(batch) :][:depth]]
    return np.stack(columns, -1).astype(np.int64)


@step()
def gather_nd(b: Builder) -> Any:
    x = b.tensor(_filled)
    if not x.array.size:
        return None
    batch = b.integer(0, x.rank - 1) if b.chance(3) else 0
    depth = b.integer(1, x.rank - batch)
    rows = b.lens((0, 2), 12, (1, 2, 3, 4))
    if not b.shape_elements(*x.lens[:batch], *rows, *x.lens[batch + depth :]):
        return None
    array = _tuples(b, x.lens, depth, x.lens[:batch], rows)
    return b.node("GatherND", [x, b.constant(array)], batch_dims=batch)


@step(2)
def scatter_elements(b: Builder) -> Any:
    x = b.tensor(lambda v: _filled(v) and v.type != np.bool_)
    if not x.array.size or x.type == np.bool_:
        return None
    axis = b.integer(0, x.rank - 1)
    n = x.lens[axis]
    reduction = b.pick(("none", "add", "mul", "max", "min")) if b.opset >= 18 else None
    lens = [b.integer(1, m) for m in x.lens]
    if reduction in (None, "none"):  # the order of updates to one element is undefined
        order = np.argsort(b.rng.random((*lens[:axis], n, *lens[axis + 1 :])), axis)
        array = np.take(order, range(lens[axis]), axis)
        where = b.constant(np.where(b.rng.integers(0, 2, array.shape), array, array - n), np.int64)
    else:
        where = indices(b, lens, n)
    return b.node("ScatterElements", [x, where, b.new(lens, x.type)], axis=axis, reduction=reduction)


@step(2)
def scatter_nd(b: Builder) -> Any:
    x = b.tensor(lambda v: _filled(v) and v.type != np.bool_)
    if not x.array.size or x.type == np.bool_:
        return None
    depth = b.integer(1, x.rank)
    reduction = b.pick(("none", "add", "mul", "max", "min")) if b.opset >= 18 else None
    if reduction in (None, "none"):
        places = b.rng.permutation(int(np.prod(x.lens[:depth])))[: b.integer(1, 4)]
        array = np.stack(np.unravel_index(places, x.lens[:depth]), -1)
    else:
        array = _tuples(b, x.lens, depth, (), (b.integer(1, 4),))
    updates = b.new((array.shape[0], *x.lens[depth:]), x.type)
    return b.node("ScatterND", [x, b.constant(array, np.int64), updates], reduction=reduction)


@step()
def one_hot(b: Builder) -> Any:
    lens = b.lens((0, 2), 30, (1, 2, 3, 5))
    depth = b.integer(1, 5)
    array = b.rng.integers(-depth - 1, depth + 1, lens)  # those beyond the depth give a row of the off value
    type = b.pick((np.float32, np.int64, np.int32))
    values = b.constant([b.integer(0, 2), b.integer(3, 5)], type)
    where = b.input(np.asarray(array, np.int64)) if b.outer is None else b.constant(array, np.int64)
    return b.node("OneHot", [where, b.ints(depth), values], axis=b.integer(-1, len(lens)))


@step()
def embedding_and_add(b: Builder) -> Any:
    """Rows of a table added to something of their shape."""
    table = b.constant(b.rng.standard_normal((b.integer(2, 9), b.pick((4, 8, 17)))), np.float32)
    made = b.node("Gather", [table, indices(b, b.lens((1, 2), 20, (1, 2, 3, 5)), table.lens[0])])
    return b.node("Add", [made, like(b, made)]) if made else None
