"""Damaged or hostile files: one clear error that names the position, and never an exception other than MgxError."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mgx_numba.errors import MgxError, ParseError, ShapeError, UnsupportedError
from mgx_numba.frontends.handlers import Handler
from mgx_numba.frontends.onnx import parse_onnx

from ..values import normal
from .support import FLOAT, INT64, ints, make_model, single

X = normal(2, 3)


def relu_model() -> onnx.ModelProto:
    """Two nodes and a weight."""
    nodes = [
        helper.make_node("Add", ["x", "w"], ["sum"], name="adder"),
        helper.make_node("Relu", ["sum"], ["y"], name="activation"),
    ]
    return make_model(nodes, {"x": X}, {"y": FLOAT}, constants={"w": normal(2, 3, seed=1)})


def fails(model: object, message: str, kind: type[MgxError] = ParseError, **options: Any) -> None:
    with pytest.raises(kind, match=message):
        parse_onnx(model, **options)  # type: ignore[arg-type]


def test_no_such_file(tmp_path: Path) -> None:
    fails(tmp_path / "absent.onnx", "no such file: .*absent.onnx")


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    fails(tmp_path, "is a folder")


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    fails(tmp_path / "empty.onnx", "empty.onnx' is empty")
    fails(b"", "the model is empty")


def test_something_that_is_no_protobuf(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("def main():\n    return 0\n" * 40)
    fails(tmp_path / "text.onnx", "text.onnx': not an ONNX model")
    fails(b"\xff" * 64, "not an ONNX model")


def test_a_truncated_file_says_at_which_byte(tmp_path: Path) -> None:
    data = relu_model().SerializeToString()
    (tmp_path / "cut.onnx").write_bytes(data[: len(data) // 2])
    fails(tmp_path / "cut.onnx", r"truncated.*byte \d+")


def test_every_prefix_of_a_file_is_refused_or_read() -> None:
    data = relu_model().SerializeToString()
    for length in range(len(data)):
        with pytest.raises(MgxError):
            parse_onnx(data[:length])


def test_a_protobuf_without_graph() -> None:
    model = onnx.ModelProto()
    model.producer_name = "nobody"
    fails(model, "has no graph")


def test_other_objects_are_no_models() -> None:
    fails(3, "a path, bytes or an onnx.ModelProto, got int")


def test_a_cycle_names_its_nodes() -> None:
    model = relu_model()
    model.graph.node[0].input[1] = "y"
    fails(model, r"cycle: node '(adder|activation)'")


def test_unsorted_nodes_are_sorted_with_a_warning() -> None:
    model = relu_model()
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    with pytest.warns(UserWarning, match="unsorted"):
        program = parse_onnx(model)
    assert [i.name for i in program.main][-3:] == ["add", "relu", "@return"]


def test_a_missing_input_names_node_and_value() -> None:
    model = relu_model()
    model.graph.node[0].input[1] = "nowhere"
    fails(model, r"node 'adder' \(Add\) uses value 'nowhere', but no input")


def test_a_missing_graph_output() -> None:
    model = relu_model()
    model.graph.output[0].name = "z"
    fails(model, "has output 'z', which no node gives")


def test_values_given_twice() -> None:
    model = relu_model()
    model.graph.node[0].output[0] = "y"
    model.graph.node[1].input[0] = "x"
    fails(model, r"'y' is given twice, by node 'adder' \(Add\) and by node 'activation'")


def test_an_initializer_given_twice() -> None:
    model = relu_model()
    model.graph.initializer.add().CopyFrom(model.graph.initializer[0])
    fails(model, "'w' is defined twice")


def test_a_node_that_overwrites_an_input() -> None:
    model = relu_model()
    model.graph.node[1].output[0] = "x"
    model.graph.output[0].name = "x"
    fails(model, "cycle|'x' is defined twice")


def test_an_output_of_another_type_than_declared() -> None:
    model = relu_model()
    model.graph.output[0].type.tensor_type.elem_type = INT64
    fails(model, r"output 'y' is declared as tensor\(int64\), its node gives tensor\(float\)", strict=True)


def test_inputs_of_different_types_name_both() -> None:
    model, _ = single("Equal", [X, np.full((2, 3), "a", object)], opset=19)
    fails(model, r"node #0 \(Equal, domain ai.onnx, opset 19\): input 1 \(B\) is of type tensor\(string\), but A")


def test_an_input_of_a_type_that_the_operator_does_not_take() -> None:
    model, _ = single("Sqrt", [np.ones(2, np.int64)], outputs=(INT64,))
    fails(model, r"Sqrt.*input 0 \(X\) is of type tensor\(int64\), expected one of .*tensor\(float\)")


def test_too_few_and_too_many_inputs() -> None:
    model, _ = single("Add", [X])
    fails(model, "got 1 inputs, expected 2")
    model, _ = single("Relu", [X, X])
    fails(model, "got 2 inputs, expected 1")
    model, _ = single("Add", [X, None])
    fails(model, r"Add.*input 1 \(B\) is missing")


def test_attributes_are_checked() -> None:
    model, _ = single("Softmax", [X], axes=1)
    fails(model, "attribute 'axes' is unknown; the operator has: axis")
    model, _ = single("Softmax", [X], axis=1.5)
    fails(model, "attribute 'axis' is of kind float, expected int")
    model, _ = single("Cast", [X])
    fails(model, r"attribute 'to' \(int\) is missing")


def test_axes_out_of_range() -> None:
    model, _ = single("Softmax", [X], axis=2)
    fails(model, "axis is 2, expected -2 to 1")


def test_shapes_that_do_not_fit_name_node_and_lengths() -> None:
    model, _ = single("MatMul", [X, X])
    fails(model, r"node #0 \(MatMul.*inner lengths of \[2, 3\] x \[2, 3\]", ShapeError)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: setattr(t, "raw_data", t.raw_data[:-1]), "'w' has 23 bytes of data, expected 24"),
        (lambda t: setattr(t, "data_type", 8), "'w' of strings has raw or external data"),
        (lambda t: setattr(t, "data_type", 99), "99 is not an ONNX element type"),
        (lambda t: t.dims.append(-4), "negative dimension"),
        (lambda t: t.dims.extend([1 << 62, 1 << 62]), "too many elements"),
        (lambda t: t.ClearField("raw_data"), "has 0 values in float_data, expected 6"),
    ],
)
def test_broken_tensors_are_named(change: Callable[[TensorProto], None], message: str) -> None:
    model = relu_model()
    change(model.graph.initializer[0])
    fails(model, message, MgxError)


@pytest.mark.parametrize("dims", [[1 << 40, 1 << 40], [1 << 62, 4]])
def test_input_dimensions_that_cannot_be(dims: list[int]) -> None:
    model = relu_model()
    del model.graph.input[0].type.tensor_type.shape.dim[:]
    for n in dims:
        model.graph.input[0].type.tensor_type.shape.dim.add().dim_value = n
    fails(model, "input 'x'")


@pytest.mark.parametrize("dims", [[1] * 65, [2**62, 2**62, 0]], ids=len)
def test_lengths_that_no_array_can_have(dims: list[int]) -> None:
    found = "axes, more than the 64" if len(dims) > 64 else "exceeds 2\\*\\*62 bytes"
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [helper.make_tensor_value_info("x", FLOAT, dims)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )  # fmt: skip
    with pytest.raises(MgxError, match=f"input 'x'.*{found}"):
        parse_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), strict=True)
    model, _ = single("Expand", [np.ones(1, np.float32), np.array(dims)], constant=(1,))
    with pytest.raises(MgxError, match=f"Expand.*{found}"):
        parse_onnx(model)


def test_inputs_without_type_or_shape() -> None:
    model = relu_model()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    fails(model, "input 'x' has no shape; give its dimensions", UnsupportedError)
    model.graph.input[0].type.Clear()
    fails(model, "input 'x' has no type")


def test_unknown_operators_suggest_known_ones() -> None:
    model = relu_model()
    model.graph.node[1].op_type = "Rleu"
    fails(model, "node 'activation' .*unknown operator 'Rleu'; did you mean Relu.* register_custom_op")
    model.graph.node[1].op_type = "FastGelu"
    fails(model, "its domain 'com.microsoft' is not given", strict=True)


def test_operators_of_later_operator_sets() -> None:
    model, _ = single("Swish", [X], opset=13)
    assert parse_onnx(model).output_shapes()
    # the newest form of an attribute or input is as good as the first one
    model, _ = single("Attention", [normal(1, 2, 3, 4)] * 3 + [None] * 3 + [np.array([2])], opset=17)
    assert parse_onnx(model).output_shapes()
    for opset in (5, 13, 19):
        model, _ = single("Gelu", [np.zeros(2, np.int32)], opset=opset, outputs=(TensorProto.INT32,))
        fails(model, r"input 0 \(X\) is of type tensor\(int32\), expected one of tensor\(bfloat16\)")
        model, _ = single("Mish", [X, X], opset=opset)
        fails(model, "got 2 inputs, expected 1")
        model, _ = single("LayerNormalization", [X, X], opset=min(opset, 16), axes=[1])
        fails(model, "attribute 'axes' is unknown; the operator has: axis, epsilon, stash_type")
    model, _ = single("CenterCropPad", [X, np.array([1])], opset=13)
    fails(model, "exists from operator set 18 on")


LOSSES = {"SoftmaxCrossEntropyLoss": 1, "NegativeLogLikelihoodLoss": 2}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_labels_and_weights_of_a_loss_have_the_lengths_of_scores(name: str, weighted: bool) -> None:
    def loss(scores: tuple[int, ...], labels: tuple[int, ...], weights: int, **attributes: Any) -> onnx.ModelProto:
        inputs: list[np.ndarray] = [normal(*scores), np.zeros(labels, np.int64)]
        inputs += [np.ones(weights, np.float32)] * weighted
        return single(name, inputs, opset=13, **attributes)[0]

    for lens in ((4, 3), (2, 3, 5), (2, 3, 4, 5)):
        assert parse_onnx(loss(lens, (lens[0], *lens[2:]), 3)).output_shapes()
    for scores, labels, expected in (
        ((4, 4), (3,), r"\[4\]"),
        ((4, 3), (4, 1), r"\[4\]"),
        ((2, 3, 5), (2, 1), r"\[2, 5\]"),
    ):
        fails(
            loss(scores, labels, scores[1]),
            rf"labels are of lengths \[.*\], expected {expected} as the scores have",
            ShapeError,
        )
    fails(loss((4,), (4,), 4), "input 0 has 1 dimensions, expected at least 2")
    fails(loss((4, 3), (4,), 3, reduction="product"), "reduction")
    if weighted:
        fails(loss((4, 3), (4,), 4), r"weights are of lengths \[4\], expected \[3\]", ShapeError)


def test_operator_sets() -> None:
    model = relu_model()
    model.opset_import[0].version = 1000
    fails(model, "operator set 1000 of domain 'ai.onnx' is not supported; 1 to", UnsupportedError)
    del model.opset_import[:]
    fails(model, "imports no operator set")
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    fails(model, "its domain 'ai.onnx' is not imported; imported are: 'com.microsoft'")


def external_model(folder: Path, location: str, offset: str = "", length: str = "") -> Path:
    """Write a model whose weight is declared to be in another file."""
    model = relu_model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value:
            tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("location", "offset", "length", "message"),
    [
        ("weights.bin", "", "", "'weights.bin' does not exist"),
        ("/etc/passwd", "", "", "would leave the model's folder"),
        ("../model/data.bin", "", "", "would leave the model's folder"),
        ("a/../../data.bin", "", "", "would leave the model's folder"),
        ("C:\\data.bin", "", "", "would leave the model's folder"),
        ("..\\data.bin", "", "", "would leave the model's folder"),
        ("", "", "", "no location"),
        ("data.bin", "80", "", "bytes 80 to 104 of 'data.bin', which has 100"),
        ("data.bin", "-8", "", "offset '-8', expected a number of bytes"),
        ("data.bin", "99999999999999999999999", "", "expected a number of bytes"),
        ("data.bin", "", "23", "has length 23, expected 24"),
    ],
)
def test_external_data_that_cannot_be_used(
    tmp_path: Path, location: str, offset: str, length: str, message: str
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "data.bin").write_bytes(bytes(100))
    fails(external_model(tmp_path / "model", location, offset, length), f"tensor 'w'.*{message}")


def test_external_data_behind_a_link_that_leaves_the_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "secret").write_bytes(bytes(100))
    os.symlink(tmp_path / "secret", tmp_path / "model" / "data.bin")
    fails(external_model(tmp_path / "model", "data.bin"), "leaves the model's folder through a link")


def test_external_data_of_a_cache_whose_models_are_links_were_not_found(tmp_path: Path) -> None:
    """Hugging Face's: snapshots hold links to blobs, whose names are hashes."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "a1" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    os.replace(external_model(tmp_path, "model.onnx_data"), blobs / "1")
    (blobs / "2").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    for name, blob in (("model.onnx", "1"), ("model.onnx_data", "2")):
        (snapshot / name).symlink_to(Path("../../../blobs") / blob)
    program = parse_onnx(snapshot / "model.onnx")
    (literal,) = [ins for ins in program.main if ins.literal is not None]
    np.testing.assert_array_equal(literal.literal.numpy().ravel(), np.arange(6))
    (snapshot / "model.onnx_data").unlink()
    fails(snapshot / "model.onnx", "does not exist in '.*a1/onnx' or '.*blobs'")
    (blobs / "model.onnx_data").write_bytes(bytes(24))
    parse_onnx(snapshot / "model.onnx")
    (tmp_path / "secret").write_bytes(bytes(100))
    (snapshot / "model.onnx_data").symlink_to(tmp_path / "secret")
    fails(snapshot / "model.onnx", "leaves the model's folder through a link")


