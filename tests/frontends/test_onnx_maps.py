"""Maps as scikit-learn's converters write them, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mgx_numba as migraphx
from mgx_numba.errors import FormatError, MgxError, ParameterError, ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.serialize import shape_from_value, shape_to_value

from ..values import normal

ML = "ai.onnx.ml"
FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
TARGETS = ("ref", "cpu")
LABELS: dict[str, dict[str, Any]] = {
    "strings": {"classlabels_strings": ["low", "mid", "high"]},
    "integers": {"classlabels_int64s": [7, -1, 3]},
}


def map_type(key: int, value: int) -> onnx.TypeProto:
    """A map's type."""
    proto = onnx.TypeProto()
    proto.map_type.key_type = key
    proto.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(value, None))
    return proto


def model_of(nodes: list[onnx.NodeProto], inputs: dict[str, onnx.TypeProto], outputs: dict[str, onnx.TypeProto]) -> Any:
    infos = [[helper.make_value_info(n, t) for n, t in names.items()] for names in (inputs, outputs)]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 1)]
    return helper.make_model(helper.make_graph(nodes, "g", *infos), opset_imports=imports, ir_version=9)


def results(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """Results of both targets, which are ONNX Runtime's."""
    onnxruntime = pytest.importorskip("onnxruntime")
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for target in TARGETS:
        found = migraphx.parse_onnx(model).compile(target).run(feeds)
        for a, b in zip(found, wanted, strict=True):
            if isinstance(b, np.ndarray):
                assert (a.shape, a.dtype) == (b.shape, b.dtype)
                np.testing.assert_array_equal(np.asarray(a), b)
            else:
                assert a == b
    return wanted


def zipped(kind: str, lens: list[Any]) -> onnx.ModelProto:
    output = helper.make_sequence_type_proto(map_type(STRING if kind == "strings" else INT64, FLOAT))
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"], axis=-1),
        helper.make_node("Identity", ["x"], ["scores"]),
        helper.make_node("ZipMap", ["scores"], ["y"], domain=ML, **LABELS[kind]),
    ]
    outputs = {"y": output, "p": helper.make_tensor_type_proto(FLOAT, None)}
    return model_of(nodes, {"x": helper.make_tensor_type_proto(FLOAT, lens)}, outputs)


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_scores_become_maps(kind: str, rows: int) -> None:
    x = normal(rows, 3)
    for lens in ([rows, 3], ["n", 3]):
        for target in TARGETS:
            found, p = migraphx.parse_onnx(zipped(kind, lens)).compile(target).run({"x": x})
            keys = next(iter(LABELS[kind].values()))
            assert found == [dict(zip(keys, row, strict=True)) for row in x.tolist()]
            assert p.shape == x.shape


def test_zip_map_is_onnx_runtimes() -> None:
    x = normal(4, 3)
    model = model_of(
        [helper.make_node("ZipMap", ["x"], ["y"], domain=ML, **LABELS["strings"])],
        {"x": helper.make_tensor_type_proto(FLOAT, ["n", 3])},
        {"y": helper.make_sequence_type_proto(map_type(STRING, FLOAT))},
    )
    assert len(results(model, {"x": x})[0]) == 4


@pytest.mark.parametrize(
    ("key", "value", "vocabulary", "given"),
    [
        (STRING, FLOAT, {"string_vocabulary": ["a", "b", "c"]}, {"c": 1.5, "a": -2.0, "z": 9.0}),
        (STRING, INT64, {"string_vocabulary": ["a", "b"]}, {"b": 2**40}),
        (INT64, FLOAT, {"int64_vocabulary": [5, 3, 4]}, {3: 0.25, 9: 1.0}),
    ],
)
def test_maps_become_features(key: int, value: int, vocabulary: dict[str, Any], given: dict[Any, Any]) -> None:
    nodes = [helper.make_node("DictVectorizer", ["m"], ["y"], domain=ML, **vocabulary)]
    model = model_of(nodes, {"m": map_type(key, value)}, {"y": helper.make_tensor_type_proto(value, None)})
    if value == FLOAT:
        results(model, {"m": given})
    else:  # ONNX Runtime's Python binding makes floats of the values
        for target in TARGETS:
            (found,) = migraphx.parse_onnx(model).compile(target).run({"m": given})
            assert found.tolist() == [0, 2**40] and found.shape == (1, 2)


