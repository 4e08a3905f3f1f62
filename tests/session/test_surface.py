"""Sessions have every public name of the installed ONNX Runtime, except listed names with reasons."""

from __future__ import annotations

import enum
import importlib
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as their_state

import mgx_numba.session
from mgx_numba import errors
from mgx_numba.session.capi import onnxruntime_pybind11_state as our_state

_MACHINERY = "names of ONNX Runtime's own packaging"
_NODES = "a program's instructions are not the model's nodes; program.explain tells what became of a node"
_STREAMS = "streams are the GPU driver's; program.run_async takes one by its handle"
_COMPILED = "a compiled program is an .mxr file (optimized_model_filepath), not an ONNX model with a provider's blobs"
_ADAPTERS = "adapters are given as overridable initializers of a run"

LEFT_OUT = {
    "": {
        **dict.fromkeys(("contextlib", "import_capi_exception", "onnxruntime_validation"), _MACHINERY),
        **dict.fromkeys(("OrtEpAssignedNode", "OrtEpAssignedSubgraph"), _NODES),
        "OrtSyncStream": _STREAMS,
        **dict.fromkeys(
            "ModelCompiler OrtCompileApiFlags OrtExternalInitializerInfo OrtEpContextData OrtEpContextDataBuffer"
            " ModelPackage ModelPackageComponentContext ModelPackageContext ModelPackageOptions"
            " ModelPackageWriteMode".split(),
            _COMPILED,
        ),
        **dict.fromkeys(("AdapterFormat", "LoraAdapter"), _ADAPTERS),
        "SessionIOBinding": "IOBinding is the one class of bindings",
    },
    "InferenceSession": {"get_provider_graph_assignment_info": _NODES},
    "SessionOptions": dict.fromkeys(("clear_ep_context_data_read_func", "set_ep_context_data_read_func"), _COMPILED),
    "OrtEpDevice": {"create_sync_stream": _STREAMS},
    "RunOptions": {"add_active_adapter": _ADAPTERS},
}
"""Reason for each name that is left out, by class ("" for the module)."""

CLASSES = (
    "InferenceSession SessionOptions RunOptions OrtValue IOBinding NodeArg ModelMetadata SparseTensor OrtDevice"
    " OrtMemoryInfo OrtArenaCfg OrtEpDevice OrtHardwareDevice"
).split()


def _public(value: Any) -> set[str]:
    return {
        name
        for name in dir(value)  # without modules: which of them are there depends on what was imported
        if not (name.startswith("_") or isinstance(getattr(value, name, None), types.ModuleType))
    }


def _shown(name: str) -> Any:
    """Return this package's class of this name, or an instance if only instances have the attributes."""
    found = getattr(mgx_numba.session, name)
    made = {"SessionOptions": (), "RunOptions": (), "NodeArg": ("x", "tensor(float)", []), "ModelMetadata": ()}
    if name == "OrtMemoryInfo":
        return found("Cpu", mgx_numba.session.OrtAllocatorType.INVALID, 0, mgx_numba.session.OrtMemType.DEFAULT)
    if name in ("OrtEpDevice", "OrtHardwareDevice"):
        device = mgx_numba.session.get_ep_devices()[-1]
        return device if name == "OrtEpDevice" else device.device
    return found(*made[name]) if name in made else found


def test_every_public_name_is_there_or_left_out_for_a_reason() -> None:
    missing = _public(onnxruntime) - set(dir(mgx_numba.session))
    assert missing - LEFT_OUT[""].keys() == set()
    for name in CLASSES:
        missing = _public(getattr(onnxruntime, name)) - _public(_shown(name))
        assert missing - LEFT_OUT.get(name, {}).keys() == set(), name


def test_nothing_that_is_there_is_said_to_be_left_out() -> None:
    assert not LEFT_OUT[""].keys() & set(dir(mgx_numba.session))
    for name in LEFT_OUT.keys() - {""}:
        assert not LEFT_OUT[name].keys() & _public(_shown(name)), name


