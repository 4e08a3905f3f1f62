"""Deferred nodes: the fields that they store, equality, and damaged nodes."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mgx_numba
from mgx_numba.api.program import program as public_program
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import MgxError, ParseError, UnsupportedError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.program import Program
from mgx_numba.graph.specialize import specialize
from mgx_numba.graph.validate import validate
from mgx_numba.ops.deferred import Deferred
from mgx_numba.targets.cpu import lower, restored
from mgx_numba.targets.ref import interpreter
from mgx_numba.targets.ref.interpreter import evaluate

from ..values import normal
from .models import FLOAT, INT64, MODELS, Graph


def tiled(dims: list[int | str | None], op_type: str = "Tile") -> Program:
    """Return a program of one node with two inputs: data and a vector of two integers."""
    g = Graph()
    return parse_onnx(g.model({"x": (FLOAT, dims), "n": (INT64, [2])}, [g.op(op_type, "x", "n")]))


def deferred(program: Program) -> list[Deferred]:
    return [ins.op for ins in program.main if isinstance(ins.op, Deferred)]


def test_ranks_are_known_where_anything_tells_them() -> None:
    assert str(tiled([2, 3]).output_shapes()[0]).startswith("dynamic, float_type, {[0..")
    assert tiled([2, 3, 4], "Reshape").output_shapes()[0].ndim == 2
    g = Graph()
    model = g.model({"x": (FLOAT, [4, 6]), "n": (INT64, ["k"])}, [g.op("Abs", g.op("Reshape", "x", "n"))])
    program = parse_onnx(model)
    assert str(program.output_shapes()[0]) == "dynamic, float_type, {...}"
    validate(program)
    x = normal(4, 6)
    for lens in ((24,), (2, 3, 4), (24, 1, 1, 1)):
        (result,) = evaluate(program, {"x": x, "n": np.array(lens)})
        np.testing.assert_array_equal(result, np.abs(x).reshape(lens))


def test_a_length_that_onnx_does_not_infer_is_not_0() -> None:
    """ONNX takes heads of unknown length for empty ones."""
    g = Graph(opset=23)
    y = g.op("Attention", "q", "k", "v", q_num_heads=6, kv_num_heads=3)
    inputs = {"q": (FLOAT, [1, 5, 12]), "k": (FLOAT, [1, "t", "k"]), "v": (FLOAT, [1, "t", "v"])}
    program = parse_onnx(g.model(inputs, [g.op("Add", y, g.weights(12))]))
    assert program.output_shapes()[0].dims[2].max > 0
    q, k, v = normal(1, 5, 12), normal(1, 4, 6, seed=1), normal(1, 4, 6, seed=2)
    (result,) = evaluate(program, {"q": q, "k": k, "v": v})
    assert result.shape == (1, 5, 12) and np.isfinite(result).all()


def test_types_are_found_for_lengths_that_constants_have() -> None:
    """An operator that ONNX does not know; its inputs must have 33 columns."""
    g = Graph()
    one, zero = g.const(np.float32(0.5)), g.const(np.int8(3))
    parts = ("x", one, zero, g.const(np.ones((33, 5), np.int8)), one, zero, "", one, zero)
    model = g.model({"x": (TensorProto.INT8, ["m", "k"])}, [g.op("QGemm", *parts, domain="com.microsoft")])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    program = parse_onnx(model)
    assert program.output_shapes()[0].type is Type.int8_type
    (result,) = evaluate(program, {"x": np.ones((2, 33), np.int8)})
    assert result.shape == (2, 5) and result.dtype == np.int8


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_tensor_of_unknown_rank_may_have_no_axes(shape: tuple[int, ...]) -> None:
    g = Graph()
    y = g.op("Reshape", "x", "n")
    program = parse_onnx(g.model({"x": (FLOAT, [1]), "n": (INT64, ["k"])}, [y, g.op("Shape", g.op("Neg", y))]))
    result, lengths = evaluate(program, {"x": normal(1), "n": np.array(shape, np.int64)})
    assert result.shape == shape and lengths.tolist() == list(shape)


def test_lengths_settle_what_they_tell_and_leave_the_rest() -> None:
    g = Graph()
    y = g.op("Reshape", "x", g.vector(g.dim("x", 0), 2, 2))
    program = parse_onnx(g.model({"x": (FLOAT, ["n", 4]), "r": (INT64, [3])}, [g.op("Tile", y, "r")]))
    settled = specialize(program, {"x": (3, 4)})
    assert [op.operator for op in deferred(settled)] == ["Tile"]


def test_nodes_with_subgraphs_keep_what_these_capture() -> None:
    body = helper.make_graph([helper.make_node("Tile", ["x", "n"], ["t"])], "then", [], [onnx.ValueInfoProto(name="t")])
    other = helper.make_graph([helper.make_node("Abs", ["x"], ["a"])], "else", [], [onnx.ValueInfoProto(name="a")])
    g = Graph()
    y = g.op("If", "c", then_branch=body, else_branch=other)
    shapes = {"c": (onnx.TensorProto.BOOL, ["k"]), "x": (FLOAT, [2, 3]), "n": (INT64, [2])}
    program = parse_onnx(g.model(shapes, [y]))
    assert [(op.operator, len(ins.inputs)) for ins in program.main if isinstance(op := ins.op, Deferred)] == [("If", 3)]
    x = normal(2, 3)
    for condition, wanted in ((True, np.tile(x, (2, 1))), (False, np.abs(x))):
        (result,) = evaluate(program, {"c": np.array([condition]), "x": x, "n": np.array([2, 1])})
        np.testing.assert_array_equal(result, wanted)


def test_what_is_wrong_with_the_values_is_told_of_the_node() -> None:
    program = tiled([2, 3])
    with pytest.raises(ParseError, match=r"#0 \(Tile, .*repeats \[-1, 2\] must be one count"):
        evaluate(program, {"x": normal(2, 3), "n": np.array([-1, 2])})


@pytest.mark.parametrize("name", ["quantize_fp16", "quantize_bf16"])
def test_lower_precision_gave_deferred_nodes_types_that_they_do_not_have(name: str) -> None:
    case = MODELS["shuffle_net"]()
    program = public_program.wrap(parse_onnx(case.model))
    feeds = case.draw(np.random.default_rng(6))
    (wanted,) = program.clone().compile("ref").run(feeds)
    getattr(mgx_numba, name)(program)
    (result,) = program.compile("ref").run(feeds)
    a, b = np.asarray(result), np.asarray(wanted)
    assert a.dtype == b.dtype and a.shape == b.shape
    np.testing.assert_allclose(a, b, atol=0.05 * np.abs(b).max())


def test_sources_tell_nodes_apart() -> None:
    def named(mode: str) -> str:
        g = Graph()
        y = g.op("Pad", "x", "p", mode=mode)
        return str(parse_onnx(g.model({"x": (FLOAT, [3, 3]), "p": (INT64, [4])}, [y])))

    assert named("edge") == named("edge") != named("reflect")


@pytest.mark.parametrize("reader", ["onnx", "other"])
def test_damaged_sources_are_errors_of_ours(reader: str) -> None:
    whole = base64.b64decode(deferred(tiled([2, 3]))[0].source)
    rng = np.random.default_rng(1)
    outcomes = set()
    for _ in range(120):
        data = bytearray(whole)
        for place in rng.integers(0, len(data), 2):
            data[place] = rng.integers(0, 256)
        source = base64.b64encode(bytes(data[: rng.integers(1, len(data) + 1)])).decode()
        program = Program()
        inputs = [
            program.main.add_parameter("x", Shape(Type.float_type, (2, 3))),
            program.main.add_literal(np.array([1, 2])),
        ]
        result = Shape.dynamic(Type.float_type, [DynamicDimension(0, 9)] * 2)
        program.main.add_instruction(Deferred("Tile", reader, source, result), inputs)
        try:
            specialize(program, {})
            outcomes.add("read")
        except MgxError as error:
            outcomes.add(type(error).__name__)
    assert outcomes == {"UnsupportedError"} if reader == "other" else "ParseError" in outcomes
    assert issubclass(UnsupportedError, MgxError)


@pytest.mark.parametrize("operator", ["Div", "Sub"])
def test_a_length_that_is_not_known_is_not_the_number_it_is_divided_by(operator: str) -> None:
    g = Graph()
    count = g.op(operator, g.dim("x", 0), g.ints(2))
    y = g.op("Reshape", g.op("Slice", "x", g.ints(0), count, g.ints(0)), g.vector(count, -1))
    program = parse_onnx(g.model({"x": (FLOAT, ["N", 3])}, [y]))
    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    (result,) = public_program.wrap(program).compile("ref").run({"x": x})
    np.testing.assert_array_equal(np.asarray(result), x[: 4 if operator == "Div" else 6])


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_a_length_that_only_a_run_tells_broadcasts_with_a_fixed_length_of_one(target: str) -> None:
    """A range times one number, specialised for lengths, had the shape of the number."""
    g = Graph()
    count = g.op("Squeeze", g.op("Slice", "size", g.ints(0), g.ints(1)))
    positions = g.op("Cast", g.op("Range", g.const(0), count, g.const(1)), to=FLOAT)
    step = g.op("Slice", "x", g.ints(0), g.ints(1))
    scaled = g.op("Add", g.op("Mul", positions, step), step)
    program = parse_onnx(g.model({"x": (FLOAT, ["n"]), "size": (INT64, [1])}, [scaled]))
    compiled = public_program.wrap(program).compile(target)
    for n, size in ((3, 6), (2, 1), (1, 4), (3, 0)):
        x = np.arange(1, n + 1, dtype=np.float32)
        result = np.asarray(compiled.run({"x": x, "size": np.array([size])})[0])
        np.testing.assert_array_equal(result, np.arange(size) * x[0] + x[0])


def sliced(lens: Sequence[int] = (20, 9)) -> mgx_numba.program:
    g = Graph()
    inputs = {"x": (FLOAT, list(lens)), "a": (INT64, [1]), "b": (INT64, [1]), "axes": (INT64, [1])}
    model = g.model(inputs, [g.op("Slice", "x", "a", "b", "axes")])
    return public_program.wrap(parse_onnx(model)).compile("cpu")


def test_a_node_is_expanded_once_for_values_that_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of a slice with computed bounds parsed its node and ran all passes: 0.5 ms."""
    made = sliced()
    count = []
    expand = interpreter._expand
    monkeypatch.setattr(interpreter, "_expand", lambda *args: (count.append(1), expand(*args))[1])
    for seed in range(4):
        for a, b in ((0, 5), (3, -1), (0, 5), (19, 3)):
            x = normal(20, 9, seed=seed)
            (result,) = made.run({"x": x, "a": np.array([a]), "b": np.array([b]), "axes": np.array([0])})
            np.testing.assert_array_equal(np.asarray(result), x[a:b])
    assert len(count) == 3


