"""Sequences and optionals as inputs, results and between nodes, against ONNX Runtime; in programs and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mgx_numba as migraphx
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import IndexRangeError, MgxError, ParameterError, ParseError, ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.program import Program
from mgx_numba.graph.validate import validate

from ..gpu.programs import compiled, interpreter
from ..values import counting, normal

FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
TARGETS = ("ref", "cpu")
ITEMS = [normal(2, 3), normal(1, 3, seed=1), normal(0, 3, seed=2)]


def tensor(lens: Sequence[Any] | None = None, type: int = FLOAT) -> onnx.TypeProto:
    """A tensor's type."""
    return helper.make_tensor_type_proto(type, lens)


def sequence(lens: Sequence[Any] | None = None, type: int = FLOAT) -> onnx.TypeProto:
    """The type of a sequence of tensors."""
    return helper.make_sequence_type_proto(tensor(lens, type))


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, onnx.TypeProto],
    outputs: dict[str, onnx.TypeProto],
    opset: int = 17,
) -> onnx.ModelProto:
    """Return a model of these nodes, with inputs and outputs of any types."""
    infos = [[helper.make_value_info(n, t) for n, t in names.items()] for names in (inputs, outputs)]
    model = helper.make_model(helper.make_graph(nodes, "g", *infos), opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = min(model.ir_version, 10)
    return model


def results(model: onnx.ModelProto, feeds: dict[str, Any], target: str) -> list[Any]:
    """Results of a compiled program."""
    return migraphx.parse_onnx(model).compile(target, **({"num_threads": 1} if target == "cpu" else {})).run(feeds)


def assert_same(found: Any, wanted: Any) -> None:
    """Lists of the same tensors, or the same tensors: lengths, types and values."""
    if isinstance(wanted, list):
        assert isinstance(found, list) and len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            assert_same(a, b)
        return
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(np.asarray(found), wanted)


def same_as_onnxruntime(model: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    """Both targets give ONNX Runtime's results."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, feeds)
    validate(parse_onnx(model))
    for target in TARGETS:
        for found, right in zip(results(model, feeds, target), wanted, strict=True):
            assert_same(found, right)


@pytest.mark.parametrize("lens", [None, ["n", 3]])
@pytest.mark.parametrize("place", [0, -1, 2])
def test_reading_and_changing_an_input(lens: Sequence[Any] | None, place: int) -> None:
    nodes = [
        helper.make_node("SequenceAt", ["s", "p"], ["at"]),
        helper.make_node("Relu", ["at"], ["y"]),
        helper.make_node("SequenceErase", ["s", "p"], ["less"]),
        helper.make_node("SequenceInsert", ["less", "y"], ["more"]),
        helper.make_node("SequenceInsert", ["more", "y", "p"], ["most"]),
        helper.make_node("SequenceLength", ["most"], ["n"]),
        helper.make_node("ConcatFromSequence", ["most"], ["whole"], axis=0),
    ]
    inputs = {"s": sequence(lens), "p": tensor([], INT64)}
    outputs = {"y": tensor(), "less": sequence(), "most": sequence(), "n": tensor([], INT64), "whole": tensor()}
    same_as_onnxruntime(model_of(nodes, inputs, outputs), {"s": ITEMS, "p": np.array(place)})


@pytest.mark.parametrize("keep", [0, 1])
def test_splitting_into_ones(keep: int) -> None:
    nodes = [helper.make_node("SplitToSequence", ["x"], ["s"], axis=-1, keepdims=keep)]
    same_as_onnxruntime(model_of(nodes, {"x": tensor(["n", "m"])}, {"s": sequence()}), {"x": normal(3, 4)})


@pytest.mark.parametrize("split", [np.array(2), np.array(7), np.array([1, 3, 1]), np.array([0, 5])])
@pytest.mark.parametrize("lens", [["n", "m"], [3, 5]])
def test_splitting_by_what_a_run_brings(split: np.ndarray, lens: list[Any]) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "n"], ["s"], axis=1),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=1),
    ]
    inputs = {"x": tensor(lens), "n": tensor(list(split.shape), INT64)}
    model = model_of(nodes, inputs, {"s": sequence(), "y": tensor()})
    same_as_onnxruntime(model, {"x": normal(3, 5), "n": split})


def test_splits_that_do_not_fit() -> None:
    nodes = [helper.make_node("SplitToSequence", ["x", "n"], ["s"])]
    model = model_of(nodes, {"x": tensor([4]), "n": tensor([2], INT64)}, {"s": sequence()})
    for target in TARGETS:
        with pytest.raises(ShapeError, match=r"split \[1, 2\] does not fit length 4"):
            results(model, {"x": normal(4), "n": np.array([1, 2])}, target)


def test_stacking() -> None:
    nodes = [helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=-1, new_axis=1)]
    model = model_of(nodes, {"s": sequence()}, {"y": tensor()})
    same_as_onnxruntime(model, {"s": [normal(2, 3), normal(2, 3, seed=1)]})
    for target in TARGETS:
        with pytest.raises(ShapeError, match="the sequence is empty"):
            results(model, {"s": []}, target)


def test_tensors_without_axes_stay_so() -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "v"], ["s"]),
        helper.make_node("SequenceAt", ["s", "p"], ["y"]),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    inputs = {"x": tensor([]), "v": tensor([1]), "p": tensor([], INT64)}
    model = model_of(nodes, inputs, {"s": sequence(), "z": tensor()})
    feeds = {"x": np.float32(3), "v": np.float32([4])}
    for target in TARGETS:
        for place, lens in ((0, ()), (1, (1,))):
            s, z = results(model, {**feeds, "p": np.array(place)}, target)
            assert [a.shape for a in s] == [(), (1,)] and z.shape == lens and z == -(3 + place)


def test_positions_out_of_range() -> None:
    for op_type, others in (("SequenceAt", ["p"]), ("SequenceErase", ["p"]), ("SequenceInsert", ["x", "p"])):
        result = tensor() if op_type == "SequenceAt" else sequence()
        inputs = {"s": sequence(), "x": tensor([2]), "p": tensor([], INT64)}
        model = model_of([helper.make_node(op_type, ["s", *others], ["y"])], inputs, {"y": result})
        for target in TARGETS:
            with pytest.raises(IndexRangeError, match="position 4 is out of range for a sequence of 3"):
                results(model, {"s": ITEMS, "x": normal(2), "p": np.array(4)}, target)


def loop_model(start: str) -> onnx.ModelProto:
    """``n`` times: twice the last tensor is appended to a sequence, an input or an empty one."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c2"]),
            helper.make_node("Identity", ["s"], ["same"]),
            helper.make_node("Constant", [], ["zero"], value_float=0.0),
            helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
            helper.make_node("Add", ["x", "f"], ["xf"]),
            helper.make_node("SequenceInsert", ["same", "xf"], ["s2"]),
            helper.make_node("ReduceSum", ["xf"], ["sum"], keepdims=0),
        ],
        "body",
        [
            helper.make_value_info(n, t)
            for n, t in (("i", tensor([], INT64)), ("c", tensor([], BOOL)), ("s", sequence()))
        ],
        [helper.make_value_info(n, t) for n, t in (("c2", tensor([], BOOL)), ("s2", sequence()), ("sum", tensor()))],
    )
    nodes = [helper.make_node("Loop", ["n", "", start], ["t", "sums"], body=body)]
    if start == "e":
        nodes.insert(0, helper.make_node("SequenceEmpty", [], ["e"]))
    inputs = {"n": tensor([], INT64), "x": tensor(["k"])} | ({"q": sequence()} if start == "q" else {})
    return model_of(nodes, inputs, {"t": sequence(), "sums": tensor()})


