"""Configurations of transformers folders (``config.json``), with the frequencies of rotary embeddings for contexts
longer than a model was first trained for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import FormatError, UnsupportedError
from ...json_types import JsonObject
from ..architectures import DecoderArchitecture, architecture_of_transformers
from ..config import MOST_LAYERS, MOST_LENGTH, ModelConfig, Rope, length_of

ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "relu": "relu",
}  # fmt: skip
"""Names of activations in configurations."""
SPECIAL_TOKENS = "bos_token_id", "eos_token_id", "pad_token_id"
"""Keys of special tokens; those beside a ``text_config`` come before those in it."""


def config_of_transformers(
    given: JsonObject, generation: JsonObject, context: int | None
) -> tuple[DecoderArchitecture, ModelConfig]:
    """Return the architecture and the configuration.

    Args:
        given: ``config.json``.
        generation: ``generation_config.json``, whose special tokens come first; may be empty.
        context: positions that the program will have; None for those of the first training.

    Raises:
        FormatError: a value is missing or malformed.
        UnsupportedError: the architecture is not supported.
    """
    if isinstance(given.get("text_config"), Mapping) and "hidden_size" not in given:
        special = {name: given[name] for name in SPECIAL_TOKENS if given.get(name) is not None}
        given = {**given["text_config"], **special}
    architecture = architecture_of_transformers(str(given.get("model_type", "")))
    given = {**architecture.defaults, **given}
    if given.get("quantization_config"):
        found = given["quantization_config"]
        method = found.get("quant_method") if isinstance(found, Mapping) else found
        raise UnsupportedError(f"config.json: weights quantised by {method!r} are not supported; expected floats")
    try:
        return architecture, _config(architecture, given, generation, context)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise FormatError(f"config.json of a {architecture.name} model is malformed: {error!r}") from error


def _config(
    a: DecoderArchitecture, given: JsonObject, generation: Mapping[str, object], context: int | None
) -> ModelConfig:
    def number(*names: str, default: Any = None) -> Any:
        found = next((given[name] for name in names if given.get(name) is not None), default)
        if found is None:
            raise KeyError(names[0])
        return found

    def length(*names: str, default: Any = None, most: int = MOST_LENGTH) -> int:
        return length_of(names[0], number(*names, default=default), most)

    hidden = length("hidden_size", "n_embd")
    layers = length("num_hidden_layers", "n_layer", most=MOST_LAYERS)
    heads = length("num_attention_heads", "n_head")
    key_heads = length("num_key_value_heads", default=heads)
    if heads % key_heads:
        raise ValueError(f"{key_heads} key heads (num_key_value_heads) do not divide {heads} heads")
    head = length("head_dim", default=hidden // heads)
    longest = length("max_position_embeddings", "n_positions")
    windows = _windows(a, given, layers)
    scale = 1 / math.sqrt(head)
    if "query_pre_attn_scalar" in given and a.name.startswith("gemma"):
        scale = 1 / math.sqrt(float(given["query_pre_attn_scalar"]))
    scale = float(given.get("attention_multiplier") or scale)
    act = number("hidden_activation", "hidden_act", "activation_function")
    if act not in ACTIVATIONS:
        raise UnsupportedError(f"activation {act!r} is not supported; known are {', '.join(ACTIVATIONS)}")
    if a.name == "gemma" and act == "gelu":
        act = "gelu_new"  # as transformers takes it
    experts = int(number("num_local_experts", "num_experts", default=0))
    inner = number("moe_intermediate_size", default=0) if experts else 0
    return ModelConfig(
        architecture=a.name, layers=layers, hidden=hidden,
        feed_forward=int(inner or number("intermediate_size", "n_inner", default=4 * hidden)),
        heads=heads, key_heads=key_heads, head_size=head,
        vocabulary=length("vocab_size"), context_length=longest,
        norm_epsilon=float(number("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", default=1e-5)),
        activation=ACTIVATIONS[act], ropes=_ropes(a, given, layers, head, windows, context), windows=windows,
        attention_scale=scale, score_cap=float(given.get("attn_logit_softcapping") or 0),
        logit_cap=float(given.get("final_logit_softcapping") or 0),
        embedding_scale=math.sqrt(hidden) if a.embeds_scaled else float(given.get("embedding_multiplier") or 1),
        residual_scale=float(given.get("residual_multiplier") or 1),
        logit_scale=1 / float(given.get("logits_scaling") or 1),
        clip_qkv=float(given.get("clip_qkv") or 0), experts=experts,
        experts_used=int(number("num_experts_per_tok", default=0)) if experts else 0,
        normalize_experts=bool(given.get("norm_topk_prob", True)),
        eos_ids=_tokens(generation.get("eos_token_id") or given.get("eos_token_id")),
        bos_id=_token(generation.get("bos_token_id"), given.get("bos_token_id")),
        pad_id=_token(generation.get("pad_token_id"), given.get("pad_token_id")),
    )  # fmt: skip


def _tokens(given: Any) -> tuple[int, ...]:
    if given is None:
        return ()
    return tuple(map(int, given)) if isinstance(given, list) else (int(given),)


def _token(*given: object) -> int:
    return next((found[0] for found in map(_tokens, given) if found), -1)


def _windows(a: DecoderArchitecture, given: JsonObject, layers: int) -> tuple[int, ...]:
    """Return the window of each layer, 0 for none."""
    window = length_of("sliding_window", given.get("sliding_window") or MOST_LENGTH) % MOST_LENGTH
    if given.get("use_sliding_window") is False:
        window = 0
    kinds = given.get("layer_types")
    if kinds is not None:
        if len(kinds) != layers:
            raise ValueError(f"layer_types has {len(kinds)} entries, expected one for each of {layers} layers")
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    pattern = int(given.get("sliding_window_pattern") or a.window_pattern)
    if a.name.startswith("qwen") and window:
        full = int(given.get("max_window_layers") or 0)
        return tuple(0 if i < full else window for i in range(layers))
    return tuple(0 if pattern and i % pattern == pattern - 1 else window for i in range(layers))


def _ropes(
    a: DecoderArchitecture,
    given: JsonObject,
    layers: int,
    head: int,
    windows: tuple[int, ...],
    context: int | None,
) -> tuple[Rope | None, ...]:
    """Return the rotary embedding of each layer."""
    if a.name == "gpt2":
        return (None,) * layers
    size = int(head * float(given.get("partial_rotary_factor") or 1.0))
    longest = int(given["max_position_embeddings"])
    original = int(given.get("original_max_position_embeddings") or longest)
    given_rope = given.get("rope_parameters") or {}
    by_kind = "full_attention" in given_rope or "sliding_attention" in given_rope

    def rope(kind: str) -> Rope:
        own = dict(given_rope.get(kind) or {}) if by_kind else dict(given_rope)
        own = own or dict(given.get("rope_scaling") or {})
        theta = float(own.get("rope_theta") or given.get("rope_theta") or 10000.0)
        if kind == "sliding_attention" and not by_kind and given.get("rope_local_base_freq"):
            theta, own = float(given["rope_local_base_freq"]), {}
        part = own.get("partial_rotary_factor")
        if own.get("rope_type", own.get("type")) in ("longrope", "su"):
            own.setdefault("factor", longest / original)
        return scaled_rope(theta, int(head * part) if part else size, own, context or original, original)

    full, sliding = rope("full_attention"), rope("sliding_attention")
    interval = int(given.get("no_rope_layer_interval") or layers + 1)
    turns = given.get("no_rope_layers") or [(i + 1) % interval for i in range(layers)]
    return tuple((sliding if window else full) if turns[i] else None for i, window in enumerate(windows))


def scaled_rope(theta: float, size: int, given: JsonObject, context: int, original: int) -> Rope:
    """Return the embedding for ``rope_scaling`` of a configuration, as transformers computes it.

    Args:
        theta: base of the frequencies.
        size: features of a head that rotate.
        given: the configuration's map; empty for no scaling.
        context: positions that the program will have.
        original: positions of the first training, if ``given`` does not say.

    Raises:
        UnsupportedError: the kind of scaling is not known.
    """
    kind = given.get("rope_type", given.get("type", "default"))
    original = int(given.get("original_max_position_embeddings") or original)
    half = size // 2
    if kind in ("default", "mrope", None):
        return Rope(theta, size)
    if kind == "linear":
        return Rope(theta, size, (float(given["factor"]),) * half)
    if kind == "llama3":
        return Rope(theta, size, _llama3(theta, size, given, original))
    if kind in ("longrope", "su"):
        long = context > original
        factors = tuple(map(float, given["long_factor" if long else "short_factor"]))
        ratio = float(given.get("factor") or context / original)
        usual = 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(original))
        return Rope(theta, size, factors, float(given.get("attention_factor") or usual))
    if kind == "yarn":
        return _yarn(theta, size, given, original)
    raise UnsupportedError(f"rope_scaling of type {kind!r} is not supported")


def _frequencies(theta: float, size: int) -> np.ndarray:
    return theta ** (-np.arange(0, size, 2) / size)


def _llama3(theta: float, size: int, given: JsonObject, original: int) -> tuple[float, ...]:
    """Return 1 for short waves, the factor for long waves, and a smooth transition between them."""
    factor, low, high = (float(given[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = original * _frequencies(theta, size) / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return tuple((1 / ((1 - smooth) / factor + smooth)).tolist())


def _yarn(theta: float, size: int, given: JsonObject, original: int) -> Rope:
    factor = float(given["factor"])

    def place(turns: float) -> float:
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = place(float(given.get("beta_fast") or 32)), place(float(given.get("beta_slow") or 1))
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / (max(high - low, 0.001)), 0, 1)
    kept = 1 - ramp
    scale = given.get("attention_factor") or (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
    return Rope(theta, size, tuple((1 / ((1 - kept) / factor + kept)).tolist()), float(scale))
