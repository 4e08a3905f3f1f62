"""Kernels that move, order and pool elements, of symbolic lengths: NumPy's results at any lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu.data.argreduce import argreduce_launch
from mgx_numba.codegen.cpu.data.detection import PLANES, kept_pitch, suppression_launch
from mgx_numba.codegen.cpu.data.lrn import lrn_launch
from mgx_numba.codegen.cpu.data.onehot import onehot_launch
from mgx_numba.codegen.cpu.data.pad import border_launch, pad_launch
from mgx_numba.codegen.cpu.data.pooling import pooling_launch, windows
from mgx_numba.codegen.cpu.data.row_sort import sort_pitch
from mgx_numba.codegen.cpu.data.scan import scan_launch
from mgx_numba.codegen.cpu.data.scatter import scatter_launch, scatternd_launch
from mgx_numba.codegen.cpu.data.topk import topk_launch
from mgx_numba.codegen.cpu.planning import plan
from mgx_numba.codegen.problems.cluster import NumbersProblem, RangeProblem, Tensor
from mgx_numba.codegen.problems.indexed_copy import gather_copy, gather_elements_copy, gathernd_copy
from mgx_numba.core.dim import Length, evaluate, maximum, minimum
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.ops.base import make_op

from .symbolic import Plans, array_of, symbols, tensor

B, S = symbols("batch", "seq")
LENGTHS = [{B: b, S: s} for b, s in ((1, 1), (2, 3), (1, 17), (3, 40), (5, 131), (1, 600))]
INT = np.int64
Fill = Callable[[Mapping[str, np.ndarray], Mapping[Any, int]], None]


def check(
    plans: Plans,
    tensors: Mapping[str, Tensor],
    fill: Fill,
    result: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]],
    rtol: float = 0,
) -> None:
    """Run a solution at all lengths, with operands as ``fill`` changes random ones, and compare with the result."""
    for values in LENGTHS:
        arrays = {name: array_of(t, values, seed) for seed, (name, t) in enumerate(tensors.items())}
        fill(arrays, values)
        expected = {name: np.array(value) for name, value in result(arrays).items()}
        plans.run(values, arrays)
        for name, value in expected.items():
            np.testing.assert_allclose(arrays[name], value, rtol=rtol, atol=rtol, err_msg=str(values))


def keep(arrays: Mapping[str, np.ndarray], values: Mapping[Any, int]) -> None:
    """Leave random operands as they are."""


def indices_below(
    length: Length, name: str = "indices"
) -> Callable[[Mapping[str, np.ndarray], Mapping[Any, int]], None]:
    def fill(arrays: Mapping[str, np.ndarray], values: Mapping[Any, int]) -> None:
        n = evaluate(length, values)
        arrays[name][...] = np.random.default_rng(0).integers(-n, n, arrays[name].shape)

    return fill


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(
    "data, indices, axis", [((S, 24), (B, 5), 0), ((B, S, 8), (7,), 1), ((3, S), (B,), 1), ((100, 16), (B, S), 0)]
)
def test_gathers(data: Any, indices: Any, axis: int, checked: bool) -> None:
    out = (*data[:axis], *indices, *data[axis + 1 :])
    tensors = {"x": tensor(data), "indices": tensor(indices, dtype=INT), "out": tensor(out)}
    plans = Plans(gather_copy(axis, *tensors.values(), checked=checked), plan)
    assert plans.condition == 1
    check(plans, tensors, indices_below(data[axis]), lambda a: {"out": np.take(a["x"], a["indices"], axis)})


def test_gathers_of_elements_and_of_tuples() -> None:
    lens = (B, S, 6)
    tensors = {"x": tensor(lens), "indices": tensor((B, 4, 6), dtype=INT), "out": tensor((B, 4, 6))}
    plans = Plans(gather_elements_copy(1, *tensors.values()), plan)
    expected = lambda a: {"out": np.take_along_axis(a["x"], a["indices"] % a["x"].shape[1], 1)}  # noqa: E731
    check(plans, tensors, indices_below(S), expected)
    tensors = {"x": tensor(lens), "indices": tensor((B, 3, 1), dtype=INT), "out": tensor((B, 3, 6))}
    plans = Plans(gathernd_copy(1, *tensors.values()), plan)
    expected = lambda a: {"out": np.stack([x[i[:, 0]] for x, i in zip(a["x"], a["indices"])])}  # noqa: E731
    check(plans, tensors, indices_below(S), expected)


@pytest.mark.parametrize("combine", ["none", "add"])
def test_scatters(combine: str) -> None:
    tensors = {"indices": tensor((B, 3, 5), dtype=INT), "updates": tensor((B, 3, 5)), "out": tensor((B, S, 5))}
    plans = Plans((*tensors.values(),), lambda t: scatter_launch(combine, 1, *t))

    def expected(a: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        out = a["out"].copy()
        for at in np.ndindex(a["indices"].shape):
            place = (at[0], a["indices"][at], at[2])
            out[place] = a["updates"][at] + (out[place] if combine == "add" else 0)
        return {"out": out}

    check(plans, tensors, indices_below(S), expected)


@pytest.mark.parametrize("combine", ["none", "max"])
def test_scatters_of_tuples(combine: str) -> None:
    tensors = {"indices": tensor((B, 1), dtype=INT), "updates": tensor((B, S, 4)), "out": tensor((B + 3, S, 4))}
    plans = Plans((*tensors.values(),), lambda t: scatternd_launch(combine, *t))

    def expected(a: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        out = a["out"].copy()
        for i, update in zip(a["indices"][:, 0], a["updates"]):
            out[i] = np.maximum(out[i], update) if combine == "max" else update
        return {"out": out}

    check(plans, tensors, indices_below(B + 3), expected)


@pytest.mark.parametrize("order", [(), (0, 2, 1)])
@pytest.mark.parametrize("before, after", [((0, 1, 2), (0, 3, 0)), ((1, 0, 0), (0, 0, 5)), ((0, -1, 0), (0, 2, 0))])
def test_paddings(before: Any, after: Any, order: Any) -> None:
    lens = (B, S, 6)
    padded = tuple(n + p + q for n, p, q in zip(lens, before, after))
    tensors = {"x": tensor(lens, order), "out": tensor(padded, order)}
    value = np.array(1.5, np.float32)
    plans = Plans((*tensors.values(),), lambda t: pad_launch(before, value, *t))

    def expected(a: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        x = a["x"][tuple(slice(max(0, -p), None) for p in before)]
        return {"out": np.pad(x, [(max(0, p), q) for p, q in zip(before, after)], constant_values=1.5)}

    check(plans, tensors, keep, expected)


def test_borders() -> None:
    out = tensor((B, S + 3, 6))
    x = Tensor(out.type, (B, S, 4), out.strides)
    plans = Plans((x, out), lambda t: border_launch((0, 2, 1), np.array(0.5, np.float32), *t))

    def expected(a: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"out": np.pad(a["out"][:, 2:-1, 1:-1], [(0, 0), (2, 1), (1, 1)], constant_values=0.5)}

    check(plans, {"out": out}, keep, expected)


NCHW, NHWC = (0, 1, 2, 3), (0, 2, 3, 1)


@pytest.mark.parametrize("order", [NCHW, NHWC], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("mode", ["max", "average"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"lengths": (3, 3), "stride": (2, 2), "padding": (1, 1)},
        {"lengths": (3, 3), "stride": (1, 1), "padding": (1, 1)},
        {"lengths": (5, 7), "stride": (1, 1), "padding": (2, 3)},
        {"dyn_global": True},
    ],
    ids=["small", "overlapping", "large", "global"],
)
def test_pooling(attributes: Any, mode: str, order: Any) -> None:
    op = make_op("pooling", mode=mode, **attributes)
    lens = (B, 5, S, S + 1)
    whole = "dyn_global" in attributes
    step = attributes.get("stride", (1, 1))[0]
    out = (B, 5, 1, 1) if whole else (B, 5, (S - 1) // step + 1, S // step + 1)
    tensors = {"x": tensor(lens, order), "out": tensor(out, order)}
    plans = Plans((*tensors.values(),), lambda t: pooling_launch(op, windows(op, lens, out), *t))
    assert plans.condition == 1

    def expected(a: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        shape = op.compute_shape([Shape(Type.float_type, a["x"].shape)])
        assert shape.lens == a["out"].shape
        return {"out": op.compute(shape, [a["x"]])}

    tried = [v for v in LENGTHS if v[S] < 100]
    for values in tried:
        arrays = {name: array_of(t, values) for name, t in tensors.items()}
        result = expected(arrays)["out"]
        plans.run(values, arrays)
        np.testing.assert_allclose(arrays["out"], result, rtol=1e-4, atol=1e-4, err_msg=str(values))


@pytest.mark.parametrize("order", [(), (0, 2, 1)])
@pytest.mark.parametrize("lens, axis", [((B, S, 6), 2), ((B, S, 6), 1), ((B, 20, S), 1), ((B, 5, S), 2)])
def test_positions_of_extremes(lens: Any, axis: int, order: Any) -> None:
    rows = tuple(1 if a == axis else n for a, n in enumerate(lens))
    tensors = {"x": tensor(lens, order), "out": tensor(rows, dtype=INT)}
    plans = Plans((*tensors.values(),), lambda t: argreduce_launch(True, False, axis, *t))
    assert plans.condition == 1
    check(plans, tensors, keep, lambda a: {"out": np.argmax(a["x"], axis, keepdims=True)})


@pytest.mark.parametrize("exclusive, reverse", [(False, False), (True, True)])
@pytest.mark.parametrize("lens, axis", [((B, S), 1), ((B, S, 6), 1), ((S, B), 0), ((B, 3, S), 1)])
def test_running_sums(lens: Any, axis: int, exclusive: bool, reverse: bool) -> None:
    tensors = {"x": tensor(lens), "out": tensor(lens)}
    plans = Plans((*tensors.values(),), lambda t: scan_launch(axis, exclusive, reverse, *t))
    assert plans.condition == 1

    def expected(a: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        x = np.flip(a["x"], axis).astype(np.float64) if reverse else a["x"].astype(np.float64)
        total = x.cumsum(axis) - (x if exclusive else 0)
        return {"out": np.flip(total, axis) if reverse else total}

    check(plans, tensors, keep, expected, 1e-3)


@pytest.mark.parametrize(
    "lens, axis, k",
    [
        ((B, S + 4), 1, 3),
        ((B, S + 4, 5), 1, 4),
        ((S, 40), 1, 40),
        ((B, S), 1, minimum(S, 20)),
        ((B, 9), 1, minimum(B - 1, 4)),
        ((B, S + 60), 1, S),
        ((2, S + 1000), 1, S),
        ((B, S + 12), 1, 12),
    ],
)
def test_selections(lens: Any, axis: int, k: int) -> None:
    some = tuple(k if a == axis else n for a, n in enumerate(lens))
    tensors = {"x": tensor(lens), "values": tensor(some), "positions": tensor(some, dtype=INT)}
    plans = Plans((*tensors.values(),), lambda t: topk_launch(k, axis, True, *t))
    assert plans.condition == 1

    def expected(a: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        at = np.argsort(-a["x"], axis, kind="stable").take(range(a["values"].shape[axis]), axis)
        return {"values": np.take_along_axis(a["x"], at, axis), "positions": at}

    check(plans, tensors, keep, expected)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_one_hot_encodings(axis: int) -> None:
    lens = [B, S]
    lens.insert(axis, 7)
    tensors = {"indices": tensor((B, S), dtype=INT), "values": tensor((2,)), "out": tensor(lens)}
    plans = Plans((*tensors.values(),), lambda t: onehot_launch(axis, *t))

    def expected(a: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        place = np.arange(7).reshape([7 if k == axis else 1 for k in range(3)])
        return {"out": np.where(np.expand_dims(a["indices"] % 7, axis) == place, a["values"][1], a["values"][0])}

    check(plans, tensors, indices_below(7), expected)


@pytest.mark.parametrize("order", [NCHW, NHWC], ids=["nchw", "nhwc"])
def test_responses_of_neighbours(order: Any) -> None:
    op = make_op("lrn", size=3)
    lens = (B, 12, S, 3)
    tensors = {"x": tensor(lens, order), "out": tensor(lens, order)}
    plans = Plans((*tensors.values(),), lambda t: lrn_launch(op, *t))
    shape = lambda a: Shape(Type.float_type, a["x"].shape)  # noqa: E731
    check(plans, tensors, keep, lambda a: {"out": op.compute(shape(a), [a["x"]])}, 1e-4)


def test_boxes_that_do_not_overlap() -> None:
    op = make_op("nonmaxsuppression", use_dyn_output=True)
    count = maximum(S - 2, 0)
    boxes, scores = tensor((B, count, 4)), tensor((B, 3, count))
    limits = [tensor((1,), dtype=INT), tensor((1,)), tensor((1,))]
    groups, room = minimum(3 * B, 4), minimum(count, 9)

    def solve(given: Any) -> Any:
        return suppression_launch(False, *given, room, groups)

    plans = Plans((boxes, scores, limits), solve)
    lens = (groups, 2, sort_pitch(count))
    tensors = {
        "boxes": boxes, "scores": scores, "picked": tensor((3 * B, room), dtype=INT),
        "counts": tensor((3 * B,), dtype=INT), "keys": tensor(lens, dtype=np.uint32),
        "places": tensor(lens, dtype=np.int32),
        "planes": tensor((groups, len(PLANES), kept_pitch(room)), dtype=np.float64),
        **{f"limit{k}": t for k, t in enumerate(limits)},
    }  # fmt: skip
    for values in LENGTHS[:4]:
        arrays = {name: array_of(t, values, seed) for seed, (name, t) in enumerate(tensors.items())}
        arrays["limit0"][0], arrays["limit1"][0], arrays["limit2"][0] = 9, 0.3, -2
        given = [arrays[name] for name in ("boxes", "scores", "limit0", "limit1", "limit2")]
        expected = op.compute(op.compute_shape([Shape(Type.float_type, g.shape) for g in given]), given)
        plans.run(values, arrays)
        found = [
            (row // 3, row % 3, box)
            for row, count in enumerate(arrays["counts"])
            for box in arrays["picked"][row, :count]
        ]
        np.testing.assert_array_equal(np.array(found).reshape(-1, 3), expected)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32, np.float16])
def test_numbers_that_follow_from_lengths(dtype: Any) -> None:
    values = (S, 7, B * S - 3, -B, S // 2, minimum(B, S))
    for lens in ((6,), (2, 3), (1, 6, 1)):
        for order in ((), tuple(range(len(lens)))[::-1]):
            out = tensor(lens, order, dtype)
            plans = Plans(NumbersProblem(values, out), plan, 1)
            expected = lambda v, lens=lens: [np.reshape([evaluate(n, v) for n in values], lens)]  # noqa: E731
            for lengths in LENGTHS:
                result = array_of(out, lengths)
                plans.run(lengths, {"out": result})
                np.testing.assert_array_equal(result, expected(lengths)[0])
    kernels = {Plans(NumbersProblem(values[:n], tensor((n,), (), dtype)), plan).texts[0] for n in (1, 3, 5)}
    assert len(kernels) == 1


def test_a_scalar_that_is_a_length() -> None:
    plans = Plans(NumbersProblem((S,), Tensor(Type.int64_type, (), ())), plan, 1)
    out = np.zeros((), np.int64)
    plans.run({B: 1, S: 9}, {"out": out})
    assert out == 9


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32, np.float64, np.int16])
@pytest.mark.parametrize("start, step", [(0, 1), (B, 3), (S - 5, -B), (None, None), (2, None)])
def test_ranges(start: Any, step: Any, dtype: Any) -> None:
    out = tensor((S + B,), dtype=dtype)
    plans = Plans(RangeProblem(out, start, step), plan, 1)
    assert plans.condition == 1
    given = {"start": np.array([3.5], dtype), "step": np.array([-0.25 if np.dtype(dtype).kind == "f" else -2], dtype)}
    for values in LENGTHS:
        own = {
            name: array[0].item() if n is None else evaluate(n, values)
            for (name, array), n in zip(given.items(), (start, step))
        }
        result = array_of(out, values)
        plans.run(values, {"out": result, **given})
        np.testing.assert_array_equal(result, (own["start"] + np.arange(len(result)) * own["step"]).astype(dtype))
