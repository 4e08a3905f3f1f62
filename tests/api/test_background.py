"""``compile(..., wait=False)``: runs are computed by NumPy until the thread that compiles has ended."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mgx_numba as mgx
import mgx_numba.session
from mgx_numba.api import compiling, options
from mgx_numba.api.background import PendingCompilation
from mgx_numba.errors import CompileError, OptionError, ParameterError

from ..running import said

X = np.random.default_rng(0).standard_normal((3, 24)).astype(np.float32)


def model(rows: int | str = 3) -> onnx.ModelProto:
    weights = np.random.default_rng(1).standard_normal((24, 16)).astype(np.float32)
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["m"]), onnx.helper.make_node("Tanh", ["m"], ["y"])]
    floats = [onnx.helper.make_tensor_value_info(name, 1, [rows, n]) for name, n in (("x", 24), ("y", 16))]
    graph = onnx.helper.make_graph(nodes, "g", floats[:1], floats[1:], [onnx.numpy_helper.from_array(weights, "w")])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])


def parsed(rows: int | str = 3) -> Any:
    return mgx.parse_onnx_buffer(model(rows).SerializeToString())


def wanted() -> np.ndarray:
    return np.asarray(parsed().compile("ref").run({"x": X})[0])


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An event for which compilations for ``cpu`` wait."""
    event, compile_for = threading.Event(), compiling.compile_for

    def late(name: str, *given: Any) -> Any:
        assert name != "cpu" or event.wait(10)
        return compile_for(name, *given)

    monkeypatch.setattr(compiling, "compile_for", late)
    yield event
    event.set()


@pytest.mark.parametrize("rows", [3, "rows"])
def test_runs_before_the_end_are_computed_by_ref(gate: threading.Event, rows: int | str) -> None:
    net = parsed(rows).compile("cpu", wait=False)
    assert net.get_parameter_names() == ["x"] and net.get_output_names() == ["y"]
    assert net.get_parameter_shapes()["x"] == parsed(rows).get_parameter_shapes()["x"]
    assert [s.type_string() for s in net.get_output_shapes()] == ["float_type"]
    y = np.empty((3, 16), np.float32)
    np.testing.assert_array_equal(net.run({"x": X})[0], wanted())
    np.testing.assert_array_equal(net.run({"x": X}, {"y": y})[0], wanted())
    with pytest.raises(ParameterError, match="Parameter not found: x"):
        net.run({})
    gate.set()
    assert net.wait() is net and net.is_compiled() and net.kernels()
    np.testing.assert_array_equal(net.run({"x": X})[0], parsed(rows).compile("cpu").run({"x": X})[0])
    np.testing.assert_allclose(net.run({"x": X})[0], wanted(), atol=1e-5)


def test_calls_that_need_the_compiled_form_wait(gate: threading.Event, tmp_path: Path) -> None:
    calls: list[Any] = [
        lambda net: net.is_compiled() or pytest.fail("not compiled"),
        lambda net: net.kernels(),
        lambda net: mgx.save(net, tmp_path / "net.mxr"),
        lambda net: copy.copy(net).kernels(),
        lambda net: net.get_main_module(),
        lambda net: net.compile("ref"),
    ]
    nets = [parsed().compile("cpu", wait=False) for _ in calls]
    with ThreadPoolExecutor(len(calls)) as pool:
        results = [pool.submit(call, net) for call, net in zip(calls, nets, strict=True)]
        assert not any(result.done() for result in results)
        gate.set()
        for result in results:
            result.result()
    np.testing.assert_array_equal(mgx.load(tmp_path / "net.mxr").run({"x": X})[0], nets[0].run({"x": X})[0])


def test_runs_in_threads_change_to_the_compiled_form(gate: threading.Event) -> None:
    net = parsed().compile("cpu", wait=False)
    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(net.run, {"x": X}) for _ in range(200)]
        gate.set()
        for result in results:
            np.testing.assert_allclose(result.result()[0], wanted(), atol=1e-5)
    assert net.wait().kernels()


def test_an_error_of_the_compilation_is_raised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(name: str, *given: Any) -> Any:
        if name == "cpu":
            raise CompileError("no kernel")
        return compile_for(name, *given)

    compile_for = compiling.compile_for
    with monkeypatch.context() as patch:
        patch.setattr(compiling, "compile_for", failing)
        net = parsed().compile("cpu", wait=False)
        with pytest.raises(CompileError, match="no kernel"):
            net.wait()
    assert not net.is_compiled()
    np.testing.assert_allclose(net.compile("cpu").run({"x": X})[0], wanted(), atol=1e-5)


def test_an_interrupt_while_waiting_leaves_the_compilation_at_work(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = parsed().compile("cpu", wait=False)

    def interrupted(form: PendingCompilation) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PendingCompilation, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            net.wait()
    np.testing.assert_array_equal(net.run({"x": X})[0], wanted())
    gate.set()
    assert net.wait().kernels()


def test_other_targets_are_waited_for_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "warned", set[str]())
    with pytest.warns(UserWarning, match="compile option wait=False has no effect on this target"):
        assert parsed().compile("ref", wait=False).is_compiled()


def test_quantised_programs_are_quantised_before_the_first_run(gate: threading.Event) -> None:
    net = parsed().compile("cpu", {"use_fp16": True, "wait": False})
    early = np.asarray(net.run({"x": X})[0])
    assert 0 < np.abs(early - wanted()).max() < 1e-2


def test_a_session_takes_the_option(gate: threading.Event) -> None:
    session = mgx_numba.session.InferenceSession(
        model().SerializeToString(), providers=["CPUExecutionProvider"], provider_options=[{"wait": False}]
    )
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], wanted())


@pytest.mark.parametrize("value", ["no", 2, None])
def test_the_option_is_true_or_false(value: Any) -> None:
    with pytest.raises(OptionError, match="wait must be True or False"):
        parsed().compile("cpu", wait=value)


def test_a_process_that_ends_after_one_run_leaves_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MGX_PLAN_CACHE", raising=False)
    onnx.save(model(), tmp_path / "net.onnx")
    program = (
        "import sys, numpy as np, mgx_numba\n"
        "net = mgx_numba.parse_onnx(sys.argv[1]).compile('cpu', wait=False)\n"
        "print(net._background is None, float(np.asarray(net.run({'x': np.ones((3, 24), np.float32)})[0]).sum()))\n"
    )
    first, second = (said(program, tmp_path / "net.onnx").split() for _ in range(2))
    assert first[0] == "False" and second[0] == "True"
    assert float(first[1]) == pytest.approx(float(second[1]), abs=1e-4)
