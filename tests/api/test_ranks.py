"""Arrays without axes: as inputs and results of every target, in files, as arguments, and through other libraries."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.errors import ParameterError
from mgx_numba.graph.passes import run_passes
from mgx_numba.runtime.cpu import native_call

SCALAR = [("x", [1], [0]), ("v", [1], [1])]
FEEDS = {"x": np.array(3, np.float32), "v": np.array([4], np.float32)}
RANKS = [(), (1,), (), (1,)]


def network(type: str = "float_type", hosted: bool = False, tuples: bool = False) -> migraphx.program:
    """A scalar and a vector of one element: negated, and with 2 added; in a fallback step or as a tuple if asked
    for."""
    net = migraphx.program()
    main = net.get_main_module()
    x, v = (main.add_parameter(n, migraphx.shape(type=type, lens=n_, strides=s)) for n, n_, s in SCALAR)
    two = main.add_literal(migraphx.create_argument(migraphx.shape(type=type, lens=[1], strides=[0]), [2]))
    results = [main.add_instruction(migraphx.op("neg"), [value]) for value in (x, v)]
    results += [main.add_instruction(migraphx.op("add"), [value, two]) for value in (x, v)]
    if hosted:
        results.append(main.add_instruction(migraphx.op("nonzero"), [v]))
    if tuples:
        results.append(main.add_instruction(migraphx.op("topk", axis=0, k=1), [v]))
    main.add_return(results)
    return net


def prepared(target: str | None, **options: Any) -> migraphx.program:
    net = network(**options)
    return net if target is None else net.compile(migraphx.get_target(target))


def check(results: list[Any]) -> None:
    assert [r.shape for r in results[:4]] == RANKS
    assert [np.asarray(r).shape for r in results[:4]] == RANKS
    assert [r.tolist() for r in results[:4]] == [[-3.0], [-4.0], [5.0], [6.0]]
    assert [r.get_shape().strides() for r in results[:4]] == [[0], [1], [0], [1]]
    assert results[0] == -3 and float(results[0]) == -3.0


@pytest.mark.parametrize("options", [{}, {"hosted": True}, {"tuples": True}])
@pytest.mark.parametrize("target", [None, "ref", "cpu"])
def test_results_have_the_rank_of_their_shapes(target: str | None, options: dict[str, bool]) -> None:
    net = prepared(target, **options)
    for _ in range(2):
        check(net.run(FEEDS))
    assert [s.strides() for s in net.get_output_shapes()[:4]] == [[0], [1], [0], [1]]


@pytest.mark.skipif(not native_call.recognises_objects(), reason="an interpreter or NumPy with other objects")
def test_the_native_call_takes_and_gives_arrays_without_axes() -> None:
    net = prepared("cpu")
    net.run(FEEDS)  # leaves a context
    check(net._form.fast_path(FEEDS))
    assert net._form.fast_path({**FEEDS, "x": np.ones(1, np.float32)}) is None


@pytest.mark.parametrize("trace", ["1", "3"])
def test_traced_runs_give_the_same_ranks(trace: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("MIGRAPHX_TRACE_EVAL", trace)
    for target in ("ref", "cpu"):
        check(prepared(target).run(FEEDS))


@pytest.mark.parametrize("form", ["msgpack", "json"])
def test_saved_programs_keep_ranks(form: str, tmp_path: Path) -> None:
    path = tmp_path / "scalars.mxr"
    migraphx.save(prepared("cpu"), path, form)
    for _ in range(2):  # the second time from the plan that the first has kept
        net = migraphx.load(path, form)
        check(net.run(FEEDS))
        check(net.clone().run(FEEDS))


def test_passes_keep_the_ranks_of_results() -> None:
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(type="float_type", lens=[1], strides=[0]))
    flag = main.add_literal(np.array([True]))
    zero = main.add_literal(np.zeros(1, np.float32))
    vector = main.add_instruction(migraphx.op("where"), [flag, x, x])
    sum_ = main.add_instruction(migraphx.op("squeeze", axes=[0]), [main.add_instruction(migraphx.op("add"), [x, zero])])
    main.add_return([vector, sum_])
    feeds = {"x": FEEDS["x"]}
    ranks = [(1,), ()]
    assert [r.shape for r in net.run(feeds)] == ranks
    assert [r.shape for r in net.clone().compile("cpu").run(feeds)] == ranks
    optimized = migraphx.optimize(net.clone()) or net
    assert [r.shape for r in optimized.run(feeds)] == ranks
    passed = net.clone()
    run_passes(passed.portable, ["optimize_module", "fuse_pointwise", "eliminate_contiguous"], validate=True)
    assert [r.shape for r in passed.run(feeds)] == ranks


@pytest.mark.parametrize("target", [None, "ref", "cpu"])
def test_a_dynamic_length_of_one_keeps_its_axis(target: str | None) -> None:
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(type="float_type", dyn_dims=[migraphx.shape.dynamic_dimension(1, 4)]))
    two = main.add_literal(np.array(2, np.float32))
    wide = main.add_instruction(migraphx.op("multibroadcast"), [two, x])
    main.add_return([wide, two, main.add_instruction(migraphx.op("neg"), [wide])])
    if target is not None:
        net.compile(target)
    for n in (3, 1, 1):
        assert [r.shape for r in net.run({"x": np.ones(n, np.float32)})] == [(n,), (), (n,)]


FORMS = {
    "array": np.array(3, np.float32),
    "vector": np.array([3], np.float32),
    "NumPy scalar": np.float32(3),
    "argument": migraphx.argument(np.array(3, np.float32)),
    "float": 3.0,
    "int": 3,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", [None, "ref", "cpu"])
def test_one_element_is_taken_in_every_form(target: str | None, form: str) -> None:
    check(prepared(target).run({**FEEDS, "x": FORMS[form]}))


@pytest.mark.parametrize("value", [2.5, 2, True, float("nan"), float("inf")])
@pytest.mark.parametrize("type", ["float_type", "half_type", "double_type", "bf16_type"])
def test_python_numbers_become_floats(type: str, value: float) -> None:
    (x, *_) = network(type).run({"x": value, "v": value})
    np.testing.assert_array_equal(np.asarray(x).astype(np.float64), -float(value))


def test_python_numbers_become_integers_if_they_are() -> None:
    for value in (5, True):
        assert network("int32_type").run({"x": value, "v": value})[0] == -int(value)


REFUSED = [
    (
        "int32_type",
        2.5,
        "parameter x: the Python float 2.5 is not converted to int32_type; expected int32_type, {1}, {0}",
    ),
    ("bool_type", 1, "the Python int 1 is not converted to bool_type"),
    ("int8_type", 300, "out of the range of int8_type"),
    ("uint8_type", -1, "out of the range of uint8_type"),
    ("float_type", 1 << 2000, "out of the range of float_type"),
    ("float_type", np.float64(2), "double_type.*.*astype.'float32'"),
    ("float_type", np.array(2.0), r"convert it, for instance by .astype\('float32'\)"),
    ("bf16_type", np.array(2.0), r"convert it, for instance by .astype\('bfloat16'\)"),
    ("float_type", np.array([1, 2], np.float32), "Incorrect shape {float_type, {2}, {1}}"),
]


@pytest.mark.parametrize(("type", "value", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_would_change_is_refused(type: str, value: Any, message: str) -> None:
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(type=type, lens=[1], strides=[0]))
    main.add_return([main.add_instruction(migraphx.op("identity"), [x])])
    with pytest.raises(ParameterError, match=message.replace("{", r"\{")):
        net.run({"x": value})


def test_python_numbers_are_one_element() -> None:
    net = migraphx.program()
    main = net.get_main_module()
    main.add_return([main.add_parameter("x", migraphx.shape(type="float_type", lens=[3]))])
    with pytest.raises(ParameterError, match="Incorrect shape"):
        net.run({"x": 1.0})


DTYPES = [np.float32, np.int64, np.bool_, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arguments_of_scalars_have_no_axes(dtype: Any, tmp_path: Path) -> None:
    path = tmp_path / "scalar.msgpack"
    given = np.array(1, dtype)
    arg = migraphx.argument(given)
    assert (arg.shape, arg.dtype, arg.data_ptr()) == ((), given.dtype, given.__array_interface__["data"][0])
    assert (arg.get_shape().lens(), arg.get_shape().strides(), arg.tolist()) == ([1], [0], given.reshape(1).tolist())
    migraphx.argument.save(arg, path)
    made = [migraphx.argument.load(path), migraphx.generate_argument(arg.get_shape()), migraphx.argument(arg)]
    made += [migraphx.create_argument(arg.get_shape(), [1]), migraphx.fill_argument(arg.get_shape(), 1)]
    made.append(migraphx.argument_from_pointer(arg.get_shape(), arg.data_ptr()))
    assert [m.shape for m in made] == [()] * len(made)
    assert [str(m.get_shape()) for m in made] == [str(arg.get_shape())] * len(made)
    assert made[0] == arg
    assert migraphx.argument(np.ones(1, dtype)).shape == (1,)


class Exporter:
    """A tensor of another library: it speaks DLPack and nothing else."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_scalars_cross_dlpack_without_axes(dtype: Any) -> None:
    arg = migraphx.argument(np.array(1, dtype))
    back = migraphx.argument(Exporter(arg))
    assert (back.shape, back.data_ptr(), back.dtype) == ((), arg.data_ptr(), arg.dtype)
    if dtype is np.float32:
        assert np.from_dlpack(arg).shape == ()
        assert network().run({**FEEDS, "x": Exporter(FEEDS["x"])})[0].shape == ()


def test_scalars_are_buffers_without_axes() -> None:
    view = memoryview(migraphx.argument(np.array(2, np.float32)))
    assert (view.ndim, view.shape, view.tobytes()) == (0, (), struct.pack("f", 2))
