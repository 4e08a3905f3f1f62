"""Bodies of requests in OpenAI's form: checked fields, with errors that name the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from ...dataclass import dataclass
from ...errors import OptionError
from ...json_types import JsonArray, JsonObject
from ...nearest import did_you_mean
from ..generation.logprobs import MOST_LOGPROBS
from ..generation.params import LogitsProcessor, SearchOptions
from ..model import LanguageModel
from ..text import prompt_tokens
from ..tokenizer import Tokenizer

_IGNORED = frozenset(
    "user metadata store service_tier parallel_tool_calls tool_choice prediction reasoning_effort safety_identifier "
    "prompt_cache_key verbosity".split()
)
"""Fields of OpenAI's interface that do not change the text here."""

_COMMON = frozenset(
    "model max_tokens temperature top_p top_k min_p n stop stream stream_options presence_penalty frequency_penalty "
    "repetition_penalty seed logprobs logit_bias ignore_eos guided_json guided_regex guided_grammar".split()
)
_CHAT = _COMMON | {
    "top_logprobs",
    "messages",
    "max_completion_tokens",
    "response_format",
    "tools",
    "chat_template_kwargs",
}
_COMPLETION = _COMMON | {"prompt", "echo"}
_MOST_CHOICES = 16  # largest n of a request; no figures kept
_DEFAULT_COMPLETION = 16  # max_tokens of /v1/completions, as OpenAI documents it
_ANY_OBJECT = {"type": "object"}


class BodyError(OptionError):
    """A field of a body is wrong; ``field`` is its name."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class UnknownModelError(BodyError):
    """A body names a model that the server does not have."""


@dataclass
class ParsedBody:
    """A request parsed from a body.

    Attributes:
        prompts: tokens of each prompt.
        texts: for ``echo``, the text of each prompt; else empty.
        choices: texts to generate for each prompt.
        max_tokens: most tokens of a text; None for the rest of the context.
        top_logprobs: likeliest tokens of each place whose log-probabilities are told; None for no log-probabilities.
    """

    prompts: list[np.ndarray]
    options: SearchOptions
    max_tokens: int | None
    choices: int
    stops: list[str]
    stream: bool
    include_usage: bool
    guidance: tuple[str, str] | None
    processors: list[LogitsProcessor] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    top_logprobs: int | None = None


def asked_chat(body: JsonObject, model: LanguageModel, tokenizer: Tokenizer) -> ParsedBody:
    """Return the request in a body of ``/v1/chat/completions``.

    Raises:
        BodyError: a field is missing, unknown or wrong.
    """
    _check_names(body, _CHAT)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BodyError("messages: expected a list of at least one message", "messages")
    plain = [_message(message, f"messages[{k}]") for k, message in enumerate(messages)]
    variables = body.get("chat_template_kwargs") or {}
    if not isinstance(variables, dict):
        raise BodyError("chat_template_kwargs: expected an object", "chat_template_kwargs")
    try:
        text = tokenizer.apply_chat_template(plain, tools=body.get("tools"), **variables)
    except (OptionError, TypeError) as error:
        raise BodyError(f"messages: {error}", "messages") from error
    asked = _asked(body, model)
    asked.prompts = [tokenizer.encode(text)]
    most = _number(body, "max_completion_tokens", int, 1, None)
    asked.max_tokens = asked.max_tokens if most is None else most
    asked.guidance = _response_format(body.get("response_format")) or asked.guidance
    top = _number(body, "top_logprobs", int, 0, MOST_LOGPROBS)
    if _flag(body, "logprobs"):
        asked.top_logprobs = top or 0
    elif top:
        raise BodyError("top_logprobs: expected logprobs to be true", "top_logprobs")
    return asked


def asked_completion(body: Mapping[str, object], model: LanguageModel, tokenizer: Tokenizer) -> ParsedBody:
    """Return the request in a body of ``/v1/completions``.

    Raises:
        BodyError: a field is missing, unknown or wrong.
    """
    _check_names(body, _COMPLETION)
    asked = _asked(body, model)
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], (str, list))
    prompts: JsonArray = prompt if several and isinstance(prompt, list) else [prompt]
    for each in prompts:
        is_tokens = isinstance(each, list) and all(type(token) is int for token in each)
        if not (isinstance(each, str) or is_tokens) or not each:
            raise BodyError(
                "prompt: expected a text or a list of tokens that is not empty, or a list of these", "prompt"
            )
        if is_tokens and not 0 <= min(each) <= max(each) < model.vocab_size:
            raise BodyError(f"prompt: a token is not in the vocabulary of {model.vocab_size} tokens", "prompt")
        asked.prompts.append(prompt_tokens(tokenizer, each))
    if _flag(body, "echo"):
        asked.texts = [each if isinstance(each, str) else tokenizer.decode(each) for each in prompts]
    if body.get("logprobs") is not False:
        asked.top_logprobs = _number(body, "logprobs", int, 0, MOST_LOGPROBS)
    if asked.texts and asked.top_logprobs is not None:
        raise BodyError("logprobs: not supported with echo", "logprobs")
    if asked.max_tokens is None:
        asked.max_tokens = _DEFAULT_COMPLETION
    return asked


def _asked(body: Mapping[str, object], model: LanguageModel) -> ParsedBody:
    """Return the options that the fields common to chat and completions set."""
    options = SearchOptions(max_length=model.context_length, top_k=0)
    temperature = _number(body, "temperature", float, 0, 10)
    options.temperature = 1.0 if temperature is None else temperature
    options.do_sample = options.temperature > 0
    for name, low, high in (
        ("top_p", 0, 1),
        ("min_p", 0, 1),
        ("presence_penalty", -2, 2),
        ("frequency_penalty", -2, 2),
        ("repetition_penalty", 0.01, 100),
    ):
        value = _number(body, name, float, low, high)
        if value is not None:
            setattr(options, name, value)
    options.top_k = max(0, _number(body, "top_k", int, -1, None) or 0)  # vLLM's -1 is no limit, too
    seed = _number(body, "seed", int, None, None)
    options.random_seed = -1 if seed is None else seed % (1 << 63)
    options.ignore_eos = _flag(body, "ignore_eos")
    stops = body.get("stop") or []
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise BodyError("stop: expected a text, or a list of texts that are not empty", "stop")
    stream_options = body.get("stream_options") or {}
    if not isinstance(stream_options, dict):
        raise BodyError("stream_options: expected an object", "stream_options")
    return ParsedBody(
        [],
        options,
        _number(body, "max_tokens", int, 1, None),
        _number(body, "n", int, 1, _MOST_CHOICES) or 1,
        stops,
        _flag(body, "stream"),
        bool(stream_options.get("include_usage")),
        _guided(body),
        _biases(body.get("logit_bias"), model),
    )


def _check_names(body: Mapping[str, object], known: frozenset[str] | set[str]) -> None:
    for name, value in body.items():
        if name not in known and name not in _IGNORED and value is not None:
            raise BodyError(f"{name}: unknown or not supported{did_you_mean(name, known, 2)}", name)


def _number(body: JsonObject, name: str, kind: type, low: float | None, high: float | None) -> Any:
    """Return the number in a field, None if the field is absent or null."""
    value = body.get(name)
    if value is None:
        return None
    right = type(value) is int or (kind is float and type(value) is float)
    if not right or not (low is None or value >= low) or not (high is None or value <= high):
        bounds = "" if low is None else f" from {low} on" if high is None else f" from {low} to {high}"
        raise BodyError(f"{name}: expected {_KINDS[kind]}{bounds}, got {json.dumps(value)[:80]}", name)
    return kind(value)


_KINDS = {int: "an integer", float: "a number"}


def _flag(body: Mapping[str, object], name: str) -> bool:
    value = body.get(name)
    if value is not None and type(value) is not bool:
        raise BodyError(f"{name}: expected true or false, got {json.dumps(value)[:80]}", name)
    return bool(value)


def _message(message: object, where: str) -> dict[str, object]:
    """Return a message whose content is a text: parts of text are joined."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BodyError(f"{where}: expected an object with role and content", "messages")
    content = message.get("content")
    if isinstance(content, list):
        parts = []
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise BodyError(f"{where}.content: only parts of type text are supported", "messages")
            parts.append(part["text"])
        content = "".join(parts)
    elif content is not None and not isinstance(content, str):
        raise BodyError(f"{where}.content: expected a text or a list of parts", "messages")
    return {**message, "content": content or ""}


