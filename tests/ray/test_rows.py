"""Tests without a cluster: rows in batches, files written by `prepare`, the server's protocol."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mgx_numba
from mgx_numba.errors import OptionError, ParameterError, UnsupportedError
from mgx_numba.ray.preparing import prepare
from mgx_numba.ray.rows import RowSession
from mgx_numba.ray.serving import metadata, read_request, run_together, write_response
from mgx_numba.session import InferenceSession

from .models import classifier, elementwise, images


def rows_of(model: Any) -> RowSession:
    return RowSession(InferenceSession(model.SerializeToString() if isinstance(model, onnx.ModelProto) else model))


@pytest.fixture(scope="module")
def dynamic() -> RowSession:
    return rows_of(classifier())


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 8])
def test_rows_do_not_depend_on_the_batch_size(dynamic: RowSession, count: int) -> None:
    data = {"image": images(count)}
    expected = dynamic.run(data)
    assert expected["scores"].shape == (count, 5) and expected["best"].shape == (count,)
    for found in (dynamic.run(data, batch_size=4), dynamic.run(data, batch_size=3), rows_of(classifier(4)).run(data)):
        np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found["best"], expected["best"])
    assert list(dynamic.run(data, ["best"])) == ["best"]


def test_rows_that_are_strided_or_objects(dynamic: RowSession) -> None:
    data = images(6)
    expected = dynamic.run({"image": data})["scores"]
    turned = np.asfortranarray(data)
    objects = np.empty(6, object)
    objects[:] = list(data)
    for given in (turned, objects, data[::-1][::-1], list(data)):
        np.testing.assert_allclose(dynamic.run({"image": given})["scores"], expected, rtol=1e-5, atol=1e-6)


def test_nan_of_one_row_stays_there(dynamic: RowSession) -> None:
    data = images(4)
    expected = dynamic.run({"image": data})["scores"]
    data[2] = np.nan
    found = dynamic.run({"image": data})["scores"]
    assert np.isnan(found[2]).all()
    np.testing.assert_allclose(found[[0, 1, 3]], expected[[0, 1, 3]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no column 'image'; there are: none"),
        ({"image": images(2).astype(np.float64)}, r"rows of float64 \[3, 8, 8\], the input is"),
        ({"image": images(2)[..., :7]}, r"rows of float32 \[3, 8, 7\]"),
        ({"image": np.float32(1)}, "rows of float32"),
        ({"image": np.array([np.zeros(1), np.zeros(2)], object)}, "have different lengths"),
    ],
)
def test_columns_that_do_not_fit(dynamic: RowSession, given: dict, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        dynamic.run(given)
    with pytest.raises(ParameterError, match="no result 'no'"):
        dynamic.run({"image": images(1)}, ["no"])


def test_models_without_rows_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="no leading dimension for rows"):
        rows_of(elementwise("Neg"))
    with pytest.raises(ParameterError, match="it has no row of each"):
        rows_of(elementwise("ReduceSum", "n", 2)).run({"x": np.zeros((3, 2), np.float32)})


def test_prepared_model_compiles_nothing_elsewhere(tmp_path: Path) -> None:
    onnx.save(classifier(), tmp_path / "m.onnx")
    data = prepare(tmp_path / "m.onnx", batch_sizes=[1, 4], num_threads=1)
    (tmp_path / "m.mxr").write_bytes(data)
    program = mgx_numba.load(tmp_path / "m.mxr", trust_objects=True)
    sizes = program.get_parameter_shapes()["image"].dyn_dims()[0].optimals
    best = max(sizes)
    assert sizes in ({1}, {1, 4})
    code = """
