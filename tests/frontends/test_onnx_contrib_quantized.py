"""Quantised and other operators of domain com.microsoft, against ONNX Runtime.

Operators of Quark and Brevitas are compared with OCP's definition of microscaling formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from mgx_numba.core.shape import DynamicDimension
from mgx_numba.errors import MgxError, ParseError, ShapeError, UnsupportedError
from mgx_numba.frontends.onnx import deferred, parse_onnx
from mgx_numba.graph.program import Program

from ..exact_integers import ExactSession
from ..values import normal
from .onnx_cases import run_compiled, run_program
from .support import FLOAT, assert_like_onnxruntime, run, single

U8, I8, I32, I64 = TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32, TensorProto.INT64


def codes(*lens: int, seed: int = 0, dtype: Any = np.uint8) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, lens).astype(dtype)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32) if len(values) > 1 else np.array(values[0], np.float32)


def point(*values: int, dtype: Any = np.uint8) -> np.ndarray:
    return np.array(values, dtype) if len(values) > 1 else np.array(values[0], dtype)


GROUPS = (np.arange(64) * 7 % 64 // 32).astype(np.int32)
GQA = {"num_heads": 4, "kv_num_heads": 2, "constant": [6], "outputs": (FLOAT,) * 3}
TOKENS = [normal(2, 3, 32), normal(2, 3, 16, seed=1), normal(2, 3, 16, seed=2)]
EMPTY = [normal(2, 2, 0, 8), normal(2, 2, 0, 8)]
LENGTHS = [np.array([2, 2], np.int32), np.array(3, np.int32)]
MHA = [normal(2, 3, 8), normal(2, 5, 8, seed=1), normal(2, 5, 8, seed=2)]

CASES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "qgemm": (
        "QGemm",
        [codes(3, 4), f32(0.02), point(120), codes(4, 5, seed=1), f32(0.03), point(7),
         codes(5, dtype=np.int32) // 2**22, f32(0.5), point(100)],
        {"outputs": (U8,)},
    ),
    "qgemm_to_float_transposed_by_columns": (
        "QGemm",
        [codes(4, 3), f32(0.02), point(120), codes(5, 4, seed=1, dtype=np.int8), f32(0.1, 0.2, 0.3, 0.4, 0.5),
         point(1, 2, 0, -4, 9, dtype=np.int8), codes(5, dtype=np.int32) // 2**22],
        {"transA": 1, "transB": 1, "alpha": 0.5},
    ),
    "dynamic_quantize_matmul": (
        "DynamicQuantizeMatMul",
        [normal(2, 3, 4), codes(4, 5, seed=1), f32(0.03), point(7), normal(5)],
        {},
    ),
    "dynamic_quantize_matmul_by_columns": (
        "DynamicQuantizeMatMul",
        [normal(3, 4), codes(4, 3, seed=1, dtype=np.int8), f32(0.03, 0.2, 0.1)],
        {},
    ),
    "matmul_integer_to_float_by_rows": (
        "MatMulIntegerToFloat",
        [codes(3, 4), codes(4, 5, seed=1), f32(0.02), f32(0.1, 0.2, 0.3, 0.4, 0.5), point(12), point(1, 2, 3, 4, 5)],
        {},
    ),
    "qlinear_softmax": (
        "QLinearSoftmax",
        [codes(2, 3, 8), f32(0.05), point(3), f32(1 / 256), point(0)],
        {"axis": 1, "opset_": 13, "outputs": (U8,)},
    ),
    "qlinear_softmax_of_rows": (
        "QLinearSoftmax",
        [codes(2, 3, 8), f32(0.05), point(3), f32(1 / 256), point(0)],
        {"axis": 1, "opset_": 12, "outputs": (U8,)},
    ),
    "qlinear_where": (
        "QLinearWhere",
        [codes(2, 4) > 128, codes(2, 4), f32(0.02), point(3), codes(4, seed=1), f32(0.05), point(9), f32(0.04),
         point(5)],
        {"outputs": (U8,), "constant": [2, 3, 5, 6, 7, 8]},
    ),
    "qattention": (
        "QAttention",
        [codes(2, 3, 8), codes(8, 24, seed=1, dtype=np.int8), normal(24, seed=2), f32(0.02), f32(0.03),
         np.array([2, 3], np.int32), point(120), point(0, dtype=np.int8)],
        {"num_heads": 2, "constant": [1]},
    ),
    "matmul_nbits_8": (
        "MatMulNBits",
        [normal(3, 40), codes(6, 2, 32), np.abs(normal(12, seed=1)), codes(12, seed=4)],
        {"K": 40, "N": 6, "bits": 8, "block_size": 32, "constant": [1, 2, 3]},
    ),
    "matmul_nbits_2": (
        "MatMulNBits",
        [normal(3, 64), codes(6, 2, 8), np.abs(normal(12, seed=1)), codes(6, seed=4)],
        {"K": 64, "N": 6, "bits": 2, "block_size": 32, "constant": [1, 2, 3]},
    ),
    "matmul_nbits_with_groups_and_bias": (
        "MatMulNBits",
        [normal(3, 64), codes(6, 2, 16), np.abs(normal(12, seed=1)), None, GROUPS, normal(6, seed=2)],
        {"K": 64, "N": 6, "bits": 4, "block_size": 32, "constant": [1, 2, 4]},
    ),
    "gather_block_quantized": (
        "GatherBlockQuantized",
        [codes(5, 32), np.array([[0, 4], [3, -5]]), np.abs(normal(5, 2, seed=1)), codes(5, 1, seed=3)],
        {"block_size": 32, "quantize_axis": 1, "bits": 4, "constant": [0, 2, 3]},
    ),
    "gather_block_quantized_bytes": (
        "GatherBlockQuantized",
        [codes(5, 64), np.array([4, 2]), np.abs(normal(5, 2, seed=1))],
        {"block_size": 32, "quantize_axis": 1, "bits": 8, "constant": [0, 2]},
    ),
    "attention_scores": ("MultiHeadAttention", MHA, {"num_heads": 2, "outputs": (FLOAT, FLOAT, FLOAT, FLOAT)}),
    "group_query_attention_with_an_empty_past": ("GroupQueryAttention", [*TOKENS, *EMPTY, *LENGTHS], GQA),
    "group_query_attention_smooth": (
        "GroupQueryAttention", [*TOKENS, None, None, *LENGTHS], {**GQA, "smooth_softmax": 1},
    ),
    "group_query_attention_with_sinks": (
        "GroupQueryAttention",
        [*TOKENS, None, None, *LENGTHS, None, None, None, None, normal(4, seed=9)],
        GQA,
    ),
    "skip_layer_normalization_statistics": (
        "SkipLayerNormalization",
        [normal(2, 3, 8), normal(2, 3, 8, seed=1), normal(8, seed=2), normal(8, seed=3)],
        {"outputs": (FLOAT, 0, 0, FLOAT)},
    ),
    "nhwc_max_pool": (
        "NhwcMaxPool", [codes(1, 5, 6, 3)], {"kernel_shape": [2, 2], "pads": [1, 0, 0, 0], "outputs": (U8,)},
    ),
    "fused_gemm": (
        "FusedGemm",
        [normal(3, 4), normal(5, 4, seed=1), normal(5)],
        {"transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.3},
    ),
    "expand_dims": ("ExpandDims", [normal(2, 3), np.array(-1, np.int32)], {"constant": [1]}),
    "unique": ("Unique", [f32(3, 1, 3, 2, 1)], {"outputs": (FLOAT, I64, I64)}),
    "inverse": ("Inverse", [normal(2, 3, 3)], {}),
    "distances": ("CDist", [normal(3, 4), normal(5, 4, seed=1)], {"metric": "euclidean"}),
    "squared_distances": ("CDist", [normal(3, 4), normal(5, 4, seed=1)], {"metric": "sqeuclidean"}),
    "trilu": ("Trilu", [normal(2, 4, 4), np.array(1)], {"upper": 0}),
    "pad": ("Pad", [normal(2, 3), np.array([0, 1, 1, 0]), f32(4.5)], {}),
    "range": ("Range", [f32(1), f32(5)], {}),
    "gather_nd": ("GatherND", [normal(3, 4), np.array([[0, 1], [2, 3]])], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operator_agrees_with_onnxruntime(name: str) -> None:
    op_type, inputs, options = CASES[name]
    if "opset_" in options:
        options = {**options}
        opset = options.pop("opset_")
        model, feeds = single(op_type, inputs, domain="com.microsoft", **options)
        model.graph.node[0].attribute.add(name="opset", type=2, i=opset)
    else:
        model, feeds = single(op_type, inputs, domain="com.microsoft", **options)
    assert_like_onnxruntime(model, feeds)


def lstm_inputs(directions: int, by_column: bool, dtype: Any) -> list[Any]:
    """Return the inputs of a DynamicQuantizeLSTM with 6 features and 5 units."""
    lens = (directions, 20) if by_column else (directions,)
    zero = np.full(lens, 0 if dtype == np.int8 else 131, dtype)  # which ONNX Runtime wants alike
    scales = [np.random.default_rng(9).uniform(0.002, 0.006, lens).astype(np.float32), zero]
    return [
        normal(4, 3, 6), codes(directions, 6, 20, dtype=dtype), codes(directions, 5, 20, seed=1, dtype=dtype),
        normal(directions, 40, seed=2), np.array([4, 1, 3], np.int32), normal(directions, 3, 5, seed=3),
        normal(directions, 3, 5, seed=4), None, *scales, *scales,
    ]  # fmt: skip


def bytes_by_range(x: np.ndarray) -> np.ndarray:
    """Return ``x`` quantised by DynamicQuantizeLinear and dequantised in float64."""
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    step = (high - low) / np.float32(255) if high != low else np.float32(1)
    zero = np.rint(-low / step)
    return (np.clip(np.rint(x / step) + zero, 0, 255) - zero) * np.float64(step)


def dynamic_lstm(inputs: Sequence[Any]) -> list[np.ndarray]:
    """Return the results of a DynamicQuantizeLSTM: all hidden states, last hidden states and last cell states."""
    x, w, r, bias, lengths, hidden, state, _, *sides = inputs
    w, r = (
        (codes.astype(np.float64) - zero.reshape(len(codes), 1, -1)) * scale.reshape(len(codes), 1, -1)
        for codes, scale, zero in ((w, *sides[:2]), (r, *sides[2:]))
    )
    y = np.zeros((len(x), *hidden.shape), np.float32)
    hidden, state, h = hidden.copy(), state.copy(), hidden.shape[2]
    for d in range(len(w)):
        given = bytes_by_range(x) @ w[d] + bias[d].reshape(2, -1).sum(0)
        for t in range(len(x)):
            at = np.where(d * (t < lengths), lengths - 1 - t, t)  # the second direction goes backward
            gates = given[at, np.arange(x.shape[1])] + bytes_by_range(hidden[d]) @ r[d]
            i, o, f = (1 / (1 + np.exp(-gates[:, k * h : (k + 1) * h])) for k in range(3))
            new = f * state[d] + i * np.tanh(gates[:, 3 * h :])
            on = (t < lengths)[:, None]
            y[at, d, np.arange(x.shape[1])] = np.where(on, o * np.tanh(new), 0)
            hidden[d], state[d] = np.where(on, o * np.tanh(new), hidden[d]), np.where(on, new, state[d])
    return [y, hidden, state]


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_lstm_with_weights_of_8_bits(direction: str, by_column: bool, dtype: Any) -> None:
    """Inputs and states are quantised to 8 bits as by ONNX Runtime on one thread."""
    inputs = lstm_inputs(2 if direction == "bidirectional" else 1, by_column, dtype)
    known = {"direction": direction, "hidden_size": 5, "outputs": (FLOAT,) * 3}
    constant = [1, 2, 8, 9, 10, 11]
    quantised, feeds = single("DynamicQuantizeLSTM", inputs, domain="com.microsoft", constant=constant, **known)
    found = run(quantised, feeds)
    for result, same in zip(found, dynamic_lstm(inputs)):
        np.testing.assert_allclose(result, same, rtol=1e-6, atol=1e-6)
    pytest.importorskip("onnxruntime")
    for result, near in zip(found, ExactSession(quantised).run(feeds)):
        assert np.abs(result - near).max() < 3e-2 * np.abs(near).max()


def test_weights_are_not_folded_to_infer_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing for each sample length folded all weights of a node with open lengths."""
    tried: list[Program] = []
    monkeypatch.setattr(deferred, "Program", lambda: tried.append(Program()) or tried[-1])  # type: ignore[func-returns-value]
    w = normal(16, 48, seed=1)
    inputs = [normal(2, 4, 16), w, normal(48, seed=2)]
    model, feeds = single("Attention", inputs, domain="com.microsoft", constant=[1, 2], num_heads=2)
    (expected,) = run(model, feeds)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "steps"
    program = parse_onnx(model, default_dyn_dim_value=DynamicDimension(1, 64))
    assert [shape.ndim for shape in program.output_shapes()] == [3]
    sizes = [ins.shape.elements for made in tried for ins in made.main if ins.literal is not None]
    assert sizes and max(sizes) <= deferred._SMALL < w.size
    np.testing.assert_allclose(run_program(program, feeds)[0], expected, rtol=1e-5, atol=1e-6)


