"""Operators of language models of domain com.microsoft, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from mgx_numba.session import InferenceSession

from ..values import normal
from .support import FLOAT, single

U8 = 2


def u8(*lens: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, lens).astype(np.uint8)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def scalar(value: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(value, dtype)


def unit(heads: int, *lens: int, seed: int = 0) -> np.ndarray:
    """Return keys [..., heads * d]; each head has norm 1."""
    x = normal(*lens[:-1], heads, lens[-1] // heads, seed=seed)
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).reshape(lens).astype(np.float32)


def share(*lens: int, seed: int = 0) -> np.ndarray:
    """Return numbers between 0 and 1."""
    return (1 / (1 + np.exp(-normal(*lens, seed=seed)))).astype(np.float32)


PLACES = np.random.default_rng(0).integers(0, 10, (3, 2, 3))
TABLES = [normal(10, 8, seed=5), normal(10, 8, seed=6)]
Case = tuple[str, list[Any], dict[str, Any]]
CASES: dict[str, Case] = {
    "gated_rms_norm_of_heads": ("GatedRMSNorm", [normal(2, 3, 8), normal(4, seed=1), normal(2, 3, 8, seed=2)], {}),
    "gated_rms_norm_sigmoid": (
        "GatedRMSNorm", [normal(2, 3, 8), normal(8, seed=1), normal(2, 3, 8, seed=2)], {"activation": "sigmoid"},
    ),
    "branchwise_rms_norm": ("BranchwiseRMSNorm", [normal(2, 3, 4, 8), normal(32, seed=1)], {}),
    "branchwise_rms_norm_flat": ("BranchwiseRMSNorm", [normal(2, 3, 32), normal(8, seed=1)], {"num_branches": 4}),
    "gated_add": ("GatedAdd", [normal(2, 3, 8), normal(2, 3, 8, seed=1), normal(2, 3, 1, seed=2)], {}),
    "scaled_silu": ("ScaledSiLU", [normal(2, 3)], {"alpha": 1.7}),
    "scaled_silu_by_an_input": ("ScaledSiLU", [normal(2, 3), scalar(0.3)], {}),
    "linear_attention_gate": (
        "LinearAttentionGate",
        [normal(2, 3, 4), normal(4, seed=1), -np.abs(normal(4, seed=2)), normal(2, 3, 4, seed=3)],
        {"outputs": (FLOAT, FLOAT)},
    ),
    "mrotary_of_runs": ("MRotaryEmbedding", [normal(2, 4, 3, 16), PLACES, *TABLES], {"mrope_section": [4, 2, 2]}),
    "mrotary_in_turn": (
        "MRotaryEmbedding", [normal(2, 4, 3, 16), PLACES, *TABLES],
        {"mrope_section": [4, 2, 2], "mrope_layout": 1, "interleaved": 1, "scale": 0.5},
    ),
    "rotary_scale": ("RotaryEmbedding", [normal(2, 4, 3, 16), PLACES[0], *TABLES], {"scale": 0.5}),
    "moe_swiglu": (
        "MoE",
        [normal(5, 8), normal(5, 4, seed=1), normal(4, 24, 8, seed=2), normal(4, 24, seed=3), normal(4, 8, 12, seed=4),
         normal(4, 8, seed=5)],
        {"activation_type": "swiglu", "swiglu_fusion": 1, "k": 2, "activation_alpha": 1.702, "activation_beta": 1.0,
         "swiglu_limit": 7.0},
    ),
    "moe_with_an_expert_of_most_tokens_and_one_of_none": (
        "MoE",
        [normal(2, 6, 8), normal(12, 8, seed=1) + np.float32([0, 0, 0, 2, 0, -99, 0, 0]),
         normal(8, 12, 8, seed=2), normal(8, 12, seed=3), normal(8, 8, 12, seed=4), normal(8, 8, seed=5)],
        {"activation_type": "silu", "k": 2},
    ),
    "fused_matmul_of_batches_inside": (
        "FusedMatMul", [normal(4, 3, 5), normal(5, 3, 6, seed=1)], {"transBatchA": 1, "transBatchB": 1, "alpha": 0.5},
    ),
    "fused_matmul_all_transposed": (
        "FusedMatMul", [normal(4, 3, 5), normal(5, 3, 4, seed=1)],
        {"transBatchA": 1, "transBatchB": 1, "transA": 1, "transB": 1},
    ),
    "qlinear_conv_channels_last": (
        "QLinearConv",
        [u8(1, 5, 5, 3), scalar(0.02), scalar(120, np.uint8), u8(4, 3, 3, 3, seed=1), scalar(0.03),
         scalar(110, np.uint8), scalar(0.1), scalar(128, np.uint8)],
        {"channels_last": 1, "outputs": (U8,), "constant": [1, 2, 3, 4, 5, 6, 7]},
    ),
    "grid_sample": (
        "GridSample", [normal(1, 2, 4, 5), 2 * share(1, 3, 3, 2, seed=1) - 1], {"padding_mode": "border"},
    ),
    "masked_attention_token": (
        "DecoderMaskedMultiHeadAttention",
        [*(normal(2, 1, 16, seed=n) for n in range(3)), None, None, normal(2, 2, 6, 8, seed=3),
         normal(2, 2, 6, 8, seed=4), i32(3), None, None, normal(48, seed=5)],
        {"num_heads": 2, "past_present_share_buffer": 1, "outputs": (FLOAT,) * 3},
    ),
    "masked_attention_with_padding": (
        "DecoderMaskedMultiHeadAttention",
        [*(normal(2, 1, 16, seed=n) for n in range(3)), i32(1, 1, 0, 1, 1, 1, 1, 1).reshape(2, 4), None,
         normal(2, 2, 6, 8, seed=3), normal(2, 2, 6, 8, seed=4), i32(3)],
        {"num_heads": 2, "past_present_share_buffer": 1, "outputs": (FLOAT,) * 3},
    ),
    "masked_attention_across": (
        "DecoderMaskedMultiHeadAttention",
        [normal(2, 1, 16), normal(2, 2, 5, 8, seed=1), normal(2, 2, 5, 8, seed=2)], {"num_heads": 2},
    ),
    "multi_head_attention_over_a_buffer": (
        "MultiHeadAttention",
        [*(normal(2, 3, 16, seed=n) for n in range(3)), None, None, None, normal(2, 2, 6, 8, seed=3),
         normal(2, 2, 6, 8, seed=4), i32(2)],
        {"num_heads": 2, "unidirectional": 1, "outputs": (FLOAT,) * 3},
    ),
}  # fmt: skip

for length, kind, dilation in ((5, "none", 1), (1, "silu", 2), (7, "swish", 3)):
    state = normal(2, 6, 3 * dilation, seed=3)
    options = {"activation": kind, "dilation": dilation, "outputs": (FLOAT, FLOAT)}
    inputs = [normal(2, 6, length), normal(6, 1, 4, seed=1), normal(6, seed=2), state]
    CASES[f"causal_conv_{length}"] = "CausalConvWithState", inputs, options
    turned = [inputs[0].swapaxes(1, 2), inputs[1], None, state.swapaxes(1, 2)]
    CASES[f"causal_conv_{length}_channels_last"] = "CausalConvWithState", turned, {**options, "channels_last": 1}
CASES["causal_conv_without_state"] = (
    "CausalConvWithState", [normal(2, 6, 2), normal(6, 1, 4, seed=1)], {"outputs": (FLOAT, FLOAT)},
)  # fmt: skip
for tokens in (1, 4):
    for rule in ("linear", "gated", "delta", "gated_delta"):
        for heads, shared in ((4, 2), (2, 4)):
            fading = -np.abs(normal(2, tokens, shared * (8 if heads == 2 else 1), seed=4))
            inputs = [
                normal(2, tokens, heads * 8), unit(shared, 2, tokens, shared * 8, seed=1),
                normal(2, tokens, shared * 6, seed=2), normal(2, shared, 8, 6, seed=3),
                fading if "gated" in rule else None, share(2, tokens, shared, seed=5) if "delta" in rule else None,
            ]  # fmt: skip
            CASES[f"linear_attention_{rule}_{tokens}_{heads}"] = (
                "LinearAttention", inputs,
                {"q_num_heads": heads, "kv_num_heads": shared, "update_rule": rule, "outputs": (FLOAT, FLOAT)},
            )  # fmt: skip
for tokens in (1, 4):
    for kind in ("softplus", "sigmoid"):
        n = 2 * tokens
        inputs = [
            normal(n, 2, 8), normal(n, 2, 8, seed=1), normal(n, 4, 6, seed=2), None, normal(n, 4, seed=3),
            normal(n, 4, seed=4), normal(2, 4, 6, 8, seed=5), normal(4, seed=6), normal(4, seed=7),
        ]  # fmt: skip
        CASES[f"gated_delta_net_{kind}_{tokens}"] = (
            "GatedDeltaNet", inputs,
            {"qk_l2_norm": 1, "beta_activation": "sigmoid", "gate_activation": kind, "outputs": (FLOAT, FLOAT)},
        )  # fmt: skip
CASES["gated_delta_net_packed"] = (
    "GatedDeltaNet",
    [normal(6, 56), None, None, None, -np.abs(normal(6, 4, seed=1)), normal(6, 4, seed=2), normal(2, 4, 6, 8, seed=3)],
    {"qk_l2_norm": 1, "beta_activation": "sigmoid", "outputs": (FLOAT, FLOAT)},
)
for kind in ("relu", "gelu", "silu", "identity"):
    inputs = [
        normal(2, 3, 8), normal(6, 4, seed=1), normal(4, 12, 8, seed=2), normal(4, 12, seed=3),
        normal(4, 8, 12, seed=4), normal(4, 8, seed=5),
    ]  # fmt: skip
    CASES[f"moe_{kind}"] = "MoE", inputs, {"activation_type": kind, "k": 2, "normalize_routing_weights": kind == "relu"}
for bits in (2, 4, 8):
    for block in (0, 16):
        codes = [u8(4, outer, 32 * bits // 8, seed=outer) for outer in (64, 32)]
        scales = [share(4, outer, *([2] if block else []), seed=outer) / 2**bits for outer in (64, 32)]
        inputs = [
            normal(5, 32), normal(5, 4, seed=1), codes[0], scales[0], normal(4, 64, seed=2), codes[1], scales[1],
        ]  # fmt: skip
        CASES[f"qmoe_{bits}_{block}"] = (
            "QMoE", inputs,
            {"activation_type": "swiglu", "swiglu_fusion": 1, "k": 2, "expert_weight_bits": bits,
             "constant": [2, 3, 4, 5, 6]} | ({"block_size": block} if block else {}),
        )  # fmt: skip
    data, gathered = u8(6, 32 * bits // 8), np.array([[1, 5, 0], [2, 2, 4]])
    for zeros in (None, u8(6, 1 if bits < 8 else 2, seed=2)):
        CASES[f"gather_block_quantized_{bits}_{'zeros' if zeros is not None else 'plain'}"] = (
            "GatherBlockQuantized", [data, gathered, normal(6, 2, seed=1), zeros],
            {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1,
             "constant": [0, 2] if zeros is None else [0, 2, 3]},
        )  # fmt: skip
    CASES[f"matmul_nbits_{bits}"] = (
        "MatMulNBits", [normal(3, 40), u8(6, 3, 2 * bits), normal(6, 3, seed=1), u8(6 * -(-3 * bits // 8), seed=2)],
        {"bits": bits, "block_size": 16, "K": 40, "N": 6, "constant": [1, 2, 3]},
    )  # fmt: skip

TOLERANCE = {"qmoe_8_0": 0.05, "qmoe_8_16": 0.05, "moe_gelu": 1e-3}
"""Largest difference relative to the largest result: ONNX Runtime multiplies 8-bit experts with 8-bit rows, and its
GELU is another approximation."""
HELD = {"masked_attention_token": 4, "masked_attention_with_padding": 4, "multi_head_attention_over_a_buffer": 5}
"""Positions of caches that hold tokens; ONNX Runtime leaves others undefined."""


@pytest.mark.parametrize("name", CASES)
def test_operator_agrees_with_onnxruntime(name: str) -> None:
    op_type, inputs, options = CASES[name]
    model, feeds = single(op_type, inputs, domain="com.microsoft", **options)
    text = model.SerializeToString()
    wanted = onnxruntime.InferenceSession(text, providers=["CPUExecutionProvider"]).run(None, feeds)
    found = InferenceSession(text).run(None, feeds)
    for number, (own, other) in enumerate(zip(found, wanted, strict=True)):
        assert own.shape == other.shape and own.dtype == other.dtype
        if number and name in HELD:
            own, other = own[:, :, : HELD[name]], other[:, :, : HELD[name]]
        largest = max(1.0, float(np.abs(other.astype(float)).max()))
        tolerance = 1.0 if own.dtype == np.uint8 else TOLERANCE.get(name, 5e-5) * largest
        np.testing.assert_allclose(own.astype(float), other.astype(float), atol=tolerance, rtol=0)


def test_weights_of_3_bits_lie_across_bytes() -> None:
    rng = np.random.default_rng(0)
    codes, scales = rng.integers(0, 8, (6, 48)), normal(6, 3, seed=1)
    stream = (codes[..., None] >> np.arange(3) & 1).reshape(6, 3, 48)
    packed = np.packbits(stream.astype(np.uint8), axis=2, bitorder="little")
    x = normal(3, 40)
    options = {"bits": 3, "block_size": 16, "K": 40, "N": 6, "constant": [1, 2]}
    model, feeds = single("MatMulNBits", [x, packed, scales], domain="com.microsoft", **options)
    weights = ((codes - 4).reshape(6, 3, 16) * scales[..., None]).reshape(6, 48)[:, :40]
    found = InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    np.testing.assert_allclose(found, x @ weights.T, atol=1e-4)


@pytest.mark.parametrize(
    ("tokens", "capacity", "window", "past"), [(5, 8, 6, 0), (1, 8, 6, 8), (1, 8, 8, 20), (4, 8, 5, 9), (12, 8, 8, 3)]
)
def test_a_window_cache_keeps_the_last_positions(tokens: int, capacity: int, window: int, past: int) -> None:
    total = past + tokens
    step = capacity - window + 1
    held = total - step * -(-max(total - capacity, 0) // step)
    inputs = [
        normal(1, tokens, 64), normal(1, tokens, 32, seed=1), normal(1, tokens, 32, seed=2),
        normal(1, 2, capacity, 16, seed=3), normal(1, 2, capacity, 16, seed=4), i32(total - 1), i32(total), None, None,
        None, normal(1, 4, tokens, total, seed=5),
    ]  # fmt: skip
    options = {"num_heads": 4, "kv_num_heads": 2, "local_window_size": window, "sliding_window_cache": 1}
    outputs = (FLOAT,) * 3
    model, feeds = single("GroupQueryAttention", inputs, domain="com.microsoft", outputs=outputs, **options)
    text = model.SerializeToString()
    wanted = onnxruntime.InferenceSession(text, providers=["CPUExecutionProvider"]).run(None, feeds)
    found = InferenceSession(text).run(None, feeds)
    np.testing.assert_allclose(found[0], wanted[0], atol=1e-5)
    for own, other in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_allclose(own[:, :, :held], other[:, :, :held], atol=1e-6)


def test_sparse_attention_sees_the_blocks_of_its_layout() -> None:
    """Sequences of different lengths are compared with NumPy: ONNX Runtime reads undefined memory there."""
    rng = np.random.default_rng(0)
    layouts = np.tril(rng.random((2, 4, 4)) < 0.5) | np.eye(4, dtype=bool)
    rows = np.stack([np.concatenate([[0], np.cumsum(own.sum(1))]) for own in layouts]).astype(np.int32)
    columns = np.full((2, rows.max()), -1, np.int32)
    for own, place in zip(layouts, columns, strict=True):
        place[: own.sum()] = np.nonzero(own)[1]
    ends = np.array([50, 20], np.int32)
    inputs = [
        normal(2, 1, 64), normal(2, 1, 32, seed=1), normal(2, 1, 32, seed=2), normal(2, 2, 64, 16, seed=3),
        normal(2, 2, 64, 16, seed=4), rows, columns, i32(50), ends,
    ]  # fmt: skip
    options = {"num_heads": 4, "kv_num_heads": 2, "sparse_block_size": 16, "constant": [5, 6], "outputs": (FLOAT,) * 3}
    model, feeds = single("SparseAttention", inputs, domain="com.microsoft", **options)
    found = InferenceSession(model.SerializeToString()).run(None, feeds)
    for b, end in enumerate(ends):
        keys, values = (inputs[k][b].copy() for k in (3, 4))
        keys[:, end - 1], values[:, end - 1] = (inputs[k][b, 0].reshape(2, 16) for k in (1, 2))
        for h in range(4):
            seen = layouts[h % 2, (end - 1) // 16, np.arange(end) // 16]
            scores = np.where(seen, keys[h // 2, :end] @ inputs[0][b, 0, h * 16 : h * 16 + 16] / 4, -np.inf)
            weights = np.exp(scores - scores.max())
            wanted = weights / weights.sum() @ values[h // 2, :end]
            np.testing.assert_allclose(found[0][b, 0, h * 16 : h * 16 + 16], wanted, atol=1e-5)