def test_data_that_no_operator_reads_while_parsing_determine_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements of up to 64 values were literals of the node's program, which was made anew in each run: 0.3 ms."""
    made, count = sliced([4, 3]), []
    expand = interpreter._expand
    monkeypatch.setattr(interpreter, "_expand", lambda *args: (count.append(1), expand(*args))[1])
    for seed in range(4):
        x = normal(4, 3, seed=seed)
        (result,) = made.run({"x": x, "a": np.array([1]), "b": np.array([3]), "axes": np.array([0])})
        np.testing.assert_array_equal(np.asarray(result), x[1:3])
    assert len(count) == 1


def test_programs_of_a_node_that_compute_much_are_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They ran in NumPy: 465 us for a resized image that kernels compute in 20. Plans from files compile them, too.

    A program is compiled when it runs again: values may be others in every run."""
    g, count = Graph(), []
    resized = g.op("Resize", "x", "", "scales", mode="linear")
    program = parse_onnx(g.model({"x": (FLOAT, [1, 2, 9, 40]), "scales": (FLOAT, [4])}, [resized]))
    compiled, reference = (public_program.wrap(program.clone()).compile(target) for target in ("cpu", "ref"))
    mgx_numba.save(compiled, tmp_path / "resize.mxr")
    for module in (lower, restored):
        original = module.compile_node
        monkeypatch.setattr(module, "compile_node", lambda *args, call=original: (count.append(1), call(*args))[1])
    for made in (public_program.wrap(program).compile("cpu"), mgx_numba.load(tmp_path / "resize.mxr")):
        count.clear()
        for k, factor in enumerate((2, 3, 0.5, 2, 1.25, 2, 3)):
            inputs = {"x": normal(1, 2, 9, 40, seed=k), "scales": np.float32([1, 1, factor, factor])}
            (result,), (expected,) = made.run(inputs), reference.run(inputs)
            np.testing.assert_allclose(np.asarray(result), np.asarray(expected), rtol=1e-5, atol=1e-6)
        assert len(count) == 2


def test_many_values_and_threads_share_the_programs_of_a_node() -> None:
    made, x = sliced(), normal(20, 9)

    def check(first: int) -> None:
        for k in range(150):
            a, b = (first + k) % 20, (first + 7 * k) % 21
            (result,) = made.run({"x": x, "a": np.array([a]), "b": np.array([b]), "axes": np.array([0])})
            np.testing.assert_array_equal(np.asarray(result), x[a:b])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(check, range(4)))


def test_a_node_that_needs_the_values_of_a_long_input_is_expanded_for_each() -> None:
    g = Graph()
    long = g.op("Tile", g.const(np.arange(2, dtype=np.float32)), g.op("ReduceSum", "n", keepdims=1))
    made = public_program.wrap(parse_onnx(g.model({"n": (INT64, [70])}, [long]))).compile("cpu")
    for k in (1, 2):
        lens = np.zeros(70, np.int64)
        lens[k] = k
        np.testing.assert_array_equal(np.asarray(made.run({"n": lens})[0]), np.tile(np.float32([0, 1]), k))


def test_wrong_values_are_reported_each_time_and_right_ones_still_run() -> None:
    g = Graph()
    model = g.model({"x": (FLOAT, [12, 10]), "n": (INT64, [2])}, [g.op("Reshape", "x", "n")])
    made, x = public_program.wrap(parse_onnx(model)).compile("cpu"), normal(12, 10)
    for _ in range(2):
        with pytest.raises(MgxError, match=r"[Rr]eshape"):
            made.run({"x": x, "n": np.array([7, 11])})
        np.testing.assert_array_equal(np.asarray(made.run({"x": x, "n": np.array([8, 15])})[0]), x.reshape(8, 15))


def test_values_that_change_in_each_run_do_not_fill_memory() -> None:
    """A step keeps few programs, and none whose constants are large."""
    g = Graph()
    model = g.model({"n": (INT64, [1])}, [g.op("Tile", g.const(np.arange(7, dtype=np.float32)), "n")])
    program = parse_onnx(model)
    (ins,) = (i for i in program.main if isinstance(i.op, Deferred))
    memory = interpreter.StepMemory()
    for count in (*range(1, 30), 100_000, 3):
        args = [np.arange(7, dtype=np.float32), np.array([count])][-len(ins.inputs) :]
        found = interpreter.compute(ins, args, lambda module, values: [], memory=memory)
        np.testing.assert_array_equal(found, np.tile(np.arange(7, dtype=np.float32), count))
        assert len(memory.programs) <= interpreter.REMEMBERED_PROGRAMS
    held = [i.shape.bytes for e in memory.programs.values() for i in e.program.main if i.literal is not None]
    assert memory.programs and max(held, default=0) <= interpreter.REMEMBERED_BYTES