def test_external_data_of_a_model_without_folder(tmp_path: Path) -> None:
    data = external_model(tmp_path, "data.bin").read_bytes()
    fails(data, "give external_data_path")


def test_a_function_that_calls_itself() -> None:
    body = [helper.make_node("Loopy", ["a"], ["b"], domain="own")]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Loopy", ["a"], ["b"], body, imports)
    node = helper.make_node("Loopy", ["x"], ["y"], domain="own")
    model = make_model([node], {"x": X}, {"y": FLOAT}, functions=[function])
    model.opset_import.append(helper.make_opsetid("own", 1))
    fails(model, "function 'Loopy' calls itself: own::Loopy")


def test_errors_inside_functions_name_the_way_in() -> None:
    body = [helper.make_node("MatMul", ["a", "a"], ["b"], name="product")]
    function = helper.make_function("own", "Square", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    node = helper.make_node("Square", ["x"], ["y"], domain="own", name="call")
    model = make_model([node], {"x": X}, {"y": FLOAT}, functions=[function])
    model.opset_import.append(helper.make_opsetid("own", 1))
    fails(model, r"node 'call' \(Square, domain own, opset 1\): node 'product' \(MatMul", ShapeError)


def test_constant_shapes_that_overflow() -> None:
    model, _ = single("ConstantOfShape", [ints(1 << 40, 1 << 40)], constant=[0])
    fails(model, "too many elements")
    model, _ = single("Tile", [X, ints(1 << 40, 1 << 40)], constant=[1])
    fails(model, "too many elements")
    model, _ = single("Range", [np.int64(0), np.int64(1 << 50), np.int64(1)], constant=[0, 1, 2], outputs=(INT64,))
    fails(model, "too long", UnsupportedError)


def _mutated(data: bytes, rng: np.random.Generator) -> bytes:
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        kind, place = int(rng.integers(3)), int(rng.integers(len(out)))
        if kind == 0:
            out[place] = int(rng.integers(256))
        elif kind == 1:
            del out[place : place + int(rng.integers(1, 9))]
        else:
            out[place:place] = rng.bytes(int(rng.integers(1, 9)))
        if not out:
            break
    return bytes(out)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_files_raise_nothing_but_our_errors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sources = [
        relu_model(),
        single("Reshape", [normal(2, 6), ints(3, -1)], constant=[1])[0],
        single("Conv", [normal(1, 2, 5, 5), normal(3, 2, 3, 3)], constant=[1], pads=[1, 1, 1, 1])[0],
        single("LayerNormalization", [normal(2, 4), normal(4), normal(4)])[0],
        single("Slice", [normal(4, 5), ints(1), ints(3), ints(1)], constant=[1, 2, 3])[0],
        single("Split", [normal(5, 2), ints(1, 4)], constant=[1], outputs=(FLOAT, FLOAT))[0],
    ]
    for source in sources:
        data = source.SerializeToString()
        for _ in range(60):
            damaged = _mutated(data, rng)
            try:
                parse_onnx(damaged)
            except MgxError:
                continue


def test_unexpected_failures_of_a_node_parser_name_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    from mgx_numba.frontends.onnx import registry

    def broken(g: object, node: object, x: object) -> None:
        raise ZeroDivisionError("oops")

    handler = Handler(broken, 1, 1)
    monkeypatch.setattr(registry, "find", lambda domain, op_type: handler)
    model, _ = single("Relu", [X])
    with pytest.raises(ParseError, match=r"node #0 \(Relu.*ZeroDivisionError: oops") as caught:
        parse_onnx(model)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_tensor_of_a_constant_node_is_checked() -> None:
    tensor = numpy_helper.from_array(X, "c")
    tensor.raw_data = b"12"
    model = make_model([helper.make_node("Constant", [], ["y"], value=tensor)], {}, {"y": FLOAT})
    fails(model, r"node #0 \(Constant.*tensor 'c' has 2 bytes of data")