@pytest.mark.parametrize("start", ["q", "e"])
@pytest.mark.parametrize("trips", [0, 1, 4])
def test_a_loop_that_carries_a_sequence(start: str, trips: int) -> None:
    feeds: dict[str, Any] = {"n": np.array(trips), "x": counting(3)} | ({"q": ITEMS} if start == "q" else {})
    same_as_onnxruntime(loop_model(start), feeds)


@pytest.mark.parametrize("value", [True, False])
def test_branches_that_give_sequences(value: bool) -> None:
    branches = {}
    for name, values in (("then_branch", ["x"]), ("else_branch", ["x", "y"])):
        inner = [helper.make_node("SequenceConstruct", values, [name])]
        branches[name] = helper.make_graph(inner, name, [], [helper.make_value_info(name, sequence())])
    nodes = [helper.make_node("If", ["c"], ["s"], **branches), helper.make_node("SequenceLength", ["s"], ["n"])]
    inputs = {"c": tensor([], BOOL), "x": tensor([2]), "y": tensor([3])}
    model = model_of(nodes, inputs, {"s": sequence(), "n": tensor([], INT64)})
    same_as_onnxruntime(model, {"c": np.array(value), "x": normal(2), "y": normal(3)})


def test_a_map_over_sequences() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Shape", ["c"], ["n"])],
        "body",
        [helper.make_value_info(n, tensor(["k", 3])) for n in "ab"],
        [helper.make_value_info("c", tensor()), helper.make_value_info("n", tensor(None, INT64))],
    )
    nodes = [helper.make_node("SequenceMap", ["s", "t"], ["y", "n"], body=body)]
    inputs = {"s": sequence(), "t": sequence()}
    model = model_of(nodes, inputs, {"y": sequence(), "n": sequence(None, INT64)})
    for target in TARGETS:
        sums, lens = results(model, {"s": ITEMS, "t": ITEMS}, target)
        assert_same([np.asarray(a) for a in sums], [a + a for a in ITEMS])
        assert [a.tolist() for a in lens] == [list(a.shape) for a in ITEMS]