def open_lstm() -> tuple[ModelProto, dict[str, np.ndarray], list[Any]]:
    """Return a DynamicQuantizeLSTM of 3 sequences of any length, with its inputs."""
    size = 16
    w, r = codes(1, 6, 4 * size, dtype=np.int8), codes(1, size, 4 * size, seed=1, dtype=np.int8)
    scale, zero = np.full(1, 0.004, np.float32), np.zeros(1, np.int8)
    hidden, state = normal(1, 3, size, seed=3), normal(1, 3, size, seed=4)
    inputs = [
        normal(4, 3, 6), w, r, normal(1, 8 * size, seed=2), np.array([4, 1, 3], np.int32), hidden, state, None,
        scale, zero, scale, zero,
    ]  # fmt: skip
    model, feeds = single(
        "DynamicQuantizeLSTM", inputs, domain="com.microsoft", constant=[1, 2, 3, 8, 9, 10, 11], hidden_size=size,
        outputs=(FLOAT,) * 3,
    )  # fmt: skip
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "steps"
    return model, feeds, inputs


def test_a_quantised_lstm_of_any_length_is_parsed_at_once() -> None:
    """It waited for the lengths, and its results' ranks were sought by parsing it for up to 18 sample lengths."""
    model, feeds, inputs = open_lstm()
    program = parse_onnx(model, default_dyn_dim_value=DynamicDimension(1, 64))
    assert not any(ins.name == "deferred" for ins in program.main)
    fixed = [[d.min for d in shape.dims if d.is_fixed] for shape in program.output_shapes()]
    assert fixed == [[1, 3, 16], [1, 3, 16], [1, 3, 16]]
    for result, same in zip(run_program(program, feeds), dynamic_lstm(inputs)):
        np.testing.assert_allclose(result, same, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op_type", ["DynamicQuantizeLinear", "QuantizeLinear", "DequantizeLinear"])
@pytest.mark.parametrize("lens", [(3, 4), (1, 1), (0, 4), (5,)])
@pytest.mark.parametrize("vector", [False, True])
def test_one_scale_for_any_lengths_does_not_wait_for_them(op_type: str, lens: tuple[int, ...], vector: bool) -> None:
    """Each such node was kept as a model of its own, and was parsed once more for given lengths."""
    if op_type == "DynamicQuantizeLinear" and 0 in lens:
        pytest.skip("the range of no values")
    x = normal(*lens) if op_type != "DequantizeLinear" else codes(*lens)
    form = (1,) if vector else ()
    one, zero = np.full(form, 0.03, np.float32), np.full(form, 7, np.uint8)
    inputs = [x] if op_type == "DynamicQuantizeLinear" else [x, one, zero]
    types = {"DynamicQuantizeLinear": (U8, FLOAT, U8), "QuantizeLinear": (U8,)}.get(op_type, (FLOAT,))
    model, feeds = single(op_type, inputs, outputs=types)
    expected = run(model, feeds)
    for k in range(len(lens)):
        model.graph.input[0].type.tensor_type.shape.dim[k].dim_param = f"n{k}"
    program = parse_onnx(model, default_dyn_dim_value=DynamicDimension(0, 64))
    assert not any(ins.name == "deferred" for ins in program.main)
    for result, same in zip(run_program(program, feeds), expected, strict=True):
        np.testing.assert_array_equal(result, same)
    pytest.importorskip("onnxruntime")
    assert_like_onnxruntime(model, feeds)


def test_scales_of_lstm_weights_that_do_not_fit() -> None:
    for place, value, message in ((8, None, "is missing"), (8, f32(1, 2, 3), "lengths .3., expected 1 or 1 x 20")):
        inputs = lstm_inputs(1, False, np.int8)
        inputs[place] = value
        model, feeds = single("DynamicQuantizeLSTM", inputs, domain="com.microsoft", hidden_size=5)
        with pytest.raises(ParseError, match=message):
            run(model, feeds)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [16, 32, 64, 128, 256, 512])
