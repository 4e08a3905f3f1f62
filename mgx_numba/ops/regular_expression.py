"""Regular expressions in RE2's syntax, matched in time that is linear in the text.

The package ``google-re2`` matches all of RE2's syntax. Without the package, Python's `re` matches, which backtracks: an
expression is refused if its number of attempts may grow faster than the length of the text.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

_FOREIGN = re.compile(r"(?<!\\)(?:\\\\)*(\\[1-9]|\(\?<?[=!]|\(\?P=|\(\?\()")
"""Backreferences, lookaround and conditions, which `re` supports and RE2 does not."""
_MOST_WAYS = 10_000
"""Largest number of attempts for each position where an unbounded repetition may end: 1 ms of work for `re`."""


def full_match(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether ``pattern`` matches a whole text.

    Raises:
        ValueError: the pattern is not valid in RE2's syntax, or needs ``google-re2``, which is not installed.
    """
    try:
        import re2
    except ImportError:
        compiled: Any = _of_python(pattern)
    else:
        options = re2.Options()
        options.log_errors = False
        try:
            compiled = re2.compile(pattern, options)
        except re2.error as error:
            raise ValueError(f"pattern {pattern!r} is no regular expression of RE2's: {_text(error)}") from None
    return lambda text: compiled.fullmatch(text) is not None


def _text(error: Exception) -> str:
    what = error.args[0] if error.args else ""
    return what.decode(errors="replace") if isinstance(what, bytes) else str(what)


def _of_python(pattern: str) -> re.Pattern[str]:
    foreign = _FOREIGN.search(pattern)
    if foreign:
        raise ValueError(f"pattern {pattern!r} has {foreign[1]!r}, which RE2 does not know")
    try:
        compiled = re.compile(pattern, re.ASCII)  # RE2's \w, \d, \s and \b are ASCII
        ways, loops = _ways(_parsed(pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from None
    if ways > _MOST_WAYS or loops > 1:
        raise ValueError(
            f"pattern {pattern!r} may take Python's regular expressions more than linear time; "
            "install google-re2, which needs linear time for every pattern"
        )
    return compiled


def _parsed(pattern: str) -> Any:
    parser = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    return parser.parse(pattern, re.ASCII)


def _ways(items: Any) -> tuple[int, int]:
    """Return a bound on the attempts of `re` to match a parsed sequence at one position of a text.

    Returns:
        The number of attempts for fixed ends of the unbounded repetitions, and the number of unbounded repetitions in a
        row. A repetition whose body has several ways to match counts as two, as the ways multiply with each iteration.
    """
    ways, loops = 1, 0
    for name, argument in items:
        kind = str(name)
        if kind == "BRANCH":
            found = [_ways(branch) for branch in argument[1]]
            inner, deep = sum(w for w, _ in found), max(d for _, d in found)
        elif kind == "SUBPATTERN":
            inner, deep = _ways(argument[-1])
        elif kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            inner, deep = _repeated(*argument)
        elif kind == "ATOMIC_GROUP":
            inner, deep = _ways(argument)
        else:  # one character, or an assertion
            inner, deep = 1, 0
        ways, loops = min(ways * inner, _MOST_WAYS + 1), loops + deep
    return ways, loops


def _repeated(low: Any, high: Any, body: Any) -> tuple[int, int]:
    inner, deep = _ways(body)
    if str(high) == "MAXREPEAT":
        if inner == 1 and not deep and body.getwidth()[0] > 0:
            return 1, 1
        return 1, 2
    if inner == 1:
        return int(high) - int(low) + 1, deep * int(high)
    ways, rounds = 1, 0
    while rounds < int(high) and ways <= _MOST_WAYS:
        ways, rounds = 1 + ways * inner, rounds + 1
    return ways, deep * int(high)
