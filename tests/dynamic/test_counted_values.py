"""Distinct elements that kernels of the CPU find and count."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import mgx_numba as migraphx
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.ops.base import make_op

from ..values import normal
from .models import FLOAT, Graph
from .test_counted_lengths import compiled, labels_of

LENS = ((2,), (7,), (8,), (33,), (1000,), (5, 3), (2, 3, 4, 19))
DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
)
RESULTS = [f"r{k}" for k in range(4)]


def distinct(element: int, lens: list[int | str], results: list[str] = RESULTS, **attributes: int) -> onnx.ModelProto:
    """Return a model of one Unique, whose outputs are the results named in ``results``."""
    names = [name if name in results else "" for name in RESULTS]
    node = onnx.helper.make_node("Unique", ["x"], names, **attributes)
    own = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in results]
    graph = onnx.helper.make_graph([node], "g", [onnx.helper.make_tensor_value_info("x", element, lens)], own)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)


def expected(x: np.ndarray, ascending: bool) -> list[np.ndarray]:
    """The four results, by a dictionary of the elements: zeros of either sign are equal, and so are all NaN."""
    places: dict[object, list[int]] = {}
    for k, v in enumerate(x.reshape(-1).tolist()):
        places.setdefault("nan" if v != v else v, []).append(k)
    keys = list(places)
    if ascending:
        keys.sort(key=lambda v: np.inf if v == "nan" else v)
        if "nan" in places:
            keys.remove("nan")
            keys.append("nan")
    first = np.array([places[v][0] for v in keys], np.int64)
    inverse = np.zeros(x.size, np.int64)
    for k, v in enumerate(keys):
        inverse[places[v]] = k
    return [x.reshape(-1)[first], first, inverse, np.array([len(places[v]) for v in keys], np.int64)]


def drawn(lens: tuple[int, ...], dtype: np.dtype, limit: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    low = -limit if dtype.kind in "if" else 0
    x = np.asarray(rng.integers(max(low, -100), min(limit, 100), lens)).astype(dtype)
    if dtype.kind == "f":
        x.flat[rng.integers(0, x.size, 6)] = [-0.0, 0.0, np.nan, np.inf, -np.inf, -np.nan]
    elif dtype.kind != "b":
        x.flat[rng.integers(0, x.size, 2)] = [np.iinfo(dtype).min, np.iinfo(dtype).max]
    return x


@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_distinct_elements_are_counted_without_a_fallback_step(dtype: str, ascending: bool) -> None:
    """A fallback step took 60 us for 50 elements, ONNX Runtime 13 us."""
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for seed, lens in enumerate(LENS):
        made = compiled(parse_onnx(distinct(element, list(lens), sorted=int(ascending))))
        for limit in (1, 3, 100):
            x = drawn(lens, np.dtype(dtype), limit, seed)
            for own, other in zip(made.run({"x": x}), expected(x, ascending), strict=True):
                np.testing.assert_array_equal(np.asarray(own), other)
                assert np.asarray(own).dtype == other.dtype
                if other.dtype.kind == "f":
                    numbers = ~np.isnan(other)
                    np.testing.assert_array_equal(np.signbit(own)[numbers], np.signbit(other)[numbers])
        assert not any(label.startswith("ref::") for label in labels_of(made, {"x": x}))


@pytest.mark.parametrize("results", [["r0"], ["r2", "r3"], ["r1"]], ids=str)
def test_some_of_the_results_may_be_wanted(results: list[str]) -> None:
    made = compiled(parse_onnx(distinct(FLOAT, [40], results)))
    x = drawn((40,), np.dtype("float32"), 4, 0)
    for own, name in zip(made.run({"x": x}), results, strict=True):
        np.testing.assert_array_equal(np.asarray(own), expected(x, True)[RESULTS.index(name)])
    assert not any(label.startswith("ref::") for label in labels_of(made, {"x": x}))


@pytest.mark.parametrize("ascending", [True, False])
def test_distinct_elements_of_open_lengths(ascending: bool) -> None:
    made = compiled(parse_onnx(distinct(FLOAT, ["n", 3], sorted=int(ascending))))
    for n in (5, 2, 0, 40, 1, 5):
        x = np.round(normal(n, 3, seed=n))
        for own, other in zip(made.run({"x": x}), expected(x, ascending), strict=True):
            np.testing.assert_array_equal(np.asarray(own), other)
    assert not any(label.startswith("ref::") for label in labels_of(made, {"x": normal(5, 3)}))


def test_the_only_axis_of_a_vector_gives_elements_and_slices_stay_in_a_fallback_step() -> None:
    x = np.round(normal(30))
    made = compiled(parse_onnx(distinct(FLOAT, [30], axis=-1)))
    for own, other in zip(made.run({"x": x}), expected(x, True), strict=True):
        np.testing.assert_array_equal(np.asarray(own), other)
    assert not any(label.startswith("ref::") for label in labels_of(made, {"x": x}))
    rows = np.round(normal(30, 2))
    made = compiled(parse_onnx(distinct(FLOAT, [30, 2], axis=0)))
    np.testing.assert_array_equal(np.asarray(made.run({"x": rows})[0]), np.unique(rows, axis=0))


@pytest.mark.parametrize("equal_nan", [True, False])
@pytest.mark.parametrize("ascending", [True, False])
def test_each_nan_may_be_a_value_of_its_own(ascending: bool, equal_nan: bool) -> None:
    program = migraphx.program()
    main = program.get_main_module()
    x = main.add_parameter("x", migraphx.shape(type="float_type", lens=[9]))
    every = main.add_instruction(migraphx.op("unique", sorted=ascending, equal_nan=equal_nan), [x])
    main.add_return([main.add_instruction(migraphx.op("get_tuple_elem", index=k), [every]) for k in range(4)])
    program.compile("cpu", num_threads=1)
    given = np.array([3, np.nan, 1, np.nan, 3, -np.inf, np.nan, 1, -0.0], np.float32)
    op = make_op("unique", sorted=ascending, equal_nan=equal_nan)
    wanted = op.compute(op.compute_shape([Shape(Type.float_type, (9,))]), [given])
    for own, other in zip(program.run({"x": given}), wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(own), other)
    assert not any(label.startswith("ref::") for label in labels_of(program, {"x": given}))


def test_tensors_behind_distinct_elements_are_computed_by_kernels() -> None:
    """Numbers of the nodes of a graph, renumbered: gathers and sums of the rows of each."""
    g = Graph(18)
    values, _, inverse, counts = g.op("Unique", "x", outputs=4)
    rows = g.op("Gather", values, inverse)
    model = g.model({"x": (FLOAT, [50])}, [rows, g.op("Mul", values, g.op("Cast", counts, to=FLOAT))])
    made = compiled(parse_onnx(model))
    for seed in range(3):
        x = np.round(normal(50, seed=seed) * 3)
        y, _, _, n = expected(x, True)
        for own, other in zip(made.run({"x": x}), (x, y * n.astype(np.float32)), strict=True):
            np.testing.assert_array_equal(np.asarray(own), other)
    assert not any(label.startswith("ref::") for label in labels_of(made, {"x": x}))
