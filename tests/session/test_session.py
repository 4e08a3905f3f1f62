"""`mgx_numba.session` against ONNX Runtime: the same code, run with each of the two as ``ort``."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba
import mgx_numba.session
from mgx_numba.driver.trim import keep_until
from mgx_numba.errors import MgxError, OptionError, ParameterError, ParseError, UnsupportedError

from ..frontends.tf_support import Graph

OPSET = [helper.make_opsetid("", 17)]


def classifier() -> onnx.ModelProto:
    """Images and a scale in; scores, the best class, and a scalar out; batch and one length are open."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "d": rng.standard_normal((8, 5)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "d"], ["m"]),
        helper.make_node("Mul", ["m", "scale"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
        helper.make_node("ReduceMax", ["scores"], ["top"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [
            helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 8, None]),
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 5]),
            helper.make_tensor_value_info("best", TensorProto.INT64, ["n"]),
            helper.make_tensor_value_info("top", TensorProto.FLOAT, []),
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=OPSET, ir_version=10, producer_name="a test", doc_string="of images")
    model.model_version = 3
    model.domain = "org.example"
    helper.set_model_props(model, {"names": "cat,dog", "stride": "8"})
    return model


def elementwise(number: int, op: str = "Identity") -> bytes:
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", number, ["n", 2])],
        [helper.make_tensor_value_info("y", number, ["n", 2])],
    )
    return helper.make_model(graph, opset_imports=OPSET, ir_version=10).SerializeToString()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = tmp_path_factory.mktemp("session") / "classifier.onnx"
    onnx.save(classifier(), found)
    return str(found)


def feed(batch: int = 2, width: int = 8, seed: int = 0) -> dict[str, np.ndarray]:
    image = np.random.default_rng(seed).random((batch, 3, 8, width)).astype(np.float32)
    return {"image": image, "scale": np.array(0.5, np.float32)}


def both(path: Any, code: Callable[[Any, Any], Any], **given: Any) -> None:
    """Run ``code(ort, session)`` with both, and compare what it returns, in structure, types and values."""
    mine, theirs = (
        code(ort, ort.InferenceSession(path, providers=["CPUExecutionProvider"], **given))
        for ort in (mgx_numba.session, onnxruntime)
    )
    same(mine, theirs)


def same(mine: Any, theirs: Any) -> None:
    if isinstance(theirs, np.ndarray):
        assert type(mine) is np.ndarray and mine.dtype == theirs.dtype and mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    elif isinstance(theirs, (list, tuple)):
        assert type(mine) is type(theirs) and len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            same(a, b)
    else:
        assert mine == theirs


def test_results_by_name_and_order(path: str) -> None:
    def code(ort: Any, session: Any) -> Any:
        return [
            session.run(None, feed()),
            session.run([], feed(3, 12)),
            session.run(["best", "scores"], feed(1)),
            session.run(["top"], feed(4, 1, seed=2)),
        ]

    both(path, code)
    both(Path(path), code)
    both(Path(path).read_bytes(), code)


def test_inputs_outputs_and_metadata(path: str) -> None:
    def code(ort: Any, session: Any) -> Any:
        meta = session.get_modelmeta()
        return [
            *((a.name, a.type, a.shape) for a in (*session.get_inputs(), *session.get_outputs())),
            (meta.producer_name, meta.graph_name, meta.description, meta.domain, meta.version),
            dict(meta.custom_metadata_map),
            session.get_providers(),
            len(session.get_overridable_initializers()),
            [session.get_inputs()[0].name, session.get_outputs()[-1].shape],
        ]

    both(path, code)


def test_free_dimensions_get_a_length(path: str) -> None:
    def code(ort: Any, session: Any) -> Any:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.add_free_dimension_override_by_name("n", 4)
        fixed = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return [fixed.get_inputs()[0].shape, fixed.get_outputs()[0].shape, fixed.run(None, feed(4))]

    both(path, code)
    options = mgx_numba.session.SessionOptions()
    options.add_free_dimension_override_by_name("n", 4)
    with pytest.raises(ParameterError, match="image"):
        mgx_numba.session.InferenceSession(Path(path).read_bytes(), options).run(None, feed(2))


