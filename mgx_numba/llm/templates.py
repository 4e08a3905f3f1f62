"""Chat templates, rendered by Jinja in its sandbox."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import FormatError, OptionError
from ..json_types import JsonArray, JsonObject
from .optional import required


def chat_templates(file: object, settings: JsonObject) -> str | dict[str, str] | None:
    """Return the template, or the templates by name, in the content of a ``tokenizer_config.json``.

    Raises:
        FormatError: ``chat_template`` is neither; the message begins with ``file``.
    """
    found = settings.get("chat_template")
    if isinstance(found, list):
        try:
            found = {each["name"]: each["template"] for each in found}
        except (KeyError, TypeError) as error:
            raise FormatError(f"{file}: chat_template: expected objects with name and template") from error
    for text in found.values() if isinstance(found, dict) else [found]:
        if text is not None and not isinstance(text, str):
            raise FormatError(f"{file}: chat_template is of type {type(text).__name__}, expected a text")
    return found


def rendered(
    template: str | Mapping[str, str] | None,
    messages: str | Sequence[Mapping[str, object]],
    tools: str | Sequence[object] | None,
    variables: Mapping[str, object],
    add_generation_prompt: bool,
) -> str:
    """Return the prompt that a template makes of messages; see `Tokenizer.apply_chat_template`.

    Args:
        template: a template, templates by name (``default``, ``tool_use``), or None.

    Raises:
        OptionError: there is no template, messages are malformed, or the template refuses them.
    """
    messages, tools = _parsed("messages", messages), None if tools is None else _parsed("tools", tools)
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or "role" not in message:
            raise OptionError(f"messages[{place}]: expected an object with role and content, got {message!r}")
    if isinstance(template, Mapping):
        name = "tool_use" if tools and "tool_use" in template else "default"
        template = template.get(name) or next(iter(template.values()), None)
    if not template:
        raise OptionError("the model has no chat template; give template_str")
    jinja2 = required("jinja2", "a chat template")
    try:
        found: str = _compiled(template).render(
            messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, **variables
        )
    except jinja2.TemplateError as error:
        raise OptionError(f"chat template: {type(error).__name__}: {error}") from error
    except (TypeError, ValueError, KeyError) as error:
        raise OptionError(f"chat template: {type(error).__name__}: {error} (for these messages)") from error
    return found


def _parsed(what: str, value: object) -> JsonArray:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise OptionError(f"{what}: not JSON: {error}") from error
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise OptionError(f"{what}: expected a list, got {type(value).__name__}")
    return list(value)


@functools.lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    """Return a template in the environment that Hugging Face's templates expect."""
    sandbox = required("jinja2.sandbox", "a chat template")
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment.from_string(template)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _refuse(message: str) -> None:
    raise required("jinja2", "a chat template").TemplateError(message)