def _guided(body: Mapping[str, object]) -> tuple[str, str] | None:
    """Return kind and text of the grammar in the fields ``guided_*`` of vLLM's server; None if there is none."""
    given = [name for name in ("guided_json", "guided_regex", "guided_grammar") if body.get(name) is not None]
    if len(given) > 1:
        raise BodyError(f"{given[1]}: give one constraint, not {' and '.join(given)}", given[1])
    for name in given:
        value = body[name]
        if name == "guided_json":
            return "json_schema", value if isinstance(value, str) else json.dumps(value)
        if not isinstance(value, str):
            raise BodyError(f"{name}: expected a text", name)
        return ("regex" if name == "guided_regex" else "lark_grammar"), value
    return None


def _response_format(value: Any) -> tuple[str, str] | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return "json_schema", json.dumps(_ANY_OBJECT)
    if kind == "json_schema" and isinstance(value.get("json_schema"), dict):
        return "json_schema", json.dumps(value["json_schema"].get("schema", _ANY_OBJECT))
    raise BodyError("response_format: expected type text, json_object, or json_schema with a schema", "response_format")


def _biases(value: Any, model: LanguageModel) -> list[LogitsProcessor]:
    """Return a processor that adds the biases of ``logit_bias``."""
    if not value:
        return []
    try:
        tokens = [int(token) for token in value]
        biases = np.array([float(bias) for bias in value.values()], np.float32)
    except (AttributeError, TypeError, ValueError):
        raise BodyError("logit_bias: expected an object of numbers by token", "logit_bias") from None
    if not (0 <= min(tokens) <= max(tokens) < model.vocab_size and np.abs(biases).max() <= 100):  # NaN is refused, too
        raise BodyError(
            f"logit_bias: expected tokens below {model.vocab_size} and biases from -100 to 100", "logit_bias"
        )

    def add(known: np.ndarray, logits: np.ndarray) -> np.ndarray:
        logits[tokens] += biases
        return logits

    return [add]


def checked_body(data: bytes, model_name: str) -> dict[str, object]:
    """Return the object of a body.

    Raises:
        BodyError: the body is no JSON object, or ``model`` is not the server's.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BodyError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BodyError(f"the body is JSON of type {type(body).__name__}, expected an object")
    asked = body.get("model", model_name)
    if asked != model_name:
        raise UnknownModelError(f"the model {asked!r} does not exist; this server has {model_name!r}", "model")
    return body
