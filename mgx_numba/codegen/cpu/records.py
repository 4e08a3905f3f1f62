"""Blocks of int64 words that kernels and the functions which they call pass to each other, with named fields.

A `Record` declares a layout. `RecordText` prints statements that work on one; intrinsics ask the layout for numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from enum import Enum

from ...dataclass import dataclass
from ...errors import CompileError

__all__ = ["Holds", "Record", "RecordText", "Word", "pointer"]


class Holds(Enum):
    """What a word is: an int64, the address of elements, or the address of other words."""

    INTEGER = "integer"
    ELEMENTS = "elements"
    WORDS = "words"


@dataclass(frozen=True)
class Word:
    """A field: its name and meaning, what it holds, and how many words of this kind lie side by side."""

    name: str
    meaning: str = ""
    holds: Holds = Holds.INTEGER
    count: int = 1


def pointer(name: str, meaning: str = "", count: int = 1) -> Word:
    """A field that holds the address of elements."""
    return Word(name, meaning, Holds.ELEMENTS, count)


@dataclass(frozen=True)
class Record:
    """A layout: fields in the order in which they lie.

    Raises:
        CompileError: two fields have one name, or a field has no words; when asked for a field that there is not.
    """

    name: str
    words: tuple[Word, ...]

    def __post_init__(self) -> None:
        if len(self._numbers) < len(self.words):
            names = [word.name for word in self.words]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise CompileError(f"the record {self.name!r} has several fields called {', '.join(twice)}")
        for word in self.words:
            if word.count < 1 or not word.name.isidentifier():
                raise CompileError(f"the record {self.name!r} cannot have {word.count} words called {word.name!r}")

    @functools.cached_property
    def _by_name(self) -> dict[str, Word]:
        return {word.name: word for word in self.words}

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        numbers, size = {}, 0
        for word in self.words:
            numbers[word.name] = size
            size += word.count
        return numbers

    @property
    def size(self) -> int:
        """Words of the whole record."""
        return sum(word.count for word in self.words)

    def word(self, name: str) -> Word:
        """The field of this name."""
        found = self._by_name.get(name)
        if found is None:
            raise CompileError(f"the record {self.name!r} has no field {name!r}; it has {', '.join(self._numbers)}")
        return found

    def number(self, name: str, index: int = 0) -> int:
        """Number of a field's first word, or of the word ``index`` of it."""
        if not 0 <= index < self.word(name).count:
            raise CompileError(f"{name!r} of the record {self.name!r} has no word {index}")
        return self._numbers[name] + index

    def followed_by(self, name: str, words: Iterable[Word]) -> Record:
        """A layout called ``name`` that begins with this one."""
        return Record(name, (*self.words, *words))


@dataclass(frozen=True)
class RecordText:
    """Statements and expressions about a record, whose words a kernel knows by a name.

    ``first`` is the number of its first word, where records lie behind each other. It and the ``index`` into a field of
    several words are numbers or expressions.
    """

    record: Record
    name: str
    first: int | str = 0

    def local(self) -> str:
        """Statement that makes room for the record on the stack; its fields are not defined then."""
        return f"{self.name} = local_int64({self.record.size})"

    def place(self, field: str, index: int | str = 0) -> str:
        """Expression of the number of a word."""
        number = self.record.number(field, index if isinstance(index, int) else 0)
        number += self.first if isinstance(self.first, int) else 0
        expressions = [term for term in (self.first, str(number) if number else "", index) if isinstance(term, str)]
        return " + ".join(filter(None, expressions)) or "0"

    def get(self, field: str, index: int | str = 0) -> str:
        """Expression of an integer."""
        self._expect(field, Holds.INTEGER)
        return self.address(field, index)

    def words(self, field: str) -> str:
        """Expression of the words that a field points to."""
        self._expect(field, Holds.WORDS)
        return f"words_at({self.name}, {self.place(field)})"

    def elements(self, field: str, dtype: str, index: int | str = 0) -> str:
        """Expression of a pointer to elements of a dtype."""
        self._expect(field, Holds.ELEMENTS)
        return f"local_pointer_{dtype}({self.name}, {self.place(field, index)})"

    def address(self, field: str, index: int | str = 0) -> str:
        """Expression of what a pointer holds, as an integer."""
        return f"{self.name}[{self.place(field, index)}]"

    def put(self, field: str, value: int | str, index: int | str = 0) -> str:
        """Statement that sets a field, a pointer to a pointer."""
        if self.record.word(field).holds is Holds.INTEGER:
            return self.put_address(field, value, index)
        return self.put_pointer(field, str(value), index)

    def fill(self, **values: int | str) -> list[str]:
        """Statements that set several fields."""
        return [self.put(field, value) for field, value in values.items()]

    def put_address(self, field: str, value: int | str, index: int | str = 0) -> str:
        """Statement that sets a pointer to what `address` gave."""
        return f"{self.name}[{self.place(field, index)}] = {value}"

    def put_pointer(self, field: str, value: str, index: int | str = 0) -> str:
        """Statement that sets an integer to the address of a pointer."""
        return f"put_pointer({self.name}, {self.place(field, index)}, {value})"

    def _expect(self, field: str, holds: Holds) -> None:
        found = self.record.word(field).holds
        if found is not holds:
            raise CompileError(f"{field!r} of the record {self.record.name!r} holds {found.value}, not {holds.value}")
