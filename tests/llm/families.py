"""Transformers folders of every architecture, small, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mgx_numba.llm.architectures import ARCHITECTURES, DecoderArchitecture

from .writing import write_safetensors

WORDS, HIDDEN, INNER, HEADS, KEY_HEADS, SIZE, EXPERTS, LONGEST = 60, 32, 48, 4, 2, 8, 8, 48
CONFIG: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 2,
    "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": SIZE, "hidden_act": "silu",
    "max_position_embeddings": LONGEST, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 5},
    "gemma2": {"sliding_window": 5, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": {"sliding_window": 5, "sliding_window_pattern": 2},
    "smollm3": {"no_rope_layers": [1, 0]},
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.3},
    "mixtral": {"num_local_experts": EXPERTS, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": INNER},
}
NAMES = [architecture.name for architecture in ARCHITECTURES]
_QUERIES, _KEYS = HEADS * SIZE, KEY_HEADS * SIZE
_MATRICES = {  # outputs and inputs
    "embed": (WORDS, HIDDEN), "positions": (LONGEST, HIDDEN), "q": (_QUERIES, HIDDEN), "k": (_KEYS, HIDDEN),
    "v": (_KEYS, HIDDEN), "qkv": (_QUERIES + 2 * _KEYS, HIDDEN), "o": (HIDDEN, _QUERIES), "gate": (INNER, HIDDEN),
    "up": (INNER, HIDDEN), "gate_up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER), "router": (EXPERTS, HIDDEN),
    "expert_gate": (INNER, HIDDEN), "expert_up": (INNER, HIDDEN), "expert_down": (HIDDEN, INNER),
}  # fmt: skip
_NORMS = {"q_norm": SIZE, "k_norm": SIZE}


def _roles(a: DecoderArchitecture) -> list[str]:
    """Return the roles of the tensors that a folder of this architecture has."""
    left_out = {"output"}
    left_out |= (
        {"q", "k", "v", "gate", "up"} if a.name == "phi3" else {"qkv", "gate_up"} - {"gpt2": {"qkv"}}.get(a.name, set())
    )
    if a.name not in ("qwen3", "qwen3_moe", "gemma3", "olmo2"):
        left_out |= {"q_norm", "k_norm"}
    if "router" in a.names:
        left_out |= {"gate", "up", "down"}
    return [role for role in a.names if role not in left_out]


def write_family(name: str, folder: Path) -> Path:
    """Write a folder of the architecture ``name`` and return its path."""
    a = next(found for found in ARCHITECTURES if found.name == name)
    rng = np.random.default_rng(0)
    tensors = {}
    for role in _roles(a):
        for i in range(2):
            for e in range(EXPERTS):
                key = a.names[role].format(i=i, e=e) + ".weight"
                if key in tensors:
                    continue
                if role not in _MATRICES:
                    size = {"olmo2": {"q_norm": _QUERIES, "k_norm": _KEYS}}.get(name, _NORMS).get(role, HIDDEN)
                    tensors[key] = rng.uniform(0.5, 1.5, size).astype(np.float32) - np.float32(a.norm_shift)
                    continue
                n, k = _MATRICES[role]
                if name == "gpt2" and role == "qkv":
                    n = 3 * _QUERIES
                lens = (k, n) if a.transposed and role not in ("embed", "positions") else (n, k)
                scale = {"embed": 1.0, "positions": 2.0}.get(role, 0.4)
                tensors[key] = (rng.standard_normal(lens) * scale).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | {"model_type": name} | MORE.get(name, {})
    if name == "gpt2":
        config["num_key_value_heads"] = HEADS
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder
