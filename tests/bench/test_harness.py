"""Components of the benchmarks: cases, engines behind one interface, tables, replayed numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench.agreement import max_relative_error
from bench.cases import case_names, prepare
from bench.light import randomize, rebatch
from bench.peers import OURS, installed, open_session
from bench.probe import load_feeds
from bench.replay import Clock, replay
from bench.steps import kind_of, step_times
from bench.table import plain

from ..caches import with_kernels


@pytest.fixture
def light_model() -> onnx.ModelProto:
    """A model in the style of the light_* files: weights by ConstantOfShape, the batch size in a Reshape."""

    def made(name: str, lens: list[int]) -> onnx.NodeProto:
        value = numpy_helper.from_array(np.array([0.02], np.float32))
        constants.append(numpy_helper.from_array(np.array(lens, np.int64), f"{name}_shape"))
        return helper.make_node("ConstantOfShape", [f"{name}_shape"], [name], value=value)

    constants: list[onnx.TensorProto] = [numpy_helper.from_array(np.array([1, 16], np.int64), "flat")]
    nodes = [
        made("w", [4, 2, 3, 3]),
        made("scale", [4]),
        made("shift", [4]),
        made("mean", [4]),
        made("variance", [4]),
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"]),
        helper.make_node("Reshape", ["n", "flat"], ["f"]),
        helper.make_node("Softmax", ["f"], ["y"], axis=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16])
    graph = helper.make_graph(nodes, "small", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4)


def _run(model: onnx.ModelProto, batch: int) -> list[np.ndarray]:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((batch, 2, 4, 4), dtype=np.float32)
    return session.run(None, {"x": x})


def test_a_rebatched_model_gives_the_same_rows(light_model):
    model = randomize(light_model)
    rebatched = _run(rebatch(model, 3), 3)
    assert rebatched[0].shape == (3, 16)
    np.testing.assert_allclose(rebatched[0][:1], _run(model, 1)[0], rtol=1e-5)
    assert light_model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1


def test_random_weights_are_reproducible_and_show_what_softmax_reads(light_model):
    model = randomize(light_model)
    assert model.SerializeToString() == randomize(light_model).SerializeToString()
    assert [output.name for output in model.graph.output] == ["y", "f"]
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    assert weights["variance"].min() > 0.5
    assert weights["w"].std() > 0.1
    assert not any(node.op_type == "ConstantOfShape" for node in model.graph.node)


def test_a_case_is_a_file_with_inputs(tmp_path: Path):
    case = prepare("bert@2", tmp_path, "tiny")
    assert case.path == case.checked
    assert all(value.shape[0] == 2 for value in case.feeds.values())
    stored = load_feeds(case.feeds_path)
    assert list(stored) == list(case.feeds)
    assert all(np.array_equal(stored[name], value) for name, value in case.feeds.items())


@pytest.mark.parametrize(
    ("name", "message"), [("resnet", "unknown case 'resnet'"), ("bert@many", "expected a batch size after @")]
)
def test_a_wrong_case_is_named(name: str, message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message):
        prepare(name, tmp_path, "tiny")


def test_all_cases_are_known():
    assert {"light_resnet50", "light_resnet50@8", "bert", "bert@8", "mlp"} <= set(case_names())
    assert not any(name.startswith("light") for name in case_names("tiny"))


def test_engines_agree_on_a_small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MGX_CACHE_DIR", str(with_kernels(tmp_path / "cache")))
    case = prepare("mlp", tmp_path, "tiny")
    sessions = {engine: open_session(engine, case.path, case.feeds, threads=1) for engine in installed()}
    outputs = {engine: [np.array(output) for output in session.run()] for engine, session in sessions.items()}
    for engine, values in outputs.items():
        assert max_relative_error(values, outputs[OURS]) < 1e-5, engine
        assert sessions[engine].load_seconds > 0.0
    steps = step_times("mlp", sessions[OURS].handle, case.feeds, iterations=1)
    assert "contraction" in {step.kind for step in steps}


def test_an_unknown_engine_is_named():
    with pytest.raises(ValueError, match="unknown engine 'tvm'"):
        installed(["tvm"])


@pytest.mark.parametrize(
    ("got", "wanted", "error"),
    [
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([0.0], [0.0], 0.0),
        ([1e-9], [0.0], np.inf),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.inf], [-np.inf], np.inf),
        ([np.nan], [1.0], np.inf),
        ([1.0, 1.0], [1.0], np.inf),
    ],
)
def test_relative_error_is_of_the_largest_magnitude(got: list[float], wanted: list[float], error: float):
    assert max_relative_error([np.array(got)], [np.array(wanted)]) == pytest.approx(error)


def test_a_missing_output_is_an_infinite_error():
    assert max_relative_error([], [np.zeros(1)]) == np.inf


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("cpu::conv_add_relu_kernel", "contraction"),
        ("cpu::reduce_max_sub_exp_reduce_sum_div_kernel", "rows"),
        ("cpu::add_relu_kernel", "pointwise"),
        ("cpu::conv_winograd_4x4_add_relu_kernel", "winograd"),
        ("cpu::attention_kernel", "attention"),
        ("cpu::pooling_kernel", "data"),
        ("ref::topk", "host"),
    ],
)
def test_kernels_are_sorted_by_kind(kernel: str, kind: str):
    assert kind_of(kernel) == kind


def test_a_plain_table_is_aligned():
    text = plain("title", ["name", "ms"], [["a", "1.5"], ["long", "10.25"]], ["all", ""])
    assert text.splitlines() == [
        "title",
        "name     ms",
        "----  -----",
        "a       1.5",
        "long  10.25",
        "----  -----",
        "all",
    ]


def test_replayed_rounds_are_what_was_measured():
    clock = Clock()

    class Benchmark:
        def pedantic(self, target, rounds: int, iterations: int) -> None:
            for _ in range(rounds):
                begin = clock.read()
                target()
                measured.append(clock.read() - begin)

    measured: list[float] = []
    replay(Benchmark(), [0.5, 0.25], clock)
    assert measured == [0.5, 0.25]