def test_enumerations_have_the_same_numbers() -> None:
    compared = 0
    for state, ours in ((onnxruntime, mgx_numba.session), (their_state, our_state)):
        for name in dir(state):
            theirs, mine = getattr(state, name), getattr(ours, name, None)
            if not isinstance(mine, type) or not issubclass(mine, enum.IntEnum):
                continue
            members = {k: int(v) for k, v in theirs.__members__.items()}
            assert {k: int(v) for k, v in mine.__members__.items()} == members, name
            compared += 1
    assert compared >= 9


def test_every_exception_class_is_there() -> None:
    names = [
        name
        for name in dir(their_state)
        if isinstance(getattr(their_state, name), type) and issubclass(getattr(their_state, name), Exception)
    ]
    assert len(names) >= 12
    for name in names:
        assert issubclass(getattr(our_state, name), Exception), name
        assert getattr(our_state, name).__name__ == name


def test_defaults_are_the_same() -> None:
    for name in ("SessionOptions", "RunOptions"):
        theirs, mine = getattr(onnxruntime, name)(), getattr(mgx_numba.session, name)()
        for option in _public(theirs):
            value = getattr(theirs, option)
            if not callable(value):
                assert getattr(mine, option) == (int(value) if hasattr(value, "__members__") else value), option


def test_version_is_of_the_interface() -> None:
    ours = mgx_numba.session
    assert tuple(map(int, ours.get_version_string().split("."))) >= (1, 20, 0)
    assert ours.__version__ == ours.version == ours.get_version_string()
    assert ours.__version__ == ours.capi.build_and_package_info.__version__
    assert mgx_numba.__version__ in ours.get_build_info() and ours.__version__ != mgx_numba.__version__


def test_calls_for_the_whole_process(capsys: pytest.CaptureFixture[str]) -> None:
    ours = mgx_numba.session
    ours.disable_telemetry_events()
    ours.enable_telemetry_events()
    ours.preload_dlls()
    ours.set_default_logger_verbosity(0)
    ours.set_global_thread_pool_sizes(2, 2)
    ours.create_and_register_allocator(
        ours.OrtMemoryInfo("Cpu", ours.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ours.OrtMemType.DEFAULT),
        ours.OrtArenaCfg({"max_mem": 1 << 20}),
    )
    assert not ours.has_collective_ops()
    ours.print_debug_info()
    assert ours.get_version_string() in capsys.readouterr().out
    for refused in (
        lambda: ours.register_execution_provider_library("a", "b.so"),
        lambda: ours.unregister_execution_provider_library("a"),
        lambda: ours.SessionOptions().register_custom_ops_library("b.so"),
    ):
        with pytest.raises(our_state.Fail, match="not supported|is registered"):
            refused()
    with pytest.raises(ValueError, match="OrtArenaCfg has no 'foo'"):
        ours.OrtArenaCfg({"foo": 1})


def test_records_come_to_a_callback(capsys: pytest.CaptureFixture[str]) -> None:
    import logging

    ours, told = mgx_numba.session, []
    logger = logging.getLogger("mgx_numba")
    before = logger.level
    try:
        ours.set_default_logger_callback(lambda *given: told.append(given), 2)
        logging.getLogger("mgx_numba.test").warning("a %s", "text")
        logging.getLogger("mgx_numba.test").info("below")

        def failing(*given: Any) -> None:
            raise ValueError("of the callback")

        ours.set_default_logger_callback(failing, 2)
        logging.getLogger("mgx_numba.test").warning("goes on")
        for bad in (("no function", 2), (None, 5), (None, -1)):
            with pytest.raises(RuntimeError, match="expected"):
                ours.set_default_logger_callback(*bad)
        ours.set_default_logger_callback(None)
        logging.getLogger("mgx_numba.test").warning("nobody")
    finally:
        logger.setLevel(before)
    assert "of the callback" in capsys.readouterr().err
    assert [(severity, category, message) for severity, category, _, _, message in told] == [
        (2, "mgx_numba.test", "a text")
    ]


def test_devices() -> None:
    for args in (("cpu", 0), ("cuda", 1), ("gpu", 0, 0x1002), ("npu", 2), ("cann", 0)):
        theirs, mine = onnxruntime.OrtDevice.make(*args), mgx_numba.session.OrtDevice.make(*args)
        for name in ("device_id", "device_type", "device_vendor_id", "device_mem_type"):
            assert getattr(mine, name)() == getattr(theirs, name)(), (args, name)
    with pytest.raises(errors.UnsupportedError, match="device 'tpu'"):
        mgx_numba.session.OrtDevice.make("tpu", 0)


