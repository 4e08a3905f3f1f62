"""`OrtValue`, `OrtValueVector`, `copy_tensors` and declared dimensions of results, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import mgx_numba.session
from mgx_numba.errors import ParameterError, ShapeError, UnsupportedError

BOTH = (mgx_numba.session, onnxruntime)
X = np.arange(6, dtype=np.float32).reshape(3, 2)


def model(op: str, declared: Any, dims: Any = ("n", 2), number: int = TensorProto.FLOAT, **given: Any) -> bytes:
    """Return a model of one node whose result has the declared dimensions ``declared``."""
    graph = helper.make_graph(
        [helper.make_node(op, [] if op.startswith("Random") else ["x"], ["y"], **given)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", number, declared)],
    )
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


@pytest.mark.parametrize(
    "declared",
    [["n", 2], ["m", 2], ["m", "k"], [None, None], None, ["n", None], [7, 2], ["a+1", 2]],
    ids=str,
)
def test_results_have_the_lengths_and_symbols_that_the_model_declares(declared: Any) -> None:
    mine, theirs = (ort.InferenceSession(model("Relu", declared)).get_outputs()[0].shape for ort in BOTH)
    assert mine == theirs


@pytest.mark.parametrize("declared", [[2, "k"], None, [None, None], ["a", "b"], [2, 5]], ids=str)
def test_declared_lengths_of_results_that_data_decide(declared: Any) -> None:
    given = model("NonZero", declared, number=TensorProto.INT64)
    mine, theirs = (ort.InferenceSession(given).get_outputs()[0].shape for ort in BOTH)
    assert mine == theirs


def test_declared_lengths_are_kept_in_a_saved_program(tmp_path: Any) -> None:
    saved = str(tmp_path / "m.mxr")
    mgx_numba.parse_onnx_buffer(model("NonZero", [2, "k"], number=TensorProto.INT64)).save(saved)
    assert mgx_numba.session.InferenceSession(saved).get_outputs()[0].shape == [2, "k"]


def test_tensor_of_a_type_that_numpy_lacks() -> None:
    words = np.array([0x3F80, 0x4000], np.uint16)
    for ort in BOTH:
        value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(words, TensorProto.BFLOAT16)
        assert (value.data_type(), value.element_type(), value.shape()) == ("tensor(bfloat16)", 16, [2])
        assert value.data_ptr() == words.ctypes.data and value.tensor_size_in_bytes() == 4
        assert not value.is_sparse_tensor() and not value.is_tensor_sequence() and value.has_value()
    found = mgx_numba.session.OrtValue.ortvalue_from_numpy_with_onnx_type(words, TensorProto.BFLOAT16).numpy()
    assert found.dtype == ml_dtypes.bfloat16 and found.tolist() == [1.0, 2.0]
    with pytest.raises(ShapeError, match="uint8 cannot be taken for tensor"):
        mgx_numba.session.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(2, np.uint8), TensorProto.BFLOAT16)


def test_tensor_in_new_memory_by_description() -> None:
    for ort in BOTH:
        value = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], TensorProto.INT64, "cpu", 0, -1)
        assert value.shape() == [2, 3] and value.data_type() == "tensor(int64)"
    session = mgx_numba.session.InferenceSession(model("Relu", None))
    (info,) = session.get_input_memory_infos()
    assert info == session.get_output_memory_infos()[0]
    made = mgx_numba.session.OrtValue.ortvalue_from_shape_and_type([2], np.float32, memory_info=info)
    assert made.device_name() == "cpu" and made.shape() == [2]
    assert session.create_ortvalue_from_shape_and_type([4], np.float32, "cpu").shape() == [4]
    with pytest.raises(UnsupportedError, match="device 'tpu'"):
        mgx_numba.session.OrtValue.ortvalue_from_shape_and_type([2], np.float32, "tpu")


def test_tensors_by_dlpack_and_copies() -> None:
    for ort in BOTH:
        shared = ort.OrtValue.from_dlpack(X)
        assert shared.data_ptr() == X.ctypes.data
    ours = mgx_numba.session
    targets = [ours.OrtValue.ortvalue_from_shape_and_type(X.shape, np.float32) for _ in range(2)]
    ours.copy_tensors([ours.OrtValue.from_dlpack(X), ours.OrtValue.ortvalue_from_numpy(-X)], targets)
    np.testing.assert_array_equal(targets[0].numpy(), X)
    np.testing.assert_array_equal(targets[1].numpy(), -X)
    value = ours.OrtValue.ortvalue_from_numpy(X)
    with pytest.raises(ParameterError, match="1 sources and 0 destinations"):
        ours.copy_tensors([value], [])
    with pytest.raises(ParameterError, match=r"tensor\(float\)\[3, 2\] into tensor\(double\)\[3, 2\]"):
        ours.copy_tensors([value], [ours.OrtValue.ortvalue_from_numpy(X.astype(float))])
    capsule = ours.OrtValue.from_dlpack(value.__dlpack__())
    assert capsule.data_ptr() == X.ctypes.data and value._ortvalue is value._get_c_value() is value
    strided = ours.OrtValue.from_dlpack(X[:, ::2])
    np.testing.assert_array_equal(strided.numpy(), X[:, ::2])


def test_runs_with_vectors_of_tensors() -> None:
    ours = mgx_numba.session
    session = ours.InferenceSession(model("Neg", None))
    feeds, fetches = ours.OrtValueVector(), ours.OrtValueVector()
    feeds.push_back(ours.OrtValue.ortvalue_from_numpy(X))
    feeds.reserve(4)
    for _ in range(2):  # into a new tensor, then into the same
        session.run_with_ortvaluevector(None, ["x"], feeds, ["y"], fetches, [])
        assert len(fetches) == 1 and fetches.element_type_at(0) == TensorProto.FLOAT
        np.testing.assert_array_equal(fetches[0].numpy(), -X)
        np.testing.assert_array_equal(np.from_dlpack(fetches[0]), -X)
        fetches[0].update_inplace(X)
    feeds.push_back(X)
    assert len(feeds.to_dlpacks(None)) == 2 and "capsule" in repr(feeds.dlpack_at(1))
    assert feeds.to_dlpacks(lambda capsule: type(capsule).__name__) == ["PyCapsule"] * 2
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert isinstance(binding.get_outputs_as_ortvaluevector(), ours.OrtValueVector)


def test_seed_of_the_process_repeats_random_results() -> None:
    session = mgx_numba.session.InferenceSession(model("RandomNormal", [4], shape=[4]))
    mgx_numba.session.set_seed(7)
    first = [session.run(None, {"x": X})[0] for _ in range(2)]
    mgx_numba.session.set_seed(7)
    again = [session.run(None, {"x": X})[0] for _ in range(2)]
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(*first)


def test_providers_are_set_and_a_failure_changes_nothing(tmp_path: Any) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model("Neg", None))
    session = mgx_numba.session.InferenceSession(path)
    session.set_providers(["CPUExecutionProvider"], [{"fast_math": False}])
    assert session.get_provider_options() == {"CPUExecutionProvider": {"fast_math": "False"}}
    with pytest.raises(RuntimeError, match="Unknown Provider Type: FancyExecutionProvider"):
        session.set_providers(["FancyExecutionProvider"])
    path.unlink()
    with pytest.raises(mgx_numba.session.capi.onnxruntime_pybind11_state.NoSuchFile):
        session.set_providers()
    assert session.get_provider_options() == {"CPUExecutionProvider": {"fast_math": "False"}}
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], -X)


def test_providers_of_options_are_taken_where_the_session_names_none() -> None:
    options = mgx_numba.session.SessionOptions()
    assert not options.has_providers()
    options.add_provider("CPUExecutionProvider", {"num_threads": 1})
    session = mgx_numba.session.InferenceSession(model("Neg", None), options)
    assert options.has_providers() and session.get_provider_options()["CPUExecutionProvider"] == {"num_threads": "1"}
    session = mgx_numba.session.InferenceSession(model("Neg", None), options, ["CPUExecutionProvider"])
    assert session.get_provider_options()["CPUExecutionProvider"] == {}


def test_devices_of_providers_are_chosen_among() -> None:
    for ort in BOTH:
        device = next(d for d in ort.get_ep_devices() if d.ep_name == "CPUExecutionProvider")
        assert (
            device.device.type == ort.OrtHardwareDeviceType.CPU and device.ep_vendor and device.ep_metadata["version"]
        )
        assert ort.InferenceSession(model("Neg", None)).get_input_epdevices()[0].ep_name == device.ep_name
        asked = []
        for choose in (
            lambda options, device=device: options.add_provider_for_devices([device], {}),
            lambda options, ort=ort: options.set_provider_selection_policy(
                ort.OrtExecutionProviderDevicePolicy.PREFER_CPU
            ),
            lambda options, asked=asked: options.set_provider_selection_policy_delegate(
                lambda devices, model, runtime, most: asked.append(most) or [d for d in devices if "CPU" in d.ep_name]
            ),
        ):
            options = ort.SessionOptions()
            choose(options)
            assert options.has_providers()
            assert ort.InferenceSession(model("Neg", None), options).get_providers() == ["CPUExecutionProvider"]
        assert asked == [8]
    ours = mgx_numba.session
    assert ours.get_ep_devices()[-1].memory_info(ours.OrtDeviceMemoryType.DEFAULT).name == "Cpu"
    assert ours.get_ep_devices()[-1].memory_info(ours.OrtDeviceMemoryType.HOST_ACCESSIBLE) is None
    with pytest.raises(RuntimeError, match="devices of 0 providers"):
        ours.SessionOptions().add_provider_for_devices([], {})
    session = ours.InferenceSession(model("Neg", None))
    with pytest.warns(RuntimeWarning, match="no effect after compilation: a"):
        session.set_ep_dynamic_options({"a": "b"})
    with pytest.raises(RuntimeError, match="no options"):
        session.set_ep_dynamic_options({})
