"""Lengths that kernels of the CPU count: positions, suppressed boxes, ranges; and the stages that meet between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

import mgx_numba as migraphx
from mgx_numba.api.program import program as public_program
from mgx_numba.core.counted_elements import evenly_spaced
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import MgxError, ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.program import Program
from mgx_numba.ops import selection
from mgx_numba.ops.base import make_op
from mgx_numba.session import InferenceSession
from mgx_numba.targets import dynamic
from mgx_numba.targets.cpu.rules import counted, ordering
from mgx_numba.targets.ref.interpreter import evaluate

from ..values import normal
from .models import FLOAT, INT64, Feeds, Graph

SHAPES = ((1,), (7,), (8,), (33,), (0,), (5, 3), (3, 17), (4, 0, 2), (2, 3, 4, 19), (1, 1), (64, 65), (2, 1, 3, 1, 5))
DTYPES = ("bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "float16", "float32", "float64")


def positions(lens: tuple[int, ...], type_: Type, *views: tuple[str, dict[str, object]]) -> Program:
    """A program that finds the positions of a tensor, after operators with one input."""
    program = Program()
    x = program.main.add_parameter("x", Shape(type_, lens))
    for name, attributes in views:
        x = program.main.add_instruction(name, [x], **attributes)
    program.main.add_return([program.main.add_instruction("nonzero", [x], use_dyn_output=True)])
    return program


def compiled(program: Program) -> migraphx.program:
    return public_program.wrap(program).compile("cpu", num_threads=1)


def labels_of(program: migraphx.program, feeds: Feeds) -> list[str]:
    found: list[str] = []
    assert program.compiled is not None
    program.compiled.observe(feeds, lambda seen: found.append(seen.label))
    return found


def drawn(lens: tuple[int, ...], dtype: np.dtype, share: float, seed: int) -> np.ndarray:
    """Random numbers of which about a share is not zero, with values that only look like zeros or like numbers."""
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(lens) < share, rng.integers(1, 100, lens), 0).astype(dtype)
    if x.size and dtype.kind not in "biu":
        special = np.array([-0.0, np.nan, np.inf, -np.inf, float(ml_dtypes.finfo(dtype).tiny)], dtype)
        x.flat[rng.integers(0, x.size, 5)] = special
    return x


@pytest.mark.parametrize("lens", SHAPES, ids=str)
def test_positions_are_those_of_numpy(lens: tuple[int, ...]) -> None:
    types = {
        name: Type[f"{ {'float16': 'half', 'float32': 'float', 'float64': 'double'}.get(name, name) }_type"]
        for name in DTYPES
    }
    for number, (name, type_) in enumerate(types.items()):
        program = compiled(positions(lens, type_))
        for seed, share in enumerate((0.0, 0.1, 0.5, 1.0)):
            x = drawn(lens, np.dtype(name), share, seed + number)
            (found,) = program.run({"x": x})
            np.testing.assert_array_equal(np.asarray(found), np.array(np.nonzero(x)), err_msg=f"{name} {share}")
            assert np.asarray(found).dtype == np.int64


def test_positions_are_found_in_transposed_and_sliced_tensors() -> None:
    views = ("transpose", {"permutation": (1, 0, 2)}), ("slice", {"axes": (2,), "starts": (1,), "ends": (9,)})
    program = positions((4, 5, 10), Type.float_type, *views)
    x = normal(4, 5, 10) * (normal(4, 5, 10, seed=1) > 0)
    (found,) = compiled(program).run({"x": x})
    np.testing.assert_array_equal(np.asarray(found), np.array(np.nonzero(x.transpose(1, 0, 2)[:, :, 1:9])))


def test_bfloat16_is_compared_with_zero() -> None:
    x = np.array([0, -0.0, 1, np.nan, np.inf] * 5, ml_dtypes.bfloat16)
    program = positions((25,), Type.bf16_type)
    np.testing.assert_array_equal(evaluate(program, {"x": x})[0], [np.flatnonzero(x.astype(np.float32))])
    (found,) = compiled(program).run({"x": migraphx.argument(x)})
    np.testing.assert_array_equal(np.asarray(found), [np.flatnonzero(x.astype(np.float32))])


def test_a_counted_operator_has_its_elements_and_their_number() -> None:
    x = np.array([[0, 1, 0], [2, 0, 3]], np.float32)
    both, lens = make_op("nonzero", use_dyn_output=True).counted([Shape(Type.float_type, (2, 3))]) or (None, [])
    assert both is not None and lens == [(2, -1)] and both.attributes()["counts"]
    flat, count = both.compute(both.compute_shape([Shape(Type.float_type, (2, 3))]), [x])
    assert count.tolist() == [3] and flat.tolist() == [0, 1, 1, 1, 0, 2, *[0] * 6]
    assert "counts" not in make_op("nonzero").attributes()
    assert make_op("relu").counted([Shape(Type.float_type, (2,))]) is None


@pytest.mark.parametrize("lens", [(0,), (1,), (37,), (5, 33), (3, 4, 17)], ids=str)
def test_padded_positions_need_no_fallback_step(lens: tuple[int, ...]) -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape(Type.float_type, lens))
    program.main.add_return([program.main.add_instruction("nonzero", [x])])
    made = compiled(program)
    for share in (0.0, 0.3, 1.0):
        feeds = {"x": drawn(lens, np.dtype(np.float32), share, 3)}
        found = np.argwhere(feeds["x"]).T
        wanted = np.pad(found, ((0, 0), (0, feeds["x"].size - found.shape[1])))
        np.testing.assert_array_equal(np.asarray(made.run(feeds)[0]), wanted)
        assert not any(label.startswith("ref::") for label in labels_of(made, feeds))


def test_padded_rows_of_boxes_need_no_fallback_step() -> None:
    program = Program()
    main = program.main
    boxes = main.add_parameter("boxes", Shape(Type.float_type, (2, 9, 4)))
    scores = main.add_parameter("scores", Shape(Type.float_type, (2, 3, 9)))
    limits = [main.add_literal(np.array([n], t)) for n, t in ((5, np.int64), (0.3, np.float32), (0.5, np.float32))]
    main.add_return([main.add_instruction("nonmaxsuppression", [boxes, scores, *limits])])
    made = compiled(program)
    for scale in (0.0, 1.0, 9.0):
        feeds = {"boxes": np.abs(normal(2, 9, 4)), "scores": normal(2, 3, 9) * np.float32(scale)}
        np.testing.assert_array_equal(np.asarray(made.run(feeds)[0]), evaluate(program, feeds)[0])
        assert not any(label.startswith("ref::") for label in labels_of(made, feeds))


@pytest.mark.parametrize("opened", [False, True])
def test_rows_behind_counted_positions_need_no_fallback_step(opened: bool) -> None:
    """Boolean indexing as exporters write it; the positions are a result, too, and the whole input is read again."""
    g = Graph()
    found = g.op("Transpose", g.op("NonZero", g.op("Greater", "x", g.const(np.float32(0)))), perm=[1, 0])
    chosen = g.op("GatherND", "x", found)
    scaled = g.op("Mul", chosen, g.op("ReduceSum", "x", keepdims=0))
    program = parse_onnx(g.model({"x": (FLOAT, ["n" if opened else 6, 5])}, [scaled, found, g.op("Relu", "x")]))
    made = compiled(program)
    for n in (6, 6, 6) if not opened else (6, 1, 9, 0, 6, 4):
        for sign in (1, -1):
            x = np.abs(normal(n, 5, seed=n)) * np.float32(sign)
            x[1::2] *= -1
            given = made.run({"x": x})
            assert all(isinstance(r, migraphx.argument) and r.get_shape().lens() == list(r.shape) for r in given)
            results = [np.asarray(r) for r in given]
            for a, b in zip(results, [x[x > 0] * x.sum(), np.argwhere(x > 0), np.maximum(x, 0)], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5)
    assert not any(label.startswith("ref::") for label in labels_of(made, {"x": x}))


def suppression(limit: int) -> onnx.ModelProto:
    g = Graph()
    numbers = (g.const([limit], np.int64), g.const([0.5], np.float32), g.const([0.2], np.float32))
    kept = g.op("NonMaxSuppression", "boxes", "scores", *numbers)
    boxes = g.op("Gather", g.op("Squeeze", "boxes", g.ints(0)), g.op("Gather", kept, g.const(2, np.int64), axis=1))
    return g.model({"boxes": (FLOAT, [1, 30, 4]), "scores": (FLOAT, [1, 3, 30])}, [kept, boxes])


@pytest.mark.parametrize("limit", [0, 1, 5, 1000])
def test_suppressed_boxes_are_counted(limit: int) -> None:
    program = parse_onnx(suppression(limit))
    made = compiled(program)
    for seed, scale in ((0, 1.0), (1, 1.0), (2, 0.1)):  # with the last no score is high enough
        rng = np.random.default_rng(seed)
        feeds = {
            "boxes": rng.random((1, 30, 4), np.float32),
            "scores": rng.random((1, 3, 30), np.float32) * np.float32(scale),
        }
        for a, b in zip(made.run(feeds), evaluate(program, feeds), strict=True):
            np.testing.assert_array_equal(np.asarray(a), b)
    assert limit == 0 or not any(label.startswith("ref::") for label in labels_of(made, feeds))


RANGES = [
    (np.int64, 0, 10, 3), (np.int64, 10, 0, -3), (np.int64, 5, 5, 1), (np.int64, 0, 5, -1), (np.int32, -7, 8, 2),
    (np.int16, 32760, 32767, 1), (np.int64, 2**62, 2**62 + 5, 2), (np.int64, 2**63 - 3, 2**63 - 1, 2),
    (np.float32, 0.0, 1.0, 0.1), (np.float64, 1.0, -1.0, -0.3), (np.float32, 0.0, -1.0, 0.5),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "start", "limit", "delta"), RANGES)
def test_ranges_of_computed_limits(dtype: type, start: float, limit: float, delta: float) -> None:
    count = -((start - limit) // delta) if dtype not in (np.float32, np.float64) else np.ceil((limit - start) / delta)
    wanted = np.array([start + k * delta for k in range(max(0, int(count)))], dtype)
    numbers = [np.array(n, dtype) for n in (start, limit, delta)]
    if dtype in (np.float32, np.float64):  # the step is rounded first
        first, last, step = (n.item() for n in numbers)
        wanted = (first + np.arange(max(0, int(np.ceil((last - first) / step)))) * step).astype(dtype)
    np.testing.assert_array_equal(evenly_spaced(*numbers), wanted)
    assert evenly_spaced(*numbers).dtype == dtype
    g = Graph()
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = g.model({name: (element, []) for name in "abc"}, [g.op("Range", "a", "b", "c")])
    made = compiled(parse_onnx(model))
    for _ in range(2):  # by the general path, then by the fast one
        (found,) = made.run(dict(zip("abc", numbers, strict=True)))
        np.testing.assert_array_equal(np.asarray(found), wanted)
        assert isinstance(found, migraphx.argument) and found.get_shape().lens() == list(wanted.shape)


@pytest.mark.parametrize(
    ("numbers", "error", "message"),
    [
        ((0, 5, 0), ShapeError, "delta is 0"),
        ((0.0, np.inf, 1.0), ShapeError, "no finite count"),
        ((0.0, np.nan, 1.0), ShapeError, "no finite count"),
        ((0, 2**62, 1), MgxError, "not enough memory"),
    ],
)
def test_ranges_without_a_count_are_refused(numbers: tuple[float, ...], error: type[MgxError], message: str) -> None:
    g = Graph()
    element = INT64 if isinstance(numbers[0], int) else FLOAT
    model = g.model({name: (element, []) for name in "abc"}, [g.op("Relu", g.op("Range", "a", "b", "c"))])
    dtype = np.int64 if element == INT64 else np.float32
    made = compiled(parse_onnx(model))
    with pytest.raises(error, match=message):
        made.run({name: np.array(n, dtype) for name, n in zip("abc", numbers, strict=True)})
    good = {name: np.array(n, dtype) for name, n in zip("abc", (0, 3, 1), strict=True)}
    np.testing.assert_array_equal(np.asarray(made.run(good)[0]), [0, 1, 2])


def bytes_behind() -> tuple[onnx.ModelProto, Feeds, list[np.ndarray]]:
    """Bytes are given to the second stage, once as an input and once as a computed tensor."""
    g = Graph()
    where = g.op("Squeeze", g.op("NonZero", "m"), g.ints(0))
    flipped = g.op("BitwiseNot", "b")
    results = [g.op("Gather", flipped, where), g.op("Gather", "b", where), flipped]
    g.opset = 18
    model = g.model({"m": (onnx.TensorProto.BOOL, [9]), "b": (onnx.TensorProto.UINT8, [9])}, results)
    m, b = np.arange(9) % 3 == 0, np.arange(9, dtype=np.uint8) + np.uint8(250)
    return model, {"m": m, "b": b}, [~b[m], b[m], ~b]


def test_bytes_and_arguments_pass_between_the_stages(tmp_path: Path) -> None:
    model, feeds, wanted = bytes_behind()
    made = compiled(parse_onnx(model))
    migraphx.save(made, str(tmp_path / "kept.mxr"))
    onnx.save(model, tmp_path / "model.onnx")
    session = InferenceSession(str(tmp_path / "model.onnx"))
    given = {name: migraphx.argument(value) for name, value in feeds.items()}
    for _ in range(3):
        runs = [made.run(feeds), made.run(given), migraphx.load(str(tmp_path / "kept.mxr")).run(feeds)]
        for results in [*runs, session.run(None, feeds)]:
            for a, b in zip(results, wanted, strict=True):
                np.testing.assert_array_equal(np.asarray(a), b)
                assert np.asarray(a).dtype == b.dtype
    assert all(isinstance(r, migraphx.argument) for run in runs for r in run)


def test_an_index_out_of_range_behind_a_counted_length_is_reported() -> None:
    g = Graph()
    rows = g.op("Gather", "x", g.op("Squeeze", g.op("NonZero", "m"), g.ints(0)))
    made = compiled(parse_onnx(g.model({"m": (FLOAT, [9]), "x": (FLOAT, [4])}, [rows])))
    x = normal(4)
    inside, outside = np.zeros(9, np.float32), np.zeros(9, np.float32)
    inside[1] = outside[7] = 1
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(made.run({"m": inside, "x": x})[0]), x[1:2])
        with pytest.raises(migraphx.MgxError, match="out of range"):
            made.run({"m": outside, "x": x})


def test_results_are_new_arrays() -> None:
    g = Graph()
    found = g.op("NonZero", "x")
    made = compiled(parse_onnx(g.model({"x": (FLOAT, [8])}, [found, g.op("Squeeze", found, g.ints(0))])))
    first = made.run({"x": np.ones(8, np.float32)})
    second = made.run({"x": np.eye(8, dtype=np.float32)[3]})
    np.testing.assert_array_equal(np.asarray(first[0]), [np.arange(8)])
    np.testing.assert_array_equal(np.asarray(first[1]), np.arange(8))
    np.testing.assert_array_equal(np.asarray(second[1]), [3])
    assert np.asarray(second[0]).flags.writeable and np.asarray(second[0]).flags.c_contiguous


@pytest.mark.parametrize("opened", [False, True])
def test_more_elements_than_memory_may_hold_are_found_without_that_room(
    opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions of a mask of 2**30 voxels would have needed room for 25 GB."""
    monkeypatch.setattr(selection, "MOST_COUNTED", 40)
    monkeypatch.setattr(ordering, "MOST_COUNTED", 40)
    monkeypatch.setattr(counted, "MOST_COUNTED", 40)
    g = Graph()
    found = g.op("NonZero", "x")
    made = compiled(parse_onnx(g.model({"x": (FLOAT, ["n" if opened else 9, 3])}, [found])))
    for n in (9, 2, 9, 6, 7) if opened else (9,):
        x = normal(n, 3, seed=n) * (normal(n, 3) > 0)
        np.testing.assert_array_equal(np.asarray(made.run({"x": x})[0]), np.array(np.nonzero(x)))
        hosted = any(label.startswith("ref::") for label in labels_of(made, {"x": x}))
        assert hosted == (2 * 3 * n > 40)