@pytest.mark.parametrize("value", [None, normal(2, 2)])
def test_optional_tensors(value: np.ndarray | None) -> None:
    get = helper.make_graph(
        [helper.make_node("OptionalGetElement", ["o"], ["g"])], "get", [], [helper.make_value_info("g", tensor())]
    )
    seven = helper.make_tensor("v", FLOAT, [1, 1], [7.0])
    none = helper.make_graph(
        [helper.make_node("Constant", [], ["h"], value=seven)], "none", [], [helper.make_value_info("h", tensor())]
    )
    nodes = [
        helper.make_node("OptionalHasElement", ["o"], ["has"]),
        helper.make_node("If", ["has"], ["y"], then_branch=get, else_branch=none),
        helper.make_node("Identity", ["o"], ["same"]),
    ]
    optional = helper.make_optional_type_proto(tensor(["n", 2]))
    model = model_of(nodes, {"o": optional}, {"has": tensor([], BOOL), "y": tensor(), "same": optional}, opset=18)
    for target in TARGETS:
        has, y, same = results(model, {"o": value}, target)
        assert_same(np.asarray(y), np.float32([[7.0]]) if value is None else value)
        assert has.shape == () and bool(has) is (value is not None)
        assert same is None if value is None else np.array_equal(same, value)


def test_an_empty_optional_has_nothing_to_give() -> None:
    optional = helper.make_optional_type_proto(sequence())
    model = model_of([helper.make_node("OptionalGetElement", ["o"], ["s"])], {"o": optional}, {"s": sequence()})
    for target in TARGETS:
        (s,) = results(model, {"o": ITEMS}, target)
        assert_same(s, ITEMS)
        with pytest.raises(ShapeError, match="the optional holds nothing"):
            results(model, {"o": None}, target)


def test_what_is_known_while_parsing_costs_nothing() -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "y"], ["s"]),
        helper.make_node("Optional", ["s"], ["o"]),
        helper.make_node("OptionalGetElement", ["o"], ["t"]),
        helper.make_node("Constant", [], ["one"], value_int=1),
        helper.make_node("SequenceAt", ["t", "one"], ["z"]),
    ]
    program = parse_onnx(model_of(nodes, {"x": tensor([2]), "y": tensor([3])}, {"z": tensor()}))
    assert [i.name for i in program.main if not i.is_param and i.literal is None] == ["@return"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (normal(3, 2, 3), "parameter s is of type ndarray; expected a list"),
        (None, "parameter s is of type NoneType"),
        ([normal(2, 3), normal(2)], r"parameter: s\[1\] should be: \{dynamic, float_type, \{n, 3\}\}"),
        ([normal(2, 3), normal(2, 4)], r"parameter: s\[1\]"),
        ([counting(2, 3, dtype=np.int32)], r"Incorrect type .*parameter: s\[0\]"),
        ([["a"]], r"s\[0\]"),
    ],
)
def test_inputs_that_do_not_fit(given: Any, message: str) -> None:
    model = model_of(
        [helper.make_node("SequenceLength", ["s"], ["n"])], {"s": sequence(["n", 3])}, {"n": tensor([], INT64)}
    )
    program = migraphx.parse_onnx(model).compile("ref")
    with pytest.raises(ParameterError, match=message):
        program.run({"s": given})


def test_types_that_do_not_fit() -> None:
    wrong = model_of([helper.make_node("Relu", ["s"], ["y"])], {"s": sequence()}, {"y": tensor()})
    with pytest.raises(ParseError, match=r"input 0 \(X\) is of type seq\(tensor\(float\)\), expected"):
        parse_onnx(wrong)
    mixed = model_of(
        [helper.make_node("SequenceConstruct", ["x", "n"], ["s"])],
        {"x": tensor([2]), "n": tensor([2], INT64)},
        {"s": sequence()},
    )
    with pytest.raises(MgxError, match="they must be the same"):
        parse_onnx(mixed)


@pytest.mark.parametrize("target", TARGETS)
def test_results_are_not_what_was_given(target: str) -> None:
    model = model_of([helper.make_node("Identity", ["s"], ["t"])], {"s": sequence()}, {"t": sequence()})
    given = [normal(2), normal(3)]
    (found,) = results(model, {"s": given}, target)
    assert_same(found, given)
    assert not any(np.shares_memory(a, b) for a, b in zip(found, given, strict=True))