def test_io_binding(path: str) -> None:
    def code(ort: Any, session: Any) -> Any:
        given, found = feed(), []
        binding = session.io_binding()
        binding.bind_cpu_input("image", given["image"])
        binding.bind_ortvalue_input("scale", ort.OrtValue.ortvalue_from_numpy(given["scale"]))
        scores = np.zeros((2, 5), np.float32)
        best = ort.OrtValue.ortvalue_from_shape_and_type((2,), np.int64)
        binding.bind_output("scores", "cpu", 0, np.float32, scores.shape, scores.ctypes.data)
        binding.bind_ortvalue_output("best", best)
        binding.bind_output("top")
        for _ in range(2):
            session.run_with_iobinding(binding)
            values = binding.get_outputs()
            found += [binding.copy_outputs_to_cpu(), scores.copy(), best.numpy().copy()]
            found += [[(v.shape(), v.data_type(), v.element_type(), v.device_name(), v.is_tensor()) for v in values]]
            image = given["image"]
            binding.bind_input("image", "cpu", 0, np.float32, image[:2].shape, image.ctypes.data)
            image *= 2
        binding.clear_binding_outputs()
        binding.bind_output("best")
        session.run_with_iobinding(binding)
        return [*found, binding.copy_outputs_to_cpu()]

    both(path, code)


def test_ort_values(path: str) -> None:
    def code(ort: Any, session: Any) -> Any:
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feed().items()}
        values["image"].update_inplace(np.ones((2, 3, 8, 8), np.float32))
        found = session.run_with_ort_values(["top", "scores"], values)
        return [[v.numpy() for v in found], session.run(None, values), values["image"].tensor_size_in_bytes()]

    both(path, code)


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"],
)
def test_element_types(dtype: str) -> None:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    data = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (3, 2)).astype(dtype)
    strided = np.asfortranarray(data)

    def code(ort: Any, session: Any) -> Any:
        i, o = session.get_inputs()[0], session.get_outputs()[0]
        empty = session.run(None, {"x": data[:0]})
        return [i.type, o.type, session.run(None, {"x": data}), session.run(None, {"x": strided}), empty]

    both(elementwise(number), code)


def test_nan_and_infinity_go_through() -> None:
    data = np.array([[np.nan, np.inf], [-np.inf, -0.0]], np.float32)
    both(elementwise(TensorProto.FLOAT, "Neg"), lambda ort, session: session.run(None, {"x": data}))


def test_bfloat16() -> None:
    session = mgx_numba.session.InferenceSession(elementwise(TensorProto.BFLOAT16))
    data = np.ones((1, 2), ml_dtypes.bfloat16)
    (found,) = session.run(None, {"x": data})
    assert session.get_inputs()[0].type == "tensor(bfloat16)" and found.dtype == data.dtype
    np.testing.assert_array_equal(found, data)


def test_saved_program_brings_names_metadata_and_options(path: str, tmp_path: Path) -> None:
    saved = str(tmp_path / "model.mxr")
    options = mgx_numba.session.SessionOptions()
    options.intra_op_num_threads, options.optimized_model_filepath = 1, saved
    first = mgx_numba.session.InferenceSession(path, options, ["CPUExecutionProvider"], [{"fast_math": False}])
    for _ in range(2):  # decoded, then from the kept plan if there is one
        again = mgx_numba.session.InferenceSession(saved)
        assert again._program.compile_options.num_threads == 1 and not again._program.compile_options.fast_math
        assert again.get_inputs() == first.get_inputs() and again.get_outputs() == first.get_outputs()
        assert again.get_modelmeta() == first.get_modelmeta()
        same(again.run(["best", "top"], feed()), first.run(["best", "top"], feed()))
    changed = mgx_numba.session.InferenceSession(saved, providers=[("CPUExecutionProvider", {"fast_math": True})])
    assert changed._program.compile_options.num_threads == 1 and changed._program.compile_options.fast_math


def test_program_without_names_has_numbered_results(tmp_path: Path) -> None:
    program = mgx_numba.program()
    main = program.get_main_module()
    x = main.add_parameter("x", mgx_numba.shape(type="float", lens=[2]))
    main.add_return([x, main.add_instruction(mgx_numba.op("neg"), [x])])
    program.save(tmp_path / "p.mxr")
    session = mgx_numba.session.InferenceSession(tmp_path / "p.mxr")
    assert [o.name for o in session.get_outputs()] == ["output_0", "output_1"] == program.get_output_names()
    data = np.array([1, -2], np.float32)
    np.testing.assert_array_equal(session.run(["output_1"], {"x": data})[0], -data)