import sys
import numpy as np
from mgx_numba.ray.rows import RowSession
from mgx_numba.session import InferenceSession
rows = RowSession(InferenceSession(open(sys.argv[1], "rb").read(), trust_objects=True))
found = rows.run({"image": np.load(sys.argv[2])})
print(rows.batch_size, *found["best"], "numba" in sys.modules)
"""
    np.save(tmp_path / "x.npy", images(6))
    script = [sys.executable, "-c", code, str(tmp_path / "m.mxr"), str(tmp_path / "x.npy")]
    environment = {"MGX_CACHE_DIR": str(tmp_path / "empty"), "PYTHONPATH": str(Path(mgx_numba.__file__).parents[1])}
    found = subprocess.run(script, env=environment, check=True, capture_output=True, text=True).stdout.split()
    expected = rows_of(classifier()).run({"image": images(6)})["best"]
    assert found == [str(best), *map(str, expected), "False"]


def test_prepare_keeps_tuning_records_and_one_length() -> None:
    program = mgx_numba.parse_onnx(classifier())
    tuned = mgx_numba.load_buffer(prepare(program, batch_sizes=[4], num_threads=1, exhaustive_tune=True))
    assert not program.is_compiled() and tuned.compile_options is not None and tuned.compile_options.num_threads == 1
    assert {r.problem.fields["batch"] for r in tuned.tuning_records if r.problem.operation == "convolution"} == {4}
    fixed = mgx_numba.load_buffer(prepare(mgx_numba.parse_onnx(classifier(2)), num_threads=1))
    assert fixed.get_parameter_shapes()["image"].lens()[0] == 2


def test_prepare_says_what_is_missing(tmp_path: Path) -> None:
    program = mgx_numba.parse_onnx(classifier())
    with pytest.raises(OptionError, match=r"batch_sizes is \[\], expected at least one"):
        prepare(program, batch_sizes=[])
    narrow = mgx_numba.parse_onnx(classifier(), dim_params={"n": mgx_numba.dynamic_dimension(1, 4)})
    with pytest.raises(OptionError, match="8"):
        prepare(narrow, batch_sizes=[8])
    sequence = mgx_numba.parse_onnx_buffer(elementwise("Neg", "n", "s"))
    with pytest.raises(OptionError, match="row_lens has None for 'x'.*expected 1 lengths"):
        prepare(sequence)
    data = prepare(sequence, batch_sizes=[2], row_lens={"x": [5]}, num_threads=1)
    x = np.ones((3, 7), np.float32)
    np.testing.assert_array_equal(rows_of(data).run({"x": x})["y"], -x)


def test_requests_of_several_lengths_run_together() -> None:
    rows = rows_of(elementwise("Neg", "n", "s"))
    given = [np.full((n, s), k, np.float32) for k, (n, s) in enumerate([(1, 2), (2, 3), (0, 2), (3, 2), (1, 3)])]
    for x, found in zip(given, run_together(rows, [{"x": x} for x in given]), strict=True):
        np.testing.assert_array_equal(found["y"], -x)


def test_protocol_goes_both_ways(dynamic: RowSession) -> None:
    data = images(2)
    entry = {"name": "image", "shape": [2, 3, 8, 8], "datatype": "FP32", "data": data.ravel().tolist()}
    np.testing.assert_array_equal(read_request({"inputs": [entry]}, dynamic)["image"], data)
    nested = read_request({"inputs": [{**entry, "data": data.tolist()}]}, dynamic)["image"]
    np.testing.assert_array_equal(nested, data)
    assert metadata("m", dynamic) == {
        "name": "m",
        "platform": "mgx_numba",
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 8, 8]}],
        "outputs": [{"name": "scores"}, {"name": "best"}],
    }
    results = {"y": np.array([[1, np.nan], [np.inf, 2]], np.float16), "k": np.array([3]), "b": np.array([True])}
    answer = json.loads(json.dumps(write_response("m", results), allow_nan=False))
    assert answer["outputs"] == [
        {"name": "y", "datatype": "FP16", "shape": [2, 2], "data": [1, None, None, 2]},
        {"name": "k", "datatype": "INT64", "shape": [1], "data": [3]},
        {"name": "b", "datatype": "BOOL", "shape": [1], "data": [True]},
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "an object with an array 'inputs'"),
        ({"name": "no"}, "no input 'no'; the model's are: image"),
        ({"datatype": "STRING"}, "datatype of 'image' is 'STRING', expected one of BOOL"),
        ({"shape": [1, -1]}, r"shape of 'image' is \[1, -1\]"),
        ({"data": [1, 2]}, r"data of 'image' is not of FP32 \[1, 3, 8, 8\]"),
        ({"data": "text"}, "data of 'image' is not of FP32"),
    ],
)
def test_requests_that_are_none(dynamic: RowSession, change: dict | None, message: str) -> None:
    entry = {"name": "image", "shape": [1, 3, 8, 8], "datatype": "FP32", "data": [0] * 192}
    body = {} if change is None else {"inputs": [{**entry, **change}]}
    with pytest.raises(ParameterError, match=message):
        read_request(body, dynamic)
