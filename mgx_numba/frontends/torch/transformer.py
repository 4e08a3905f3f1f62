"""Decompositions of ATen's fused transformer layers, which ``nn.TransformerEncoderLayer`` and
``nn.MultiheadAttention`` call in inference."""

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute ``aten::_native_multi_head_attention``, whose mask is true where attention is not paid."""
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3))
    projected = (f.linear(x, weight, bias) for x, weight, bias in parts)
    q, k, v = (x.unflatten(2, (num_head, embed_dim // num_head)).transpose(1, 2) for x in projected)
    kept = None
    if mask is not None:
        kept = mask.to(torch.bool).logical_not()
        kept = kept[:, None, None, :] if mask_type == 1 else kept
    if need_weights:
        scores = (q * (embed_dim // num_head) ** -0.5) @ k.transpose(2, 3)
        weights = (scores if kept is None else scores.masked_fill(~kept, float("-inf"))).softmax(3)
        found = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        weights = query.new_empty(0)
        found = f.scaled_dot_product_attention(q, k, v, kept)
    return f.linear(found.transpose(1, 2).flatten(2), proj_weight, proj_bias), weights


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Compute ``aten::_transformer_encoder_layer_fwd``."""

    def first(x: Tensor) -> Tensor:
        projections = qkv_weight, qkv_bias, proj_weight, proj_bias
        return attention(x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0]

    def second(x: Tensor) -> Tensor:
        hidden = f.linear(x, ffn_weight_1, ffn_bias_1)
        return f.linear(f.gelu(hidden) if use_gelu else f.relu(hidden), ffn_weight_2, ffn_bias_2)

    x = src
    for part, weight, bias in ((first, norm_weight_1, norm_bias_1), (second, norm_weight_2, norm_bias_2)):
        if norm_first:
            x = x + part(f.layer_norm(x, (embed_dim,), weight, bias, eps))
        else:
            x = f.layer_norm(x + part(x), (embed_dim,), weight, bias, eps)
    return x


TABLE = {
    torch.ops.aten._native_multi_head_attention.default: attention,
    torch.ops.aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