@pytest.mark.parametrize("zeros", [None, np.uint8, np.float32])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_constant_weights_are_read_as_the_file_has_them(bits: int, block: int, zeros: Any, dtype: Any) -> None:
    """The program has no dequantised weights, but for zero points that are no integers."""
    n, k = 5, 300
    count, rng = -(-k // block), np.random.default_rng([bits, block])
    x, stored = normal(2, 3, k).astype(dtype), codes(n, count, block * bits // 8)
    scales = rng.uniform(0.01, 0.1, (n, count)).astype(dtype)
    each = np.stack([stored & 15, stored >> 4], 3) if bits == 4 else stored
    points = np.full((n, count), 1 << bits - 1)
    given = None
    if zeros is np.uint8:
        points = rng.integers(0, 1 << bits, (n, count))
        whole = np.pad(points, ((0, 0), (0, count % 2))) if bits == 4 else points
        given = (whole[:, ::2] | whole[:, 1::2] << 4 if bits == 4 else whole).astype(np.uint8)
    elif zeros is not None:
        points = rng.uniform(0, 1 << bits, (n, count)).astype(dtype)
        given = points.astype(dtype)
    matrix = (each.reshape(n, count, block) - points[..., None].astype(np.float64)) * scales[..., None]
    wanted = x.astype(np.float64) @ matrix.reshape(n, -1)[:, :k].T
    model, feeds = single(
        "MatMulNBits", [x, stored, scales, given], domain="com.microsoft", K=k, N=n, bits=bits, block_size=block,
        constant=[1, 2] if given is None else [1, 2, 3],
    )  # fmt: skip
    names = [ins.name for ins in parse_onnx(model).main]
    kept = zeros is not np.float32
    assert ("matmul_nbits" in names) == kept and ("dot" in names or "unpack_int4" in names) != kept
    allowed = 1e-5 if dtype is np.float32 else 4e-3
    np.testing.assert_allclose(run(model, feeds)[0], wanted, rtol=allowed, atol=allowed * np.abs(wanted).max())


@pytest.mark.parametrize("lens", [(16,), (2, 16), (2, 3, 16)])
def test_one_block_of_weights_for_rows_of_open_lengths(lens: tuple[int, ...]) -> None:
    """A zero point of three axes was repeated along the two axes of the weights: a CompileError."""
    inputs = [normal(*lens), codes(1, 1, 8), f32(0.5).reshape(1), codes(1)]
    model, feeds = single(
        "MatMulNBits", inputs, domain="com.microsoft", K=16, N=1, bits=4, block_size=16, constant=[1, 2, 3]
    )
    expected = run(model, feeds)
    program = parse_onnx(model, map_dyn_input_dims={"x0": [DynamicDimension(1, 64)] * len(lens)})
    np.testing.assert_allclose(run_compiled(program, feeds)[0], expected[0], rtol=1e-5, atol=1e-4)


def test_rows_that_do_not_fit_block_weights() -> None:
    model, _ = single(
        "MatMulNBits", [normal(3, 50), codes(6, 2, 16), np.abs(normal(12))], domain="com.microsoft", K=60, N=6, bits=4,
        block_size=32, constant=[1, 2],
    )  # fmt: skip
    with pytest.raises(MgxError, match="MatMulNBits.*50.*60"):
        parse_onnx(model)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    ("scales", "zeros", "message"),
    [
        ((6, 2), None, r"input scales has 12 elements, expected 6 x 3"),
        ((7, 3), None, r"input scales has 21 elements, expected 6 x 3"),
        ((6, 3), (6, 4), r"input zero_points has 24 elements, expected 6 x "),
    ],
)
def test_scales_and_zero_points_that_do_not_fit(
    bits: int, scales: tuple[int, int], zeros: tuple[int, int] | None, message: str
) -> None:
    given = None if zeros is None else codes(*zeros)
    model, _ = single(
        "MatMulNBits", [normal(3, 96), codes(6, 3, 4 * bits), np.abs(normal(*scales)), given], domain="com.microsoft",
        K=96, N=6, bits=bits, block_size=32, constant=[1, 2] if given is None else [1, 2, 3],
    )  # fmt: skip
    with pytest.raises(ShapeError, match=rf"MatMulNBits.*{message}"):
        parse_onnx(model)


def test_groups_have_zero_points() -> None:
    """ONNX Runtime leaves them out."""
    a, b, scales, zeros = normal(3, 64), codes(6, 32), np.abs(normal(6, 2, seed=1)), codes(6, seed=4)
    inputs = [a, b.reshape(6, 2, 16), scales.reshape(-1), zeros, GROUPS]
    model, feeds = single("MatMulNBits", inputs, domain="com.microsoft", K=64, N=6, bits=4, block_size=32, constant=[1])
    values = np.stack([b & 15, b >> 4], 2).reshape(6, 64).astype(np.float32)
    points = np.stack([zeros & 15, zeros >> 4], 1).astype(np.float32)
    weights = (values - points[:, GROUPS]) * scales[:, GROUPS]
    np.testing.assert_allclose(run(model, feeds)[0], a @ weights.T, atol=1e-3)


@pytest.mark.parametrize("zeros", [None, (3,), (1, 2, 3, 4)])
@pytest.mark.parametrize("scales", [(0.5,), (0.1, 0.2, 0.3, 0.4)])
@pytest.mark.parametrize("rows", [3, 4])
def test_columns_of_the_first_matrix_may_have_scales_and_zero_points(
    rows: int, scales: tuple[float, ...], zeros: tuple[int, ...] | None
) -> None:
    """ONNX Runtime's schema says so; its kernel takes one of each."""
    a, b, scale = codes(rows, 4), codes(4, 5, seed=1), f32(*scales)
    zero = None if zeros is None else point(*zeros)
    inputs = [a, b, scale, f32(0.5), zero, point(7), f32(1, 2, 3, 4, 5)]
    model, feeds = single("MatMulIntegerToFloat", inputs, domain="com.microsoft")
    left = (a.astype(np.float64) - (0 if zeros is None else np.array(zeros))) * scale
    wanted = left @ (b.astype(np.float64) - 7) * 0.5 + np.arange(1, 6)
    np.testing.assert_allclose(run(model, feeds)[0], wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("scale", "zero", "what"), [((1, 2, 3), (0,), "a_scale"), ((1,), (1, 2, 3), "a_zero_point")])
def test_scales_of_rows_of_the_first_matrix(scale: tuple[float, ...], zero: tuple[int, ...], what: str) -> None:
    inputs = [codes(3, 4), codes(4, 5, seed=1), f32(*scale), f32(0.5), point(*zero)]
    model, _ = single("MatMulIntegerToFloat", inputs, domain="com.microsoft")
    with pytest.raises(ShapeError, match=f"input '{what}' has 3 elements, expected 1, or 4 as A has columns"):
        parse_onnx(model)


def test_means_of_quantised_numbers() -> None:
    x = codes(2, 3, 4)
    inputs = [x, f32(0.02), point(7), f32(0.03), point(9)]
    model, feeds = single("QLinearReduceMean", inputs, domain="com.microsoft", axes=[1], keepdims=0, outputs=(U8,))
    wanted = np.rint((x.astype(np.float32) - 7).mean(1) * 0.02 / 0.03) + 9
    np.testing.assert_allclose(run(model, feeds)[0].astype(float), np.clip(wanted, 0, 255), atol=1)


def test_caches_of_beams_are_refused() -> None:
    past = [normal(2, 2, 4, 4), normal(2, 2, 4, 4)]
    extra = [None, np.zeros((2, 1, 4), np.int32)]
    model, _ = single(
        "MultiHeadAttention", [*MHA, None, None, None, *past, *extra], domain="com.microsoft", num_heads=2
    )
    with pytest.raises(UnsupportedError, match="cache"):
        parse_onnx(model)


def test_tokens_that_do_not_fit_a_buffer_are_refused() -> None:
    past = [normal(2, 2, 4, 4), normal(2, 2, 4, 4)]
    inputs = [*MHA, None, None, None, *past, np.array(0, np.int32)]
    model, _ = single("MultiHeadAttention", inputs, domain="com.microsoft", num_heads=2)
    with pytest.raises(ShapeError, match="5 new tokens do not fit a cache of 4"):
        parse_onnx(model)


MX = {
    "fp4_e2m1": (ml_dtypes.float4_e2m1fn, 2),
    "fp6_e2m3": (ml_dtypes.float6_e2m3fn, 2),
    "fp6_e3m2": (ml_dtypes.float6_e3m2fn, 4),
    "fp8_e4m3": (ml_dtypes.float8_e4m3fn, 8),
    "fp8_e5m2": (ml_dtypes.float8_e5m2, 15),
}


def microscaled(x: np.ndarray, size: int, dtype: Any, largest: int) -> np.ndarray:
    """OCP's conversion of vectors along the last axis, block by block."""
    result = np.zeros_like(x)
    for row, out in zip(x.reshape(-1, x.shape[-1]), result.reshape(-1, x.shape[-1]), strict=True):
        for start in range(0, x.shape[-1], size):
            block = row[start : start + size]
            most = np.abs(block).max()
            if most:
                scale = np.exp2(np.floor(np.log2(most.astype(np.float64))) - largest)
                top = float(ml_dtypes.finfo(dtype).max)
                near = np.clip(block / scale, -top, top).astype(np.float32).astype(dtype).astype(np.float32)
                out[start : start + size] = near * scale
    return result


@pytest.mark.parametrize("kind", MX)
@pytest.mark.parametrize("op_type", ["MXQuantizeDequantize", "MXFixNeuron"])
@pytest.mark.parametrize("lens", [(3, 64), (2, 5, 40), (1, 7)])
def test_microscaling(op_type: str, kind: str, lens: tuple[int, ...]) -> None:
    x = normal(*lens, scale=3.0)
    x[0, ..., :4] = 0
    model, feeds = single(op_type, [x], axis=-1, block_size=32, element_dtype=kind, rounding_mode=2)
    np.testing.assert_array_equal(run(model, feeds)[0], microscaled(x, 32, *MX[kind]))


def test_microscaling_along_another_axis_with_blocks_of_zeros() -> None:
    x = normal(2, 40, 3)
    x[0, 32:] = 0
    model, feeds = single("MXQuantizeDequantize", [x], axis=1, block_size=32, element_dtype="fp4_e2m1", rounding_mode=2)
    wanted = microscaled(np.ascontiguousarray(x.swapaxes(1, 2)), 32, *MX["fp4_e2m1"]).swapaxes(1, 2)
    np.testing.assert_array_equal(run(model, feeds)[0], wanted)


def test_eight_bits_have_steps_of_one_64th() -> None:
    x = normal(2, 32)
    model, feeds = single("MXFixNeuron", [x], axis=1, block_size=32, element_dtype="int8", rounding_mode=2)
    scale = np.exp2(np.floor(np.log2(np.abs(x).max(1, keepdims=True).astype(np.float64))))
    wanted = np.clip(np.rint(x / scale * 64), -127, 127) / 64 * scale
    np.testing.assert_array_equal(run(model, feeds)[0], wanted.astype(np.float32))


@pytest.mark.parametrize("lens", [(3, 64), (3, 40)])
def test_scales_of_groups(lens: tuple[int, int]) -> None:
    x = normal(*lens)
    given = {
        "group_dim": 1,
        "group_size": 32,
        "output_dtype": TensorProto.FLOAT4E2M1,
        "scale_selection_method": "floor",
    }
    model, feeds = single("DynamicScale", [x], **given)
    groups = np.pad(x, [(0, 0), (0, -lens[1] % 32)]).reshape(3, -1, 32)
    wanted = np.exp2(np.floor(np.log2(np.abs(groups).max(2).astype(np.float64))) - 2)
    np.testing.assert_array_equal(run(model, feeds)[0], wanted.astype(np.float32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounding_mode": 0}, "'rounding_mode' is 0, only 2"),
        ({"block_size": 0}, "'block_size' is 0"),
        ({"element_dtype": "fp3"}, "'fp3', expected one of fp4_e2m1"),
        ({"axis": 5}, "axis is 5"),
    ],
)
def test_microscaling_that_is_not_known(changes: dict[str, Any], message: str) -> None:
    given = {"axis": 1, "block_size": 32, "element_dtype": "fp4_e2m1", "rounding_mode": 2, **changes}
    model, _ = single("MXQuantizeDequantize", [normal(2, 32)], **given)
    with pytest.raises(MgxError, match=message):
        parse_onnx(model)
