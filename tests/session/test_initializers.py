"""Initializers overridden by a run, replaced by options, or with external data in memory, as in ONNX Runtime."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba.session
from mgx_numba.errors import MgxError, OptionError
from mgx_numba.session.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

X = np.arange(6, dtype=np.float32).reshape(3, 2)
W, B = np.array([[1, -2], [3, 4]], np.float32), np.array([5, -6], np.float32)
RATIO = np.array([7, 8, -9, 10, 11, 12, 13], np.float32)


def info(name: str, number: int, dims: Any) -> Any:
    return helper.make_tensor_value_info(name, number, dims)


def linear(ir_version: int = 10, declared: tuple[str, ...] = ("w", "b")) -> bytes:
    """Return a model ``relu(x @ w + b)``; ``w`` and ``b`` are also inputs if they are declared."""
    values = {"w": W, "b": B}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Add", ["m", "b"], ["s"]),
            helper.make_node("Relu", ["s"], ["y"]),
        ],
        "g",
        [info("x", TensorProto.FLOAT, ["n", 2]), *(info(n, TensorProto.FLOAT, values[n].shape) for n in declared)],
        [info("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    return model_of(graph, ir_version)


def model_of(graph: Any, ir_version: int = 10) -> bytes:
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version
    ).SerializeToString()


def reshaped() -> bytes:
    """Return a model whose Reshape reads default lengths from an initializer."""
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "lens"], ["r"]), helper.make_node("Neg", ["r"], ["y"])],
        "g",
        [info("x", TensorProto.FLOAT, [3, 2]), info("lens", TensorProto.INT64, [2])],
        [info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([6, 1]), "lens")],
    )
    return model_of(graph)


def external(location: str = "w.bin", offset: int = 8) -> bytes:
    """Return a model ``x + w`` with ``w`` in another file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", 8)):
        tensor.external_data.add(key=key, value=str(value))
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [info("x", TensorProto.FLOAT, ["n", 2])],
        [info("y", TensorProto.FLOAT, ["n", 2])],
        [tensor],
    )
    return model_of(graph)


def both(model: bytes, code: Callable[[Any, Any], Any], options: Callable[[Any, Any], None] | None = None) -> None:
    """Run ``code(ort, session)`` with both, and compare arrays and names."""
    found = []
    for ort in (mgx_numba.session, onnxruntime):
        asked = ort.SessionOptions()
        if options is not None:
            options(ort, asked)
        found.append(code(ort, ort.InferenceSession(model, asked, providers=["CPUExecutionProvider"])))
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("version", "declared"), [(3, ("w", "b")), (4, ("w", "b")), (10, ("w",)), (10, ("b", "w"))])
def test_initializers_that_are_inputs_are_overridden_in_a_run(version: int, declared: tuple[str, ...]) -> None:
    def code(ort: Any, session: Any) -> Any:
        names = [i.name for i in session.get_overridable_initializers()]
        shapes = [i.shape for i in session.get_overridable_initializers()]
        found: list[Any] = [[i.name for i in session.get_inputs()], sorted(names), *sorted(shapes)]
        for given in ({}, {"w": -W}, {"b": B + 1}, {"w": W * 2, "b": -B}, {}, {"w": W + 1}):
            if given.keys() <= set(names):
                found += session.run(None, {"x": X, **given})
        return found

    both(linear(version, declared), code)


def test_overridden_value_that_an_operator_must_know() -> None:
    def code(ort: Any, session: Any) -> Any:
        lens = ([6, 1], [2, 3], [1, 6], [2, 3], [-1, 2])
        return [session.run(None, {"x": X, "lens": np.array(n)})[0] for n in lens] + session.run(None, {"x": X})

    both(reshaped(), code)
    session = mgx_numba.session.InferenceSession(reshaped())
    with pytest.raises(Fail, match=r"\[4, 4\]"):
        session.run(None, {"x": X, "lens": np.array([4, 4])})


def test_overridden_values_of_declared_symbols_or_without_dimensions() -> None:
    tensors = [numpy_helper.from_array(B, "v"), numpy_helper.from_array(B * 2, "w"), numpy_helper.from_array(B, "u")]
    graph = helper.make_graph(
        [helper.make_node("Add", ["v", "w"], ["s"]), helper.make_node("Mul", ["u", "u"], ["y"])],
        "g",
        [info("v", TensorProto.FLOAT, ["k"]), info("w", TensorProto.FLOAT, ["k"]), info("u", TensorProto.FLOAT, None)],
        [info("s", TensorProto.FLOAT, ["k"]), info("y", TensorProto.FLOAT, None)],
        tensors,
    )

    def code(ort: Any, session: Any) -> Any:
        shapes = [str(a.shape) for a in sorted(session.get_overridable_initializers(), key=lambda a: a.name)]
        found = [np.array(shapes), *session.run(None, {})]
        for given in ({"v": X[0], "w": X[1]}, {"v": X.ravel(), "w": -X.ravel()}, {"u": B * 3}):
            found += session.run(None, given)
        return found

    both(model_of(graph), code)
    with pytest.raises(Fail, match="different lengths|do not broadcast"):
        mgx_numba.session.InferenceSession(model_of(graph)).run(None, {"v": X.ravel()})


