"""`GeneratorParams`: how tokens are chosen, and when a sequence ends."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dataclass import dataclass
from ...errors import OptionError, ParameterError
from ...nearest import did_you_mean

if TYPE_CHECKING:
    from ..model import LanguageModel

LogitsProcessor = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Function of a sequence's tokens (int64) and its logits (float32, a private copy) that returns the new logits."""

MAX_BEAMS = 32  # as onnxruntime-genai limits num_beams


@dataclass
class SearchOptions:
    """Search options by onnxruntime-genai's names; the last ones are ours.

    Attributes:
        batch_size: number of prompts.
        chunk_size: most tokens of a prompt in a step; 0: the whole prompt.
        max_length, min_length: tokens of a sequence, prompt included.
        do_sample: draw tokens at random; otherwise the likeliest token, or beams.
        top_k: 0 considers all tokens. top_p: 1 considers all. min_p: least probability relative to the likeliest token.
        repetition_penalty: logits of tokens of the sequence are divided by it if positive, else multiplied.
        presence_penalty, frequency_penalty: subtracted from logits of generated tokens, once or for each occurrence.
        early_stopping: beams end as soon as ``num_beams`` sequences have ended.
        length_penalty: exponent of the length by which a beam's log-probability is divided.
        random_seed: negative for a new seed for each generator.
        ignore_eos: tokens of ``eos_token_id`` do not end a sequence.
    """

    batch_size: int = 1
    chunk_size: int = 0
    diversity_penalty: float = 0.0
    do_sample: bool = False
    early_stopping: bool = True
    length_penalty: float = 1.0
    max_length: int = 2048
    min_length: int = 0
    no_repeat_ngram_size: int = 0
    num_beams: int = 1
    num_return_sequences: int = 1
    past_present_share_buffer: bool = False
    random_seed: int = -1
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    ignore_eos: bool = False

    def seed(self) -> int:
        """Return ``random_seed``, or a new seed if that is negative."""
        return self.random_seed if self.random_seed >= 0 else int.from_bytes(os.urandom(8), "little")

    def check(self, context_length: int) -> None:
        """Raise if a value or a combination of values is out of range.

        Raises:
            OptionError: the message names the option, its value and the range.
        """
        _in_range(self, "batch_size", 1)
        _in_range(self, "num_beams", 1, MAX_BEAMS)
        _in_range(self, "num_return_sequences", 1, self.num_beams)
        _in_range(self, "max_length", 1, context_length)
        for name in ("min_length", "chunk_size", "no_repeat_ngram_size", "top_k"):
            _in_range(self, name, 0)
        for name in ("top_p", "min_p"):
            _in_range(self, name, 0, 1)
        for name in ("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty", "length_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise OptionError(f"search option {name}={getattr(self, name)}: expected a finite number")
        _in_range(self, "temperature", 0)
        if not self.repetition_penalty > 0:
            raise OptionError(f"search option repetition_penalty={self.repetition_penalty}: expected a number above 0")
        if self.diversity_penalty:
            raise OptionError("search option diversity_penalty: groups of beams are not supported; expected 0")
        if self.num_beams > 1 and self.do_sample:
            raise OptionError("search options: do_sample with num_beams above 1 is not supported")


@dataclass
class SpeculativeOptions:
    """Options of speculative decoding.

    Attributes:
        max_draft_tokens: most tokens that are proposed for one step.
        ngram_size: longest sequence of last tokens that is looked up in the text so far; 0 looks nothing up.
    """

    max_draft_tokens: int = 4
    ngram_size: int = 0


class GeneratorParams:
    """Parameters of a `Generator`.

    Attributes:
        search: the search options, beginning with the model's own.
        speculative: options of speculative decoding.
        logits_processors: functions that change logits before a token is chosen, in order.
        draft_model: a smaller `Model` with the same vocabulary that proposes tokens.
        guidance: kind and text of a grammar, and whether forced tokens are appended without choice; or None.
        tokenizer: the `Tokenizer` that guidance uses; None makes one from the model.
    """

    def __init__(self, model: LanguageModel) -> None:
        """Begin with the model's own options.

        Raises:
            ParameterError: ``model`` is no `Model`.
        """
        check_model(model, "GeneratorParams")
        self.model = model
        self.search = SearchOptions(max_length=model.context_length)
        self.speculative = SpeculativeOptions()
        self.logits_processors: list[LogitsProcessor] = []
        self.draft_model: LanguageModel | None = None
        self.guidance: tuple[str, str, bool] | None = None
        self.tokenizer: Any = None
        known = {f.name for f in dataclasses.fields(SearchOptions)}
        self.set_search_options(**{k: v for k, v in model.search.items() if k in known and v is not None})
        self.search.max_length = min(self.search.max_length, model.context_length)

    def set_search_options(self, **options: object) -> None:
        """Change search options.

        Raises:
            OptionError: an option is unknown or of another kind.
        """
        _assign(self.search, options, "search option")

    def get_search_options(self) -> dict[str, object]:
        """Return all search options by name."""
        return dataclasses.asdict(self.search)

    def set_speculative_options(self, **options: object) -> None:
        """Change options of speculative decoding.

        Raises:
            OptionError: an option is unknown or out of range.
        """
        _assign(self.speculative, options, "speculative option")
        if self.speculative.max_draft_tokens < 1 or self.speculative.ngram_size < 0:
            raise OptionError("speculative options: expected max_draft_tokens from 1 on and ngram_size from 0 on")

    def get_speculative_options(self) -> dict[str, object]:
        """Return all options of speculative decoding by name."""
        return dataclasses.asdict(self.speculative)

    def set_guidance(self, type: str, data: str, enable_ff_tokens: bool = False) -> None:
        """Constrain the generated text to a grammar.

        Args:
            type: ``json_schema``, ``regex`` or ``lark_grammar``.
            data: the schema (JSON), the regular expression, or the grammar.
            enable_ff_tokens: append tokens that the grammar forces several at a time.

        Raises:
            OptionError: the kind is unknown.
        """
        kinds = ("json_schema", "regex", "lark_grammar")
        if type not in kinds:
            raise OptionError(f"guidance type {type!r}: expected one of {', '.join(kinds)}")
        self.guidance = type, data, bool(enable_ff_tokens)


def _assign(target: SearchOptions | SpeculativeOptions, options: Mapping[str, Any], what: str) -> None:
    """Set fields of a dataclass of numbers, converted to the kinds of the fields."""
    kinds: dict[str, Any] = {f.name: type(getattr(target, f.name)) for f in dataclasses.fields(target)}
    for name, value in options.items():
        if name not in kinds:
            hint = did_you_mean(name, kinds, 2) or f"; known: {', '.join(kinds)}"
            raise OptionError(f"{what} {name!r} is unknown{hint}")
        kind = kinds[name]
        if not isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)) or (
            kind is int and isinstance(value, (float, np.floating)) and not value.is_integer()
        ):
            raise OptionError(f"{what} {name}={value!r}: expected {_KINDS[kind]}")
        setattr(target, name, kind(value))


_KINDS = {bool: "True or False", int: "an integer", float: "a number"}


def _in_range(options: SearchOptions, name: str, low: float, high: float | None = None) -> None:
    value = getattr(options, name)
    if not low <= value or (high is not None and value > high):
        wanted = f"from {low} on" if high is None else f"from {low} to {high}"
        raise OptionError(f"search option {name}={value}: expected a value {wanted}")


def check_model(model: object, name: str) -> None:
    """Raise if a caller's value is no language model.

    Raises:
        ParameterError: the message begins with ``name``.
    """
    from ..model import LanguageModel

    if not isinstance(model, LanguageModel):
        raise ParameterError(f"{name}: model is {type(model).__name__}, expected a Model")


def stop_tokens(model: LanguageModel, options: SearchOptions) -> Sequence[int]:
    """Return the tokens that end a sequence."""
    return () if options.ignore_eos else model.eos_token_ids
