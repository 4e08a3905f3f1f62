"""Environment variables as the package reads them; what each does is in ``driver/variables.py``."""

from __future__ import annotations

import os

from .errors import OptionError

__all__ = ["environment_flag", "environment_number", "environment_words"]

_NO = ("", "0", "false", "off", "no")


def environment_flag(name: str, default: bool = False) -> bool:
    """Whether a variable is set to something that means yes; ``default`` where it is not set."""
    value = os.environ.get(name)
    return default if value is None else value.strip().lower() not in _NO


def environment_number(name: str, default: int = 0, least: int = 0) -> int:
    """The integer that a variable is set to.

    Raises:
        OptionError: it is set to something else, or below ``least``.
    """
    value = os.environ.get(name, "").strip()
    try:
        number = int(value) if value else default
    except ValueError:
        number = least - 1
    if number < least:
        raise OptionError(f"environment variable {name}: expected an integer from {least} on, got {value!r}")
    return number


def environment_words(name: str) -> list[str]:
    """The words that a variable is set to, separated by commas."""
    return [word.strip() for word in os.environ.get(name, "").split(",") if word.strip()]
