"""Configurations in the metadata of GGUF files."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...errors import FormatError, MgxError
from ..architectures import DecoderArchitecture, architecture_of_gguf
from ..config import MOST_LAYERS, MOST_LENGTH, ModelConfig, Rope, length_of
from ..rope_scaling import scaled_rope
from .gguf import GgufFile


def config_of_gguf(file: GgufFile, context: int | None) -> tuple[DecoderArchitecture, ModelConfig]:
    """Return the architecture and the configuration.

    Args:
        file: the file.
        context: positions that the program will have; None for those of the first training.

    Raises:
        FormatError: a value is missing or malformed.
        UnsupportedError: the architecture is not supported.
    """
    name = str(file.metadata.get("general.architecture", ""))
    architecture = architecture_of_gguf(name)
    if architecture.name == "llama" and file.metadata.get("llama.expert_count"):
        architecture = architecture_of_gguf("mixtral")
    try:
        return architecture, _config(file, name, architecture, context)
    except MgxError:
        raise
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise FormatError(f"{file.path}: metadata of a {name} model are malformed: {error}") from error


def _config(file: GgufFile, name: str, a: DecoderArchitecture, context: int | None) -> ModelConfig:
    def value(key: str, default: object = None) -> Any:
        found = file.metadata.get(f"{name}.{key}", a.gguf_keys.get(key, default))
        if found is None:
            raise FormatError(f"{file.path}: metadata of a {name} model lack {name}.{key}")
        if isinstance(found, np.ndarray):  # one value for each layer
            if len(set(found.tolist())) != 1:
                raise ValueError(f"{name}.{key} differs between layers")
            found = found[0]
        return found

    def length(key: str, default: object = None, most: int = MOST_LENGTH) -> int:
        return length_of(f"{name}.{key}", value(key, default), most)

    hidden, heads = length("embedding_length"), length("attention.head_count")
    layers, key_heads = length("block_count", most=MOST_LAYERS), length("attention.head_count_kv", heads)
    if heads % key_heads:
        raise ValueError(f"{key_heads} key heads (attention.head_count_kv) do not divide {heads} heads")
    head = length("attention.key_length", hidden // heads)
    window = int(value("attention.sliding_window", 0))
    if a.name == "phi3":
        window = 0  # as llama.cpp has it
    pattern = int(value("attention.sliding_window_pattern", a.window_pattern))
    windows = tuple(0 if pattern and i % pattern == pattern - 1 else window for i in range(layers))
    embed = file.weight("token_embd.weight")
    vocabulary = int(value("vocab_size", embed.lens[0] if embed else 0))
    epsilon = value("attention.layer_norm_rms_epsilon", value("attention.layer_norm_epsilon", 1e-5))
    scale = float(value("attention.scale", 0)) or 1 / math.sqrt(head)
    if a.name == "gemma2" and layers == 46:  # the 27B model's, which llama.cpp knows by its layers, too
        scale = 1 / math.sqrt(hidden / heads)
    tokens = "tokenizer.ggml."
    ends = [file.metadata.get(tokens + key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
    return ModelConfig(
        architecture=a.name, layers=layers, hidden=hidden,
        feed_forward=int(value("expert_feed_forward_length", 0) or value("feed_forward_length")),
        heads=heads, key_heads=key_heads, head_size=head, vocabulary=vocabulary,
        context_length=length("context_length"), norm_epsilon=float(epsilon), activation=a.activation,
        ropes=_ropes(file, a, value, head, windows, context), windows=windows, attention_scale=scale,
        score_cap=float(value("attn_logit_softcapping", 0)), logit_cap=float(value("final_logit_softcapping", 0)),
        embedding_scale=math.sqrt(hidden) if a.embeds_scaled else float(value("embedding_scale", 1)),
        residual_scale=float(value("residual_scale", 1)), logit_scale=1 / float(value("logit_scale", 1)),
        clip_qkv=float(value("attention.clamp_kqv", 0)), experts=int(value("expert_count", 0)),
        experts_used=int(value("expert_used_count", 0)),
        eos_ids=tuple(dict.fromkeys(int(token) for token in ends if token is not None)),
        bos_id=int(file.metadata.get(tokens + "bos_token_id", -1)),
        pad_id=int(file.metadata.get(tokens + "padding_token_id", -1)),
    )  # fmt: skip


def _ropes(
    file: GgufFile, a: DecoderArchitecture, value: Any, head: int, windows: tuple[int, ...], context: int | None
) -> tuple[Rope | None, ...]:
    """Return the rotary embedding of each layer."""
    if a.name == "gpt2":
        return (None,) * len(windows)
    size, theta = int(value("rope.dimension_count", head)), float(value("rope.freq_base", 10000.0))
    longest = int(value("context_length"))
    original = int(value("rope.scaling.original_context_length", longest))
    factors: tuple[float, ...] = ()
    kind, factor = str(value("rope.scaling.type", "none")), float(value("rope.scaling.factor", 1.0))
    if kind == "linear":
        factors = (factor,) * (size // 2)
    elif kind == "yarn":
        full = scaled_rope(theta, size, {"rope_type": "yarn", "factor": factor}, longest, original)
        return tuple(full for _ in windows)
    which = "rope_factors_long" if (context or original) > original else "rope_factors_short"
    for tensor in ("rope_freqs.weight", which + ".weight"):
        found = file.weight(tensor)
        if found is not None:
            factors = tuple(found.dense().reshape(-1).tolist())
    full = Rope(theta, size, factors, float(value("rope.scaling.attn_factor", 1.0)))
    local = Rope(float(value("rope.local.freq_base")), size) if "rope.local.freq_base" in a.gguf_keys else full
    if a.name == "smollm3":  # every fourth layer has none, which llama.cpp knows, too
        return tuple(None if i % 4 == 3 else full for i in range(len(windows)))
    return tuple(local if window else full for window in windows)
