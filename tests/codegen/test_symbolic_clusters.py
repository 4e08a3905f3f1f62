"""Pointwise clusters and copies whose lengths are symbols: one solution computes NumPy's result at any lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu.planning import plan
from mgx_numba.codegen.problems.cluster import CopyProblem, PointwiseProblem, ReductionProblem
from mgx_numba.core.dim import Length, maximum
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.module import Module

from .symbolic import UNTRIED, Plans, array_of, symbols, tensor


def sum_module(count: int) -> Module:
    module = Module("sum")
    total, *more = [module.add_parameter(f"x{k}", Shape(Type.float_type)) for k in range(count)]
    for one in more:
        total = module.add_instruction("add", [total, one])
    module.add_return([total])
    return module


B, S = symbols("batch", "seq")
LENGTHS = [{B: b, S: s} for b, s in zip((1, 2, 3, 1, 4, 2, 1), (*UNTRIED, 1000))]


@pytest.mark.parametrize(
    "lens, orders, once",
    [
        ((B, S, 24), [(), (), ()], [(), (), ()]),
        ((B, S, 24), [(), (), ()], [(), (0, 1), ()]),
        ((B, S, 24), [(), (1, 0, 2), ()], [(2,), (), ()]),
        ((B, 3, S), [(), (), ()], [(), (1,), ()]),
        ((B, 3, S), [(), (), (0, 2, 1)], [(0, 1), (), ()]),
        ((S, S), [(), (1, 0), ()], [(), (), ()]),
        ((S + B, 5), [(), (), ()], [(), (1,), ()]),
    ],
)
def test_pointwise_of_symbolic_lengths(lens: Any, orders: Any, once: Any) -> None:
    tensors = [tensor(lens, order, once=own) for order, own in zip(orders, once)]
    plans = Plans(PointwiseProblem(sum_module(2), (tensors[0], tensors[1]), (tensors[2],)), plan, 1)
    assert plans.condition == 1
    assert len(plans.texts) == 1
    for values in LENGTHS:
        x, y, out = (array_of(t, values, seed) for seed, t in enumerate(tensors))
        plans.run(values, {"x0": x, "x1": y, "out0": out})
        np.testing.assert_array_equal(out, x + y)


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
@pytest.mark.parametrize(
    "lens, source, target",
    [
        ((B, S, 4, 16), (0, 1, 2, 3), (0, 2, 1, 3)),
        ((B, S, 4, 16), (0, 1, 2, 3), (0, 2, 3, 1)),
        ((B, S, 12), (0, 1, 2), (0, 2, 1)),
        ((B, 3, S), (0, 1, 2), (0, 2, 1)),
        ((S, B + 7), (0, 1), (1, 0)),
        ((B, S, 3), (0, 2, 1), (1, 0, 2)),
        ((B, 2, S, 5), (0, 1, 2, 3), (3, 2, 1, 0)),
    ],
)
def test_copies_of_symbolic_lengths(lens: Any, source: Any, target: Any, dtype: Any) -> None:
    tensors = [tensor(lens, order, dtype) for order in (source, target)]
    plans = Plans(CopyProblem(*tensors), plan)
    assert plans.condition == 1
    assert len(plans.texts) <= 2
    for values in LENGTHS:
        x, out = (array_of(t, values, seed) for seed, t in enumerate(tensors))
        plans.run(values, {"x0": x, "out0": out})
        np.testing.assert_array_equal(out, x)


def test_results_are_streamed_where_all_lengths_are_large() -> None:
    for least, streams in ((0, False), (1 << 29, True)):
        t = tensor((B, S + least))
        plans = Plans(PointwiseProblem(sum_module(2), (t, t), (t,)), plan, 1)
        assert ["store_stream" in text for text in plans.texts] == [streams]


def reduction(kind: str, lens: Sequence[Length], axes: tuple[int, ...]) -> Module:
    """Return the module of a reduction: a sum, a softmax, or a layer normalisation with a factor."""
    module = Module(kind)
    x = module.add_parameter("x0", Shape(Type.float_type, lens))

    def add(name: str, *inputs: Any, **attributes: Any) -> Any:
        return module.add_instruction(name, list(inputs), **attributes)

    def spread(value: Any) -> Any:
        return add("multibroadcast", value, out_lens=tuple(lens))

    if kind == "sum":
        module.add_return([add("reduce_sum", x, axes=axes)])
    elif kind == "softmax":
        e = add("exp", add("sub", x, spread(add("reduce_max", x, axes=axes))))
        module.add_return([add("div", e, spread(add("reduce_sum", e, axes=axes)))])
    else:
        factor = module.add_parameter("x1", Shape(Type.float_type, lens))
        away = add("sub", x, spread(add("reduce_mean", x, axes=axes)))
        variance = add("reduce_mean", add("mul", away, away), axes=axes)
        module.add_return([add("mul", add("mul", away, spread(add("rsqrt", variance))), factor)])
    return module


def reduced(kind: str, axes: tuple[int, ...], x: np.ndarray, factor: np.ndarray | None) -> np.ndarray:
    x = x.astype(np.float64)
    if kind == "sum":
        return np.asarray(x.sum(axes, keepdims=True))
    if kind == "softmax":
        e = np.exp(x - x.max(axes, keepdims=True))
        return np.asarray(e / e.sum(axes, keepdims=True))
    away = x - x.mean(axes, keepdims=True)
    with np.errstate(all="ignore"):
        return np.asarray(away / np.sqrt((away * away).mean(axes, keepdims=True)) * factor)


@pytest.mark.parametrize("kind", ["sum", "softmax", "norm"])
@pytest.mark.parametrize(
    "lens, axes, order, most",
    [
        ((B, S, 48), (2,), (), 1),
        ((B, S, 7), (2,), (), 1),
        ((B, 3, S), (2,), (), 2),
        ((B, S, 24), (1,), (), 2),
        ((B, S, 3), (1,), (), 2),
        ((B, 5, S), (1,), (), 2),
        ((B, S, 6), (1, 2), (), 2),
        ((B, S, 6), (0, 2), (), 1),
        ((B, S, 8), (2,), (1, 0, 2), 1),
        ((S, S), (0,), (), 2),
    ],
)
def test_reductions_of_symbolic_lengths(kind: str, lens: Any, axes: Any, order: Any, most: int) -> None:
    x = tensor(lens, order)
    rows = tuple(1 if a in axes else n for a, n in enumerate(lens))
    out = tensor(rows if kind == "sum" else lens, order)
    factor = tensor(lens, once=range(len(lens) - 1))
    inputs = (x, factor) if kind == "norm" else (x,)
    plans = Plans(ReductionProblem(reduction(kind, lens, axes), axes, inputs, (out,)), plan, most)
    for values in LENGTHS:
        arrays = [array_of(t, values, seed) for seed, t in enumerate(inputs)]
        result = array_of(out, values)
        plans.run(values, {"out0": result, **{f"x{k}": a for k, a in enumerate(arrays)}})
        expected = reduced(kind, axes, arrays[0], arrays[-1])
        known = np.isfinite(expected) & (np.abs(expected) < 1e4)  # a row of one element has no variance
        np.testing.assert_allclose(result[known], expected[known], rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("name, expected", [("reduce_sum", 0), ("reduce_max", -np.inf), ("reduce_mean", np.nan)])
@pytest.mark.parametrize("lens, axis", [((B, maximum(S - 3, 0)), 1), ((B, maximum(S - 3, 0), 24), 1)])
def test_rows_that_may_have_no_elements(lens: Any, axis: int, name: str, expected: float) -> None:
    module = Module("rows")
    x = module.add_parameter("x0", Shape(Type.float_type, lens))
    module.add_return([module.add_instruction(name, [x], axes=(axis,))])
    full, rows = tensor(lens), tensor(tuple(1 if a == axis else n for a, n in enumerate(lens)))
    plans = Plans(ReductionProblem(module, (axis,), (full,), (rows,)), plan)
    for values in ({B: 1, S: 1}, {B: 3, S: 3}, {B: 2, S: 5}):
        given, out = array_of(full, values), array_of(rows, values)
        plans.run(values, {"x0": given, "out0": out})
        reduced = {"reduce_sum": np.sum, "reduce_max": np.max, "reduce_mean": np.mean}[name]
        wanted = reduced(given, axis, keepdims=True) if values[S] > 3 else np.full(out.shape, expected)
        np.testing.assert_allclose(out, wanted, rtol=1e-5)
