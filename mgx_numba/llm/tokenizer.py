"""`Tokenizer` and `TokenizerStream`: from text to tokens and back, by the package ``tokenizers``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import FormatError, OptionError, ParameterError
from ..graph.json_file import json_object, read_text
from ..json_types import JsonObject
from .genai import Config
from .optional import required
from .templates import chat_templates, rendered
from .tensor import ModelTensor

if TYPE_CHECKING:
    from .model import LanguageModel


_PURPOSE = "a tokenizer"
_INCOMPLETE = "\ufffd"  # what the decoders of `tokenizers` give for bytes that are no whole character
_LONGEST_TAIL = 3  # bytes of an unfinished character, by definition of UTF-8; some decoders give a character for each
_MOST_PENDING = 64  # tokens that wait: only invalid bytes are so long without the end of a character


class Tokenizer:
    """The tokenizer of a model.

    As in onnxruntime-genai ``encode`` adds no special tokens and ``decode`` leaves them out, until `update_options`
    says otherwise.
    """

    def __init__(self, model: LanguageModel | Config | str | os.PathLike[str]) -> None:
        """Read the tokenizer of a model, of a genai folder's `Config`, or of a folder or file ``tokenizer.json``.

        Raises:
            FormatError: there is no tokenizer, or it is malformed.
            ParameterError: the argument is no model and no path.
            UnsupportedError: the package ``tokenizers`` is not installed.
        """
        self._special, self._skip = False, True
        self._template: str | Mapping[str, str] | None = None
        self._names: dict[str, Any] = {}
        self.eos_token_ids: list[int] = []
        self._ids: dict[str, int | None] = {}
        source: Any = model
        if isinstance(model, Config):
            source = model.folder
            ids = model.settings["model"]
            ends = ids.get("eos_token_id", [])
            self._take_ids(ends if isinstance(ends, list) else [ends], ids.get("bos_token_id"), ids.get("pad_token_id"))
        elif not isinstance(model, (str, os.PathLike)):
            if not hasattr(model, "tokenizer_source"):  # importing the class of models would close a circle
                raise ParameterError(f"Tokenizer: model is {type(model).__name__}, expected a Model")
            source = model.tokenizer_source
            if source is None:
                raise FormatError(f"{model.path} has no tokenizer")
            self._take_ids(model.eos_token_ids, model.bos_token_id, model.pad_token_id)
            self._template = model.chat_template
        if isinstance(source, Mapping):
            from .gguf_tokenizer import tokenizer_of_gguf

            self._tokenizer: Any = tokenizer_of_gguf(source)
            self._take_names(source)
        else:
            self._read(Path(source))

    def _take_ids(self, ends: Iterable[int], first: int | None, padding: int | None) -> None:
        self.eos_token_ids = list(ends)
        self._ids = {"bos": first, "pad": padding}

    def _take_names(self, source: JsonObject) -> None:
        tokens = source["tokenizer.ggml.tokens"]
        for role in ("bos", "eos"):
            place = source.get(f"tokenizer.ggml.{role}_token_id")
            if place is not None:
                self._names[f"{role}_token"] = tokens[int(place)]

    def _read(self, path: Path) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise FormatError(f"{file}: no such file; a tokenizer is read from tokenizer.json")
        try:
            self._tokenizer = required("tokenizers", _PURPOSE).Tokenizer.from_file(str(file))
        except ImportError:
            raise
        except Exception as error:  # the package raises Exception itself
            if type(error) is not Exception:
                raise
            raise FormatError(f"{file}: {error}") from error
        beside = file.parent / "tokenizer_config.json"
        if beside.is_file():
            settings = json_object(read_text(beside), beside)
            for name, value in settings.items():
                if name.endswith("_token"):
                    self._names[name] = value.get("content") if isinstance(value, dict) else value
            if self._template is None:
                self._template = chat_templates(beside, settings)
        template = file.parent / "chat_template.jinja"
        if self._template is None and template.is_file():
            self._template = read_text(template)
        if not self.eos_token_ids and self._names.get("eos_token"):
            self.eos_token_ids = [self.to_token_id(self._names["eos_token"])]

    @property
    def bos_token_id(self) -> int | None:
        """Return the token that begins a sequence, None without such a token."""
        return self._ids.get("bos")

    @property
    def pad_token_id(self) -> int | None:
        """Return the padding token, None without such a token."""
        return self._ids.get("pad")

    def update_options(self, **options: object) -> None:
        """Set ``add_special_tokens`` (of `encode`) or ``skip_special_tokens`` (of `decode`): true or false.

        Raises:
            OptionError: an option is unknown, or its value is neither true nor false.
        """
        for name, value in options.items():
            text = str(value).lower()
            if text not in ("true", "false", "1", "0"):
                raise OptionError(f"tokenizer option {name}={value!r}: expected 'true' or 'false'")
            if name == "add_special_tokens":
                self._special = text in ("true", "1")
            elif name == "skip_special_tokens":
                self._skip = text in ("true", "1")
            else:
                raise OptionError(
                    f"tokenizer option {name!r} is unknown; expected add_special_tokens or skip_special_tokens"
                )

    def encode(self, text: str, *, add_special_tokens: bool | None = None) -> np.ndarray:
        """Return the tokens of a text (int32).

        Args:
            add_special_tokens: add the tokens that begin and end a text. Default: as `update_options` has set.

        Raises:
            OptionError: the text has half of a surrogate pair, which UTF-8 cannot encode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise OptionError(f"text: character {error.start} is half of a surrogate pair, which is no text") from None
        special = self._special if add_special_tokens is None else add_special_tokens
        return np.array(self._tokenizer.encode(text, add_special_tokens=special).ids, np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens."""
        return str(self._tokenizer.decode([int(t) for t in tokens], skip_special_tokens=self._skip))

    def encode_batch(self, texts: Sequence[str]) -> ModelTensor:
        """Return the tokens of texts (int32), padded at the end with the padding token."""
        found = [self.encode(text) for text in texts]
        padding = self.pad_token_id
        result = np.full((len(found), max(map(len, found), default=0)), 0 if padding is None else padding, np.int32)
        for row, tokens in zip(result, found, strict=True):
            row[: len(tokens)] = tokens
        return ModelTensor(result)

    def decode_batch(self, tokens: object) -> list[str]:
        """Return the texts of an array of tokens, one for each row."""
        return [
            self.decode(row) for row in np.asarray(tokens.as_numpy() if isinstance(tokens, ModelTensor) else tokens)
        ]

    def to_token_id(self, text: str) -> int:
        """Return the token that is written ``text``.

        Raises:
            OptionError: there is no such token.
        """
        found = self._tokenizer.token_to_id(text)
        if found is None:
            raise OptionError(f"token {text!r} is not in the vocabulary")
        return int(found)

    def token_text(self, token: int) -> str:
        """Return the text of one token inside of a text; of a special token its name."""
        before = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.decode([*before, token], skip_special_tokens=False)
        return str(whole[len(self._tokenizer.decode(before, skip_special_tokens=False)) :])

    def create_stream(self) -> TokenizerStream:
        """Return a decoder of tokens that arrive one by one."""
        return TokenizerStream(self)

    @property
    def has_chat_template(self) -> bool:
        """Return whether the model has a chat template."""
        return self._template is not None

    def apply_chat_template(
        self,
        messages: str | Sequence[Mapping[str, object]],
        *,
        template_str: str | None = None,
        tools: str | Sequence[object] | None = None,
        add_generation_prompt: bool = True,
        **variables: object,
    ) -> str:
        """Return the prompt of a conversation.

        Args:
            messages: objects with ``role`` and ``content``, or JSON of a list of these.
            template_str: a Jinja template instead of the model's.
            tools: descriptions of functions for the template, or JSON of a list of these.
            add_generation_prompt: end with the beginning of the assistant's message.
            variables: further variables of the template.

        Raises:
            OptionError: there is no template; or messages or template are wrong, with the template's reason.
        """
        template = template_str if template_str is not None else self._template
        return rendered(template, messages, tools, {**self._names, **variables}, add_generation_prompt)

    def as_json(self) -> str:
        """Return the contents of the tokenizer's ``tokenizer.json``."""
        return str(self._tokenizer.to_str())


class TokenizerStream:
    """The text of tokens that arrive one by one; bytes of an unfinished character wait for the next tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Decoders treat the first token of a text otherwise, so the last tokens whose text was returned stay.
        self._tokens: list[int] = []
        self._told = 0  # number of those tokens
        self._text = ""  # the returned part of the text of `_tokens`

    def decode(self, token: int) -> str:
        """Return the text that one more token adds; empty while a character is unfinished."""
        self._tokens.append(int(token))
        text = self._tokenizer.decode(self._tokens)
        if not text.startswith(self._text):  # a later byte made earlier ones invalid: their text has been returned
            del self._tokens[: self._told]
            self._told, self._text = 0, ""
            text = self._tokenizer.decode(self._tokens)
        if text == self._text:  # a special token
            del self._tokens[self._told :]
            return ""
        tail = text[-_LONGEST_TAIL:]
        held = len(tail) - len(tail.rstrip(_INCOMPLETE)) if len(self._tokens) < _MOST_PENDING else 0
        found = text[len(self._text) : len(text) - held]
        if held:
            self._text += found
        else:
            del self._tokens[: self._told]
            self._told, self._text = len(self._tokens), self._tokenizer.decode(self._tokens)
        return found

    def finish(self) -> str:
        """Return the text of bytes that no later token completes, and begin a new text."""
        rest = self._tokenizer.decode(self._tokens)[len(self._text) :]
        self._tokens, self._told, self._text = [], 0, ""
        return rest
