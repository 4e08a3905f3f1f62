"""Descriptions of decoders' layers, as data: names of tensors in both kinds of files, and what a configuration lacks.

A layer is built from the tensors that a file has: biases, norms of queries and keys, norms before and after attention
and feed-forward, and experts are there if their tensors are. So a description has little beyond names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ..dataclass import dataclass
from ..errors import UnsupportedError

LLAMA_NAMES = {
    "embed": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attention_norm": "model.layers.{i}.input_layernorm",
    "q": "model.layers.{i}.self_attn.q_proj",
    "k": "model.layers.{i}.self_attn.k_proj",
    "v": "model.layers.{i}.self_attn.v_proj",
    "qkv": "model.layers.{i}.self_attn.qkv_proj",
    "q_norm": "model.layers.{i}.self_attn.q_norm",
    "k_norm": "model.layers.{i}.self_attn.k_norm",
    "o": "model.layers.{i}.self_attn.o_proj",
    "ffn_norm": "model.layers.{i}.post_attention_layernorm",
    "gate": "model.layers.{i}.mlp.gate_proj",
    "up": "model.layers.{i}.mlp.up_proj",
    "gate_up": "model.layers.{i}.mlp.gate_up_proj",
    "down": "model.layers.{i}.mlp.down_proj",
}
GEMMA_NAMES = LLAMA_NAMES | {
    "attention_post_norm": "model.layers.{i}.post_attention_layernorm",
    "ffn_norm": "model.layers.{i}.pre_feedforward_layernorm",
    "ffn_post_norm": "model.layers.{i}.post_feedforward_layernorm",
}
OLMO2_NAMES = {name: value for name, value in GEMMA_NAMES.items() if name not in ("attention_norm", "ffn_norm")}
MIXTRAL_NAMES = LLAMA_NAMES | {
    "router": "model.layers.{i}.block_sparse_moe.gate",
    "expert_gate": "model.layers.{i}.block_sparse_moe.experts.{e}.w1",
    "expert_up": "model.layers.{i}.block_sparse_moe.experts.{e}.w3",
    "expert_down": "model.layers.{i}.block_sparse_moe.experts.{e}.w2",
}
QWEN_MOE_NAMES = LLAMA_NAMES | {
    "router": "model.layers.{i}.mlp.gate",
    "expert_gate": "model.layers.{i}.mlp.experts.{e}.gate_proj",
    "expert_up": "model.layers.{i}.mlp.experts.{e}.up_proj",
    "expert_down": "model.layers.{i}.mlp.experts.{e}.down_proj",
}
GPT2_NAMES = {
    "embed": "transformer.wte",
    "positions": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "attention_norm": "transformer.h.{i}.ln_1",
    "qkv": "transformer.h.{i}.attn.c_attn",
    "o": "transformer.h.{i}.attn.c_proj",
    "ffn_norm": "transformer.h.{i}.ln_2",
    "up": "transformer.h.{i}.mlp.c_fc",
    "down": "transformer.h.{i}.mlp.c_proj",
}
GGUF_NAMES = {
    "embed": "token_embd",
    "positions": "position_embd",
    "output_norm": "output_norm",
    "output": "output",
    "attention_norm": "blk.{i}.attn_norm",
    "q": "blk.{i}.attn_q",
    "k": "blk.{i}.attn_k",
    "v": "blk.{i}.attn_v",
    "qkv": "blk.{i}.attn_qkv",
    "q_norm": "blk.{i}.attn_q_norm",
    "k_norm": "blk.{i}.attn_k_norm",
    "o": "blk.{i}.attn_output",
    "attention_post_norm": "blk.{i}.post_attention_norm",
    "ffn_norm": "blk.{i}.ffn_norm",
    "gate": "blk.{i}.ffn_gate",
    "up": "blk.{i}.ffn_up",
    "down": "blk.{i}.ffn_down",
    "ffn_post_norm": "blk.{i}.post_ffw_norm",
    "router": "blk.{i}.ffn_gate_inp",
    "experts_gate": "blk.{i}.ffn_gate_exps",
    "experts_up": "blk.{i}.ffn_up_exps",
    "experts_down": "blk.{i}.ffn_down_exps",
}
"""Names of tensors in GGUF files, of all architectures; ``experts_`` are tensors of all experts."""

LLAMA_DEFAULTS: dict[str, object] = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008,
    "vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Values of keys that ``config.json`` may lack, as transformers 5 has them in its configuration class, here
`LlamaConfig`; and so for the other architectures."""
MISTRAL_DEFAULTS = LLAMA_DEFAULTS | {
    "num_key_value_heads": 8, "intermediate_size": 14336, "max_position_embeddings": 131072, "sliding_window": 4096,
}  # fmt: skip
QWEN2_DEFAULTS = LLAMA_DEFAULTS | {
    "num_key_value_heads": 32, "intermediate_size": 22016, "vocab_size": 151936, "max_position_embeddings": 32768,
    "use_sliding_window": False, "max_window_layers": 28, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
GEMMA_DEFAULTS = LLAMA_DEFAULTS | {
    "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
    "head_dim": 256, "intermediate_size": 24576, "vocab_size": 256000, "max_position_embeddings": 8192,
    "hidden_act": "gelu_pytorch_tanh", "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
GEMMA2_DEFAULTS = GEMMA_DEFAULTS | {
    "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 9216, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096,
    "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
}  # fmt: skip
GEMMA3_DEFAULTS = GEMMA2_DEFAULTS | {
    "vocab_size": 262208, "max_position_embeddings": 131072, "rope_theta": 1e6, "rope_local_base_freq": 10000.0,
    "attn_logit_softcapping": None, "final_logit_softcapping": None,
}  # fmt: skip
SMOLLM3_DEFAULTS = LLAMA_DEFAULTS | {
    "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4,
    "vocab_size": 128256, "max_position_embeddings": 32768, "rope_theta": 2e6, "use_sliding_window": False,
    "no_rope_layer_interval": 4, "bos_token_id": 128000, "eos_token_id": 128001, "pad_token_id": 128004,
}  # fmt: skip
QWEN3_MOE_DEFAULTS = QWEN2_DEFAULTS | {
    "hidden_size": 2048, "num_hidden_layers": 24, "num_key_value_heads": 4, "intermediate_size": 6144,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": False,
}  # fmt: skip
MIXTRAL_DEFAULTS = MISTRAL_DEFAULTS | {
    "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
PHI3_DEFAULTS = LLAMA_DEFAULTS | {
    "hidden_size": 3072, "intermediate_size": 8192, "vocab_size": 32064, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096, "eos_token_id": 32000, "pad_token_id": 32000,
}  # fmt: skip
GPT2_DEFAULTS: dict[str, object] = {
    "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257, "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new", "bos_token_id": 50256, "eos_token_id": 50256,
}  # fmt: skip
OLMO_DEFAULTS = LLAMA_DEFAULTS | {
    "vocab_size": 50304, "rms_norm_eps": 1e-5, "bos_token_id": None, "eos_token_id": 50279, "pad_token_id": 1,
}  # fmt: skip


@dataclass(frozen=True)
class DecoderArchitecture:
    """Properties that all decoders of an architecture share.

    Attributes:
        name: name in both kinds of files, ``model_type`` and ``general.architecture``.
        gguf: further names in GGUF files.
        transformers: further names in configurations.
        names: names of tensors in a transformers folder, by role.
        norm: ``rms``, ``layer``, or ``plain`` for layer norms without weights.
        norm_shift: added to the weights of norms in a transformers folder; GGUF files have it in.
        activation: of the feed-forward layer, in GGUF files.
        embeds_scaled: whether embeddings are multiplied by the root of their length.
        interleaved: whether queries and keys of GGUF files rotate in neighbouring pairs.
        transposed: whether a transformers folder has matrices [inputs, outputs].
        window_pattern: one of so many layers sees all positions, if windows are given; 0 for none.
        gguf_keys: keys of GGUF's metadata for which a usual value stands here.
        defaults: values of keys that a folder's ``config.json`` may lack.
    """

    name: str
    gguf: tuple[str, ...] = ()
    transformers: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=lambda: LLAMA_NAMES)
    norm: str = "rms"
    norm_shift: float = 0.0
    activation: str = "silu"
    embeds_scaled: bool = False
    interleaved: bool = False
    transposed: bool = False
    window_pattern: int = 0
    gguf_keys: Mapping[str, float] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=lambda: LLAMA_DEFAULTS)


ARCHITECTURES = (
    DecoderArchitecture("llama", interleaved=True),
    DecoderArchitecture("mistral", gguf=("mistral3",), interleaved=True, defaults=MISTRAL_DEFAULTS),
    DecoderArchitecture("smollm3", defaults=SMOLLM3_DEFAULTS),
    DecoderArchitecture("qwen2", defaults=QWEN2_DEFAULTS),
    DecoderArchitecture("qwen3", defaults=QWEN2_DEFAULTS | {"head_dim": 128}),
    DecoderArchitecture("qwen3_moe", gguf=("qwen3moe",), names=QWEN_MOE_NAMES, defaults=QWEN3_MOE_DEFAULTS),
    DecoderArchitecture("mixtral", names=MIXTRAL_NAMES, interleaved=True, defaults=MIXTRAL_DEFAULTS),
    DecoderArchitecture("gemma", norm_shift=1.0, activation="gelu_tanh", embeds_scaled=True, defaults=GEMMA_DEFAULTS),
    DecoderArchitecture(
        "gemma2",
        names=GEMMA_NAMES,
        norm_shift=1.0,
        activation="gelu_tanh",
        embeds_scaled=True,
        window_pattern=2,
        gguf_keys={"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        defaults=GEMMA2_DEFAULTS,
    ),
    DecoderArchitecture(
        "gemma3",
        transformers=("gemma3_text",),
        names=GEMMA_NAMES,
        norm_shift=1.0,
        activation="gelu_tanh",
        embeds_scaled=True,
        window_pattern=6,
        gguf_keys={"rope.local.freq_base": 10000.0},
        defaults=GEMMA3_DEFAULTS,
    ),
    DecoderArchitecture("phi3", defaults=PHI3_DEFAULTS),
    DecoderArchitecture("olmo", norm="plain", interleaved=True, defaults=OLMO_DEFAULTS),
    DecoderArchitecture("olmo2", names=OLMO2_NAMES, defaults=OLMO_DEFAULTS),
    DecoderArchitecture("granite", interleaved=True, defaults=LLAMA_DEFAULTS | {"attention_multiplier": 1.0}),
    DecoderArchitecture(
        "gpt2", names=GPT2_NAMES, norm="layer", activation="gelu_tanh", transposed=True, defaults=GPT2_DEFAULTS
    ),
)
"""Layers as transformers and llama.cpp compute them. Values of ``gguf_keys`` and patterns are llama.cpp's."""


def architecture_of_transformers(name: str) -> DecoderArchitecture:
    """Return the description for a configuration's ``model_type``.

    Raises:
        UnsupportedError: there is none.
    """
    return _named(name, {own: a for a in ARCHITECTURES for own in (a.name, *a.transformers)})


def architecture_of_gguf(name: str) -> DecoderArchitecture:
    """Return the description for a GGUF file's ``general.architecture``.

    Raises:
        UnsupportedError: there is none.
    """
    return _named(name, {own: a for a in ARCHITECTURES for own in (a.name, *a.gguf)})


def _named(name: str, known: Mapping[str, DecoderArchitecture]) -> DecoderArchitecture:
    if name not in known:
        raise UnsupportedError(f"architecture {name!r} is not supported; known are {', '.join(sorted(known))}")
    return known[name]
