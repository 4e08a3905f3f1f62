"""Reading of whole TensorFlow graphs: inputs, results, functions, SavedModels, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba
from mgx_numba.errors import MgxError, OptionError, ParseError, ShapeError, UnsupportedError
from mgx_numba.frontends.tf import parse_tf
from mgx_numba.frontends.tf.model import message

from .tf_support import Graph, Kind, run

RNG = np.random.default_rng(5)


def shapes(program: Any) -> dict[str, tuple[int, ...]]:
    return {name: shape.lens for name, shape in program.parameter_shapes().items()}


def image_graph(dims: Any = (-1, 5, 6, 3)) -> Graph:
    graph = Graph()
    graph.const("w", RNG.normal(size=(3, 3, 3, 4)).astype(np.float32))
    graph.add("Conv2D", "y", [graph.input("x", dims), "w"], strides=[1, 1, 1, 1], padding="SAME")
    return graph


def test_images_are_exchanged_with_channels_first() -> None:
    graph = image_graph()
    plain, first = graph.parse(batch_size=2), graph.parse(batch_size=2, is_nhwc=True)
    assert shapes(plain) == {"x": (2, 5, 6, 3)}
    assert shapes(first) == {"x": (2, 3, 5, 6)}
    x = RNG.normal(size=(2, 5, 6, 3)).astype(np.float32)
    want = run(plain, {"x": x}, "ref")[0]
    for target in ("ref", "cpu"):
        found = run(first, {"x": np.ascontiguousarray(x.transpose(0, 3, 1, 2))}, target)[0]
        np.testing.assert_allclose(found, want.transpose(0, 3, 1, 2), 1e-5, 1e-5)


def test_dimensions_of_inputs() -> None:
    graph = image_graph()
    assert shapes(graph.parse()) == {"x": (1, 5, 6, 3)}
    assert graph.parse().open_dims == {"x": {0: ""}}
    assert shapes(graph.parse(map_input_dims={"x": [4, 7, 8, 3]})) == {"x": (4, 7, 8, 3)}
    assert shapes(graph.parse(map_input_dims={"x": [4, 3, 7, 8]}, is_nhwc=True)) == {"x": (4, 3, 7, 8)}
    with pytest.raises(OptionError, match=r"the program takes \[n, c, h, w\]: \[4, 3, 5, 6\]"):
        graph.parse(map_input_dims={"x": [4, 5, 6, 3]}, is_nhwc=True)
    with pytest.raises(OptionError, match="it has 4 dimensions, but map_input_dims gives"):
        graph.parse(map_input_dims={"x": [4, 5]})
    with pytest.raises(OptionError, match="names 'z', which is no input; inputs are: x"):
        graph.parse(map_input_dims={"z": [1]})
    unknown = image_graph(None)
    assert shapes(unknown.parse(map_input_dims={"x": [1, 5, 6, 3]})) == {"x": (1, 5, 6, 3)}
    with pytest.raises(UnsupportedError, match="node 'x' .Placeholder.: it has no shape; give its dimensions"):
        unknown.parse()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch_size": 0}, "batch_size must be a length from 1 on, got 0"),
        ({"batch_size": True}, "batch_size must be a length"),
        ({"map_input_dims": {"x": "abc"}}, "must be a list of dimensions"),
        ({"map_input_dims": {"x": [-1, 2, 3, 4]}}, "holds -1, expected an integer from 0 on"),
        ({"output_names": [""]}, "output_names holds ''"),
        ({"output_names": ["yy"]}, "output_names has 'yy', but the graph has no such node; did you mean y"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        image_graph().parse(**options)


def chain() -> Graph:
    graph = Graph()
    graph.add("Relu", "a", [graph.input("x", (2, 6))])
    graph.const("axis", np.int32(1))
    graph.add("Split", "parts", ["axis", "a", "^a"], num_split=3)
    graph.add("Neg", "b", ["parts:1"])
    graph.add("Neg", "c", ["parts:2"])
    graph.add("NoOp", "nothing", ["^b"])
    return graph


def test_results_are_those_that_nothing_takes_or_those_asked_for() -> None:
    x = RNG.normal(size=(2, 6)).astype(np.float32)
    y = np.maximum(x, 0)
    found = run(chain().parse(), {"x": x}, "ref")
    np.testing.assert_array_equal(found, [-y[:, 2:4], -y[:, 4:]])
    found = run(chain().parse(output_names=["parts", "a:0", "parts:2"]), {"x": x}, "ref")
    assert all(map(np.array_equal, found, [y[:, :2], y, y[:, 4:]]))


def test_nodes_that_the_results_do_not_need_are_not_read() -> None:
    graph = chain()
    graph.add("Placeholder", "filename", dtype=Kind(np.float32), shape=())
    graph.proto.node[-1].attr[0].value.type = 7  # a string
    graph.add("SaveV2", "save", ["filename"])
    assert shapes(graph.parse(output_names=["b"])) == {"x": (2, 6)}
    with pytest.raises(UnsupportedError, match="node 'filename' .Placeholder.: element type string is not supported"):
        graph.parse()


def test_constants_in_value_fields_repeat_their_last_element() -> None:
    graph = Graph()
    for number, (field, values, kind, want) in enumerate(
        [
            ("float_val", [1.5, 2.5], np.float32, [1.5, 2.5, 2.5]),
            ("int_val", [7], np.int32, [7, 7, 7]),
            ("int64_val", [], np.int64, [0, 0, 0]),
            ("bool_val", [True, False], np.bool_, [True, False, False]),
            ("half_val", [0x3C00], np.float16, [1, 1, 1]),
            ("int_val", [255], np.uint8, [255, 255, 255]),
        ]
    ):
        graph.add("Const", f"c{number}", value=np.zeros(3, kind))
        proto = graph.proto.node[-1].attr[0].value.tensor
        proto.ClearField("tensor_content")
        getattr(proto, field).extend(values)
        result = run(graph.parse(output_names=[f"c{number}"]), {}, "ref")[0]
        assert result.dtype == kind and result.tolist() == want
    proto.int_val.extend([1] * 9)
    with pytest.raises(ParseError, match=r"node 'c5' .Const.: a constant has 10 values in int_val, expected at most 3"):
        graph.parse(output_names=["c5"])


def add_function(graph: Graph, name: str, inputs: list[str], results: dict[str, str]) -> Any:
    function = graph.proto.library.function.add()
    function.signature.name = name
    for key in inputs:
        function.signature.input_arg.add(name=key)
    for key, tensor in results.items():
        function.signature.output_arg.add(name=key)
        function.ret.add(key=key, value=tensor)
    return function


def calling_graph() -> Graph:
    """``f(a) = split(top_k(relu(a)))`` by a function that another calls."""
    graph = Graph()
    inner = add_function(graph, "inner", ["a"], {"v": "top:values:0", "i": "top:indices:0"})
    graph.add("Const", "two", into=inner.node_def, value=np.array(2, np.int32))
    graph.add("TopKV2", "top", ["a", "two:output:0"], inner.node_def)
    outer = add_function(graph, "outer", ["a"], {"right": "split:output:1", "places": "call:output:1"})
    graph.add("Relu", "relu", ["a"], outer.node_def)
    graph.add("PartitionedCall", "call", ["relu:activations:0"], outer.node_def)
    entry = outer.node_def[-1].attr.add(key="f")
    entry.value.func.name = "inner"
    graph.add("Const", "axis", into=outer.node_def, value=np.array(1, np.int32))
    graph.add("Split", "split", ["axis:output:0", "call:output:0"], outer.node_def, num_split=2)
    graph.input("x", (3, 5))
    graph.add("StatefulPartitionedCall", "y", ["x"])
    graph.proto.node[-1].attr.add(key="f").value.func.name = "outer"
    return graph


def test_functions_are_read_where_they_are_called() -> None:
    x = RNG.normal(size=(3, 5)).astype(np.float32)
    found = run(calling_graph().parse(output_names=["y", "y:1"]), {"x": x}, "ref")
    y = np.maximum(x, 0)
    np.testing.assert_array_equal(found[0], np.sort(y, 1)[:, -2:-1])
    assert found[1].shape == (3, 2) and found[1].dtype == np.int32


def saved_model(graph: Graph) -> Any:
    saved = message("SavedModel")(saved_model_schema_version=1)
    for tag in ("train", "serve"):
        meta = saved.meta_graphs.add()
        meta.meta_info_def.tags.append(tag)
    meta.graph_def.CopyFrom(graph.proto)
    signature = meta.signature_def.add(key="serving_default").value
    for key, tensor in (("second", "y:1"), ("first", "y:0")):
        signature.outputs.add(key=key).value.name = tensor
    return saved


def test_saved_models_give_their_signature(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(saved_model(calling_graph()).SerializeToString())
    for path in (tmp_path, tmp_path / "saved_model.pb"):
        program = mgx_numba.parse_tf(path)
        assert [s.lens() for s in program.get_output_shapes()] == [[3, 1], [3, 2]]
    with pytest.raises(ParseError, match="is a folder without saved_model.pb"):
        parse_tf(tmp_path.parent / tmp_path.name / "..")


def broken(op: str, inputs: list[str], **attributes: Any) -> Graph:
    graph = chain()
    graph.const("scalar", np.float32(1))
    graph.const("huge", np.float32(1e30))
    graph.add(op, "bad", inputs, **attributes)
    return graph


@pytest.mark.parametrize(
    "graph, error, message",
    [
        (broken("FlyToMoon", ["x"]), UnsupportedError, r"node 'bad' \(FlyToMoon\): the operator is not supported$"),
        (broken("Conv2", ["x"]), UnsupportedError, "not supported; did you mean Conv2D"),
        (broken("VarHandleOp", []), UnsupportedError, "it is a variable: freeze the model"),
        (broken("Relu", ["q"]), ParseError, r"node 'bad' \(Relu\) takes 'q', but there is no such node"),
        (broken("Relu", ["x", "x"]), ParseError, r"node 'bad' \(Relu\): got 2 inputs, expected at most 1"),
        (broken("Relu", []), ParseError, "got 0 inputs, expected at least 1"),
        (broken("Relu", ["parts:3"]), ParseError, r"tensor 'parts:3' is not there: its node gives 3"),
        (broken("Relu", ["bad"]), ParseError, r"cycle through node 'bad' \(Relu\)"),
        (broken("Conv2D", ["x", "x"], strides=[1] * 4), ParseError, "have 2 and 2 dimensions, expected 4"),
        (broken("MatMul", ["x", "x"]), ShapeError, r"matrices of \[2, 6\] and \[2, 6\] cannot be multiplied"),
        (
            broken("Reshape", ["x", "a"]),
            UnsupportedError,
            "input 'shape' must be constant, but it depends on",
        ),
        (
            broken("Split", ["axis", "x"], num_split=4),
            ShapeError,
            "length 6 of axis 1 does not split into 4",
        ),
        (broken("Split", ["axis", "x"]), ParseError, "attribute 'num_split' is missing"),
        (broken("Split", ["axis", "x"], num_split=1.5), ParseError, "is of kind f, expected i"),
        (broken("DepthToSpace", ["x"], block_size=2), ParseError, "the input has 2 dimensions, expected 4"),
        (
            broken("Range", ["scalar", "huge", "scalar"]),
            UnsupportedError,
            "is too long, at most 16777216 are",
        ),
        (broken("PartitionedCall", ["x"]), ParseError, "attribute 'f' is missing"),
        (broken("Cast", ["x"], DstT=Kind(np.float32)), None, ""),
    ],
)
def test_errors_name_node_and_operator(graph: Graph, error: type[MgxError] | None, message: str) -> None:
    if error is None:
        graph.parse(output_names=["bad"])
        return
    with pytest.raises(error, match=message):
        graph.parse(output_names=["bad"])


def test_convolutions_say_what_does_not_fit() -> None:
    graph = image_graph((1, 5, 6, 4))
    with pytest.raises(ShapeError, match=r"node 'y' \(Conv2D\): a filter for 3 channels with 4 results"):
        graph.parse()
    graph = image_graph()
    graph.proto.node[-1].attr[1].value.s = b"FULL"
    with pytest.raises(UnsupportedError, match="attribute 'padding' is 'FULL', supported are SAME, VALID, EXPLICIT"):
        graph.parse()


def test_convolutions_without_channels_are_refused() -> None:
    graph = Graph()
    graph.const("w", np.zeros((3, 3, 2, 4), np.float32))
    graph.add("Conv2D", "y", [graph.input("x", (1, 5, 5, 0)), "w"], strides=[1, 1, 1, 1], padding="SAME")
    with pytest.raises(ShapeError, match="a filter for 2 channels with 4 results does not fit 0 channels"):
        graph.parse()


def test_training_mode_is_refused() -> None:
    graph = Graph()
    graph.const("c", np.ones(3, np.float32))
    graph.add("FusedBatchNormV3", "y", [graph.input("x", (1, 2, 2, 3)), *"cccc"], is_training=True)
    with pytest.raises(UnsupportedError, match="is_training is true, only inference is supported"):
        graph.parse()


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "model.pb"
    with pytest.raises(ParseError, match=r"no such file: .*model\.pb"):
        parse_tf(path)
    for content, text in (
        (b"", "is empty"),
        (b"\x12\x00", "its graph has no nodes"),
        (b"\x0a\xff", "is no TensorFlow"),
    ):
        path.write_bytes(content)
        with pytest.raises(ParseError, match=text):
            parse_tf(path)
    with pytest.raises(ParseError, match="must be a path or bytes, got int"):
        parse_tf(3)  # type: ignore[arg-type]


def test_mutated_files_raise_errors_of_the_package() -> None:
    data = bytearray(calling_graph().proto.SerializeToString())
    rng = np.random.default_rng(1)
    outcomes = set()
    for position in rng.integers(0, len(data), 300):
        mutated = bytearray(data)
        mutated[position] = rng.integers(0, 256)
        try:
            parse_tf(bytes(mutated))
            outcomes.add("read")
        except MgxError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_facade_reads_bytes_and_lists_operators(tmp_path: Path) -> None:
    data = image_graph().proto.SerializeToString()
    path = tmp_path / "model.pb"
    path.write_bytes(data)
    read, again = mgx_numba.parse_tf(str(path), batch_size=3), mgx_numba.parse_tf_buffer(data, True, 3)
    assert str(read) == str(again)
    assert read.get_parameter_shapes()["x"].lens() == [3, 3, 5, 6]
    operators = mgx_numba.get_tf_operators()
    assert operators == sorted(operators) and {"Conv2D", "FusedBatchNormV3", "StridedSlice"} <= set(operators)
    with pytest.raises(ParseError, match="needs the bytes of a model, got str"):
        mgx_numba.parse_tf_buffer(str(path))  # type: ignore[arg-type]
    with pytest.raises(ParseError, match="needs the path of a model, got bytes"):
        mgx_numba.parse_tf(data)  # type: ignore[arg-type]
