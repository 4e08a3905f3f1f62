"""`Model`: a language model from a folder of onnxruntime-genai, a folder of transformers, or a GGUF file."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FormatError, OptionError, ParameterError
from .decoder import CompiledDecoder, DecoderNames, PagedDecoder, decoder_of, paged_decoder_of
from .genai import CONFIG_FILE, Config

if TYPE_CHECKING:
    from ..api.program import program as Program
    from .tokenizer import Tokenizer

_BLOCK = 16
"""Tokens of a block of paged caches, as in vLLM: a text wastes half a block, and texts share whole blocks."""
_COMPACT_OPERATORS = frozenset(("GroupQueryAttention",))
"""ONNX operators that keep a sequence at the beginning of its cache and read its length from the mask's sum."""


class LanguageModel:
    """A language model.

    Attributes:
        path: the folder or file.
        search: default search options, as `GeneratorParams` takes them.
        eos_token_ids: tokens that end a sequence.
        bos_token_id, pad_token_id: token, or None if the model has none.
        context_length: the longest sequence, prompt included.
        shares_buffer: whether caches are buffers of fixed length.
        tokenizer_source: what `Tokenizer` reads: a ``tokenizer.json``, or metadata of a GGUF file.
        chat_template: the model's chat template, or None.
        choices: programs that choose tokens on a device, by rows, vocabulary, type and candidates.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Config,
        *,
        target: str | None = None,
        num_threads: int = 0,
        cache_type: str = "float32",
        **options: Any,
    ) -> None:
        """Read a model, and compile it, unless its decoders are compiled on first use.

        Args:
            model: a genai folder or its `Config`; a transformers folder; or a GGUF file.
            target: ``cpu`` or ``gpu``. Default: as the config's providers say, else ``cpu``.
            num_threads: threads of the target ``cpu``; 0 for the config's number, else all cores.
            cache_type: element type of keys and values in caches: ``float32``, ``float16``, ``bfloat16`` or ``float8``
                (e4m3); for folders of transformers and GGUF files.
            options: further options of ``program.compile``.

        Raises:
            FormatError: the path holds no model.
            ParameterError: ``model`` is neither a path nor a `Config`.
            OptionError: ``target`` is unknown; or a genai folder with ``cache_type``: its ONNX file says what caches
                hold.
            UnsupportedError: the model's inputs or operators are not supported.
        """
        self._target, self._threads, self._options, self._cache_type = target, num_threads, options, cache_type
        self.chat_template: str | None = None
        self.tokenizer_source: object = None
        self.search: dict[str, Any] = {}
        self.choices: dict[tuple[object, ...], Program] = {}
        self._make: Callable[[], CompiledDecoder]
        self._make_whole: Callable[[], CompiledDecoder]
        self._make_paged: Callable[[], PagedDecoder] | None = None
        if target not in (None, "cpu", "gpu", "ref"):
            raise OptionError(f"target {target!r}: expected 'cpu', 'gpu' or 'ref'")
        if not isinstance(model, (str, os.PathLike, Config)):
            raise ParameterError(f"Model: {type(model).__name__}, expected a path or a Config")
        if isinstance(model, Config):
            self._read_genai(model)
        elif (Path(model) / CONFIG_FILE).is_file():
            self._read_genai(Config(model))
        elif Path(model).exists():
            self._read_other(Path(model))
        else:
            raise FormatError(f"{os.fspath(model)}: no such file or folder")

    @property
    def type(self) -> str:
        """Return the model's architecture, such as ``llama``."""
        return self._type

    @property
    def target(self) -> str:
        """Return the name of the target that the model is compiled for."""
        return self._target or "cpu"

    @property
    def device_type(self) -> str:
        """Return the kind of device that the model runs on, as onnxruntime-genai names it."""
        return "CUDA" if self._target == "gpu" else "CPU"

    def _read_genai(self, config: Config) -> None:
        from ..api.functions import parse_onnx, parse_onnx_buffer

        self.path = config.folder
        if self._cache_type != "float32":
            raise OptionError(f"cache_type={self._cache_type!r}: {self.path} holds an ONNX file, which has its own")
        settings = config.settings["model"]
        decoder = settings["decoder"]
        self._type = str(settings.get("type", "decoder"))
        self._target = config.target if self._target is None else self._target
        self._threads = self._threads or config.num_threads
        file = config.folder / decoder.get("filename", "model.onnx")
        data = config.model_data.get(file.name)
        if data is None and not file.is_file():
            raise FormatError(f"{config.folder / CONFIG_FILE}: model.decoder.filename names {file}, which is no file")
        program = parse_onnx(str(file)) if data is None else parse_onnx_buffer(data)
        inputs, outputs = decoder.get("inputs", {}), decoder.get("outputs", {})
        plain = DecoderNames()
        names = DecoderNames(
            inputs.get("input_ids", plain.input_ids),
            inputs.get("attention_mask", plain.attention_mask),
            inputs.get("position_ids", plain.position_ids),
            outputs.get("logits", plain.logits),
            (inputs.get("past_key_names", plain.past[0]), inputs.get("past_value_names", plain.past[1])),
            (outputs.get("present_key_names", plain.present[0]), outputs.get("present_value_names", plain.present[1])),
        )
        heads = int(decoder.get("num_key_value_heads", decoder.get("num_attention_heads", 0)))
        self.search = dict(config.settings.get("search", {}))
        self.context_length = int(settings.get("context_length", 2048))
        self.vocab_size = int(settings.get("vocab_size", 0))
        self.shares_buffer = bool(self.search.get("past_present_share_buffer", False))
        self.eos_token_ids = _ids(settings.get("eos_token_id"))
        self.bos_token_id = settings.get("bos_token_id")
        self.pad_token_id = settings.get("pad_token_id")
        self.tokenizer_source = config.folder
        compact = bool(_COMPACT_OPERATORS & _operators(file, data))
        made = self._compiled(program, names, heads, int(decoder.get("head_size", 0)), compact)
        self._make = self._make_whole = lambda: made

    def _read_other(self, path: Path) -> None:
        from .files import GgufTokenizer, open_model

        opened = open_model(path)
        config = opened.config
        self.path = path
        self._type = config.architecture
        self._target = "cpu" if self._target is None else self._target
        self.context_length = config.context_length
        self.vocab_size = config.vocabulary
        self.shares_buffer = True
        self.search = {"past_present_share_buffer": True}
        self.eos_token_ids = config.eos_ids
        self.bos_token_id, self.pad_token_id = (None if i < 0 else i for i in (config.bos_id, config.pad_id))
        source = opened.tokenizer_source
        self.tokenizer_source = source.metadata if isinstance(source, GgufTokenizer) else source
        self.chat_template = opened.chat_template

        def built(last: bool) -> Program:
            return opened.program(last_logits=last, shared_cache=True, cache_type=self._cache_type)

        def compiled(program: Program) -> CompiledDecoder:
            return self._compiled(program, DecoderNames(), config.key_heads, config.head_size, True)

        def paged() -> PagedDecoder:
            program = opened.program(last_logits=True, cache_type=self._cache_type, block=_BLOCK)
            self._compile(program)
            return paged_decoder_of(program)

        program = built(True)
        self._make, self._make_whole, self._make_paged = (
            lambda: compiled(program),
            lambda: compiled(built(False)),
            paged,
        )

    @functools.cached_property
    def decoder(self) -> CompiledDecoder:
        """Return the decoder, whose logits may be of the last token of a step alone.

        It is compiled on first use, since a server needs the paged decoder alone.
        """
        return self._make()

    @functools.cached_property
    def whole_decoder(self) -> CompiledDecoder:
        """Return the decoder whose logits are of all tokens of a step, compiled on first use."""
        return self._make_whole()

    @functools.cached_property
    def paged_decoder(self) -> PagedDecoder | None:
        """Return the decoder over caches in blocks, compiled on first use; None on a GPU and for ONNX files."""
        return None if self._make_paged is None else self._make_paged()

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer, read on first use."""
        from .tokenizer import Tokenizer

        return Tokenizer(self)

    def _compiled(self, program: Program, names: DecoderNames, heads: int, size: int, compact: bool) -> CompiledDecoder:
        self._compile(program)
        return decoder_of(program, names, heads, size, compact, str(self.path))

    def _compile(self, program: Program) -> None:
        options = dict(self._options)
        if self._target == "cpu":
            options["num_threads"] = self._threads
        program.compile(self._target, **options)

    @functools.cached_property
    def weight_bytes(self) -> int:
        """Return the number of bytes of the model's constants, which a decode step reads once."""
        constants = {
            id(ins): ins.shape.bytes
            for module in self.decoder.program.portable.modules
            for ins in module
            if ins.op.name == "@literal"
        }
        return sum(constants.values())


def _ids(value: Any) -> tuple[int, ...]:
    """Return token ids that a file gives as a number, a list or not at all."""
    if value is None:
        return ()
    return tuple(map(int, value)) if isinstance(value, (list, tuple)) else (int(value),)


def _operators(file: Path, data: bytes | None) -> set[str]:
    """Return the operators of an ONNX file's main graph; weights outside of the file are not read."""
    import onnx

    model = onnx.load(str(file), load_external_data=False) if data is None else onnx.load_from_string(data)
    return {node.op_type for node in model.graph.node}
