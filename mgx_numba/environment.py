"""Access to environment variables; ``driver/variables.py`` documents them."""

from __future__ import annotations

import os

from .errors import OptionError

_encoded: dict[str, object] = {}
_NO = ("", "0", "false", "off", "no")


def environment_text(name: str) -> str:
    """Return a variable's value, empty if it is not set; for questions that planning asks ten thousand times.

    ``os.environ`` encodes the name and decodes the value each time.
    """
    kept = getattr(os.environ, "_data", None)
    if kept is None:
        return os.environ.get(name, "")
    if name not in _encoded:
        _encoded[name] = os.environ.encodekey(name)  # type: ignore[attr-defined]
    value = kept.get(_encoded[name])
    return os.environ.decodevalue(value) if value else ""  # type: ignore[attr-defined, no-any-return]


def environment_flag(name: str, default: bool = False) -> bool:
    """Return whether a variable is set to a true value; ``default`` if it is not set."""
    value = os.environ.get(name)
    return default if value is None else value.strip().lower() not in _NO


def environment_number(name: str, least: int = 0) -> int:
    """Return the integer value of a variable, 0 if it is not set.

    Raises:
        OptionError: the value is not an integer, or is below ``least``.
    """
    value = os.environ.get(name, "").strip()
    try:
        number = int(value) if value else 0
    except ValueError:
        number = least - 1
    if number < least:
        raise OptionError(f"environment variable {name}: expected an integer from {least} on, got {value!r}")
    return number


def environment_words(name: str) -> list[str]:
    """Return the words of a comma-separated variable."""
    return [word.strip() for word in os.environ.get(name, "").split(",") if word.strip()]
