"""Decoders in NumPy, float64."""

from __future__ import annotations

import numpy as np

from mgx_numba.llm.files import OpenedModel


def logits_of(opened: OpenedModel, ids: list[int]) -> np.ndarray:
    """Return the logits [tokens, vocabulary] of one sequence, for layers as Llama, Qwen 3 and Gemma 3 have them."""
    c, names = opened.config, opened.source

    def weight(name: str) -> np.ndarray | None:
        found = names.weight(name + ".weight")
        return None if found is None else found.dense().astype(float)

    def rms(x: np.ndarray, name: str) -> np.ndarray:
        scale = weight(name)
        return x if scale is None else x / np.sqrt((x**2).mean(-1, keepdims=True) + c.norm_epsilon) * scale

    def times(x: np.ndarray, name: str) -> np.ndarray:
        bias = names.weight(name + ".bias")
        return x @ weight(name).T + (0 if bias is None else bias.dense())

    def turned(x: np.ndarray, i: int) -> np.ndarray:
        cosine, sine = (table[:, None] for table in c.ropes[i].tables(len(ids)))
        if opened.architecture.interleaved:
            first, second = x[..., ::2], x[..., 1::2]
        else:
            first, second = np.split(x, 2, -1)
        parts = first * cosine - second * sine, first * sine + second * cosine
        return np.stack(parts, -1).reshape(x.shape) if opened.architecture.interleaved else np.concatenate(parts, -1)

    count = len(ids)
    x = weight("token_embd")[ids] * c.embedding_scale
    distance = np.arange(count)[:, None] - np.arange(count)
    for i in range(c.layers):
        at = f"blk.{i}."
        y = rms(x, at + "attn_norm")
        q, k, v = (times(y, f"{at}attn_{what}").reshape(count, -1, c.head_size) for what in "qkv")
        q, k = turned(rms(q, at + "attn_q_norm"), i), turned(rms(k, at + "attn_k_norm"), i)
        k, v = (np.repeat(each, c.heads // c.key_heads, 1) for each in (k, v))
        scores = np.einsum("shd,thd->hst", q, k) * c.attention_scale
        seen = (distance >= 0) & (distance < (c.windows[i] or count))
        scores = np.exp(np.where(seen, scores, -np.inf))
        scores /= scores.sum(-1, keepdims=True)
        y = times(np.einsum("hst,thd->shd", scores, v).reshape(count, -1), at + "attn_output")
        x = x + rms(y, at + "post_attention_norm")
        y = rms(x, at + "ffn_norm")
        gate = times(y, at + "ffn_gate")
        silu = gate / (1 + np.exp(-gate))
        gelu = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        y = times((silu if c.activation == "silu" else gelu) * times(y, at + "ffn_up"), at + "ffn_down")
        x = x + rms(y, at + "post_ffw_norm")
    head = "output" if names.weight("output.weight") is not None else "token_embd"
    return times(rms(x, "output_norm"), head)
