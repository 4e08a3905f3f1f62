"""Attributes and tensors with many elements are read as arrays."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from mgx_numba.errors import ParseError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.frontends.onnx.repeated import FEW, repeated_codes, repeated_numbers
from mgx_numba.frontends.onnx.wire import split_raw_data
from mgx_numba.graph.content import FileContent, FileWindow, open_content

from .support import FLOAT, assert_like_onnxruntime, run, single
from .test_onnx_ml import model
from .test_onnx_trees import MODES, forest, samples

LENGTHS = (0, 1, FEW - 1, FEW, 1000)
INTEGERS = (0, 1, -1, 127, 128, 300, 1 << 35, (1 << 63) - 1, -(1 << 63))
FIELDS = {"float_data": np.float32, "double_data": np.float64, "int64_data": np.int64, "uint64_data": np.uint64}


def values(count: int, dtype: Any) -> np.ndarray:
    random = np.random.default_rng(count)
    if np.dtype(dtype).kind == "f":
        special = np.array([np.nan, -0.0, np.inf, 1e-40], dtype)
        return np.where(random.random(count) < 0.2, random.choice(special, count), random.normal(size=count)).astype(
            dtype
        )
    return random.choice(np.array(INTEGERS, np.int64), count).astype(dtype)


@pytest.mark.parametrize("count", LENGTHS)
def test_numbers_of_attributes_are_those_of_protobuf(count: int) -> None:
    integers, floats = values(count, np.int64), values(count, np.float32)
    a = onnx.AttributeProto(name="a" * 200, type=7, doc_string="text", ints=integers, floats=floats)
    np.testing.assert_array_equal(repeated_numbers(a, "ints", np.int64), integers)
    np.testing.assert_array_equal(repeated_numbers(a, "floats", np.float32).view(np.int32), floats.view(np.int32))


@pytest.mark.parametrize("name", [*FIELDS, "int32_data"])
@pytest.mark.parametrize("count", LENGTHS)
def test_numbers_of_tensors_are_those_of_protobuf(name: str, count: int) -> None:
    dtype = FIELDS.get(name, np.int32)
    wanted = values(count, dtype)
    tensor = onnx.TensorProto(name="t", dims=[count], **{name: wanted})
    np.testing.assert_array_equal(repeated_numbers(tensor, name, dtype).view(np.uint8), wanted.view(np.uint8))


def test_words_are_told_from_texts_that_contain_them() -> None:
    words = ["LEAF", "BRANCH_LT", "BRANCH_LEQ"]
    numbers = np.random.default_rng(0).integers(0, 3, 1000)
    texts = [words[k] for k in numbers]
    for count in (FEW - 1, 1000):
        a = onnx.AttributeProto(name="LEAF", type=8, strings=[t.encode() for t in texts[:count]])
        found = repeated_codes(a, "strings", words)
        assert found is not None
        np.testing.assert_array_equal(found, numbers[:count])
        for other in (b"", b"J", b"\0", b"LEAFJ\x04LEAF", b"J\x04LEAF", b"BRANCH_LEQ_", b"J\x0aBRANCH_LEQ"):
            a.strings[7] = other
            assert repeated_codes(a, "strings", words) is None


def renumbered(attributes: dict[str, Any], how: str) -> dict[str, Any]:
    """Return the same trees with other node numbers, or in another order."""
    found = {name: np.array(given) for name, given in attributes.items()}
    random = np.random.default_rng(0)
    if how == "gaps":
        for name in ("nodes_nodeids", "nodes_truenodeids", "nodes_falsenodeids", "target_nodeids"):
            found[name] = found[name] * 7 - 1000
    if how == "far":
        for name in ("nodes_treeids", "target_treeids"):
            found[name] = (found[name] - 3) * (1 << 61)
    if how == "shuffled":
        for what in ("nodes", "target"):
            order = random.permutation(found[f"{what}_treeids"].size)
            found |= {name: given[order] for name, given in found.items() if name.startswith(what)}
    return {name: given.tolist() for name, given in found.items()}


@pytest.mark.parametrize("how", ["gaps", "far", "shuffled"])
def test_nodes_may_have_any_numbers_and_order(how: str) -> None:
    attributes = forest(1, 4 if how == "far" else 60, [0, 1], "target", MODES)
    x = samples(7)
    wanted = run(*model("TreeEnsembleRegressor", [x], n_targets=2, **attributes))
    found = run(*model("TreeEnsembleRegressor", [x], n_targets=2, **renumbered(attributes, how)))
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-5)


def test_a_node_that_is_named_twice_is_refused() -> None:
    attributes = forest(1, 60, [0], "target", MODES[:1])
    attributes["nodes_nodeids"][-1] = attributes["nodes_nodeids"][-3]
    with pytest.raises(ParseError, match="name a node twice"):
        run(*model("TreeEnsembleRegressor", [samples(7)], **attributes))


def calls(made: onnx.ModelProto) -> int:
    """Functions of Python and C that are called while a model is parsed."""
    counted = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    parse_onnx(made)  # imports what is needed
    sys.setprofile(count)
    try:
        parse_onnx(made)
    finally:
        sys.setprofile(None)
    return counted


def balanced(trees: int, op_type: str = "TreeEnsembleRegressor") -> onnx.ModelProto:
    ids = np.arange(63)
    inner = ids < 31
    tile = {
        "nodeids": ids,
        "featureids": np.where(inner, ids % 4, 0),
        "values": ids / 64,
        "truenodeids": np.where(inner, 2 * ids + 1, 0),
        "falsenodeids": np.where(inner, 2 * ids + 2, 0),
    }
    given = {f"nodes_{name}": np.tile(value, trees).tolist() for name, value in tile.items()}
    given["nodes_modes"] = np.tile(np.where(inner, "BRANCH_LEQ", "LEAF"), trees).tolist()
    given["nodes_treeids"] = np.repeat(np.arange(trees), 63).tolist()
    what = "target" if op_type == "TreeEnsembleRegressor" else "class"
    given |= {f"{what}_treeids": np.repeat(np.arange(trees), 32).tolist()}
    given |= {f"{what}_nodeids": np.tile(ids[31:], trees).tolist(), f"{what}_weights": [0.5] * (32 * trees)}
    given |= {f"{what}_ids": (np.repeat(np.arange(trees), 32) % 3).tolist()}
    extra = {"n_targets": 3} if what == "target" else {"classlabels_int64s": [0, 1, 2]}
    outputs = [FLOAT] if what == "target" else [onnx.TensorProto.INT64, FLOAT]
    return model(op_type, [samples(0)], outputs, **given, **extra)[0]


@pytest.mark.parametrize("op_type", ["TreeEnsembleRegressor", "TreeEnsembleClassifier"])
def test_trees_are_not_read_node_by_node(op_type: str) -> None:
    assert calls(balanced(300, op_type)) < 2 * calls(balanced(20, op_type))


def many_sets(nodes: int) -> onnx.ModelProto:
    """Return one root for each node that looks up its feature in a set of two."""
    values = np.stack([np.arange(nodes), np.arange(nodes) + 0.5, np.full(nodes, np.nan)], 1).astype(np.float32).ravel()
    tensors = {
        "nodes_splits": np.zeros(nodes, np.float32),
        "nodes_modes": np.full(nodes, 6, np.uint8),
        "leaf_weights": np.arange(2, dtype=np.float32),
        "membership_values": values,
    }
    lists = {
        "nodes_featureids": [0] * nodes,
        "nodes_truenodeids": [1] * nodes,
        "nodes_falsenodeids": [0] * nodes,
        "nodes_trueleafs": [1] * nodes,
        "nodes_falseleafs": [1] * nodes,
        "leaf_targetids": [0, 0],
        "tree_roots": list(range(nodes)),
    }
    given = {name: onnx.numpy_helper.from_array(value) for name, value in tensors.items()}
    return model("TreeEnsemble", [samples(0)], version=5, n_targets=1, **given, **lists)[0]


def test_sets_are_not_read_node_by_node() -> None:
    assert calls(many_sets(1000)) < 2 * calls(many_sets(100))
    x = np.array([[0.0], [7.0], [7.5], [7.25], [99.5], [100.0]], np.float32)
    x = np.concatenate([x, np.zeros((6, 3), np.float32)], 1)
    made = many_sets(100)
    del made.graph.input[0].type.tensor_type.shape.dim[:]
    for length in x.shape:
        made.graph.input[0].type.tensor_type.shape.dim.add(dim_value=length)
    (y,) = run(made, {"x0": x})
    np.testing.assert_array_equal(y[:, 0], [1, 1, 1, 0, 1, 0])


def test_many_ngrams_are_not_read_one_by_one() -> None:
    def made(count: int) -> onnx.ModelProto:
        lists = {"pool_int64s": list(range(count)), "ngram_counts": [0], "ngram_indexes": list(range(count))}
        lengths = {"min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
        return single("TfIdfVectorizer", [np.arange(5)], opset=9, mode="TF", **lengths, **lists)[0]

    assert calls(made(3000)) < 2 * calls(made(300))


@pytest.mark.parametrize("kind", ["floats", "int64s"])
def test_many_keys_of_label_encoder(kind: str) -> None:
    """Keys that repeat: the last one counts."""
    random = np.random.default_rng(1)
    dtype = np.float32 if kind == "floats" else np.int64
    keys = random.integers(-400, 400, 2000).astype(dtype)
    x = np.arange(-410, 410).astype(dtype).reshape(82, 10)
    given: dict[str, Any] = {f"keys_{kind}": keys.tolist(), "values_int64s": list(range(2000)), "default_int64": -7}
    made, feeds = model("LabelEncoder", [x], [onnx.TensorProto.INT64], **given)
    last = {key: place for place, key in enumerate(keys.tolist())}
    np.testing.assert_array_equal(run(made, feeds)[0], [[last.get(v, -7) for v in row] for row in x.tolist()])


def test_tensors_of_attributes_lie_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their external data was looked for in the current folder."""
    keys, elsewhere = np.arange(4, dtype=np.int64) * 10, tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "keys.bin").write_bytes(keys[::-1].tobytes())
    (tmp_path / "keys.bin").write_bytes(keys.tobytes())
    tensor = onnx.TensorProto(name="keys", data_type=7, dims=[4], data_location=1)
    tensor.external_data.add(key="location", value="keys.bin")
    values = onnx.numpy_helper.from_array(np.arange(4, dtype=np.int64))
    made, feeds = model(
        "LabelEncoder", [keys], [onnx.TensorProto.INT64], version=4, keys_tensor=tensor, values_tensor=values
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    monkeypatch.chdir(elsewhere)
    (y,) = run(os.fspath(path), feeds)
    np.testing.assert_array_equal(y, np.arange(4))


def test_a_forest_of_many_trees_is_that_of_onnxruntime() -> None:
    made = balanced(50)
    made.ir_version = 8
    x = np.random.default_rng(0).random((37, 4), np.float32)
    assert_like_onnxruntime(made, {"x0": x})


def test_models_are_split_alike_from_files_and_from_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = [numpy_helper.from_array(rng.random(size).astype(np.float32), f"t{k}" * 40)
               for k, size in enumerate([*range(400), 5000, 3, 70000, *range(250, 300)])]  # fmt: skip
    found = onnx.helper.make_graph([], "g", [], [], tensors, doc_string="x" * 20000)
    data = onnx.helper.make_model(found, producer_name="p" * 130).SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    content = open_content(path)
    reads: list[int] = []
    content.read = lambda begin, target: (reads.append(begin), FileContent.read(content, begin, target))  # type: ignore
    parts, spans = split_raw_data(FileWindow(content))
    assert (parts, spans) == split_raw_data(data)
    left = onnx.ModelProto.FromString(parts).graph.initializer
    for k, (tensor, own) in enumerate(zip(tensors, left, strict=True)):
        raw = data[spans[k].begin : spans[k].end] if k in spans else own.raw_data
        assert raw == tensor.raw_data and (k in spans) == (len(raw) >= 1024) and own.name == tensor.name
    # The file is read in windows; the rest of a tensor that no window holds is read by itself.
    assert len(reads) < 2 * len(data) // (16 << 10)
