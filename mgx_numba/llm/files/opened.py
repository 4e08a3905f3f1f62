"""A language model that was opened: its configuration, its tokenizer's source, and the program of its layers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...dataclass import dataclass
from ...errors import FormatError
from ...graph.json_file import json_object, read_text
from ...graph.safetensors import FLOATS, Safetensors
from ...json_types import JsonObject
from ..architectures import DecoderArchitecture
from ..config import ModelConfig
from ..templates import chat_templates
from ..weights import Weight
from .gguf import GgufFile, is_gguf
from .gguf_config import config_of_gguf
from .transformers_config import config_of_transformers

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
