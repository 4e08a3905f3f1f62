"""`generate` and `stream`: text after a prompt in one call."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, cast

import numpy as np

from ..dataclass import dataclass
from ..errors import OptionError, ParameterError
from .generation.generator import Generator
from .generation.logprobs import TokenLogprob, check_logprobs, token_logprob
from .generation.params import GeneratorParams, LogitsProcessor
from .generation.prefixes import PrefixCache
from .generation.stopping import TextStream
from .model import LanguageModel
from .tokenizer import Tokenizer

Prompt = str | Sequence[int] | np.ndarray | Sequence[Mapping[str, object]]
"""A text, tokens, or messages of a conversation."""

_SAMPLING = ("temperature", "top_k", "top_p", "min_p")


@dataclass
class Completion:
    """A text that is being generated; iterating gives its pieces as they become final.

    Attributes:
        prompt_tokens: number of tokens of the prompt.
        tokens: the generated tokens.
        finish_reason: ``stop`` for an end token, a complete grammar or a stop string, ``length`` for the most tokens;
            empty while pieces are left.
        generator: the generator, for its statistics and logits.
        logprobs: log-probabilities of the generated tokens, if ``stream`` was asked for them.
    """

    generator: Generator
    prompt_tokens: int
    ends: frozenset[int]
    text_stream: TextStream
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = ""
    top_logprobs: int | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def __iter__(self) -> Iterator[str]:
        while not self.finish_reason:
            logits = None if self.top_logprobs is None else self.generator.get_logits()[0, 0]
            self.generator.generate_next_token()
            token = int(self.generator.get_next_tokens()[0])
            if logits is not None:
                self.logprobs.append(token_logprob(logits, token, self.top_logprobs or 0))
            self.tokens.append(token)
            piece = "" if token in self.ends else self.text_stream.add(token)
            ended = self.text_stream.stopped or token in self.ends
            if ended or self.generator.is_done():
                # Without an end token a sequence ends early only if its grammar is complete.
                full = self.generator.is_full()
                self.finish_reason = "stop" if ended or not full else "length"
                piece += self.text_stream.finish()
                self.generator.remember()
            if piece:
                yield piece


def stream(
    model: LanguageModel | str | os.PathLike[str],
    prompt: Prompt,
    *,
    max_tokens: int = 256,
    stop: str | Sequence[str] | None = (),
    json_schema: str | Mapping[str, object] | None = None,
    regex: str | None = None,
    grammar: str | None = None,
    logits_processors: Sequence[LogitsProcessor] = (),
    draft_model: LanguageModel | None = None,
    ngram_size: int = 0,
    max_draft_tokens: int = 4,
    prefix_cache: PrefixCache | None = None,
    logprobs: int | None = None,
    **search: object,
) -> Completion:
    """Generate text after a prompt, piece by piece.

    Args:
        model: a `Model`, or its path; a path is read again for each call.
        prompt: a text, tokens, or messages, to which the model's chat template is applied.
        max_tokens: most tokens to generate.
        stop: strings that end the text, which are not part of it.
        json_schema: constrain the text to JSON of a schema.
        regex: constrain the text to a regular expression.
        grammar: constrain the text to a grammar in llguidance's Lark syntax.
        logits_processors: functions that change logits, see `LogitsProcessor`.
        draft_model: a smaller model that proposes tokens for this one to verify.
        ngram_size: propose what followed the last occurrence of so many last tokens; 0 proposes nothing.
        max_draft_tokens: most proposed tokens for one step.
        prefix_cache: keys and values of earlier prompts.
        logprobs: collect log-probabilities of the tokens, and of so many likeliest tokens at each place, in the
            completion's ``logprobs``; not for beams.
        search: search options by onnxruntime-genai's names, see `SearchOptions`. Tokens are drawn if ``do_sample``,
            or if one of temperature, top_k, top_p or min_p is given and ``do_sample`` is not.

    Returns:
        The completion: iterate to get pieces of text.

    Raises:
        OptionError: an option is unknown or out of range.
        ParameterError: the prompt is empty or too long for the model.
    """
    found = _model(model)
    tokenizer = found.tokenizer
    tokens = prompt_tokens(tokenizer, prompt)
    room = found.context_length - len(tokens)
    if not len(tokens):
        raise ParameterError("the prompt is empty; expected at least one token")
    if room < 1:
        raise ParameterError(
            f"the prompt has {len(tokens)} tokens, expected fewer than the model's context length "
            f"{found.context_length}"
        )
    if not isinstance(max_tokens, (int, np.integer)) or max_tokens < 1:
        raise OptionError(f"max_tokens={max_tokens}: expected an integer from 1 on")
    stops = [stop] if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(stops, Sequence) or not all(isinstance(each, str) for each in stops):
        raise OptionError(f"stop={stop!r}: expected a text, or a list of texts")
    wrong = next((each for each in logits_processors if not callable(each)), None)
    if wrong is not None:
        raise OptionError(f"logits_processors: {wrong!r} is no function")
    params = GeneratorParams(found)
    if "do_sample" not in search:
        search["do_sample"] = any(name in search for name in _SAMPLING)
    length = len(tokens) + min(max_tokens, room)
    defaults = {"max_length": length, "batch_size": 1, "num_beams": 1, "num_return_sequences": 1}
    params.set_search_options(**{**defaults, **search})
    if params.search.batch_size != 1:
        raise OptionError(f"batch_size={params.search.batch_size}: a call has one prompt; use Generator for a batch")
    grammars = {"json_schema": json_schema, "regex": regex, "lark_grammar": grammar}
    given = [(kind, text) for kind, text in grammars.items() if text is not None]
    if len(given) > 1:
        raise OptionError(f"give one constraint, not {' and '.join(kind for kind, _ in given)}")
    for kind, text in given:
        params.set_guidance(kind, text if isinstance(text, str) else _json_text(kind, text), True)
    params.tokenizer = tokenizer
    params.logits_processors = list(logits_processors)
    params.draft_model = draft_model
    params.set_speculative_options(ngram_size=ngram_size, max_draft_tokens=max_draft_tokens)
    check_logprobs(logprobs)
    generator = Generator(found, params, prefix_cache)
    generator.append_tokens(tokens)
    ends = frozenset(found.eos_token_ids) if not params.search.ignore_eos else frozenset()
    return Completion(generator, len(tokens), ends, TextStream(tokenizer, stops), top_logprobs=logprobs)


def generate(model: LanguageModel | str | os.PathLike[str], prompt: Prompt, **options: Any) -> str | list[str]:
    """Return the text that the model generates after a prompt.

    Args:
        model: a `Model`, or its path; a path is read again for each call.
        prompt: a text, tokens, or messages, to which the model's chat template is applied.
        options: as of `stream`.

    Returns:
        The text; with ``num_return_sequences`` above 1 a list of texts, best first.
    """
    found = stream(model, prompt, **options)
    generator = found.generator
    if not generator.uses_beams:
        return "".join(found)
    while not generator.is_done():
        generator.generate_next_token()
    texts = []
    for index in range(generator.sequence_count):
        text = found.text_stream.again()
        tokens = generator.get_sequence(index)[found.prompt_tokens :].tolist()
        texts.append("".join(text.add(token) for token in tokens if token not in found.ends) + text.finish())
    return texts if len(texts) > 1 else texts[0]


def prompt_tokens(tokenizer: Tokenizer, prompt: Prompt) -> np.ndarray:
    """Return the tokens of a prompt (int64).

    Raises:
        OptionError: the prompt is neither a text nor tokens nor messages, or the model has no chat template.
    """
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, add_special_tokens=True)
    if isinstance(prompt, (Sequence, np.ndarray)):
        if len(prompt) and isinstance(prompt[0], Mapping):
            return tokenizer.encode(tokenizer.apply_chat_template(cast(Sequence[Mapping[str, object]], prompt)))
        found = np.asarray(prompt) if all(np.isscalar(each) for each in prompt) else np.zeros((0, 0))
        if found.ndim == 1 and (found.dtype.kind in "iu" or not found.size):
            return found.astype(np.int64)
    raise OptionError("prompt: expected a text, a list of tokens, or a list of messages")


def _json_text(name: str, value: object) -> str:
    """Return a value of a caller as JSON.

    Raises:
        OptionError: it cannot be written as JSON; the message has ``name``.
    """
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{name}: {error}") from error


def _model(model: LanguageModel | str | os.PathLike[str]) -> LanguageModel:
    return model if isinstance(model, LanguageModel) else LanguageModel(model)
