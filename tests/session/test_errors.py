"""Errors of sessions are instances of both this package's class and ONNX Runtime's class."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as theirs

import mgx_numba.session
from mgx_numba import errors
from mgx_numba.session.capi import onnxruntime_pybind11_state as ours

X = np.ones((3, 2), np.float32)


def model(*nodes: Any, inputs: Any = None, opset: int = 17) -> bytes:
    """Return a model of nodes from ``x`` to ``y``."""
    inputs = inputs or {"x": (TensorProto.FLOAT, ["n", 2])}
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, *given) for name, given in inputs.items()],
        [helper.make_empty_tensor_value_info("y")],
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def node(op: str, *inputs: str, **given: Any) -> Any:
    return helper.make_node(op, inputs or ["x"], ["y"], **given)


IDENTITY = model(node("Identity"))
PAIR = {"x": (TensorProto.FLOAT, ["n"]), "i": (TensorProto.INT64, ["k"])}
FLOATS = {"x": (TensorProto.FLOAT, ["n"]), "i": (TensorProto.FLOAT, ["k"])}


def made(source: Any) -> Callable[[Any], Any]:
    return lambda ort: ort.InferenceSession(source, providers=["CPUExecutionProvider"])


def run(names: Any, feed: Any, source: bytes = IDENTITY) -> Callable[[Any], Any]:
    return lambda ort: made(source)(ort).run(names, feed)


def severe(ort: Any) -> Any:
    options = ort.RunOptions()
    options.log_severity_level = 9
    return made(IDENTITY)(ort).run(None, {"x": X}, options)


def terminated(ort: Any) -> Any:
    options = ort.RunOptions()
    options.terminate = True
    return made(IDENTITY)(ort).run(None, {"x": X}, options)


CASES: dict[str, tuple[Callable[[Any], Any], type[Exception]]] = {
    "no file": (made("/no/such.onnx"), errors.ParseError),
    "a folder": (made(str(Path(__file__).parent)), errors.ParseError),
    "nothing": (made(b""), errors.ParseError),
    "text": (made(b"hello world, this is no model"), errors.ParseError),
    "a truncated model": (made(IDENTITY[:-5]), errors.ParseError),
    "an unknown operator": (made(model(node("Foo"))), errors.ParseError),
    "an unknown domain": (made(model(node("Foo", domain="a.b"))), errors.ParseError),
    "mixed types": (
        made(model(node("Concat", "x", "i", axis=0), inputs={"x": (1, [2]), "i": (8, [2])})),
        errors.ParseError,
    ),
    "lengths that do not fit": (made(model(node("MatMul", "x", "x"), inputs={"x": (1, [2, 3])})), errors.ShapeError),
    "a future operator set": (made(model(node("Identity"), opset=99)), errors.UnsupportedError),
    "an unknown input": (run(None, {"x": X, "z": X}), errors.ParameterError),
    "an unknown result": (run(["z"], {"x": X}), errors.ParameterError),
    "another type": (run(None, {"x": X.astype(float)}), errors.ParameterError),
    "another rank": (run(None, {"x": X[0]}), errors.ParameterError),
    "another length": (run(None, {"x": X.T}), errors.ParameterError),
    "an index out of range": (
        run(None, {"x": X[:, 0], "i": np.array([7])}, model(node("Gather", "x", "i"), inputs=PAIR)),
        errors.IndexRangeError,
    ),
    "lengths of a run that do not fit": (
        run(None, {"x": X[:, 0], "i": np.ones(4, np.float32)}, model(node("Add", "x", "i"), inputs=FLOATS)),
        errors.ShapeError,
    ),
    "lengths that a run gives": (
        run(None, {"x": X[:, 0], "i": np.array([5])}, model(node("Reshape", "x", "i"), inputs=PAIR)),
        errors.ShapeError,
    ),
    "a run with an unknown severity": (severe, errors.OptionError),
    "a run that is ended": (terminated, errors.MgxError),
    "a library of custom operators": (
        lambda ort: ort.SessionOptions().register_custom_ops_library("/no.so"),
        errors.UnsupportedError,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_class_is_onnxruntimes_and_ours(name: str) -> None:
    code, kind = CASES[name]
    with pytest.raises(Exception) as found:
        code(onnxruntime)
    wanted = type(found.value).__name__
    assert isinstance(found.value, getattr(theirs, wanted))
    with pytest.raises(getattr(ours, wanted)) as raised:
        code(mgx_numba.session)
    assert isinstance(raised.value, kind) and str(raised.value)


def test_missing_input_is_a_value_error_as_onnxruntimes() -> None:
    for ort in (onnxruntime, mgx_numba.session):
        with pytest.raises(ValueError, match="x"):
            made(IDENTITY)(ort).run(None, {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((1, {"x": X}), "names"),
        (("y", {"x": X}), "names"),
        ((iter(()), {"x": X}), "names"),
        ((None, {"x": X}, 3), "RunOptions"),
    ],
)
def test_arguments_of_other_types_are_type_errors(given: Any, message: str) -> None:
    """A number for names or options was an AttributeError, or a TypeError about this package's code; an iterator of
    names gave no results."""
    for ort in (onnxruntime, mgx_numba.session):
        with pytest.raises(TypeError):
            made(IDENTITY)(ort).run(*given)
    with pytest.raises(errors.MgxError, match=message):
        made(IDENTITY)(mgx_numba.session).run(*given)


def test_texts_of_options_of_other_types_are_type_errors() -> None:
    """A number or a path was accepted, and its lack of a method reported by a later step."""
    for ort in (onnxruntime, mgx_numba.session):
        with pytest.raises(TypeError, match="str"):
            ort.SessionOptions().optimized_model_filepath = Path("model.onnx")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("intra_op_num_threads", "2"),
        ("intra_op_num_threads", 1.5),
        ("log_verbosity_level", "a"),
        ("enable_profiling", "x"),
        ("graph_optimization_level", 1),
        ("execution_mode", 0),
        ("execution_order", 9),
    ],
)
def test_numbers_and_flags_of_other_types_are_type_errors(name: str, value: Any) -> None:
    """A flag kept any value, and a text for a number was reported by another class when a session was made."""
    for ort in (onnxruntime, mgx_numba.session):
        with pytest.raises(TypeError):
            setattr(ort.SessionOptions(), name, value)
    for ort in (onnxruntime, mgx_numba.session):
        options = ort.SessionOptions()
        options.enable_profiling, options.enable_mem_pattern, options.intra_op_num_threads = np.False_, 0, True
        assert options.enable_profiling is False and options.enable_mem_pattern is False
        ort.InferenceSession(IDENTITY, options, providers=["CPUExecutionProvider"])


def test_sessions_and_numbers_as_entries_are_refused_by_type() -> None:
    """Pickling named a function inside of this package; an entry took any value as its text."""
    for ort in (onnxruntime, mgx_numba.session):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(made(IDENTITY)(ort))
        for options in (ort.SessionOptions().add_session_config_entry, ort.RunOptions().add_run_config_entry):
            with pytest.raises(TypeError):
                options("a.b", 1)


def test_what_configuration_entries_raise() -> None:
    for ort in (onnxruntime, mgx_numba.session):
        with pytest.raises(RuntimeError, match="a.b"):
            ort.SessionOptions().get_session_config_entry("a.b")
        options = ort.RunOptions()
        with pytest.raises(RuntimeError, match="a.b"):
            options.get_run_config_entry("a.b")
        options.add_run_config_entry("a.b", "c")
        assert options.get_run_config_entry("a.b") == "c"
        with pytest.raises(AttributeError, match="colour"):
            options.colour = 1


def test_options_that_cancel_loading() -> None:
    for ort, state in ((onnxruntime, theirs), (mgx_numba.session, ours)):
        options = ort.SessionOptions()
        options.set_load_cancellation_flag(True)
        with pytest.raises(state.ModelLoadCanceled):
            ort.InferenceSession(IDENTITY, options, providers=["CPUExecutionProvider"])


def test_run_that_is_told_to_end_meanwhile() -> None:
    options = mgx_numba.session.RunOptions()

    class Feed(dict[str, Any]):
        def items(self) -> Any:
            options.terminate = True
            return super().items()

    session = mgx_numba.session.InferenceSession(IDENTITY)
    with pytest.raises(ours.Fail, match="RunOptions.terminate is set"):
        session.run(None, Feed(x=X), options)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    with pytest.raises(ours.Fail, match="RunOptions.terminate is set"):
        session.run_with_iobinding(binding, options)
    options.terminate = False
    session.run_with_iobinding(binding, options)


def test_error_keeps_its_message_and_place() -> None:
    with pytest.raises(errors.ShapeError, match=r"MatMul.*\[2, 3\] x \[2, 3\]") as raised:
        CASES["lengths that do not fit"][0](mgx_numba.session)
    assert any("frontends" in str(entry.path) for entry in raised.traceback)
    assert type(raised.value).__name__ == "Fail" and raised.value.__suppress_context__


def test_error_goes_through_pickle_as_from_a_worker_process() -> None:
    with pytest.raises(ours.NoSuchFile) as raised:
        mgx_numba.session.InferenceSession("no.onnx")
    again = pickle.loads(pickle.dumps(raised.value))
    assert isinstance(again, ours.NoSuchFile) and isinstance(again, errors.ParseError)
    assert str(again) == str(raised.value)