def test_results_of_a_tensorflow_graph_have_its_names(tmp_path: Path) -> None:
    graph = Graph()
    graph.input("x", (2, 3))
    graph.add("Relu", "positive", ["x"])
    graph.add("Neg", "negative", ["x"])
    program = mgx_numba.parse_tf_buffer(graph.proto.SerializeToString())
    assert program.get_output_names() == ["positive", "negative"]
    program.save(tmp_path / "tf.mxr")
    session = mgx_numba.session.InferenceSession(tmp_path / "tf.mxr")
    data = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    np.testing.assert_array_equal(session.run(["negative"], {"x": data})[0], -data)


def test_part_of_a_program_has_none_of_its_names() -> None:
    program = mgx_numba.parse_onnx_buffer(elementwise(TensorProto.FLOAT, "Neg"))
    assert program.get_output_names() == ["y"]
    assert mgx_numba.program.wrap(keep_until(program.portable, 0)).get_output_names() == ["output_0"]


def test_many_threads_run_one_session(path: str) -> None:
    session = mgx_numba.session.InferenceSession(path)
    feeds = [feed(seed=seed) for seed in range(8)]
    expected = [session.run(None, f) for f in feeds]
    found: dict[int, Any] = {}
    ended = threading.Semaphore(0)

    def keep(results: list[np.ndarray], number: int, error: str) -> None:
        found[number] = error or results
        ended.release()

    for number, f in enumerate(feeds):
        session.run_async(None, f, keep, number)
    session.run_async(None, {}, keep, -1)
    for _ in range(len(feeds) + 1):
        assert ended.acquire(timeout=60)
    assert "Required inputs (['image', 'scale']) are missing" in found.pop(-1)
    for number, results in found.items():
        same(results, expected[number])


def test_unavailable_providers_are_told_and_passed_over(path: str) -> None:
    ort = mgx_numba.session
    assert ort.get_available_providers()[-1] == "CPUExecutionProvider" and ort.get_device() in ("CPU", "GPU")
    asked = [("FancyExecutionProvider", {"a": 1}), "CPUExecutionProvider"]
    with pytest.warns(RuntimeWarning, match="'FancyExecutionProvider' is not available: there is none of this name"):
        assert ort.InferenceSession(path, providers=asked).get_providers() == ["CPUExecutionProvider"]
    for name in set(ort.get_all_providers()) - set(ort.get_available_providers()):
        with pytest.warns(RuntimeWarning, match=f"{name!r} is not available: [^;]*(driver|device)"):
            ort.InferenceSession(path, providers=[name])
    with pytest.warns(RuntimeWarning, match="without effect: arena.*fast_math"):
        session = ort.InferenceSession(path, providers=[("CPUExecutionProvider", {"arena": 1, "num_threads": 1})])
    assert session.get_provider_options() == {"CPUExecutionProvider": {"num_threads": "1"}}


def test_options_that_change_no_result_are_not_told(path: str) -> None:
    options = mgx_numba.session.SessionOptions()
    options.inter_op_num_threads = 2
    options.execution_mode = mgx_numba.session.ExecutionMode.ORT_PARALLEL
    options.execution_order = mgx_numba.session.ExecutionOrder.PRIORITY_BASED
    options.enable_cpu_mem_arena = options.enable_mem_pattern = options.use_per_session_threads = False
    options.use_deterministic_compute = True
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    given = [("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested", "device_id": "0"})]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mgx_numba.session.InferenceSession(path, options, given)
        mgx_numba.session.InferenceSession(path, mgx_numba.session.SessionOptions())


def test_entries_without_effect_are_told(path: str) -> None:
    options = mgx_numba.session.SessionOptions()
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    with pytest.warns(RuntimeWarning, match="session.set_denormal_as_zero"):
        session = mgx_numba.session.InferenceSession(path, options)
    assert session.get_session_options().get_session_config_entry("session.set_denormal_as_zero") == "1"