def test_overridden_through_bindings_and_lists() -> None:
    def code(ort: Any, session: Any) -> Any:
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_ortvalue_input("b", ort.OrtValue.ortvalue_from_numpy(B * 3))
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        return [*binding.copy_outputs_to_cpu(), *session.run(["y"], {"x": X.tolist(), "w": W.T.copy()})]

    both(linear(), code)


@pytest.mark.parametrize("given", [np.zeros((2, 3), np.float32), np.zeros((2, 2)), np.zeros(4, np.float32)])
def test_overriding_value_that_does_not_fit(given: np.ndarray) -> None:
    session = mgx_numba.session.InferenceSession(linear())
    with pytest.raises(InvalidArgument, match="parameter: w should be"):
        session.run(None, {"x": X, "w": given})


def test_model_file_may_go_before_a_run_overrides(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(linear())
    session = mgx_numba.session.InferenceSession(path)
    path.unlink()
    np.testing.assert_array_equal(session.run(None, {"x": X, "b": -B})[0], np.maximum(X @ W - B, 0))


def test_add_initializer_takes_the_place_of_the_models() -> None:
    both(
        linear(declared=()),
        lambda ort, session: session.run(None, {"x": X}),
        lambda ort, options: options.add_initializer("w", KEPT.setdefault(ort, value(ort, -W))),
    )


KEPT: dict[Any, Any] = {}
"""OrtValues of both engines; kept alive, because ONNX Runtime reads their memory later."""


def value(ort: Any, array: np.ndarray) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(array)


def test_external_data_from_memory() -> None:
    tensors = {ort: value(ort, RATIO[:2].copy()) for ort in (mgx_numba.session, onnxruntime)}
    both(
        external(),
        lambda ort, session: session.run(None, {"x": X}),
        lambda ort, options: options.add_external_initializers(["w"], [tensors[ort]]),
    )
    for data in (RATIO.tobytes(), bytearray(RATIO.tobytes()), b"1234" + RATIO.tobytes()):
        both(
            external("w.bin", 8 if len(data) == RATIO.nbytes else 4),
            lambda ort, session: session.run(None, {"x": X}),
            lambda ort, options, data=data: options.add_external_initializers_from_files_in_memory(
                ["w.bin"], [data], [len(data)]
            ),
        )


def test_memory_may_change_once_the_session_is_made() -> None:
    data, options = bytearray(RATIO.tobytes()), mgx_numba.session.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["w.bin"], [data], [len(data)])
    session = mgx_numba.session.InferenceSession(external(), options)
    data[:] = bytes(len(data))
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], X + RATIO[2:4])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda o: o.add_initializer("w", value(mgx_numba.session, B[:1])), r"float32\[1\], expected float\[2\]"),
        (lambda o: o.add_initializer("w", value(mgx_numba.session, B.astype(int))), r"int64\[2\], expected float"),
        (lambda o: o.add_external_initializers(["q"], [value(mgx_numba.session, B)]), "'q', which the model has not"),
        (lambda o: o.add_external_initializers_from_files_in_memory(["w.bin"], [b"12345678"], [8]), "which has 8"),
        (lambda o: o.add_external_initializers_from_files_in_memory(["q.bin"], [b""], [0]), "in memory are: 'q.bin'"),
        (lambda o: None, "external_data_path"),
    ],
)
def test_given_data_that_does_not_fit_the_model(options: Callable[[Any], None], message: str) -> None:
    asked = mgx_numba.session.SessionOptions()
    options(asked)
    with pytest.raises(Fail, match=message):
        mgx_numba.session.InferenceSession(external(), asked)
    if "model has not" in message:
        asked = mgx_numba.session.SessionOptions()
        asked.add_external_initializers(["w"], [value(mgx_numba.session, W)])
        with pytest.raises(Fail, match="'w', whose data is not external"):
            mgx_numba.session.InferenceSession(linear(), asked)