def chosen(g: Graph) -> tuple[str, str]:
    """Positions and values of the elements of s that are greater than 0."""
    found = g.op("Squeeze", g.op("NonZero", g.op("Greater", "s", g.const(np.float32(0)))), g.ints(0))
    return found, g.op("Gather", "s", found)


def chosen_below(g: Graph, values: str, limit: float) -> str:
    below = g.op("NonZero", g.op("Less", values, g.const(np.float32(limit))))
    return g.op("Gather", values, g.op("Squeeze", below, g.ints(0)))  # type: ignore[no-any-return]


def summed(g: Graph, values: str) -> str:
    """The sum by a loop with a trip for each value, from which the loop gathers."""
    trip = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c1"]),
            helper.make_node("Gather", [values, "k"], ["one"]),
            helper.make_node("Add", ["sum", "one"], ["sum1"]),
        ],
        "body",
        [trip("k", INT64, []), trip("c", onnx.TensorProto.BOOL, []), trip("sum", FLOAT, [])],
        [trip("c1", onnx.TensorProto.BOOL, []), trip("sum1", FLOAT, [])],
    )
    return g.op("Loop", g.op("Size", values), g.const(True), g.const(np.float32(0)), body=body)  # type: ignore[no-any-return]


BEHIND: dict[str, tuple[Callable[[Graph, str, str], str], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "chosen again": (lambda g, i, t: chosen_below(g, t, 1.0), lambda i, t: t[t < 1]),
    "tiled": (lambda g, i, t: g.op("Tile", t, g.ints(3)), lambda i, t: np.tile(t, 3)),
    "reversed": (
        lambda g, i, t: g.op("Slice", t, g.ints(-1), g.ints(-9999), g.ints(0), g.ints(-1)),
        lambda i, t: t[::-1],
    ),
    "scattered": (
        lambda g, i, t: g.op("ScatterElements", "s", i, g.op("Neg", t)),
        lambda i, t: t,  # replaced below: the result has the length of s
    ),
    "distinct": (lambda g, i, t: g.op("Unique", g.op("Cast", t, to=INT64)), lambda i, t: np.unique(t.astype(np.int64))),
    "summed by a loop": (lambda g, i, t: summed(g, t), lambda i, t: np.float32(sum(t.tolist()))),
    "padded": (lambda g, i, t: g.op("Pad", t, g.ints(1, 2)), lambda i, t: np.pad(t, (1, 2))),
    "counted": (
        lambda g, i, t: g.op("Range", g.const(0, np.int64), g.op("Size", t), g.const(2, np.int64)),
        lambda i, t: np.arange(0, t.size, 2),
    ),
    "outer": (
        lambda g, i, t: g.op("MatMul", g.op("Unsqueeze", t, g.ints(1)), g.op("Unsqueeze", t, g.ints(0))),
        lambda i, t: np.outer(t, t),
    ),
}


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("name", BEHIND)
def test_any_operator_may_follow_a_counted_length(name: str, opened: bool) -> None:
    """Each was a chain of fallback steps of 50 us, or 4 ms for the loop."""
    build, meaning = BEHIND[name]
    g = Graph(18)
    made = compiled(parse_onnx(g.model({"s": (FLOAT, ["n" if opened else 20])}, [build(g, *chosen(g))])))
    for n in (20, 3, 1, 20, 31) if opened else (20,):
        for seed, shift in ((0, 0.0), (1, 0.0), (2, 9.0), (3, -9.0)):
            s = normal(n, seed=seed) + np.float32(shift)
            positions = np.flatnonzero(s > 0)
            wanted = np.where(s > 0, -s, s) if name == "scattered" else meaning(positions, s[s > 0])
            (found,) = (np.asarray(r) for r in made.run({"s": s}))
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    steps = {label for label in labels_of(made, {"s": normal(20)}) if label.startswith("ref::")}
    assert steps <= {"ref::loop"}


@pytest.mark.parametrize("opened", [False, True])
def test_light_operators_whose_lengths_cannot_be_symbols_stay_in_one_plan(
    opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second stage without a plan for all lengths would be compiled for each number of elements found."""
    make = dynamic.symbolic_program

    def refuse(program: Program, *more: Any) -> Program:
        if any(name.startswith("#") for name in program.parameter_shapes()):
            raise MgxError("no symbols")
        return make(program, *more)

    monkeypatch.setattr(dynamic, "symbolic_program", refuse)
    g = Graph()
    made = compiled(parse_onnx(g.model({"s": (FLOAT, ["n" if opened else 9])}, [g.op("Relu", chosen(g)[1])])))
    for seed in range(3):
        s = normal(9, seed=seed)
        np.testing.assert_array_equal(np.asarray(made.run({"s": s})[0]), s[s > 0])
    assert made.compiled is not None
    plans = made.compiled.own_plans()  # type: ignore[attr-defined]
    assert len(plans) == 1 and bool(plans[0].symbols) == opened