def test_sparse_tensors_hold_what_they_were_given() -> None:
    values = np.array([1.5, 2.5], np.float32)

    def both(code: Any) -> None:
        assert repr(code(mgx_numba.session)) == repr(code(onnxruntime))

    def coordinates(ort: Any) -> Any:
        at = np.array([1, 5], np.int64)
        t = ort.SparseTensor.sparse_coo_from_numpy([3, 3], values, at, ort.OrtDevice.make("cpu", 0))
        found = t.values().tolist(), t.as_coo_view().indices().tolist(), t.format().name, list(t.dense_shape())
        return *found, t.data_type(), t.device_name()

    def rows(ort: Any) -> Any:
        columns, starts = np.array([1, 2], np.int64), np.array([0, 1, 1, 2], np.int64)
        t = ort.SparseTensor.sparse_csr_from_numpy([3, 3], values, columns, starts, ort.OrtDevice.make("cpu", 0))
        view = t.as_csrc_view()
        return view.inner().tolist(), view.outer().tolist(), t.format().name

    both(coordinates)
    both(rows)
    ours = mgx_numba.session
    cpu = ours.OrtDevice.make("cpu", 0)
    tensor = ours.SparseTensor.sparse_coo_from_numpy([3], values, np.array([0, 2]), cpu)
    held = ours.OrtValue.ort_value_from_sparse_tensor(tensor)
    assert held.is_sparse_tensor() and not held.is_tensor() and held.as_sparse_tensor() is tensor
    assert held.data_type() == "sparse_tensor(float)" and held.shape() == [3]
    for refused in (held.numpy, ours.OrtValue.ortvalue_from_numpy(values).as_sparse_tensor):
        with pytest.raises(RuntimeError, match="sparse"):
            refused()
    text = ours.SparseTensor.sparse_coo_from_numpy([3], np.array(["a", "b"]), np.array([0, 2]), cpu)
    assert text.data_type() == "sparse_tensor(string)" and not text.values().flags.writeable
    for refused in (tensor.as_csrc_view, tensor.as_blocksparse_view):
        with pytest.raises(errors.ParameterError, match="sparse tensor"):
            refused()
    with pytest.raises(errors.UnsupportedError, match="host alone"):
        tensor.to_cuda(ours.OrtDevice.make("cuda", 0))
    with pytest.raises(errors.ParameterError, match=r"indices \[3\] do not fit values \[2\]"):
        ours.SparseTensor.sparse_coo_from_numpy([3], values, np.array([0, 1, 2]), cpu)


_ALIASED = """
import sys
import mgx_numba.session
{install}
import onnxruntime
import onnxruntime.capi._pybind_state
from onnxruntime import InferenceSession
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_inference_collection import OrtValue
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, NoSuchFile
assert InferenceSession is mgx_numba.session.InferenceSession is C.InferenceSession
assert OrtValue is mgx_numba.session.OrtValue and onnxruntime.__version__.startswith("1.")
assert C.get_available_providers() == onnxruntime.get_available_providers()
try:
    onnxruntime.InferenceSession("no.onnx")
except NoSuchFile as error:
    assert isinstance(error, mgx_numba.errors.ParseError) and not isinstance(error, InvalidArgument)
mgx_numba.session.uninstall_as_onnxruntime()
"""


@pytest.mark.parametrize(
    "install",
    ["mgx_numba.session.install_as_onnxruntime()", "sys.modules['onnxruntime'] = mgx_numba.session"],
)
def test_other_code_imports_sessions_as_onnxruntime(install: str) -> None:
    root = Path(mgx_numba.__file__).parent.parent
    subprocess.run([sys.executable, "-c", _ALIASED.format(install=install)], check=True, cwd=root)


def test_onnxruntime_that_is_imported_is_not_replaced() -> None:
    assert importlib.import_module("onnxruntime") is onnxruntime
    with pytest.raises(errors.OptionError, match="'onnxruntime' is imported already, from .*onnxruntime"):
        mgx_numba.session.install_as_onnxruntime()
    mgx_numba.session.uninstall_as_onnxruntime()
    assert sys.modules["onnxruntime"] is onnxruntime