def test_options_that_cannot_be(tmp_path: Path) -> None:
    options, tensor = mgx_numba.session.SessionOptions(), value(mgx_numba.session, B)
    options.add_initializer("w", tensor)
    for call, message in (
        (lambda: options.add_initializer("w", tensor), "'w' is given twice"),
        (lambda: options.add_initializer("v", B), "'v' is given as ndarray, expected an OrtValue"),
        (lambda: options.add_external_initializers(["a"], []), "1 names and 0 values"),
        (lambda: options.add_external_initializers_from_files_in_memory(["a"], [b""], []), "1 buffers and 0 lengths"),
        (lambda: options.add_external_initializers_from_files_in_memory(["a"], [3], [1]), "'a' is no buffer"),
        (lambda: options.add_external_initializers_from_files_in_memory(["a"], [b"1"], [2]), "its length is 2"),
    ):
        with pytest.raises(OptionError, match=message):
            call()
    with pytest.warns(RuntimeWarning, match="add_initializer names 'w', which the model has not"):
        mgx_numba.session.InferenceSession(reshaped(), options)
    saved = str(tmp_path / "m.mxr")
    mgx_numba.parse_onnx_buffer(linear()).save(saved)
    with pytest.raises(OptionError, match="initializers can be given when an ONNX file is read"):
        mgx_numba.session.InferenceSession(saved, options)


def test_free_dimensions_by_denotation() -> None:
    model = onnx.ModelProto.FromString(linear())
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"

    def code(ort: Any, session: Any) -> Any:
        return [np.array(session.get_inputs()[0].shape), *session.run(None, {"x": X})]

    both(
        model.SerializeToString(),
        code,
        lambda ort, options: options.add_free_dimension_override_by_denotation("DATA_BATCH", 3),
    )


@pytest.mark.parametrize("kind", ["raw", "fields", "external", "given", "overridable"])
def test_optimised_model_of_onnx_is_a_model_with_all_its_data(tmp_path: Path, kind: str) -> None:
    """ONNX Runtime loads the file from another folder and computes the same."""
    out, big = str(tmp_path / "out.onnx"), np.random.default_rng(0).random((2, 300)).astype(np.float32)
    options = mgx_numba.session.SessionOptions()
    options.optimized_model_filepath = out
    options.add_free_dimension_override_by_name("n", 3)
    if kind in ("raw", "fields"):
        fields = helper.make_tensor("w", TensorProto.FLOAT, big.shape, big.ravel())
        tensor = numpy_helper.from_array(big, "w") if kind == "raw" else fields
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "g",
            [info("x", TensorProto.FLOAT, ["n", 2])],
            [info("y", TensorProto.FLOAT, ["n", 300])],
            [tensor],
        )
        source: Any = model_of(graph)
    elif kind == "external":
        (tmp_path / "in").mkdir()
        source = str(tmp_path / "in" / "m.onnx")
        Path(source).write_bytes(external())
        (tmp_path / "in" / "w.bin").write_bytes(RATIO.tobytes())
    else:
        source = external() if kind == "given" else linear()
        if kind == "given":
            options.add_external_initializers(["w"], [value(mgx_numba.session, RATIO[:2].copy())])
    with pytest.warns(RuntimeWarning, match="gets the model as it was read"):
        session = mgx_numba.session.InferenceSession(source, options)
    expected = session.run(None, {"x": X})[0]
    theirs = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    assert theirs.get_inputs()[0].shape == [3, 2]
    np.testing.assert_allclose(theirs.run(None, {"x": X})[0], expected, rtol=1e-6)
    if kind == "overridable":
        np.testing.assert_array_equal(theirs.run(None, {"x": X, "b": -B})[0], session.run(None, {"x": X, "b": -B})[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = mgx_numba.session.InferenceSession(out)
    np.testing.assert_allclose(again.run(None, {"x": X})[0], expected, rtol=1e-6)


def test_optimised_model_in_a_folder_that_is_missing(tmp_path: Path) -> None:
    options = mgx_numba.session.SessionOptions(optimized_model_filepath=str(tmp_path / "no" / "m.onnx"))
    with pytest.warns(RuntimeWarning), pytest.raises(MgxError, match="cannot be written"):
        mgx_numba.session.InferenceSession(linear(), options)


def test_large_initializers_of_an_optimised_model_lie_beside_it(tmp_path: Path) -> None:
    options = mgx_numba.session.SessionOptions(optimized_model_filepath=str(tmp_path / "m.onnx"))
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "m.bin")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "16")
    with pytest.warns(RuntimeWarning, match="gets the model as it was read"):
        session = mgx_numba.session.InferenceSession(linear(declared=()), options)
    assert (tmp_path / "m.bin").stat().st_size == 64  # w, whose 16 bytes are filled up, and not b
    written = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert [t.name for t in written.graph.initializer if t.external_data] == ["w"]
    for ort in (mgx_numba.session, onnxruntime):
        found = ort.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"]).run(None, {"x": X})
        np.testing.assert_array_equal(found, session.run(None, {"x": X}))
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "many")
    with pytest.warns(RuntimeWarning), pytest.raises(OptionError, match="'many', expected a number of bytes"):
        mgx_numba.session.InferenceSession(linear(), options)