def test_disabled_optimisation_is_exact_arithmetic(path: str) -> None:
    options = mgx_numba.session.SessionOptions()
    options.graph_optimization_level = mgx_numba.session.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert not mgx_numba.session.InferenceSession(path, options)._program.compile_options.fast_math


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (lambda s: s.run(["scores", "no"], feed()), ParameterError, "no result 'no'; the model's are: scores, best"),
        (lambda s: s.run(None, {**feed(), "no": 1}), ParameterError, "no input 'no'; the model's are: image, scale"),
        (
            lambda s: s.run(None, {"image": feed()["image"]}),
            ParameterError,
            r"Required inputs \(\['scale'\]\) are missing from input feed \(\['image'\]\)",
        ),
        (
            lambda s: s.run(None, {**feed(), "image": np.zeros((1, 3, 8, 8))}),
            ParameterError,
            "double_type.*image should be",
        ),
        (lambda s: s.io_binding().bind_output("no"), ParameterError, "no result 'no'"),
        (lambda s: s.io_binding().bind_cpu_input("no", None), ParameterError, "no input 'no'"),
        (lambda s: s.io_binding().bind_output("top", "cuda"), UnsupportedError, "device 'cuda'"),
        (lambda s: s.io_binding().bind_output("top", buffer_ptr=1), OptionError, "needs element_type and shape"),
        (
            lambda s: s.get_session_options().get_session_config_entry("a"),
            OptionError,
            "does not have configuration with key: a",
        ),
    ],
)
def test_mistakes_in_runs(path: str, code: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        code(mgx_numba.session.InferenceSession(path))


def test_bound_memory_that_does_not_fit(path: str) -> None:
    session = mgx_numba.session.InferenceSession(path)
    binding = session.io_binding()
    for name, array in feed().items():
        binding.bind_cpu_input(name, array)
    binding.bind_ortvalue_output("scores", mgx_numba.session.OrtValue.ortvalue_from_shape_and_type([2, 4], np.float32))
    with pytest.raises(ParameterError, match=r"result 'scores' is float32 \[2, 5\], the memory .* \[2, 4\]"):
        session.run_with_iobinding(binding)
    with pytest.raises(ParameterError, match=r"float32 \[1\], expected float32 \[2\]"):
        mgx_numba.session.OrtValue(np.zeros(2, np.float32)).update_inplace(np.zeros(1, np.float32))
    with pytest.raises(MgxError, match="element type"):
        mgx_numba.session.OrtValue.ortvalue_from_numpy(np.array(["a"]))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((3,), ParseError, "path or the bytes of a model, got int"),
        (("no.onnx",), ParseError, "no such file"),
        ((b"",), ParseError, "empty"),
        ((None, None, "CPUExecutionProvider"), OptionError, "expected a sequence of names"),
        ((None, None, [3]), OptionError, "a provider is 3"),
        ((None, None, ["CPUExecutionProvider"], [{}, {}]), OptionError, "2 entries"),
        ((None, mgx_numba.session.SessionOptions(log_severity_level=9)), OptionError, "severity is 9"),
        ((None, mgx_numba.session.SessionOptions(optimized_model_filepath="a.ort")), OptionError, ".mxr"),
        ((None, mgx_numba.session.SessionOptions(intra_op_num_threads=-1)), OptionError, "num_threads"),
    ],
)
def test_mistakes_in_sessions(path: str, given: tuple, error: type, message: str) -> None:
    source = path if given[0] is None else given[0]
    with pytest.raises(error, match=message):
        mgx_numba.session.InferenceSession(source, *given[1:])
    with pytest.raises(OptionError, match="knows no 'disabled_passes'"):
        mgx_numba.session.InferenceSession(path, disabled_passes=[])


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_topk_of_integers_with_a_number_that_changes(dtype: type) -> None:
    """Whatever k the first run had, rows were sorted, which took nine times as long as ONNX Runtime for k = 10."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    values = {"x": (element, [4, 300]), "k": (TensorProto.INT64, [1])}
    results = {"values": element, "places": TensorProto.INT64}
    graph = helper.make_graph(
        [helper.make_node("TopK", list(values), list(results))],
        "graph",
        [helper.make_tensor_value_info(name, *value) for name, value in values.items()],
        [helper.make_tensor_value_info(name, type_, None) for name, type_ in results.items()],
    )
    model = helper.make_model(graph, opset_imports=OPSET, ir_version=8).SerializeToString()
    ours, theirs = (ort.InferenceSession(model) for ort in (mgx_numba.session, onnxruntime))
    ends = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(-40, 40, (4, 300)).astype(dtype)
    x[:, ::70], x[:, 5::90] = ends.max, ends.min
    for k in (10, 1, 64, 65, 300, 0, 20):
        feeds = {"x": x, "k": np.array([k])}
        for own, other in zip(ours.run(None, feeds), theirs.run(None, feeds)):
            np.testing.assert_array_equal(own, other)
