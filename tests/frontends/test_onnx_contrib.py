"""Operators of domain com.microsoft, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from mgx_numba.errors import ShapeError

from ..values import normal
from .support import FLOAT, assert_like_onnxruntime, run, single

F16 = 10
I32 = 6
U8 = 2

X = normal(2, 3, 8)
SCALE = np.array(0.05, np.float32)


def u8(*lens: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, lens).astype(np.uint8)


def zero(value: int, dtype: Any = np.uint8) -> np.ndarray:
    return np.array(value, dtype)


Q = [np.array(0.02, np.float32), zero(120)]
OUT = [np.array(0.05, np.float32), zero(128)]

CASES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "gelu": ("Gelu", [X], {}),
    "bias_gelu": ("BiasGelu", [X, normal(8, seed=1)], {}),
    "fast_gelu": ("FastGelu", [X, normal(8, seed=1)], {}),
    "fast_gelu_without_bias": ("FastGelu", [X], {}),
    "quick_gelu": ("QuickGelu", [X], {"alpha": 1.3}),
    "fused_matmul": ("FusedMatMul", [X, normal(2, 5, 8, seed=1)], {"transB": 1, "alpha": 0.5}),
    "fused_conv": (
        "FusedConv",
        [normal(1, 2, 5, 5), normal(3, 2, 3, 3, seed=1), normal(3, seed=2)],
        {"activation": "LeakyRelu", "activation_params": [0.2], "pads": [1, 1, 1, 1]},
    ),
    **{
        f"fused_gemm_{name}": ("FusedGemm", [normal(3, 4), normal(4, 5, seed=1)], {"activation": name, **attributes})
        for name, attributes in {
            "Relu": {},
            "Softplus": {},
            "Softsign": {},
            "Elu": {"activation_alpha": 0.5},
            "HardSigmoid": {"activation_alpha": 0.3, "activation_beta": 0.4},
            "LeakyRelu": {"activation_alpha": 0.2},
            "ThresholdedRelu": {"activation_alpha": 0.3},
            "Selu": {"activation_alpha": 1.6, "activation_gamma": 1.1},
        }.items()
    },
    "skip_layer_normalization": (
        "SkipLayerNormalization",
        [X, normal(2, 3, 8, seed=1), normal(8, seed=2), normal(8, seed=3), normal(8, seed=4)],
        {"outputs": (FLOAT, 0, 0, FLOAT)},
    ),
    "skip_simplified_layer_normalization": (
        "SkipSimplifiedLayerNormalization",
        [X, normal(2, 3, 8, seed=1), normal(8, seed=2)],
        {"epsilon": 1e-5, "outputs": (FLOAT, 0, 0, FLOAT)},
    ),
    "embed_layer_normalization": (
        "EmbedLayerNormalization",
        [
            np.array([[1, 4, 2], [0, 3, 3]], np.int32),
            np.array([[0, 0, 1], [1, 0, 1]], np.int32),
            normal(5, 8),
            normal(6, 8, seed=1),
            normal(2, 8, seed=2),
            normal(8, seed=3),
            normal(8, seed=4),
            np.array([[1, 1, 0], [1, 1, 1]], np.int32),
        ],
        {"outputs": (FLOAT, I32)},
    ),
    "attention": (
        "Attention",
        [X, normal(8, 24, seed=1), normal(24, seed=2)],
        {"num_heads": 2},
    ),
    "embed_layer_normalization_without_segments": (
        "EmbedLayerNormalization",
        [
            np.array([[1, 4, 2], [0, 3, 3]], np.int32),
            None,
            normal(5, 8),
            normal(6, 8, seed=1),
            None,
            normal(8, seed=3),
            normal(8, seed=4),
        ],
        {"outputs": (FLOAT, I32)},
    ),
    "embed_layer_normalization_of_one_segment": (
        "EmbedLayerNormalization",
        [
            np.array([[1, 4, 2], [0, 3, 3]], np.int32),
            None,
            normal(5, 8),
            normal(6, 8, seed=1),
            normal(2, 8, seed=2),
            normal(8, seed=3),
            normal(8, seed=4),
        ],
        {"outputs": (FLOAT, I32)},
    ),
    "causal_attention_of_more_queries_than_keys": (
        "MultiHeadAttention",
        [normal(2, 5, 8), normal(2, 3, 8, seed=1), normal(2, 3, 8, seed=2)],
        {"num_heads": 2, "unidirectional": 1},
    ),
    "causal_attention_of_one_query": (
        "MultiHeadAttention",
        [normal(2, 1, 8), normal(2, 3, 8, seed=1), normal(2, 3, 8, seed=2)],
        {"num_heads": 2, "unidirectional": 1},
    ),
    "causal_attention_of_a_past_and_one_query": (
        "MultiHeadAttention",
        [
            normal(2, 1, 8),
            *(normal(2, 3, 8, seed=seed) for seed in (1, 2)),
            *(None, None, None),
            *(normal(2, 2, 2, 4, seed=seed) for seed in (3, 4)),
        ],
        {"num_heads": 2, "unidirectional": 1, "outputs": (FLOAT, FLOAT, FLOAT)},
    ),
    "causal_attention_of_a_past_and_fewer_keys": (
        "MultiHeadAttention",
        [
            normal(2, 5, 8),
            *(normal(2, 3, 8, seed=seed) for seed in (1, 2)),
            *(None, None, None),
            *(normal(2, 2, 1, 4, seed=seed) for seed in (3, 4)),
        ],
        {"num_heads": 2, "unidirectional": 1, "outputs": (FLOAT, FLOAT, FLOAT)},
    ),
    "quantised_leaky_relu_without_a_zero_point": (
        "QLinearLeakyRelu",
        [u8(3, 5), SCALE, None, *OUT],
        {"alpha": 0.3, "outputs": (U8,)},
    ),
    "attention_causal_with_mask": (
        "Attention",
        [X, normal(8, 24, seed=1), normal(24, seed=2), np.array([[1, 1, 0], [1, 1, 1]], np.int32)],
        {"num_heads": 2, "unidirectional": 1},
    ),
    "attention_with_lengths": (
        "Attention",
        [X, normal(8, 24, seed=1), normal(24, seed=2), np.array([2, 3], np.int32)],
        {"num_heads": 2},
    ),
    "attention_with_past": (
        "Attention",
        [X, normal(8, 24, seed=1), normal(24, seed=2), None, normal(2, 2, 2, 4, 4, seed=3)],
        {"num_heads": 2, "unidirectional": 1, "outputs": (FLOAT, FLOAT)},
    ),
    "multi_head_attention": (
        "MultiHeadAttention",
        [X, normal(2, 5, 8, seed=1), normal(2, 5, 8, seed=2), normal(24, seed=3)],
        {"num_heads": 2},
    ),
    "multi_head_attention_with_padding_and_bias": (
        "MultiHeadAttention",
        [
            X,
            normal(2, 5, 8, seed=1),
            normal(2, 5, 8, seed=2),
            None,
            np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
            normal(1, 2, 3, 5, seed=4),
        ],
        {"num_heads": 2},
    ),
    "multi_head_attention_with_past": (
        "MultiHeadAttention",
        [
            X,
            normal(2, 3, 8, seed=1),
            normal(2, 3, 8, seed=2),
            None,
            None,
            None,
            normal(2, 2, 4, 4, seed=5),
            normal(2, 2, 4, 4, seed=6),
        ],
        {"num_heads": 2, "outputs": (FLOAT, FLOAT, FLOAT)},
    ),
    "group_query_attention_prompt": (
        "GroupQueryAttention",
        [
            normal(2, 3, 32),
            normal(2, 3, 16, seed=1),
            normal(2, 3, 16, seed=2),
            None,
            None,
            np.array([2, 2], np.int32),
            np.array(3, np.int32),
        ],
        {"num_heads": 4, "kv_num_heads": 2, "constant": [6], "outputs": (FLOAT, FLOAT, FLOAT)},
    ),
    "group_query_attention_token": (
        "GroupQueryAttention",
        [
            normal(2, 1, 32),
            normal(2, 1, 16, seed=1),
            normal(2, 1, 16, seed=2),
            normal(2, 2, 6, 8, seed=3),
            normal(2, 2, 6, 8, seed=4),
            np.array([3, 3], np.int32),
            np.array(4, np.int32),
        ],
        {"num_heads": 4, "kv_num_heads": 2, "constant": [6], "outputs": (FLOAT,) * 3},
    ),
    "group_query_attention_packed_with_rotation": (
        "GroupQueryAttention",
        [
            normal(1, 1, 16 + 16 + 16),
            None,
            None,
            normal(1, 1, 5, 16, seed=3),
            normal(1, 1, 5, 16, seed=4),
            np.array([5], np.int32),
            np.array(6, np.int32),
            normal(10, 8, seed=5),
            normal(10, 8, seed=6),
        ],
        {
            "num_heads": 1,
            "kv_num_heads": 1,
            "do_rotary": 1,
            "rotary_interleaved": 1,
            "local_window_size": 3,
            "constant": [6],
            "outputs": (FLOAT,) * 3,
        },
    ),
    "rotary_embedding": (
        "RotaryEmbedding",
        [normal(2, 3, 16), np.array([[0, 1, 2], [4, 5, 6]]), normal(8, 4, seed=1), normal(8, 4, seed=2)],
        {},
    ),
    "rotary_embedding_from_position": (
        "RotaryEmbedding",
        [normal(2, 2, 3, 16), np.array([3]), normal(8, 8, seed=1), normal(8, 8, seed=2)],
        {"interleaved": 1},
    ),
    "matmul_nbits": (
        "MatMulNBits",
        [normal(3, 40), u8(6, 2, 16), np.abs(normal(12, seed=1))],
        {"K": 40, "N": 6, "bits": 4, "block_size": 32, "constant": [1, 2]},
    ),
    "matmul_nbits_with_zero_points": (
        "MatMulNBits",
        [normal(3, 96), u8(6, 3, 16), np.abs(normal(18, seed=1)), u8(12, seed=3)],
        {"K": 96, "N": 6, "bits": 4, "block_size": 32, "constant": [1, 2, 3]},
    ),
    "matmul_nbits_of_no_columns": (
        "MatMulNBits",
        [normal(3, 40), u8(0, 2, 16), np.zeros(0, np.float32)],
        {"K": 40, "N": 0, "bits": 4, "block_size": 32, "constant": [1, 2]},
    ),
    "matmul_nbits_of_no_blocks": (
        "MatMulNBits",
        [normal(3, 0), u8(6, 0, 16), np.zeros(0, np.float32), None, None, normal(6)],
        {"K": 0, "N": 6, "bits": 4, "block_size": 32, "constant": [1, 2, 5]},
    ),
    "matmul_bnb4_nf4": (
        "MatMulBnb4",
        [normal(3, 32), u8(96), np.abs(normal(12, seed=1))],
        {"K": 32, "N": 6, "block_size": 16, "quant_type": 1, "constant": [1, 2]},
    ),
    "matmul_bnb4_fp4": (
        "MatMulBnb4",
        [normal(3, 32), u8(96), np.abs(normal(12, seed=1))],
        {"K": 32, "N": 6, "block_size": 16, "quant_type": 0, "constant": [1, 2]},
    ),
    "matmul_integer_to_float": (
        "MatMulIntegerToFloat",
        [u8(3, 4), u8(4, 5, seed=1), SCALE, SCALE * 2, zero(12), zero(3), normal(5)],
        {"constant": [1, 3, 5]},
    ),
    "qlinear_add": ("QLinearAdd", [u8(2, 4), *Q, u8(4, seed=1), *Q, *OUT], {"outputs": (U8,)}),
    "qlinear_mul": ("QLinearMul", [u8(2, 4), *Q, u8(4, seed=1), *Q, *OUT], {"outputs": (U8,)}),
    "qlinear_sigmoid": (
        "QLinearSigmoid",
        [u8(2, 4), *Q, np.array(1 / 256, np.float32), zero(0)],
        {"outputs": (U8,), "constant": [1, 2, 3, 4]},
    ),
    "qlinear_leaky_relu": (
        "QLinearLeakyRelu",
        [u8(2, 4), *Q, *OUT],
        {"alpha": 0.1, "outputs": (U8,), "constant": [1, 2, 3, 4]},
    ),
    "qlinear_global_average_pool": (
        "QLinearGlobalAveragePool",
        [u8(1, 2, 4, 4), *Q, *OUT],
        {"channels_last": 0, "outputs": (U8,), "constant": [1, 2, 3, 4]},
    ),
    "qlinear_average_pool": (
        "QLinearAveragePool",
        [u8(1, 2, 4, 4), *Q, *OUT],
        {"kernel_shape": [2, 2], "strides": [2, 2], "outputs": (U8,), "constant": [1, 2, 3, 4]},
    ),
    "qlinear_concat": (
        "QLinearConcat",
        [*OUT, u8(2, 3), *Q, u8(2, 2, seed=1), *Q],
        {"axis": 1, "outputs": (U8,), "constant": [0, 1, 3, 4, 6, 7]},
    ),
}

SKIP = {"group_query_attention_token": (1, 2)}
"""Outputs whose unwritten part ONNX Runtime leaves undefined."""


def test_statistics_of_skip_simplified_layer_normalization() -> None:
    x, skip, gamma = X, normal(2, 3, 8, seed=1), normal(8, seed=2)
    outputs = (FLOAT,) * 4
    model, feeds = single(
        "SkipSimplifiedLayerNormalization", [x, skip, gamma], domain="com.microsoft", epsilon=1e-5, outputs=outputs
    )
    _, mean, inverse, total = run(model, feeds)
    np.testing.assert_allclose(mean, total.mean(2, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(inverse, 1 / np.sqrt((total**2).mean(2, keepdims=True) + 1e-5), rtol=1e-5)


@pytest.mark.parametrize("constant", [(), (6,)])
def test_positions_of_a_prompt_follow_its_first(constant: tuple[int, ...]) -> None:
    tokens = [normal(2, 3, 32), *(normal(2, 3, 16, seed=seed) for seed in (1, 2))]
    caches = [normal(2, 1, 3, 16, seed=seed) for seed in (3, 4)]
    lengths = [np.array([2, 2], np.int32), np.array(3, np.int32)]
    tables = [normal(10, 8, seed=seed) for seed in (5, 6)]
    inputs = [*tokens, *caches, *lengths, *tables, np.array([[4, 2, 2], [1, 0, 7]])]
    options = {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1, "outputs": (FLOAT,) * 3}
    model, feeds = single("GroupQueryAttention", inputs, domain="com.microsoft", constant=constant, **options)
    assert_like_onnxruntime(model, feeds)


@pytest.mark.parametrize("name", CASES)
def test_operator_agrees_with_onnxruntime(name: str) -> None:
    op_type, inputs, options = CASES[name]
    inputs = [None if x is None else np.asarray(x) for x in inputs]
    model, feeds = single(op_type, inputs, domain="com.microsoft", **options)
    assert_like_onnxruntime(model, feeds, skip=SKIP.get(name, ()))


def test_simplified_layer_normalization_in_the_default_domain() -> None:
    model, feeds = single("SimplifiedLayerNormalization", [X, normal(8, seed=1)], axis=-1, epsilon=1e-5)
    assert_like_onnxruntime(model, feeds)


@pytest.mark.parametrize(("mode", "reduce"), [(0, np.sum), (1, np.mean), (2, np.max)])
def test_embedding_bags_reduce_rows_of_a_table(mode: int, reduce: Any) -> None:
    table, ids = normal(6, 3), np.array([1, 4, 4, 0, 2])
    inputs = [table, ids, np.array([0, 2])]
    model, feeds = single("ATen", inputs, domain="org.pytorch.aten", constant=[2], operator="embedding_bag", mode=mode)
    model.opset_import.append(onnx.helper.make_opsetid("org.pytorch.aten", 1))
    expected = np.stack([reduce(table[ids[:2]], 0), reduce(table[ids[2:]], 0)])
    np.testing.assert_allclose(run(model, feeds)[0], expected, rtol=1e-6)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


TABLE = normal(8, 2)
NOT_FROM_THE_END: dict[str, tuple[str, list[Any], int, dict[str, Any]]] = {
    "embedding": (
        "EmbedLayerNormalization",
        [np.array([[0, 5]], np.int32), np.array([[0, 1]], np.int32), *(normal(n, 8) for n in (6, 4, 2)), *X[0, :2]],
        0,
        {"domain": "com.microsoft", "outputs": (FLOAT, I32)},
    ),
    "segment": (
        "EmbedLayerNormalization",
        [np.array([[0, 5]], np.int32), np.array([[0, 1]], np.int32), *(normal(n, 8) for n in (6, 4, 2)), *X[0, :2]],
        1,
        {"domain": "com.microsoft", "outputs": (FLOAT, I32)},
    ),
    "rotary": ("RotaryEmbedding", [normal(1, 2, 3, 4), TABLE, TABLE, i64(0, 2, 7).reshape(1, 3)], 3, {"opset": 23}),
    "rotary of contrib": (
        "RotaryEmbedding",
        [normal(1, 2, 3, 4), i64(0, 2, 7).reshape(1, 3), TABLE, TABLE],
        1,
        {"domain": "com.microsoft"},
    ),
    "unpooling": (
        "MaxUnpool",
        [normal(1, 1, 2, 2), i64(0, 2, 8, 15).reshape(1, 1, 2, 2)],
        1,
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    "unpooling into more": (
        "MaxUnpool",
        [normal(1, 1, 2, 2), i64(0, 2, 8, 15).reshape(1, 1, 2, 2), i64(1, 1, 5, 5)],
        1,
        {"kernel_shape": [2, 2], "strides": [2, 2], "constant": (2,)},
    ),
    "tensor scatter": ("TensorScatter", [normal(1, 2, 4, 3), normal(1, 2, 2, 3), i64(2)], 2, {"opset": 24}),
}


@pytest.mark.parametrize("case", NOT_FROM_THE_END)
def test_negative_ids_were_counted_from_the_end(case: str) -> None:
    name, inputs, position, options = NOT_FROM_THE_END[case]
    run(*single(name, inputs, **options))
    for wrong in (-1, 40):
        bad = inputs[position].copy()
        bad.reshape(-1)[0] = wrong
        with pytest.raises(ShapeError, match="index .* is out of range for axis"):
            run(*single(name, [*inputs[:position], bad, *inputs[position + 1 :]], **options))
