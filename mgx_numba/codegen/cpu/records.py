"""Records: blocks of int64 words with named fields that kernels and the functions they call pass to each other.

A `Record` declares a layout. `RecordText` prints statements that access a record; intrinsics query the layout for word
numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from enum import Enum

from ...dataclass import dataclass
from ...errors import CompileError


class Holds(Enum):
    """The content of a word: an int64, the address of elements, or the address of other words."""

    INTEGER = "integer"
    ELEMENTS = "elements"
    WORDS = "words"


@dataclass(frozen=True)
class Word:
    """A field: its name and meaning, its content, and its number of adjacent words."""

    name: str
    meaning: str = ""
    holds: Holds = Holds.INTEGER
    count: int = 1


def pointer(name: str, meaning: str = "", count: int = 1) -> Word:
    """Return a field that holds the address of elements."""
    return Word(name, meaning, Holds.ELEMENTS, count)


@dataclass(frozen=True)
class Record:
    """A layout: fields in memory order.

    Raises:
        CompileError: two fields have one name, or a field has no words; also when asked for a missing field.
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
        """Return the words of the whole record."""
        return sum(word.count for word in self.words)

    def word(self, name: str) -> Word:
        """Return the field called ``name``."""
        found = self._by_name.get(name)
        if found is None:
            raise CompileError(f"the record {self.name!r} has no field {name!r}; it has {', '.join(self._numbers)}")
        return found

    def number(self, name: str, index: int = 0) -> int:
        """Return the number of a field's first word, or of its word ``index``."""
        if not 0 <= index < self.word(name).count:
            raise CompileError(f"{name!r} of the record {self.name!r} has no word {index}")
        return self._numbers[name] + index

    def followed_by(self, name: str, words: Iterable[Word]) -> Record:
        """Return a layout called ``name`` that begins with this layout."""
        return Record(name, (*self.words, *words))


@dataclass(frozen=True)
class RecordText:
    """Statements and expressions that access a record, whose words have a variable name in the kernel.

    ``first`` is the number of its first word, where records are adjacent. ``first``, and the ``index`` into a field of
    several words, are numbers or expressions.
    """

    record: Record
    name: str
    first: int | str = 0

    def local(self) -> str:
        """Return the statement that allocates the record on the stack, with undefined fields."""
        return f"{self.name} = local_int64({self.record.size})"

    def place(self, field: str, index: int | str = 0) -> str:
        """Return the expression of the number of a word."""
        number = self.record.number(field, index if isinstance(index, int) else 0)
        number += self.first if isinstance(self.first, int) else 0
        expressions = [term for term in (self.first, str(number) if number else "", index) if isinstance(term, str)]
        return " + ".join(filter(None, expressions)) or "0"

    def get(self, field: str, index: int | str = 0) -> str:
        """Return the expression of an integer field."""
        self._expect(field, Holds.INTEGER)
        return self.address(field, index)

    def words(self, field: str) -> str:
        """Return the expression of the words that a field points to."""
        self._expect(field, Holds.WORDS)
        return f"words_at({self.name}, {self.place(field)})"

    def elements(self, field: str, dtype: str, index: int | str = 0) -> str:
        """Return the expression of a field's pointer to elements of ``dtype``."""
        self._expect(field, Holds.ELEMENTS)
        return f"local_pointer_{dtype}({self.name}, {self.place(field, index)})"

    def address(self, field: str, index: int | str = 0) -> str:
        """Return the expression of a field's raw word, such as a pointer as an integer."""
        return f"{self.name}[{self.place(field, index)}]"

    def put(self, field: str, value: int | str, index: int | str = 0) -> str:
        """Return the statement that sets a field, a pointer field to a pointer."""
        if self.record.word(field).holds is Holds.INTEGER:
            return self.put_address(field, value, index)
        return self.put_pointer(field, str(value), index)

    def fill(self, **values: int | str) -> list[str]:
        """Return statements that set several fields."""
        return [self.put(field, value) for field, value in values.items()]

    def put_address(self, field: str, value: int | str, index: int | str = 0) -> str:
        """Return the statement that sets a pointer field to an integer from `address`."""
        return f"{self.name}[{self.place(field, index)}] = {value}"

    def put_pointer(self, field: str, value: str, index: int | str = 0) -> str:
        """Return the statement that sets a field to the address of a pointer."""
        return f"put_pointer({self.name}, {self.place(field, index)}, {value})"

    def _expect(self, field: str, holds: Holds) -> None:
        found = self.record.word(field).holds
        if found is not holds:
            raise CompileError(f"{field!r} of the record {self.record.name!r} holds {found.value}, not {holds.value}")
