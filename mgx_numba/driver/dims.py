"""Parser of dimensions on the command line.

``@name`` starts the dimensions of an input or a symbol: ``@x 1 3 224 224``, ``@n 4 @m {min:1,max:8,optimals:[2,4]}``,
``@x [{min:1,max:4},3,224,224]``. Keys need no quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ..api.shape import dynamic_dimension
from ..errors import OptionError, ShapeError

_KEY = re.compile(r"([{,]\s*)([A-Za-z_]\w*)\s*:")
_KEYS = ("min", "max", "optimals")


def split_names(option: str, words: Sequence[str]) -> dict[str, list[str]]:
    """Group words by the ``@name`` before them.

    Raises:
        OptionError: the first word is not an ``@name``, or a name occurs twice.
    """
    result: dict[str, list[str]] = {}
    current: list[str] | None = None
    for word in words:
        if word.startswith("@"):
            if word[1:] in result:
                raise OptionError(f"{option}: {word} is given twice")
            current = result[word[1:]] = []
        elif current is None:
            raise OptionError(f"{option}: expected @name first, got {word!r}")
        else:
            current.append(word)
    return result


def parse_inputs(option: str, words: Sequence[str]) -> dict[str, list[int]]:
    """Return lengths by input: ``@x 1 3 224 224``."""
    return {name: [_length(option, w) for w in rest] for name, rest in split_names(option, words).items()}


def parse_dynamic_inputs(option: str, words: Sequence[str]) -> dict[str, list[object]]:
    """Return lengths and ranges by input: ``@x [{min:1,max:4},3,224,224]``, or with one word for each dimension."""
    result: dict[str, list[object]] = {}
    for name, rest in split_names(option, words).items():
        values = [_json(option, w) for w in rest]
        if len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        result[name] = [_dimension(option, v) for v in values]
    return result


def parse_symbols(option: str, words: Sequence[str]) -> dict[str, object]:
    """Return a length or range by symbolic dimension: ``@n 4``, ``@n {min:1,max:8}``."""
    result: dict[str, object] = {}
    for name, rest in split_names(option, words).items():
        if len(rest) != 1:
            raise OptionError(f"{option}: @{name} needs one dimension, got {len(rest)}")
        result[name] = _dimension(option, _json(option, rest[0]))
    return result


def parse_dimension(option: str, text: str) -> dynamic_dimension:
    """Return a range: ``{min:1,max:8,optimals:[2,4]}``."""
    found = _dimension(option, _json(option, text))
    return dynamic_dimension(found, found) if isinstance(found, int) else found


def _length(option: str, text: str) -> int:
    if not text.isdigit():
        raise OptionError(f"{option}: {text!r} is no length; expected integers, as in @x 1 3 224 224")
    return int(text)


def _json(option: str, text: str) -> object:
    try:
        return json.loads(_KEY.sub(r'\1"\2":', text))
    except (ValueError, RecursionError):
        raise OptionError(f"{option}: {text!r} is neither a length nor {{min:a,max:b}}") from None


def _dimension(option: str, value: object) -> int | dynamic_dimension:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, dict) and {"min", "max"} <= set(value) <= set(_KEYS):
        low, high, optimals = value["min"], value["max"], value.get("optimals", [])
        if isinstance(optimals, list) and all(type(n) is int for n in (low, high, *optimals)):
            try:
                return dynamic_dimension(low, high, optimals)
            except ShapeError as error:
                raise OptionError(f"{option}: {error}") from None
    raise OptionError(f"{option}: {value!r} is neither a length nor {{min:a,max:b,optimals:[...]}}")
