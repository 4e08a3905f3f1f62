"""The literals of a program, and what is known of them when their values are gone."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from ..core.argument import Argument
from ..dataclass import dataclass
from .constants import follows, uniform
from .folds import kind_of

__all__ = ["Character", "KnownLiterals", "contents", "without_memory"]

SMALL_BYTES = 1 << 12
"""Of a literal whose values are kept and compared: rewriting may put an equal one in its place."""


@dataclass(frozen=True)
class Character:
    """What rewriting may go by of the values of a literal that varies: whether they are equal, whether finite, the
    pattern that they follow, and of one float its `folds.kind_of`."""

    uniform: bool = False
    finite: bool = False
    pattern: str = ""
    kind: str = ""

    @property
    def is_value(self) -> bool:
        """Whether ``kind`` tells the number itself."""
        return "0x" in self.kind or self.kind in ("inf", "-inf", "nan")


class KnownLiterals:
    """Literals in the order of a program's instructions.

    Attributes:
        arguments: the literals. Those that `without_values` has taken the values of have their shapes, and zeros.
    """

    def __init__(self, arguments: Sequence[Argument], lasting: Mapping[int, Argument]) -> None:
        """``lasting`` are literals, by identity, that others keep anyway, and that are alike only if they are one."""
        self.arguments = list(arguments)
        self._lasting = lasting
        self._digests: dict[int, bytes] = {}
        self._characters: dict[int, Character] = {}
        self._fillings: dict[int, bytes] = {}

    def same(self, other: KnownLiterals, place: int) -> bool:
        """Whether the literals of two programs at one place have the same bits."""
        a, b = self.arguments[place], other.arguments[place]
        if a is b:
            return True
        if a.array is None or b.array is None or a.shape != b.shape:
            return False
        if id(a) in self._lasting or id(b) in self._lasting:
            return False
        return self._digest(place) == other._digest(place)

    def character(self, place: int) -> Character:
        """What rewriting may go by of a literal's values."""
        found = self._characters.get(place)
        if found is None:
            found = self._characters[place] = _character(self.arguments[place])
        return found

    def filling(self, place: int) -> bytes:
        """The bits of the one value that all elements of a literal have; empty if it has several, or none."""
        found = self._fillings.get(place)
        if found is None:
            array = self.arguments[place].array
            equal = array is not None and array.dtype.kind != "O" and self.character(place).uniform
            found = array.reshape(-1)[:1].tobytes() if array is not None and equal else b""
            self._fillings[place] = found
        return found

    def without_values(self) -> KnownLiterals:
        """The same, without the values of large literals that nobody else keeps."""
        known = KnownLiterals(self.arguments, self._lasting)
        for place, argument in enumerate(self.arguments):
            if is_small(argument) or id(argument) in self._lasting:
                continue
            known._digests[place], known._characters[place] = self._digest(place), self.character(place)
            known._fillings[place] = self.filling(place)
            known.arguments[place] = without_memory(argument)
        return known

    def _digest(self, place: int) -> bytes:
        found = self._digests.get(place)
        if found is None:
            found = self._digests[place] = _digest(self.arguments[place].numpy())
        return found


def contents(arguments: Sequence[Argument], given: Sequence[Argument]) -> list[Hashable]:
    """Literals of a rewritten program by content; large ones that it was ``given`` by their place there."""
    places = {id(a): k for k, a in enumerate(given) if not is_small(a)}
    return [_content(a, places) for a in arguments]


def _content(argument: Argument, places: Mapping[int, int]) -> Hashable:
    place = places.get(id(argument))
    if place is not None:
        return place
    if argument.array is None:
        return id(argument)
    return argument.array.dtype.name, argument.array.shape, _digest(argument.array)


def is_small(argument: Argument) -> bool:
    """Whether the values of a literal are few."""
    return argument.array is not None and argument.array.nbytes <= SMALL_BYTES


def without_memory(argument: Argument) -> Argument:
    """An argument of the same shape that takes no memory, of zeros."""
    if argument.array is None:
        return Argument(argument.shape, None, [without_memory(member) for member in argument.sub])
    return Argument(argument.shape, np.broadcast_to(np.zeros((), argument.array.dtype), argument.array.shape))


def _digest(array: np.ndarray) -> bytes:
    return hashlib.sha1(array.tobytes(), usedforsecurity=False).digest()


def _character(argument: Argument) -> Character:
    array = argument.array
    if array is None:
        return Character()
    finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
    return Character(uniform(array), finite, follows(array), kind_of(argument))
