"""Readers of a value see the precision that they asked for, whatever its other readers asked for."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

import mgx_numba
from mgx_numba.runtime.gpu.choice import interpreted

TARGETS = pytest.mark.parametrize("target", ["ref", "cpu", "gpu"])
MATH = pytest.mark.parametrize("fast_math", [True, False])
Nodes = list[tuple[str, list[str], str, dict[str, object]]]


def run(
    nodes: Nodes, x: np.ndarray, held: dict[str, np.ndarray], results: list[str], target: str, fast_math: bool
) -> list[np.ndarray]:
    """The results of a model of one input ``x``."""
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [out], **given) for op, inputs, out, given in nodes],
        "readers",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with interpreted():
        program = mgx_numba.parse_onnx_buffer(model.SerializeToString()).compile(target, fast_math=fast_math)
        return [np.asarray(result) for result in program.run({"x": x})]


def quantised(x: np.ndarray, scale: float, zero: np.integer) -> np.ndarray:
    """``dequantize(quantize(x))``."""
    limits = np.iinfo(zero.dtype)
    steps = np.clip(np.rint(x / np.float32(scale)) + int(zero), limits.min, limits.max)
    return ((steps - int(zero)) * np.float32(scale)).astype(np.float32)


def pair(source: str, out: str, name: str = "") -> Nodes:
    parameters = [f"s{name}", f"z{name}"]
    return [
        ("QuantizeLinear", [source, *parameters], f"{out}_q", {}),
        ("DequantizeLinear", [f"{out}_q", *parameters], out, {}),
    ]


@TARGETS
@MATH
@pytest.mark.parametrize("rank", [1, 3, 4])
@pytest.mark.parametrize("zero", [np.uint8(0), np.uint8(128), np.int8(0)])
def test_what_is_quantised_for_one_reader_is_whole_for_others(
    target: str, fast_math: bool, rank: int, zero: np.integer
) -> None:
    """``a + dequantize(quantize(a))``, of which the quantised part is clipped."""
    x = np.array([3, -2, 100, -100, 0.26, 1e30], np.float32).reshape(*[1] * (rank - 1), 6)
    nodes: Nodes = [("Neg", ["x"], "a", {}), *pair("a", "d"), ("Add", ["a", "d"], "y", {})]
    (y,) = run(nodes, x, {"s": np.float32(0.1), "z": np.asarray(zero)}, ["y"], target, fast_math)
    np.testing.assert_allclose(y, -x + quantised(-x, 0.1, zero), rtol=1e-6)


@TARGETS
@MATH
def test_a_convolution_between_quantised_ones_has_a_whole_result(target: str, fast_math: bool) -> None:
    """Which a residual sum reads, while its quantised form is clipped at half its size."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (1, 4, 5, 6)).astype(np.float32)
    w = rng.integers(-20, 20, (4, 4, 1, 1)).astype(np.int8)
    nodes: Nodes = [
        *pair("x", "xd"),
        ("DequantizeLinear", ["w", "sw"], "wd", {}),
        ("Conv", ["xd", "wd"], "a", {}),
        *pair("a", "ad", "a"),
        ("Conv", ["ad", "wd"], "c", {}),
        ("Add", ["a", "c"], "y", {}),
    ]
    held = {"s": np.float32(0.05), "z": np.uint8(128), "sw": np.float32(0.05), "w": w}

    def conv(v: np.ndarray) -> np.ndarray:
        return np.einsum("oi,nihw->nohw", w[:, :, 0, 0] * np.float32(0.05), v)

    a = conv(quantised(x, 0.05, np.uint8(128)))
    scale = np.float32(np.abs(a).max() / 510)  # of 127 steps up and down
    held |= {"sa": scale, "za": np.uint8(128)}
    (y,) = run(nodes, x, {k: np.asarray(v) for k, v in held.items()}, ["y"], target, fast_math)
    c = conv(quantised(a, scale, np.uint8(128)))
    step = scale * np.abs(w).sum(1).max() * 0.05  # a value in the middle of two steps may go to either
    np.testing.assert_allclose(y, a + c, atol=step)
