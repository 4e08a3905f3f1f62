"""Every tuned number, and every number from another specification, states its origin."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterator

import pytest

from .constants import Bare, bare_constants, bare_literals, found_in

found = functools.cache(found_in)


@pytest.mark.parametrize("kind", ["constants", "literals in functions of code generation"])
def test_no_number_is_bare(kind: str) -> None:
    bare = found()[kind != "constants"]
    assert not bare, f"{kind} without a word on where they come from:\n" + "\n".join(map(str, bare))


CONSTANTS = '''
BARE = 1 << 20
BESIDE = 3  # by definition

# Above, of a block.
FIRST = 1
SECOND = 2.0

DIRECTIVE = 5  # noqa: E501
AFTER = {"a": 0.9}
"""Measured."""
NAME, PAIR = -1, (2, 3)
TEXT = "words"
FLAG = True
COMPUTED = FIRST + 1

class Layout:
    """Words: ``NAMED`` is one of them."""

    NAMED = 4
    NOT_NAMED = 5
'''
LITERALS = """
THRESHOLD = 77

def f(x, y=1 << 30):
    a = x < 12 or x & 0xFFFF1 or x % 4096 or x >= 65535
    b = 0.9 * x + 5 * 5
    # Measured.
    c = 300 * x
    d = x / 7.5  # by definition
    e = (33,) * 2 + 0.5 ** 2
    raise ValueError(f"{str(x)[:40]}")

    def inner():
        return 99
"""


@pytest.mark.parametrize(
    "look,source,wanted",
    [
        (bare_constants, CONSTANTS, ["BARE", "DIRECTIVE", "NAME, PAIR", "NOT_NAMED"]),
        (bare_literals, LITERALS, ["0.9", "5 * 5", "33", "99"]),
    ],
)
def test_bare_numbers_are_found(look: Callable[[str], Iterator[Bare]], source: str, wanted: list[str]) -> None:
    found = [bare.text for bare in look(textwrap.dedent(source))]
    assert [text.partition(" = ")[0] for text in found] == wanted
