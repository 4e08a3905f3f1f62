"""The Python snippets of MIGraphX guides that need no GPU, run as users write them, on a small model."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba

OPTIMIZE = """
model = migraphx.optimize(model)
model = migraphx.optimize(model, {"aggressiveness": 2})
"""

FUSION_RULES = """
fusion_rules = {
    "conv_bias_relu": True,
    "conv_bias": True,
    "conv_relu": True
}
model = migraphx.optimize(model, {"fusion_rules": fusion_rules})
"""

TUNING = """
tuning_params = {
    "exhaustive_tune": True,
    "fast_math": True,
    "use_fp16": True,
    "use_nhwc": True
}
model.compile(context, tuning_params)
"""

MEMORY = """
memory_params = {
    "memory_reuse": True,
    "aggressive_memory": True
}
model.compile(context, memory_params)
"""

ARCHITECTURE = """
model.compile(context, {"target": "gfx1100"})
"""

SAVE = """
model.compile(context)
model.save("model.migraphx")
model = migraphx.load("model.migraphx")
"""

INPUT_AND_OUTPUT = """
input_data = np.random.random((1, 3, 8, 8)).astype(np.float32)
input_arg = migraphx.argument(input_data)

for _ in range(100):
    result = model.run({"input": input_arg})
    output = np.array(result[0])
"""

FIRST_CLASS = """
input_image = np.random.rand(1, 3, 8, 8).astype('float32')
results = model.run({'input': input_image})
result_np = np.array(results[0])
print(np.argmax(result_np))
"""

BENCHMARK = """
import time
model = migraphx.load("model.migraphx")
input_shape = model.get_parameter_shapes()[0]
input_name = model.get_parameter_names()[0]
input_data = np.random.random(input_shape).astype(np.float32)
input_arg = migraphx.argument(input_data)
for _ in range(10):
    model.run({input_name: input_arg})
times = []
for _ in range(100):
    start = time.time()
    model.run({input_name: input_arg})
    times.append(time.time() - start)
avg_time = sum(times) / len(times)
print(f"Average inference time: {avg_time * 1000:.2f} ms")
"""

BATCH_SIZES = """
import time
model = migraphx.load("model.migraphx")
batch_sizes = [1, 2, 4, 8]
results = {}
for batch_size in batch_sizes:
    input_shape = list(model.get_parameter_shapes()[0])
    input_shape[0] = batch_size  # Set batch dimension
    input_data = np.random.random(input_shape).astype(np.float32)
    for _ in range(10):
        model.run({"input": migraphx.argument(input_data)})
    times = []
    for _ in range(10):
        start = time.time()
        model.run({"input": migraphx.argument(input_data)})
        times.append(time.time() - start)
    throughput = batch_size / (sum(times) / len(times))
    results[batch_size] = throughput
optimal_batch_size = max(results, key=results.get)
"""

DEBUGGING = """
import logging
logging.basicConfig(level=logging.DEBUG)
print(model)
for i, name in enumerate(model.get_parameter_names()):
    shape = model.get_parameter_shapes()[i]
    print(f"Parameter {name}: {shape}")
for i, shape in enumerate(model.get_output_shapes()):
    print(f"Output {i}: {shape}")
"""

CLASSIFICATION = """
inputName=model.get_parameter_names()[0]
inputShape=model.get_parameter_shapes()[inputName].lens()
print("inputName:{0} \\ninputShape:{1}".format(inputName,inputShape))
model.compile(migraphx.get_target("cpu"),device_id=0)
image = np.random.random(inputShape).astype("float32")
results = model.run({inputName: migraphx.argument(image)})
result=results[0]
outputShape=result.get_shape()
outputSize=outputShape.lens()
numberOfOutput=outputShape.elements()
resultData=result.tolist()
result = np.array(resultData)
assert outputSize == [1, 5] and numberOfOutput == 5 and result.shape == (5,)
"""


def small_model(batch: int | str = 1) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((16, 3, 3, 3)).astype(np.float32),
        "b": rng.standard_normal(16).astype(np.float32),
        "d": rng.standard_normal((16, 5)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["input", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "d"], ["output"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [batch, 3, 8, 8])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [batch, 5])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture
def guide(tmp_path, monkeypatch):
    """Runs a snippet with the names that the guides have already defined at that place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "migraphx", mgx_numba)
    onnx.save(small_model(), "model.onnx")

    def run(snippet: str, **names):
        scope = {
            "migraphx": mgx_numba,
            "np": np,
            "model": mgx_numba.parse_onnx("model.onnx"),
            "context": mgx_numba.get_target("cpu"),
            **names,
        }
        exec(snippet, scope)
        return scope

    return run


@pytest.mark.filterwarnings("ignore:compile option")
@pytest.mark.parametrize(
    "snippet", [OPTIMIZE, FUSION_RULES, TUNING, MEMORY, ARCHITECTURE, SAVE, DEBUGGING, CLASSIFICATION]
)
def test_snippet_runs_on_a_parsed_model(guide, snippet):
    guide(snippet)


@pytest.mark.parametrize("snippet", [INPUT_AND_OUTPUT, FIRST_CLASS, DEBUGGING])
def test_snippet_runs_on_a_compiled_model(guide, snippet):
    model = mgx_numba.parse_onnx("model.onnx")
    model.compile(mgx_numba.get_target("cpu"))
    guide(snippet, model=model)


@pytest.mark.filterwarnings("ignore:compile option")
def test_a_guides_page_runs_from_top_to_bottom(guide):
    page = [OPTIMIZE, ARCHITECTURE, TUNING, MEMORY, INPUT_AND_OUTPUT, DEBUGGING, FUSION_RULES, OPTIMIZE, FIRST_CLASS]
    model = guide("\n".join(page))["model"]
    assert model.is_compiled()


def test_optimizing_a_compiled_program_keeps_target_options_and_values(guide, monkeypatch):
    model = guide("")["model"]
    data = {"input": np.random.default_rng(0).random((1, 3, 8, 8)).astype(np.float32)}
    model.compile("cpu", fast_math=False, num_threads=1)
    expected = model.run(data)[0]
    for options in ({}, {"level": 2}, {"fusion_rules": {"conv_relu": False}}):
        assert mgx_numba.optimize(model, options) is model and model.is_compiled()
        assert model.compile_options.num_threads == 1 and not model.compile_options.fast_math
        np.testing.assert_allclose(model.run(data)[0], expected, rtol=1e-5)
    assert model._file.disabled_passes == ("fuse_contraction",)
    before = str(model), str(model.portable)

    def fail(*args, **options):
        raise mgx_numba.MgxError("no kernel")

    monkeypatch.setattr("mgx_numba.api.compiling.compile_for", fail)
    with pytest.raises(mgx_numba.MgxError, match="no kernel"):
        mgx_numba.optimize(model, {"level": 2, "fusion_rules": {"attention": False}})
    assert (str(model), str(model.portable)) == before and model._file.disabled_passes == ("fuse_contraction",)


def test_benchmark_snippet(guide, capsys):
    guide(SAVE)
    guide(BENCHMARK)
    assert "Average inference time" in capsys.readouterr().out


def test_batch_size_snippet_runs_on_a_model_with_a_dynamic_batch(guide):
    onnx.save(small_model("n"), "dynamic.onnx")
    model = mgx_numba.parse_onnx("dynamic.onnx", dim_params={"n": mgx_numba.dynamic_dimension(1, 8)})
    model.compile(mgx_numba.get_target("cpu"))
    model.save("model.migraphx")
    scope = guide(BATCH_SIZES)
    assert set(scope["results"]) == {1, 2, 4, 8}


def test_option_without_effect_is_told_once(guide, recwarn):
    from mgx_numba.api import options

    options.warned.clear()
    guide(ARCHITECTURE)
    guide(ARCHITECTURE)
    assert len([w for w in recwarn if "target" in str(w.message)]) == 1


def test_unknown_option_lists_the_known_ones(guide):
    with pytest.raises(mgx_numba.MgxError, match="unknown compile option 'fast_meth'.*fast_math"):
        guide('model.compile(context, {"fast_meth": True})')
    with pytest.raises(mgx_numba.MgxError, match="unknown fusion rule"):
        guide('migraphx.optimize(model, {"fusion_rules": {"conv_batch": True}})')


@pytest.mark.usefixtures("no_driver")
def test_gpu_is_said_to_be_missing(guide):
    with pytest.raises(mgx_numba.MgxError, match="'gpu' is not available.*cpu"):
        guide("context = migraphx.get_gpu_context()")
