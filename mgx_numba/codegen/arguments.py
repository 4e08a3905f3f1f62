"""The argument block of a kernel: int64 words that its text accesses by name.

One object produces both sides in one order: the statements that bind words to names in the text, and the values of a
launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.dim import Length, known_in
from ..core.integers import plain_int
from ..dataclass import dataclass
from ..errors import CompileError
from .kernel import KernelSource
from .launch import Callee, Mark, Operand, TensorLayout, TensorMap

MAP_ALIGNMENT = 8
"""Alignment (words) of a tensor map: 64 bytes, required by the driver and TMA."""
Value = Length | Operand | Mark | Callee | TensorMap
PARAMETERS = frozenset({"args", "begin", "end", "task"})
"""Reserved names: a kernel's parameters, and the task of its loop."""


@dataclass
class _Word:
    """One word: its index, the launch's value (None: not known yet), and the expression that reads it. Code addresses
    are called, not read."""

    number: int
    value: Value | None
    read: str = ""


class Arguments:
    """The words of one kernel's argument block, in order of declaration.

    Raises:
        CompileError: a name is declared twice, is reserved, or is used but not declared.
    """

    def __init__(self) -> None:
        self._words: dict[str, _Word] = {}
        self._tables: dict[str, tuple[int, tuple[str, ...]]] = {}

    def pointer(self, name: str, operand: Operand | str, dtype: str) -> str:
        """Declare a typed pointer to an operand (or to the start of the named one); return its name."""
        place = operand if isinstance(operand, Operand) else Operand(operand)
        return self._declare(name, place, f"pointer_{dtype}(args, {{}})")

    def integer(self, name: str, value: Length) -> str:
        """Declare an int64; return its name."""
        return self._declare(name, plain_int(value), "args[{}]")

    def word(self, name: str, value: Value) -> None:
        """Declare a word of another kernel's block, to which `bind` gives no name."""
        self._declare(name, value)

    def step(self, name: str, stride: Length) -> str:
        """Declare a stride, unless it is known to be 0 or 1 and thus part of the text; return its name, or ""."""
        return "" if known_in(stride, 0, 1) else self.integer(name, stride)

    def integers(self, **values: Length) -> None:
        """Declare several int64 by name."""
        for name, value in values.items():
            self.integer(name, value)

    def table(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Length]]) -> str:
        """Declare a table of int64, whose elements `element` reads; return its name. `bind` gives it no names."""
        self._tables[name] = len(self._words), tuple(columns)
        for k, row in enumerate(rows):
            for column, value in zip(columns, row, strict=True):
                self._declare(f"{name}_{column}_{k}", plain_int(value))
        return name

    def element(self, name: str, row: str, column: str) -> str:
        """Return the expression of a `table`'s element in a column; ``row`` is a name or a number."""
        first, columns = self._tables[name]
        return f"args[{first + columns.index(column)} + {len(columns)} * {row}]"

    def fault(self, read: str = "words_at") -> None:
        """Declare the call's fault record ``fault`` and the step number ``step_number`` (see `Mark`); ``read`` is the
        language's function for an address of int64."""
        self._declare("fault", Mark.FAULT, f"{read}(args, {{}})")
        self._declare("step_number", Mark.STEP, "args[{}]")

    def tensor_map(self, name: str, operand: Operand | str, layout: TensorLayout) -> str:
        """Declare the TMA descriptor of an operand (or of the named one); return its name."""
        place = operand if isinstance(operand, Operand) else Operand(operand)
        while len(self._words) % MAP_ALIGNMENT:
            self._declare(f"_{len(self._words)}", 0)
        self._declare(name, TensorMap(place, layout), "tensor_map(args, {})")
        for _ in range(TensorMap.WORDS - 1):
            self._declare(f"_{len(self._words)}", 0)
        return name

    def callee(self, name: str, kernel: KernelSource | None = None) -> str:
        """Declare the code of another kernel, for `call`; return its name. None: `provide` sets the kernel later."""
        return self._declare(name, None if kernel is None else Callee(kernel))

    def provide(self, name: str, kernel: KernelSource) -> None:
        """Set the kernel of a callee that was declared without one."""
        word = self._find(name)
        if word.value is not None:
            raise CompileError(f"the argument {name!r} has its value already")
        word.value = Callee(kernel)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the declared names."""
        return tuple(self._words)

    @property
    def declared(self) -> tuple[tuple[str, str], ...]:
        """Return all that texts depend on: names in order, with the expressions that read their words."""
        return tuple([(name, word.read) for name, word in self._words.items()])

    @property
    def values(self) -> tuple[Value, ...]:
        """Return the words of a launch."""
        missing = [name for name, word in self._words.items() if word.value is None]
        if missing:
            raise CompileError(f"no kernel was provided for the arguments {', '.join(missing)}")
        return tuple(word.value for word in self._words.values() if word.value is not None)

    def bind(self, names: Iterable[str] | None = None) -> list[str]:
        """Return statements that bind the words, or those in ``names``, to their names; code addresses are not
        bound."""
        words = {name: self._find(name) for name in (self._words if names is None else names)}
        return [f"{name} = {word.read.format(word.number)}" for name, word in words.items() if word.read]

    def call(self, name: str, block: str, begin: str | int, end: str | int) -> str:
        """Return the statement that calls a kernel with an argument block for a range of tasks (expressions)."""
        return f"call_kernel(args, {self._code(name)}, {block}, {begin}, {end})"

    def code(self, name: str) -> str:
        """Return the expression of the address of a callee's code, for another kernel that calls it."""
        return f"args[{self._code(name)}]"

    def same_address(self, one: str, other: str) -> str:
        """Return the expression whether two pointers have the same address."""
        return f"args[{self._find(one).number}] == args[{self._find(other).number}]"

    def _code(self, name: str) -> int:
        """Return the index of the word that holds a callee's code."""
        word = self._find(name)
        if word.read:
            raise CompileError(f"the argument {name!r} is not the code of a kernel")
        return word.number

    def _declare(self, name: str, value: Value | None, read: str = "") -> str:
        if name in PARAMETERS or not name.isidentifier():
            raise CompileError(f"an argument cannot be called {name!r}: expected an identifier, no name of all kernels")
        if name in self._words:
            raise CompileError(f"the argument {name!r} is declared twice")
        self._words[name] = _Word(len(self._words), value, read)
        return name

    def _find(self, name: str) -> _Word:
        if name not in self._words:
            raise CompileError(f"no argument {name!r}; declared are {', '.join(self._words) or 'none'}")
        return self._words[name]
