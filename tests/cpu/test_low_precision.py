"""Programs in 16, 8 and 4 bits on the CPU: kernels for all operators, and the reference's accuracy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba
from bench.models import MODELS, build, inputs
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.machine import machine, using
from mgx_numba.codegen.cpu.microkernels.tile_table import declared_tile
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.runtime.plan import FallbackStep
from mgx_numba.targets.registry import compile_for

from ..exact_integers import ExactSession
from .agreement import reference, run

TYPES = {"fp16": (np.float16, TensorProto.FLOAT16), "bf16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16)}


def host_steps(p: mgx_numba.program) -> list[str]:
    """Labels of steps that NumPy runs."""
    compiled: Any = p.compiled
    steps = [step for plan in compiled.own_plans() for step in plan.steps]
    return [step.label for step in steps if isinstance(step, FallbackStep)]


def half_model(dtype: Any, code: int, convolution: bool) -> onnx.ModelProto:
    rng = np.random.default_rng(4)
    lens = [2, 5, 9, 7] if convolution else [3, 50, 33]
    w = rng.uniform(-0.3, 0.3, (11, 5, 3, 3) if convolution else (33, 21)).astype(dtype)
    node = helper.make_node("Conv" if convolution else "MatMul", ["x", "w"], ["c"])
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["c"], ["r"]), helper.make_node("Add", ["r", "one"], ["y"])],
        "half",
        [helper.make_tensor_value_info("x", code, lens)],
        [helper.make_tensor_value_info("y", code, None)],
        [
            helper.make_tensor("w", code, w.shape, w.tobytes(), raw=True),
            helper.make_tensor("one", code, [1], np.ones(1, dtype).tobytes(), raw=True),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("convolution", [False, True])
@pytest.mark.parametrize("fast_math", [False, True])
def test_models_of_16_bits_run_in_kernels(kind: str, convolution: bool, fast_math: bool) -> None:
    dtype, code = TYPES[kind]
    model = half_model(dtype, code, convolution)
    p = mgx_numba.parse_onnx(model)
    shape = p.get_parameter_shapes()["x"]
    x = np.random.default_rng(1).uniform(-1, 1, shape.lens()).astype(dtype)
    expected = np.asarray(mgx_numba.parse_onnx(model).compile("ref").run({"x": x})[0]).astype(np.float32)
    p.compile("cpu", fast_math=fast_math)
    assert not host_steps(p)
    found = np.asarray(p.run({"x": x})[0])
    assert found.dtype == dtype
    bound = 4 * float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=bound, atol=1e-3)


def test_float16_as_onnx_runtime_computes_it() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = half_model(np.float16, TensorProto.FLOAT16, True)
    x = np.random.default_rng(1).uniform(-1, 1, (2, 5, 9, 7)).astype(np.float16)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = np.asarray(mgx_numba.parse_onnx(model).compile("cpu").run({"x": x})[0])
    np.testing.assert_allclose(found, session.run(None, {"x": x})[0], rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    "name, quantize",
    [*((n, mgx_numba.quantize_fp16) for n in MODELS), *((n, mgx_numba.quantize_bf16) for n in ("bert", "gru", "unet"))],
)
def test_whole_models_in_16_bits(name: str, quantize: Any) -> None:
    model = build(name, scale="tiny")
    values = inputs(name, model)
    wide, narrow = (mgx_numba.parse_onnx_buffer(model.SerializeToString()) for _ in range(2))
    wide.compile("cpu")
    quantize(narrow)
    narrow.compile("cpu")
    assert host_steps(narrow) == host_steps(wide)
    bound = 5e-3 if quantize is mgx_numba.quantize_fp16 else 4e-2
    for found, expected in zip(narrow.run(values), wide.run(values)):
        found, expected = np.asarray(found), np.asarray(expected)
        assert found.dtype == expected.dtype
        if expected.dtype.kind == "f":
            assert np.linalg.norm(found - expected) <= bound * np.linalg.norm(expected)


def block_model() -> onnx.ModelProto:
    """Return a residual block with a depthwise convolution after a maximum, and a transposed convolution; 64 channels.

    The transposed convolution's result is concatenated with an earlier activation.
    """
    rng = np.random.default_rng(2)
    shapes = {
        "w0": (64, 3, 3, 3),
        "w1": (64, 64, 3, 3),
        "w2": (64, 64, 1, 1),
        "w3": (64, 64, 2, 2),
        "w4": (8, 128, 3, 3),
        "w5": (64, 1, 3, 3),
    }
    weights = {name: rng.normal(0, np.prod(lens[1:]) ** -0.5, lens) for name, lens in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], pads=[1] * 4),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("MaxPool", ["r0"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "w1"], ["c1"], pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w5"], ["c5"], pads=[1] * 4, group=64),
        helper.make_node("Relu", ["c5"], ["r5"]),
        helper.make_node("Conv", ["r5", "w2"], ["c2"]),
        helper.make_node("Add", ["c2", "p"], ["s"]),
        helper.make_node("Relu", ["s"], ["r2"]),
        helper.make_node("ConvTranspose", ["r2", "w3"], ["t"], strides=[2, 2]),
        helper.make_node("Concat", ["t", "r0"], ["j"], axis=1),
        helper.make_node("Conv", ["j", "w4"], ["y"], pads=[1] * 4),
    ]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 36, 44])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


MULTIPLYING = {
    host.EMULATED_TILES: (
        "conv_transposed_tiles_convert_kernel",
        "conv_tiles_relu_convert_kernel",
        "pooling_max_kernel",
    ),
    "": ("depthwise_relu_convert_kernel", "conv_winograd_4x4_relu_convert_kernel"),
}
"""By what the CPU is held to, kernels whose results are stored in bfloat16."""


@pytest.mark.skipif(host.host().vector_bits < 512, reason="the CPU has no AVX-512")
@pytest.mark.parametrize("features", MULTIPLYING)
def test_values_between_products_are_stored_in_bfloat16(features: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the CPU multiplies it, results are as near as with values in float32, and kernels move less."""
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    if not features and declared_tile(element_types("bfloat16 bfloat16 float32 float32")) is None:
        pytest.skip("the CPU has no fast AVX512-BF16")
    x = np.random.default_rng(1).standard_normal((1, 3, 36, 44)).astype(np.float32)
    found, moved, stored = [], [], []
    for disabled in ("store_bfloat16", ""):
        monkeypatch.setenv("MIGRAPHX_DISABLE_PASSES", disabled)
        p = mgx_numba.parse_onnx(block_model())
        mgx_numba.quantize_bf16(p)
        p.compile("cpu", num_threads=2)
        steps = p.compiled.executable.plan.steps  # type: ignore[union-attr]
        assert not host_steps(p)
        moved.append(sum(step.bytes for step in steps))
        stored.append({step.label.removeprefix("cpu::") for step in steps if "-> bf16_type" in step.instruction})
        found.append(np.asarray(p.run({"x": x})[0]))
    assert not stored[0] and moved[1] < (0.8 if features else 1) * moved[0]
    assert set(MULTIPLYING[features]) <= stored[1]
    assert np.linalg.norm(found[1] - found[0]) <= 1e-2 * np.linalg.norm(found[0])


@pytest.mark.skipif(host.host().vector_bits < 512, reason="the CPU has no AVX-512")
@pytest.mark.parametrize("features", MULTIPLYING)
@pytest.mark.parametrize("columns", [41, 64])
def test_sums_of_rows_are_stored_in_bfloat16(features: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One number by itself, as a product reads it."""
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    rng = np.random.default_rng(1)
    w, x = (rng.standard_normal(lens).astype(np.float32) for lens in ((64, 256), (16, 64, columns)))
    x[0, 0, 0], x[1, 0, 0] = np.nan, np.inf
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["s"], keepdims=0),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, lens) for name, lens in (("x", x.shape), ("y", None))
    ]
    weights = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.array([2]), "axes")]
    graph = helper.make_graph(nodes, "sums", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    found = np.asarray(mgx_numba.quantize_bf16(mgx_numba.parse_onnx(model)).compile("cpu").run({"x": x})[0])
    wanted = x.sum(-1) @ w
    finite = np.isfinite(wanted)
    assert np.array_equal(np.isfinite(found), finite)
    assert np.linalg.norm((found - wanted)[finite]) <= 1e-2 * np.linalg.norm(wanted[finite])


@pytest.mark.parametrize("name", ["bert", "efficientnet_b0", "mlp", "unet"])
def test_whole_models_in_8_bits(name: str) -> None:
    model = build(name, scale="tiny")
    values = inputs(name, model)
    p = mgx_numba.parse_onnx_buffer(model.SerializeToString())
    expected = [np.asarray(r) for r in p.clone().compile("cpu").run(values)]
    mgx_numba.quantize_int8(p, mgx_numba.get_target("cpu"), [values])
    assert sum(c.choice == "int8" for c in p.quantization_choices()) >= 3
    reference = [np.asarray(r) for r in p.clone().compile("ref").run(values)]
    p.compile("cpu")
    assert not host_steps(p)
    assert any("int8" in k.name for k in p.kernels())
    for found, same, wide in zip(p.run(values), reference, expected):
        found = np.asarray(found)
        assert np.linalg.norm(found - wide) <= 0.1 * np.linalg.norm(wide)
        # where a value lies between two integers, float32 sums in another order take the other one
        assert np.linalg.norm(found - same) <= 0.02 * np.linalg.norm(same)


def qdq_model(relu: bool, dtype: Any, padding: int) -> onnx.ModelProto:
    """Two convolutions between quantised values, with biases, as ONNX Runtime's quantiser writes them."""
    rng = np.random.default_rng(8)
    code = TensorProto.UINT8 if dtype == np.uint8 else TensorProto.INT8
    zero = 0 if relu else 117 if dtype == np.uint8 else -9
    initializers: dict[str, np.ndarray] = {"xs": np.float32(0.02), "xz": np.asarray(zero, dtype)}
    nodes = [helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q0"])]
    channels = [6, 17, 5]
    for k in range(2):
        lens = (channels[k + 1], channels[k], 3, 3)
        initializers |= {
            f"w{k}": rng.integers(-127, 128, lens).astype(np.int8),
            f"ws{k}": rng.uniform(0.002, 0.01, lens[0]).astype(np.float32),
            f"wz{k}": np.zeros(lens[0], np.int8),
            f"b{k}": rng.uniform(-1, 1, lens[0]).astype(np.float32),
            f"ys{k}": np.float32(0.05),
        }
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{k}", "xs" if k == 0 else f"ys{k - 1}", "xz"], [f"d{k}"]),
            helper.make_node("DequantizeLinear", [f"w{k}", f"ws{k}", f"wz{k}"], [f"dw{k}"], axis=0),
            helper.make_node("Conv", [f"d{k}", f"dw{k}", f"b{k}"], [f"c{k}"], pads=[padding] * 4),
            *([helper.make_node("Relu", [f"c{k}"], [f"r{k}"])] if relu else []),
            helper.make_node("QuantizeLinear", [f"{'r' if relu else 'c'}{k}", f"ys{k}", "xz"], [f"q{k + 1}"]),
        ]
    graph = helper.make_graph(
        nodes,
        "qdq",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6, 9, 8])],
        [helper.make_tensor_value_info("q2", code, None)],
        [numpy_helper.from_array(np.asarray(value), key) for key, value in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("relu, dtype, padding", [(True, np.uint8, 1), (False, np.uint8, 1), (False, np.int8, 0)])
def test_quantised_models_are_within_one_step_of_onnx_runtime(relu: bool, dtype: Any, padding: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = qdq_model(relu, dtype, padding)
    x = np.random.default_rng(2).uniform(-2, 2, (2, 6, 9, 8)).astype(np.float32)
    expected = {}
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        expected[level] = ExactSession(model, options).run({"x": x})[0]
    p = mgx_numba.parse_onnx(model).compile("cpu")
    assert not host_steps(p)
    labels = [k.name for k in p.kernels()]
    assert sum("conv_int8" in label for label in labels) >= 1
    found = np.asarray(p.run({"x": x})[0])
    apart = {level: np.abs(found.astype(int) - values.astype(int)) for level, values in expected.items()}
    assert found.dtype == dtype and apart["ORT_DISABLE_ALL"].max() <= 1 and np.mean(apart["ORT_DISABLE_ALL"]) < 0.002
    # Its integer kernels round biases to steps of the sums, which moves some values across a tie.
    assert apart["ORT_ENABLE_ALL"].max() <= 1 and np.mean(apart["ORT_ENABLE_ALL"]) < 0.1
    if relu:  # each convolution with all that follows it is one kernel, after the one that quantises the input
        compiled: Any = p.compiled
        assert len(compiled.executable.plan.steps) <= 7  # with those that bring channels into words


@pytest.mark.skipif(host.host().vector_bits < 512, reason="the CPU has no AVX-512")
@pytest.mark.parametrize("form", [host.EMULATED_TILES, "", "avx2,-avxvnni"])
@pytest.mark.parametrize("zero", [0, 5])
def test_transposed_convolutions_of_quantised_values_are_products_of_integers(
    zero: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the input has no zero point; with one they are of float32, and the results are the same."""
    monkeypatch.setenv("MGX_CPU_FEATURES", form)
    rng = np.random.default_rng(zero)
    initializers = {
        "w": rng.integers(-127, 128, (70, 33, 2, 2)).astype(np.int8),
        "ws": rng.uniform(0.002, 0.01, 33).astype(np.float32),
        "wz": np.zeros(33, np.int8),
        "b": rng.uniform(-1, 1, 33).astype(np.float32),
        "xs": np.float32(0.02),
        "ys": np.float32(0.5),
        "xz": np.uint8(zero),
        "yz": np.uint8(128),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["dw"], axis=1),
        helper.make_node("ConvTranspose", ["d", "dw", "b"], ["c"], strides=[2, 2]),
        helper.make_node("QuantizeLinear", ["c", "ys", "yz"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "transposed",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [2, 70, 7, 6])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(value), key) for key, value in initializers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x = rng.integers(0, 256, (2, 70, 7, 6)).astype(np.uint8)
    expected = np.asarray(mgx_numba.parse_onnx(model).compile("ref").run({"x": x})[0]).astype(int)
    p = mgx_numba.parse_onnx(model).compile("cpu")
    assert not host_steps(p)
    products = [kernel.name for kernel in p.kernels() if kernel.name.startswith(("conv_transposed", "conv_phases"))]
    assert len(products) == 1 and ("_convert_mul_" in products[0]) == (zero == 0), products
    apart = np.abs(np.asarray(p.run({"x": x})[0]).astype(int) - expected)
    assert expected.std() > 20 and apart.max() <= 1 and np.mean(apart) < 0.01


def test_products_of_values_that_are_quantised_as_they_come() -> None:
    """DynamicQuantizeLinear and MatMulInteger, as ONNX Runtime's dynamic quantisation writes them."""
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(6)
    initializers = {
        "w": rng.integers(-127, 128, (37, 20)).astype(np.int8),
        "wz": np.int8(0),
        "ws": np.float32(0.01),
        "bias": rng.uniform(-1, 1, 20).astype(np.float32),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "ws"], ["scale"]),
        helper.make_node("Mul", ["f", "scale"], ["m"]),
        helper.make_node("Add", ["m", "bias"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "dynamic",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 5, 37])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), key) for key, value in initializers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    p = mgx_numba.parse_onnx(model).compile("cpu")
    assert not host_steps(p) and any("gemm_int8" in k.name for k in p.kernels())
    session = ExactSession(model)
    for size in (1, 30):
        x = (rng.standard_normal((2, 5, 37)) * size).astype(np.float32)
        found, (expected,) = np.asarray(p.run({"x": x})[0]), session.run({"x": x})
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4 * size)


