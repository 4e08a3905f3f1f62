"""Transformers folders of all architectures against transformers itself, where that is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba
from mgx_numba.llm.architectures import ARCHITECTURES
from mgx_numba.llm.files import open_model
from mgx_numba.llm.files.transformers_config import config_of_transformers

from .running import step

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

SMALL: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32, "rope_theta": 10000.0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope", "short_factor": [1.0 + k / 10 for k in range(8)],
    "long_factor": [2.0 + k for k in range(8)], "rope_theta": 10000.0,
}  # fmt: skip
CASES = {
    "llama": ("Llama", SMALL),
    "llama_of_one_key_head": ("Llama", SMALL | {"num_key_value_heads": 1, "head_dim": 24, "attention_bias": True}),
    "llama3": ("Llama", SMALL | {"rope_parameters": LLAMA3, "rope_scaling": LLAMA3, "tie_word_embeddings": True}),
    "llama_yarn": ("Llama", SMALL | {"rope_parameters": YARN, "rope_scaling": YARN}),
    "mistral": ("Mistral", SMALL | {"sliding_window": 5}),
    "qwen2": ("Qwen2", SMALL),
    "qwen3": ("Qwen3", SMALL | {"head_dim": 32}),
    "qwen3_moe": (
        "Qwen3Moe",
        SMALL | {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "gemma": ("Gemma", SMALL | {"head_dim": 16}),
    "gemma2": ("Gemma2", SMALL | {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 20}),
    "gemma3": (
        "Gemma3Text",
        SMALL | {"head_dim": 16, "sliding_window": 5, "num_hidden_layers": 7, "query_pre_attn_scalar": 20},
    ),
    "phi3": ("Phi3", SMALL | {"partial_rotary_factor": 0.5}),
    "phi3_long": (
        "Phi3",
        SMALL | {"rope_parameters": LONG, "rope_scaling": LONG, "original_max_position_embeddings": 64},
    ),
    "olmo": ("Olmo", SMALL | {"clip_qkv": 0.5}),
    "olmo2": ("Olmo2", SMALL),
    "mixtral": ("Mixtral", SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "smollm3": ("SmolLM3", SMALL | {"num_hidden_layers": 4}),
    "granite": ("Granite", SMALL | {"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "logits_scaling": 2.0}),
    "gpt2": ("GPT2", {"vocab_size": 300, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_of_steps(name: str, tmp_path: Path) -> None:
    kind, given = CASES[name]
    torch.manual_seed(0)
    given = given if kind == "GPT2" else given | {"initializer_range": 0.1}
    config = getattr(transformers, f"{kind}Config")(**given)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms and biases, which begin as ones and zeros
                parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    opened = open_model(tmp_path)
    program = opened.program()
    program.compile(mgx_numba.get_target("cpu"))
    ids = np.random.default_rng(0).integers(3, 300, (2, 20))
    with torch.no_grad():
        right = model(torch.tensor(ids)).logits.numpy()
    first, past = step(program, opened.config, ids[:, :11])
    found = [first]
    for place in range(11, 20):
        logits, past = step(program, opened.config, ids[:, place : place + 1], past)
        found.append(logits)
    assert np.abs(np.concatenate(found, 1) - right).max() < 2e-4 * np.abs(right).max()


CONFIG_MAPPING = transformers.models.auto.configuration_auto.CONFIG_MAPPING
NAMES = [own for a in ARCHITECTURES for own in (a.transformers or (a.name,))]


@pytest.mark.parametrize("name", NAMES)
def test_keys_that_a_configuration_lacks(name: str) -> None:
    """Values that config.json lacks are those of the configuration class of transformers."""
    complete = CONFIG_MAPPING[name]().to_dict()
    assert config_of_transformers({"model_type": name}, {}, None) == config_of_transformers(complete, {}, None)


@pytest.mark.parametrize("prefix", ["", "language_model.model.", "model.language_model."])
def test_decoders_within_other_models(prefix: str, tmp_path: Path) -> None:
    """Names of tensors without ``model.``, and those of the decoder of a model of images and text."""
    torch.manual_seed(0)
    config = transformers.Gemma3TextConfig(**CASES["gemma3"][1], initializer_range=0.1)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    tensors = {
        prefix + name.removeprefix("model."): t for name, t in model.state_dict().items() if "lm_head" not in name
    }
    safetensors.save_file({name: t.contiguous() for name, t in tensors.items()}, tmp_path / "model.safetensors")
    own = config.to_dict()
    del own["eos_token_id"]
    given = {"model_type": "gemma3", "text_config": own, "eos_token_id": [2, 7]} if prefix else own
    (tmp_path / "config.json").write_text(json.dumps(given))
    opened = open_model(tmp_path)
    assert opened.config.eos_ids == ((2, 7) if prefix else (1,))
    program = opened.program()
    program.compile(mgx_numba.get_target("cpu"))
    ids = np.random.default_rng(0).integers(3, 300, (2, 9))
    with torch.no_grad():
        right = model(torch.tensor(ids)).logits.numpy()
    logits, _ = step(program, opened.config, ids)
    assert np.abs(logits - right).max() < 2e-4 * np.abs(right).max()
