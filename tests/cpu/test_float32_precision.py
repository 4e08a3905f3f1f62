"""The option ``float32_matmul_precision`` on the CPU, with emulated matrix tiles where it has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba
from mgx_numba.codegen.cpu import host

needs_avx512 = pytest.mark.skipif(host.host().vector_bits < 512, reason="the CPU has no AVX-512")
RNG = np.random.default_rng(1)
W = RNG.standard_normal((96, 64, 3, 3)).astype(np.float32)
X = RNG.standard_normal((1, 64, 48, 48)).astype(np.float32)


def model(constant: bool = True) -> onnx.ModelProto:
    """A convolution."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)]
    if not constant:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, W.shape))
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        "conv",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(W, "w")] if constant else [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def compiled(constant: bool = True, **options: Any) -> mgx_numba.program:
    program = mgx_numba.parse_onnx(model(constant))
    program.compile(mgx_numba.get_target("cpu"), num_threads=1, **options)
    return program


def exact() -> np.ndarray:
    columns = np.lib.stride_tricks.sliding_window_view(
        np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3)
    ).astype(np.float64)
    return np.einsum("nchwij,ocij->nohw", columns, W.astype(np.float64))


def error(program: mgx_numba.program, **more: np.ndarray) -> float:
    found = np.array(program.run({"x": X, **more})[0])
    return float(np.abs(found - exact()).max() / np.abs(exact()).max())


def names(program: mgx_numba.program) -> str:
    return " ".join(kernel.name for kernel in program.kernels())


@needs_avx512
def test_each_precision_has_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", host.EMULATED_TILES)
    high = compiled()
    assert "conv_winograd_2x2_tiles" in names(high) and "parts" in names(high)
    assert 1e-6 < error(high) < 3e-5
    for options in ({"float32_matmul_precision": "highest"}, {"fast_math": False}):
        highest = compiled(**options)
        assert "tiles" not in names(highest) and error(highest) < 1e-6
    medium = compiled(float32_matmul_precision="medium")
    assert "conv_tiles" in names(medium) and 1e-4 < error(medium) < 1e-2
    asked = compiled(fast_math=False, float32_matmul_precision="high")
    assert "conv_winograd_2x2_tiles" in names(asked) and error(asked) < 3e-5


@needs_avx512
def test_weights_that_are_not_known_are_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", host.EMULATED_TILES)
    program = compiled(constant=False)
    assert "tiles" not in names(program) and error(program, w=W) < 1e-5


def test_the_highest_precision_allows_no_method_that_changes_rounding(recwarn: pytest.WarningsRecorder) -> None:
    assert "winograd" not in names(compiled(float32_matmul_precision="highest"))
    assert not [str(w.message) for w in recwarn if "float32_matmul_precision" in str(w.message)]


@needs_avx512
def test_attention_has_the_error_of_its_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", host.EMULATED_TILES)
    lens = (1, 2, 40, 24)
    nodes = [
        helper.make_node("Transpose", ["k"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "turned"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    *inputs, output = (helper.make_tensor_value_info(name, TensorProto.FLOAT, lens) for name in "qkvy")
    graph = helper.make_graph(nodes, "attention", inputs, [output])
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    given = {name: RNG.standard_normal(lens).astype(np.float32) for name in "qkv"}
    scores = given["q"].astype(np.float64) @ given["k"].swapaxes(2, 3)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ given["v"].astype(np.float64)
    for precision, name, least, most in (
        ("highest", "attention_kernel", 0, 1e-6),
        ("high", "attention_parts_kernel", 1e-7, 5e-5),
        ("medium", "attention_tiles_kernel", 1e-4, 3e-2),
    ):
        program = mgx_numba.parse_onnx(file)
        program.compile(mgx_numba.get_target("cpu"), num_threads=1, float32_matmul_precision=precision)
        found = np.abs(np.array(program.run(given)[0]) - wanted).max() / np.abs(wanted).max()
        assert name in names(program).split() and least <= found <= most, (precision, names(program), found)