@pytest.mark.parametrize(
    "attributes",
    [
        {"cast_to": "TO_FLOAT"},
        {"cast_to": "TO_FLOAT", "map_form": "SPARSE", "max_map": 8},
        {"cast_to": "TO_INT64"},
        {"cast_to": "TO_STRING"},
    ],
)
def test_values_of_maps(attributes: dict[str, Any]) -> None:
    output = {"TO_FLOAT": FLOAT, "TO_INT64": INT64, "TO_STRING": STRING}[attributes["cast_to"]]
    model = model_of(
        [helper.make_node("CastMap", ["m"], ["y"], domain=ML, **attributes)],
        {"m": map_type(INT64, FLOAT)},
        {"y": helper.make_tensor_type_proto(output, None)},
    )
    given = {5: 2.0, 0: 1.0, 3: -4.0}
    for target in TARGETS:
        (found,) = migraphx.parse_onnx(model).compile(target).run({"m": given})
        if "max_map" in attributes:
            np.testing.assert_array_equal(found, [[given.get(k, 0) for k in range(8)]])
        else:
            convert = {"TO_FLOAT": float, "TO_INT64": int, "TO_STRING": lambda v: f"{v:g}"}[attributes["cast_to"]]
            assert found.tolist() == [convert(given[k]) for k in sorted(given)] and found.shape == (1, 3)


def test_what_does_not_fit() -> None:
    nodes = [helper.make_node("CastMap", ["m"], ["y"], domain=ML, map_form="SPARSE", max_map=4)]
    model = model_of(nodes, {"m": map_type(INT64, FLOAT)}, {"y": helper.make_tensor_type_proto(FLOAT, None)})
    program = migraphx.parse_onnx(model).compile("ref")
    with pytest.raises(ShapeError, match="key 7 is out of range for 4 places"):
        program.run({"m": {7: 1.0}})
    for given, message in (
        ([1.0], "is of type list; expected a mapping"),
        ({"a": 1.0}, "'a' is no int64_type"),
        ({1: "x"}, r"m\[1\]: 'x' is no float_type"),
        ({1.5: 1.0}, "1.5 is no int64_type"),
    ):
        with pytest.raises(ParameterError, match=message):
            program.run({"m": given})
    both = helper.make_node("ZipMap", ["x"], ["y"], domain=ML, **LABELS["strings"], **LABELS["integers"])
    wrong = model_of([both], {"x": helper.make_tensor_type_proto(FLOAT, [2, 3])}, {"y": onnx.TypeProto()})
    with pytest.raises(MgxError, match="expected one of the attributes"):
        parse_onnx(wrong)


def test_files_and_text(tmp_path: Path) -> None:
    program = migraphx.parse_onnx(zipped("strings", ["n", 3]))
    assert "sequence_type[map_type[[string_type, {1}, {0}, float_type, {1}, {0}]]]" in str(program)
    program.save(tmp_path / "m.mxr")
    loaded = migraphx.load(tmp_path / "m.mxr").compile("cpu")
    x = normal(2, 3)
    assert loaded.run({"x": x})[0] == program.compile("ref").run({"x": x})[0]
    value = shape_to_value(program.portable.output_shapes()[0])
    assert shape_from_value(value) == program.portable.output_shapes()[0]
    value["element"]["element"]["sub_shapes"].pop()
    with pytest.raises(FormatError, match="a map holds"):
        shape_from_value(value)
