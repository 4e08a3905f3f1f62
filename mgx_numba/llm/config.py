"""Configuration of a decoder, as its file states it beside the weights."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from ..dataclass import dataclass


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding.

    Attributes:
        theta: base of the frequencies.
        size: features of a head that rotate.
        factors: divisors of each frequency; empty for none.
        scale: factor of cosines and sines.
    """

    theta: float = 10000.0
    size: int = 0
    factors: tuple[float, ...] = ()
    scale: float = 1.0

    def tables(self, positions: int) -> tuple[np.ndarray, np.ndarray]:
        """Return cosines and sines, float32 [positions, size / 2]."""
        frequencies = self.theta ** (-np.arange(0, self.size, 2) / self.size)
        if self.factors:
            frequencies = frequencies / np.array(self.factors)
        angles = np.arange(positions)[:, None] * frequencies
        return (np.cos(angles) * self.scale).astype(np.float32), (np.sin(angles) * self.scale).astype(np.float32)


MOST_LAYERS, MOST_LENGTH = 1 << 12, 1 << 24
"""More layers, and longer lengths, than any model has: memory is not allocated on the word of a file."""


def length_of(name: str, value: Any, most: int = MOST_LENGTH) -> int:
    """Return a length that a file gives.

    Raises:
        ValueError: it is no whole number from 1 to ``most``; the message has its name.
    """
    found = int(value)
    if found != value or not 1 <= found <= most:
        raise ValueError(f"{name} is {value}, expected a whole number from 1 to {most}")
    return found


@dataclass(frozen=True)
class ModelConfig:
    """Lengths and constants of a decoder.

    Attributes:
        architecture: name of its `DecoderArchitecture`.
        hidden, feed_forward: features of a token, and inner ones of a feed-forward layer.
        heads, key_heads, head_size: attention's heads.
        context_length: most positions that the model was trained for.
        ropes: rotary embedding of each layer; None for a layer without.
        windows: positions that each layer sees, 0 for all.
        attention_scale: factor of the scores.
        score_cap, logit_cap: limits of ``cap * tanh(x / cap)``, 0 for none.
        embedding_scale: factor of embeddings.
        residual_scale, logit_scale: factors of what layers add, and of the logits.
        clip_qkv: greatest magnitude of queries, keys and values, 0 for any.
        experts, experts_used: feed-forward layers of a mixture, and those used for a token; 0 without.
        normalize_experts: whether the weights of the used experts add up to 1.
        eos_ids, bos_id, pad_id: special tokens; -1 for none.
    """

    architecture: str
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    context_length: int
    norm_epsilon: float
    activation: str
    ropes: tuple[Rope | None, ...]
    windows: tuple[int, ...]
    attention_scale: float
    score_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    clip_qkv: float = 0.0
    experts: int = 0
    experts_used: int = 0
    normalize_experts: bool = True
    eos_ids: tuple[int, ...] = field(default=())
    bos_id: int = -1
    pad_id: int = -1