@pytest.mark.parametrize("lens", [[1, 3, 8, 8], ["n", 3, 8, 8], ["n", 3, "h", "w"], None])
def test_what_computes_with_tensors_of_a_sequence_is_compiled(lens: Sequence[Any] | None) -> None:
    """A convolution of a tensor in a sequence is a kernel if its rank is known before the run."""
    nodes = [
        helper.make_node("SequenceAt", ["s", "p"], ["x"]),
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    model = model_of(nodes, {"s": sequence(lens), "p": tensor([], INT64)}, {"y": tensor()})
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(4, 3, 3, 3, seed=3), "w"))
    feeds = {"s": [normal(1, 3, 8, 8), normal(1, 3, 8, 8, seed=1)], "p": np.array(1)}
    onnxruntime = pytest.importorskip("onnxruntime")
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for target in TARGETS:
        program = migraphx.parse_onnx(model).compile(target)
        np.testing.assert_allclose(program.run(feeds)[0], wanted, atol=1e-4)
    assert lens is None or program.kernels()


def test_host_steps_say_why() -> None:
    model = model_of(
        [helper.make_node("SequenceInsert", ["s", "x"], ["t"])], {"s": sequence(), "x": tensor([2])}, {"t": sequence()}
    )
    text = str(migraphx.parse_onnx(model).compile("cpu"))
    assert "on the host: lowering: no target has kernels for sequence_type" in text


@pytest.mark.parametrize("format", ["msgpack", "json"])
def test_files_and_text(format: str, tmp_path: Path) -> None:
    program = migraphx.parse_onnx(loop_model("q"))
    text = str(program)
    assert "sequence_type[dynamic, float_type, {...}]" in text and "sequence_insert" in text
    program.compile("cpu").save(tmp_path / "s.mxr", format=format)
    loaded = migraphx.load(tmp_path / "s.mxr", format=format)
    assert str(loaded.portable) == str(program.portable)
    feeds = {"n": np.array(3), "x": counting(3), "q": ITEMS}
    for found, wanted in zip(loaded.run(feeds), program.run(feeds), strict=True):
        if isinstance(wanted, list):
            assert_same(found, [np.asarray(w) for w in wanted])
        else:
            np.testing.assert_array_equal(found, wanted)


def test_strings_and_sequences_on_a_gpu() -> None:
    """Operators without kernels run on the host, between operators with kernels."""
    program = Program()
    main = program.main
    texts = main.add_parameter("t", Shape(Type.string_type, (2,)))
    x = main.add_parameter("x", Shape(Type.float_type, (2, 3)))
    s = main.add_parameter("s", Shape.sequence(Shape(Type.float_type, (2, 3))))
    suffix = main.add_literal(np.array(["!", "?"], object))
    first = main.add_instruction("sequence_at", [s, main.add_literal(np.array(0))])
    total = main.add_instruction("add", [main.add_instruction("relu", [x]), first])
    longer = main.add_instruction("sequence_insert", [s, total])
    main.add_return([main.add_instruction("string_concat", [texts, suffix]), total, longer])
    held = np.empty(1, object)
    held[0] = normal(2, 3, seed=1)
    feeds = {"t": np.array(["a", "b"], object), "x": normal(2, 3), "s": held}
    found = compiled(program, interpreter()).run(feeds)
    assert found[0].tolist() == ["a!", "b?"]
    np.testing.assert_array_equal(found[1], np.maximum(feeds["x"], 0) + held[0])
    np.testing.assert_array_equal(found[2][1], found[1])


@pytest.mark.parametrize("quantize", [None, migraphx.quantize_fp16, migraphx.quantize_bf16])
def test_sequences_keep_the_type_of_16_bit_floats(quantize: Any) -> None:
    """Members were float32 on the CPU; quantised programs had members of two types, which no sequence may have."""
    element = FLOAT if quantize else onnx.TensorProto.FLOAT16
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("SequenceAt", ["s", "p"], ["a"]),
        helper.make_node("Mul", ["a", "a"], ["m"]),
        helper.make_node("SequenceInsert", ["s", "m"], ["t"]),
    ]
    outputs = {"t": sequence(None, element), "m": tensor(None, element)}
    model = model_of(nodes, {"x": tensor([2, 3], element), "p": tensor([], INT64)}, outputs)
    x = np.arange(6, dtype=np.float32 if quantize else np.float16).reshape(2, 3)
    feeds = {"x": x, "p": np.array(1)}
    if quantize is None:
        return same_as_onnxruntime(model, feeds)
    for target in TARGETS:
        program = migraphx.parse_onnx(model)
        quantize(program)
        assert_same(program.compile(target).run(feeds), [[x, x, x * x], x * x])
