"""The argument block of a kernel: words of int64 that its text knows by name.

One object makes both sides in one order: the statements with which the kernel gives its words names, and the values of
one launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..core.dim import Length, known_in
from ..core.integers import plain_int
from ..dataclass import dataclass
from ..errors import CompileError
from .kernel import KernelSource
from .launch import Callee, Launch, Mark, Operand, TensorLayout, TensorMap

__all__ = ["Arguments"]

MAP_ALIGNMENT = 8
"""Words that a tensor map begins at a multiple of: 64 bytes, as the driver and the copy engine want it."""
Value = Length | Operand | Mark | Callee | TensorMap
PARAMETERS = frozenset({"args", "begin", "end", "task"})
"""Names that mean something else in every kernel: its parameters, and the task that its loop is at."""


@dataclass
class _Word:
    """One word: its number, the launch's value (None: not known yet), and the expression that reads it.

    Code is not read, only called.
    """

    number: int
    value: Value | None
    read: str = ""


class Arguments:
    """The words of one kernel's block, in the order in which they are declared.

    Raises:
        CompileError: a name is declared twice, means something else in every kernel, or is used but not declared.
    """

    def __init__(self) -> None:
        self._words: dict[str, _Word] = {}
        self._blocks: dict[str, tuple[int, Launch]] = {}
        self._tables: dict[str, tuple[int, tuple[str, ...]]] = {}

    def pointer(self, name: str, operand: Operand | str, dtype: str) -> str:
        """A typed pointer to an operand, or to the start of the one so called; its name."""
        place = operand if isinstance(operand, Operand) else Operand(operand)
        return self._declare(name, place, f"pointer_{dtype}(args, {{}})")

    def integer(self, name: str, value: Length) -> str:
        """An int64; its name."""
        return self._declare(name, plain_int(value), "args[{}]")

    def step(self, name: str, stride: Length) -> str:
        """An int64 unless it is known to be 0 or 1, as which texts write it; its name, or nothing."""
        return "" if known_in(stride, 0, 1) else self.integer(name, stride)

    def integers(self, **values: Length) -> None:
        """Several int64, by name."""
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
        """The call's fault record, ``fault``, and the step's number, ``step_number`` (see `Mark`); ``read`` is the word
        of the language for an address of int64."""
        self._declare("fault", Mark.FAULT, f"{read}(args, {{}})")
        self._declare("step_number", Mark.STEP, "args[{}]")

    def tensor_map(self, name: str, operand: Operand | str, layout: TensorLayout) -> str:
        """What describes an operand, or the one so called, to a GPU's copy engine; its name."""
        place = operand if isinstance(operand, Operand) else Operand(operand)
        while len(self._words) % MAP_ALIGNMENT:
            self._declare(f"_{len(self._words)}", 0)
        self._declare(name, TensorMap(place, layout), "tensor_map(args, {})")
        for _ in range(TensorMap.WORDS - 1):
            self._declare(f"_{len(self._words)}", 0)
        return name

    def block(self, name: str, launch: Launch, names: Mapping[str, str]) -> str:
        """The words of another kernel's launch, whose operands are called as ``names`` say, for `own_block`; the name.

        They have none of their own.
        """
        self._blocks[name] = len(self._words), launch
        for k, word in enumerate(launch.args):
            if isinstance(word, Operand):
                word = Operand(names.get(word.name, word.name), word.offset)
            self._declare(f"{name}_{k}", word)
        return name

    def own_block(self, name: str) -> list[str]:
        """Statements: the words of a `block`, under its name in memory that may be written."""
        first, launch = self._blocks[name]
        words = len(launch.args)
        return [f"{name} = local_int64({words})", f"for i in range({words}):", f"    {name}[i] = args[{first} + i]"]

    def place(self, name: str, operand: str, pointer: str) -> str:
        """Statement: the operand that the launch of an `own_block` called so, of which it has one address, is at
        ``pointer``, an expression."""
        _, launch = self._blocks[name]
        (number,) = (k for k, word in launch.unplaced if isinstance(word, Operand) and word.name == operand)
        return f"put_pointer({name}, {number}, {pointer})"

    def callee(self, name: str, kernel: KernelSource | None = None) -> str:
        """The code of another kernel, for `call`; its name. None: `provide` will say which kernel."""
        return self._declare(name, None if kernel is None else Callee(kernel))

    def provide(self, name: str, kernel: KernelSource) -> None:
        """Say which kernel a callee is that was declared without."""
        word = self._find(name)
        if word.value is not None:
            raise CompileError(f"the argument {name!r} has its value already")
        word.value = Callee(kernel)

    @property
    def names(self) -> tuple[str, ...]:
        """What is declared so far."""
        return tuple(self._words)

    @property
    def declared(self) -> tuple[tuple[str, str], ...]:
        """All that texts depend on: in order, the names, each with the expression that reads its word."""
        return tuple([(name, word.read) for name, word in self._words.items()])

    @property
    def values(self) -> tuple[Value, ...]:
        """The words of one launch."""
        missing = [name for name, word in self._words.items() if word.value is None]
        if missing:
            raise CompileError(f"no kernel was provided for the arguments {', '.join(missing)}")
        return tuple(word.value for word in self._words.values() if word.value is not None)

    def bind(self, names: Iterable[str] | None = None) -> list[str]:
        """Statements that give the words, or those of these names, their names; code has none in the text."""
        words = {name: self._find(name) for name in (self._words if names is None else names)}
        return [f"{name} = {word.read.format(word.number)}" for name, word in words.items() if word.read]

    def call(self, name: str, block: str, begin: str | int, end: str | int) -> str:
        """Statement that calls a kernel with an argument block for a range of tasks, all of them expressions."""
        return f"call_kernel(args, {self._code(name)}, {block}, {begin}, {end})"

    def code(self, name: str) -> str:
        """Expression of the address of a callee's code, for another kernel that calls it."""
        return f"args[{self._code(name)}]"

    def _code(self, name: str) -> int:
        """Number of the word that holds a callee's code."""
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
