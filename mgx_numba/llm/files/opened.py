"""A language model that was opened: its configuration, its tokenizer's source, and the program of its layers. The
configuration of a GGUF file is in its metadata."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dataclass import dataclass
from ...errors import FormatError, MgxError
from ...graph.json_file import json_object, read_text
from ...graph.safetensors import FLOATS, Safetensors
from ...json_types import JsonObject
from ..architectures import DecoderArchitecture, architecture_of_gguf
from ..config import MOST_LAYERS, MOST_LENGTH, ModelConfig, Rope, length_of
from ..templates import chat_templates
from ..weights import Weight
from .gguf import GgufFile, is_gguf
from .transformers_config import config_of_transformers, scaled_rope

if TYPE_CHECKING:
    from ...api.program import program

CONFIG = "config.json"


@dataclass(frozen=True)
class GgufTokenizer:
    """The metadata of a GGUF file, whose keys ``tokenizer.ggml.`` describe its tokenizer."""

    metadata: JsonObject


class TransformersWeights(Safetensors):
    """The weights of a transformers folder; see `WeightSource`."""

    def weight(self, name: str) -> Weight | None:
        """Return the tensor of this name; see `Safetensors.array`, with floating-point types alone.

        A decoder that was saved without its head has no ``model.`` before its names; that of a model of images and text
        is its ``language_model``.
        """
        base, _, inner = name.partition(".")
        for own in (name, inner, f"language_model.{name}", f"{base}.language_model.{inner}"):
            array = self.array(own, FLOATS)
            if array is not None:
                return Weight(array)
        return None


@dataclass(frozen=True)
class OpenedModel:
    """A model whose weights are mapped and not read yet.

    Attributes:
        config: lengths, constants and special tokens.
        tokenizer_source: path of ``tokenizer.json``, or the metadata of a GGUF file; None if there is neither.
        chat_template: the Jinja template of conversations; None if there is none.
        path: the file or folder.
    """

    config: ModelConfig
    tokenizer_source: str | GgufTokenizer | None
    chat_template: str | None
    path: str
    architecture: DecoderArchitecture
    source: GgufFile | TransformersWeights
    context: int | None

    def program(self, **options: Any) -> program:
        """Return the program, not compiled yet. The plan cache holds its plans, as for ONNX files.

        Args:
            options: options of `build.build_decoder`: ``last_logits``, ``positions``, ``shared_cache``,
                ``accuracy_level``, ``cache_type``, ``block``.
        """
        from ...api.parsing import Parsed, option_text, read_model
        from ..build import build_decoder

        gguf = isinstance(self.source, GgufFile)

        def build(given: Any, content: Mapping[str, memoryview] | None) -> Parsed:
            source: Any = self.source
            if content is not None:  # the content that the file had when it was opened
                source = GgufFile(self.path, given) if gguf else TransformersWeights(self.path, content)
            made = build_decoder(self.architecture, self.config, source, gguf, **options)
            return Parsed(made, {} if gguf else source.files)

        path = Path(self.path)
        requested = f"llm {option_text({**options, 'context': self.context})}"
        folders = () if gguf else (path,)
        return read_model(path if gguf else path / CONFIG, requested, build, folders=folders)[0]


def open_model(path: str | os.PathLike[str], context: int | None = None) -> OpenedModel:
    """Open a GGUF file, or a transformers folder with ``config.json`` and safetensors files.

    Args:
        path: the file or folder.
        context: positions that the program will have, where the rotary embedding depends on it; None for those of the
            model's first training.

    Raises:
        FormatError: the file or folder is malformed, or is neither.
        UnsupportedError: the architecture or a type is not supported.
    """
    path = Path(path)
    if path.is_dir():
        return _transformers_folder(path, context)
    if not path.exists():
        raise FormatError(f"there is no file or folder {str(path)!r}")
    if not is_gguf(path):
        raise FormatError(f"{path} is no GGUF file; expected one, or a folder with config.json and safetensors files")
    file = GgufFile(path)
    architecture, config = config_of_gguf(file, context)
    has_tokens = "tokenizer.ggml.tokens" in file.metadata
    template = file.metadata.get("tokenizer.chat_template")
    tokenizer = GgufTokenizer(file.metadata) if has_tokens else None
    return OpenedModel(config, tokenizer, template, str(path), architecture, file, context)


def _transformers_folder(folder: Path, context: int | None) -> OpenedModel:
    given, generation = _json(folder / CONFIG), _json(folder / "generation_config.json", {})
    architecture, config = config_of_transformers(given, generation, context)
    tokenizer = folder / "tokenizer.json"
    return OpenedModel(
        config, str(tokenizer) if tokenizer.exists() else None, _chat_template(folder), str(folder), architecture,
        TransformersWeights(folder), context,
    )  # fmt: skip


def _chat_template(folder: Path) -> str | None:
    """Return the template in ``chat_template.jinja``, or else the default template in ``tokenizer_config.json``."""
    alone = folder / "chat_template.jinja"
    if alone.exists():
        return read_text(alone)
    found = chat_templates(folder / "tokenizer_config.json", _json(folder / "tokenizer_config.json", {}))
    return found.get("default") if isinstance(found, dict) else found


def _json(path: Path, absent: object = None) -> Any:
    """Return the JSON object in a file.

    Raises:
        FormatError: the file is missing, unless ``absent`` stands for it, or holds no object.
    """
    if not path.exists():
        if absent is not None:
            return absent
        raise FormatError(f"{path.parent} has no {path.name}: it is no transformers folder")
    return json_object(read_text(path), path)


def config_of_gguf(file: GgufFile, context: int | None) -> tuple[DecoderArchitecture, ModelConfig]:
    """Return the architecture and the configuration.

    Args:
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