def nbits_model(lens: list[int], k: int, n: int, block: int, bits: int, points: bool) -> onnx.ModelProto:
    """MatMulNBits, a bias and a ReLU."""
    rng = np.random.default_rng([k, n, block])
    blocks = -(-k // block)
    arrays = {
        "b": rng.integers(0, 256, (n, blocks, block * bits // 8), dtype=np.uint8),
        "s": rng.uniform(0.01, 0.1, n * blocks).astype(np.float32),
        "bias": rng.standard_normal(n).astype(np.float32),
    }
    if points:
        arrays["z"] = rng.integers(0, 256, n * -(-blocks * bits // 8), dtype=np.uint8)
    sizes = {"K": k, "N": n, "bits": bits, "block_size": block}
    names = ["x", "b", "s", *(["z"] if points else [])]
    nodes = [
        helper.make_node("MatMulNBits", names, ["c"], domain="com.microsoft", **sizes),
        helper.make_node("Add", ["c", "bias"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "nbits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*lens, k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    "lens, k, n, block, bits, points",
    [
        ([1], 96, 48, 32, 4, True),
        ([2, 3], 256, 40, 64, 4, False),
        ([1, 40], 600, 100, 32, 4, True),
        ([5], 129, 33, 16, 8, True),
    ],
)
def test_products_with_weights_of_few_bits(
    lens: list[int], k: int, n: int, block: int, bits: int, points: bool
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = nbits_model(lens, k, n, block, bits, points)
    x = np.random.default_rng(1).standard_normal((*lens, k), np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x})[0]
    for fast_math in (True, False):
        p = mgx_numba.parse_onnx(model).compile("cpu", fast_math=fast_math)
        assert not host_steps(p) and len(constants(p)) <= 2  # with the bias
        assert sum(a.nbytes for a in constants(p)) < 4 * n + 2.5 * k * n * bits / 8 + 4096
        found = np.asarray(p.run({"x": x})[0])
        assert np.abs(found - expected).max() <= (5e-5 if fast_math else 2e-6) * np.abs(expected).max()


def test_products_of_the_same_codes_keep_their_scales() -> None:
    """Equal codes were packed once for all products, with the first product's scales."""
    program, rng = Program(), np.random.default_rng(3)
    m = program.main
    x = m.add_parameter("x", Shape(Type.float_type, (1, 128)))
    codes = m.add_literal(rng.integers(0, 256, (16, 4, 16)).astype(np.uint8))
    scales = [m.add_literal(rng.uniform(0.001, 0.1, (16, 4)).astype(np.float32)) for _ in range(2)]
    m.add_return([m.add_instruction("matmul_nbits", [x, codes, own], bits=4, block_size=32) for own in scales])
    given = {"x": rng.standard_normal((1, 128)).astype(np.float32)}
    for found, wanted in zip(run(program, [given])[0], reference(program, given).results):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("others", ["read", "gathered", "in a body"])
def test_weights_of_a_program_that_no_cache_keeps_are_asked_for(others: str) -> None:
    """Products whose own weights a cache would keep, but not beside all else that a run reads, gathers aside."""
    program, rng = Program(), np.random.default_rng(4)
    m = program.main
    x = m.add_parameter("x", Shape(Type.float_type, (1, 128)))
    where = program.create_module("body") if others == "in a body" else m
    codes = where.add_literal(rng.integers(0, 256, (16, 4, 16)).astype(np.uint8))
    scales = where.add_literal(rng.uniform(0.001, 0.1, (16, 4)).astype(np.float32))
    made = where.add_instruction("matmul_nbits", [x, codes, scales], bits=4, block_size=32)
    table = m.add_literal(rng.standard_normal((64, 16)).astype(np.float32))
    if others == "gathered":
        more = m.add_instruction("gather", [table, m.add_literal(np.array([3], np.int64))], axis=0)
    else:
        more = m.add_instruction("dot", [m.add_parameter("y", Shape(Type.float_type, (1, 64))), table])
    if others == "in a body":
        where.add_return([made])
        condition = m.add_parameter("condition", Shape(Type.bool_type, (1,)))
        made = m.add_instruction("if", [condition], [where, where])
        made = m.add_instruction("get_tuple_elem", [made], index=0)
    m.add_return([made, more])
    given = {"x": rng.standard_normal((1, 128)).astype(np.float32)}
    if others != "gathered":
        given["y"] = rng.standard_normal((1, 64)).astype(np.float32)
    if others == "in a body":
        given["condition"] = np.array([True])
    with using(replace(machine(), last_cache_bytes=4096)):  # the codes and scales are 1.3 KB, the table 4
        compiled = compile_for("cpu", program)
        found = compiled.run(given)
        names = [kernel.name for kernel in compiled.kernels()]
    assert any(name.startswith("gemv_4bits") and "_ahead" in name for name in names) == (others != "gathered")
    for one, wanted in zip(found, reference(program, given).results):
        np.testing.assert_allclose(one, wanted, rtol=0, atol=5e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("level, least, most", [(0, 0, 5e-5), (3, 0, 5e-5), (4, 1e-4, 2e-2)])
def test_the_accuracy_level_of_a_product_allows_rows_of_bytes(
    level: int, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", "x86-64-v3")
    model = nbits_model([1], 256, 48, 32, 4, True)
    model.graph.node[0].attribute.append(helper.make_attribute("accuracy_level", level))
    x = np.random.default_rng(1).standard_normal((1, 256), np.float32)
    p = mgx_numba.parse_onnx(model)
    assert ("accuracy_level=4" in str(p)) == (level == 4)
    exact = np.asarray(p.clone().compile("ref").run({"x": x})[0])
    found = np.asarray(p.clone().compile("cpu").run({"x": x})[0])
    assert least <= np.abs(found - exact).max() / np.abs(exact).max() <= most
    kept = np.asarray(p.compile("cpu", fast_math=False).run({"x": x})[0])
    assert np.abs(kept - exact).max() <= 2e-6 * np.abs(exact).max()


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("features", ["", "x86-64-v3", "sse"])
def test_scales_of_16_bits_where_they_are_as_good(held: bool, features: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where float16 holds them, else where rows are bytes, too; an odd number of blocks, one of which is cut."""
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    x = np.random.default_rng(1).standard_normal((1, 150), np.float32)
    for level, fast_math, most in ((0, True, 5e-5), (4, True, 2e-2), (4, False, 2e-6)):
        model = nbits_model([1], 150, 33, 32, 4, True)
        model.graph.node[0].attribute.append(helper.make_attribute("accuracy_level", level))
        scales = next(a for a in model.graph.initializer if a.name == "s")
        if held:
            rounded = numpy_helper.to_array(scales).astype(np.float16).astype(np.float32)
            scales.CopyFrom(numpy_helper.from_array(rounded, "s"))
        p = mgx_numba.parse_onnx(model)
        exact = np.asarray(p.clone().compile("ref").run({"x": x})[0])
        found = np.asarray(p.compile("cpu", fast_math=fast_math).run({"x": x})[0])
        assert np.abs(found - exact).max() <= most * np.abs(exact).max()
        halves = any("halves" in kernel.name for kernel in p.kernels())
        assert halves == (features != "sse" and (held or (level == 4 and fast_math)))


@pytest.mark.parametrize("groups", [[0, 1, 2, 0, 1, 2], [2, 1, 0, 0, 1, 2]])
def test_products_whose_columns_name_their_block(groups: list[int]) -> None:
    """``g_idx``: in blocks or not."""
    model = nbits_model([2], 96, 20, 32, 4, False)
    model.graph.initializer.append(numpy_helper.from_array(np.repeat(np.array(groups, np.int32), 16), "g"))
    model.graph.node[0].input.extend(["", "g"])
    x = np.random.default_rng(1).standard_normal((2, 96), np.float32)
    exact = np.asarray(mgx_numba.parse_onnx(model).compile("ref").run({"x": x})[0])
    found = np.asarray(mgx_numba.parse_onnx(model).compile("cpu").run({"x": x})[0])
    assert np.abs(found - exact).max() <= 5e-5 * np.abs(exact).max()


def test_four_bits_dequantised_in_blocks() -> None:
    rng = np.random.default_rng(3)
    w = helper.make_tensor("w", TensorProto.INT4, [64, 24], rng.integers(-8, 8, 64 * 24))
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    scales = numpy_helper.from_array(rng.uniform(0.01, 0.1, (2, 24)).astype(np.float32), "s")
    graph = helper.make_graph(
        nodes,
        "int4",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [w, scales],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    x = rng.standard_normal((2, 64), np.float32)
    expected = np.asarray(mgx_numba.parse_onnx(model).compile("ref").run({"x": x})[0])
    p = mgx_numba.parse_onnx(model).compile("cpu")
    assert any("4bits" in kernel.name for kernel in p.kernels())
    assert np.abs(np.asarray(p.run({"x": x})[0]) - expected).max() <= 5e-5 * np.abs(expected).max()


def test_four_bit_weights_of_a_transformer_stay_in_four_bits() -> None:
    model = build("bert", scale="tiny")
    values = inputs("bert", model)
    p = mgx_numba.parse_onnx_buffer(model.SerializeToString())
    wide = sum(a.nbytes for a in constants(p.clone().compile("cpu", fast_math=False)))
    mgx_numba.quantize_int4_weights(p)
    reference = [np.asarray(r) for r in p.clone().compile("ref").run(values)]
    p.compile("cpu")
    assert not host_steps(p) and sum(a.nbytes for a in constants(p)) < 0.6 * wide
    for found, same in zip(p.run(values), reference):
        assert np.linalg.norm(np.asarray(found) - same) <= 1e-4 * np.linalg.norm(same)


def constants(p: mgx_numba.program) -> list[np.ndarray]:
    """Return a compiled program's constants, without the empty ones that no step reads."""
    compiled: Any = p.compiled
    return [a for a in compiled.executable.plan.constants if a.nbytes]


def quantize_int8(p: mgx_numba.program) -> None:
    rows = np.random.default_rng(3).standard_normal((1, 320)).astype(np.float32)
    mgx_numba.quantize_int8(p, mgx_numba.get_target("cpu"), [{"x": rows}])


KINDS = [(mgx_numba.quantize_fp16, 2), (mgx_numba.quantize_bf16, 2), (quantize_int8, 1)]


@pytest.mark.parametrize("quantize, itemsize", KINDS)
def test_weights_are_held_once_in_16_or_8_bits(quantize: Any, itemsize: int) -> None:
    rng = np.random.default_rng(2)
    p = mgx_numba.program()
    main = p.get_main_module()
    x = main.add_parameter("x", mgx_numba.shape(type="float", lens=[1, 320]))
    w = rng.standard_normal((320, 640)).astype(np.float32)
    main.add_return([main.add_instruction(mgx_numba.op("dot"), [x, main.add_literal(w)])])
    quantize(p)
    p.compile("cpu")
    if itemsize == 1 and not (host.has("avx512vnni") or host.has("avxvnni")):
        itemsize = 2  # words of two integers, whose products are exact
    beside = 12 * 640  # scales, sums of columns and what makes up for means, each of 4 bytes
    assert sum(a.nbytes for a in constants(p)) <= 1.1 * itemsize * w.size + beside  # the last panel is not full


@pytest.mark.parametrize("code, dtype", [
    (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn), (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
])  # fmt: skip
@pytest.mark.parametrize("fast_math", [False, True])
def test_float8_between_operations_is_rounded_in_place(code: int, dtype: Any, fast_math: bool) -> None:
    """Quantised, shuffled, pooled and quantised again: each value as the reference has it, ends and NaN too."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Reshape", ["d", "apart"], ["a"]),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["t", "together"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["p"], kernel_shape=[2, 2], pads=[1, 1, 0, 0]),
        helper.make_node("QuantizeLinear", ["p", "s2", "z"], ["q2"]),
        helper.make_node("DequantizeLinear", ["q2", "s2", "z"], ["y"]),
    ]
    constants = [
        helper.make_tensor("s", TensorProto.FLOAT, [], [0.25]), helper.make_tensor("s2", TensorProto.FLOAT, [], [2.0]),
        helper.make_tensor("z", code, [], b"\0", raw=True),
        helper.make_tensor("apart", TensorProto.INT64, [5], [2, 2, 3, 5, 7]),
        helper.make_tensor("together", TensorProto.INT64, [4], [2, 6, 5, 7]),
    ]  # fmt: skip
    lens = [2, 6, 5, 7]
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, lens) for n in "xy")
    graph = helper.make_graph(nodes, "float8", [given], [made], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    rng = np.random.default_rng(7)
    x = (rng.standard_normal(lens) * np.exp2(rng.uniform(-12, 9, lens))).astype(np.float32)
    x[0, 0, 0, :5] = np.inf, -np.inf, np.nan, 1e30, -0.0
    expected = np.asarray(mgx_numba.parse_onnx(model).compile("ref").run({"x": x})[0])
    p = mgx_numba.parse_onnx(model).compile("cpu", fast_math=fast_math)
    assert not host_steps(p)
    np.testing.assert_array_equal(np.asarray(p.run({"x": x})[0]), expected)
    assert (
        np.isnan(expected).any()
        and np.abs(expected[np.isfinite(expected)]).max() >= 0.25 * ml_dtypes.finfo(dtype).max / 2
    )


@pytest.mark.parametrize("features", MULTIPLYING)
@pytest.mark.parametrize(("groups", "channels"), [(2, 3), (3, 5), (8, 2), (4, 1)])
def test_infinities_stay_in_their_group(
    groups: int, channels: int, features: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a convolution in bfloat16, whose words may hold channels of two groups."""
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    rng = np.random.default_rng(1)
    lens = (1, groups * channels, 6, 5)
    weights = rng.standard_normal((groups * channels, channels, 3, 3)).astype(np.float32)
    x = rng.standard_normal(lens).astype(np.float32)
    x[0, :channels] = np.inf
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, n) for name, n in (("x", lens), ("y", None))]
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4, group=groups)
    graph = helper.make_graph([node], "groups", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    found = np.asarray(mgx_numba.quantize_bf16(mgx_numba.parse_onnx(model)).compile("cpu").run({"x": x})[0])
    assert not np.isfinite(found[0, :channels]).any()
    assert np.isfinite(found[0, channels:]).all()
