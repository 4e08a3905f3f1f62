"""Building blocks of cluster kernels: argument slots, loop nests over outer dimensions, operand access."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import CompileError
from ...graph.types import Type
from ..cpu import host
from ..launch import Operand

__all__ = ["Slots", "Tensor", "dtype_name", "lanes_for"]

TASK_ELEMENTS = 16384
INDENT = "    "


@dataclass(frozen=True)
class Tensor:
    """One operand of a cluster: element type, lengths and element strides in the cluster's own dimensions."""

    type: Type
    lens: tuple[int, ...]
    strides: tuple[int, ...]


def dtype_name(type: Type) -> str:
    """The kernel language's name of an element type."""
    return type.numpy.name


def lanes_for(nodes: int) -> int:
    """Lanes of a cluster kernel: two float32 registers for light bodies, one for heavy ones."""
    return host.lanes("float32") * (2 if nodes <= 24 else 1)


class Slots:
    """Argument slots of one kernel: the lines that read them and the values of one launch.

    Raises:
        CompileError: two slots have one name, or that of a parameter of the kernel.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.values: list[int | Operand] = []
        self._names = {"args", "begin", "end", "task"}

    def pointer(self, name: str, operand: str, dtype: str) -> None:
        """Slot holding a typed pointer."""
        self._take(name)
        self.lines.append(f"{name} = pointer_{dtype}(args, {len(self.values)})")
        self.values.append(Operand(operand))

    def integer(self, name: str, value: int) -> str:
        """Slot holding an int64."""
        self._take(name)
        self.lines.append(f"{name} = args[{len(self.values)}]")
        self.values.append(int(value))
        return name

    def _take(self, name: str) -> None:
        if name in self._names:
            raise CompileError(f"the slot name {name!r} is taken")
        self._names.add(name)


class Odometer:
    """Indices of the outer dimensions, advanced row by row, and the operands' offsets that follow from them."""

    def __init__(self, slots: Slots, lens: Sequence[int], strides: Sequence[Sequence[int]], prefix: str = "") -> None:
        self.rank = len(lens)
        self.prefix = prefix
        self.lens = [slots.integer(f"{prefix}n{d}", n) for d, n in enumerate(lens)]
        self.strides = [
            [slots.integer(f"{prefix}s{k}_{d}", s) if s else "" for d, s in enumerate(operand)]
            for k, operand in enumerate(strides)
        ]

    def signature(self) -> str:
        """What the text depends on: which strides are zero."""
        return "".join("x" if s else "0" for operand in self.strides for s in operand)

    def start(self, row: str) -> list[str]:
        """Lines that set the indices for a flat row number."""
        if not self.rank:
            return []
        lines = [f"{self.prefix}rest = {row}"]
        for d in range(self.rank - 1, 0, -1):
            lines += [
                f"{self.prefix}i{d} = imod({self.prefix}rest, {self.lens[d]})",
                f"{self.prefix}rest = idiv({self.prefix}rest, {self.lens[d]})",
            ]
        return [*lines, f"{self.prefix}i0 = {self.prefix}rest"]

    def zero(self) -> list[str]:
        """Lines that set all indices to zero."""
        return [f"{self.prefix}i{d} = 0" for d in range(self.rank)]

    def step(self) -> list[str]:
        """Lines that move to the next row."""
        lines: list[str] = []
        pad = ""
        for d in range(self.rank - 1, -1, -1):
            lines.append(f"{pad}{self.prefix}i{d} += 1")
            if d:
                lines.append(f"{pad}if {self.prefix}i{d} == {self.lens[d]}:")
                pad += INDENT
                lines.append(f"{pad}{self.prefix}i{d} = 0")
        return lines

    def offset(self, operand: int) -> str:
        """Expression of an operand's element offset at the current indices."""
        terms = [f"{self.prefix}i{d} * {s}" for d, s in enumerate(self.strides[operand]) if s]
        return " + ".join(terms) or "0"


def load_text(pointer: str, index: str, stride: int, step: str, lanes: int, left: str = "") -> str:
    """Expression that loads ``lanes`` elements along the innermost dimension (the first ``left`` of them, if given).

    ``stride`` is the operand's element stride there and ``step`` the slot that holds it when it is neither 0 nor 1.
    """
    if stride == 0:
        return f"load_splat({pointer}, 0, {lanes})"
    if stride == 1:
        return f"load_tail({pointer}, {index}, {left}, 1, {lanes})" if left else f"load({pointer}, {index}, {lanes})"
    if left:
        return f"load_strided_tail({pointer}, {index} * {step}, {step}, {left}, 1, {lanes})"
    return f"load_strided({pointer}, {index} * {step}, {step}, {lanes})"


def store_text(pointer: str, index: str, stride: int, step: str, value: str, left: str = "") -> str:
    """Statement that stores a vector along the innermost dimension; arguments as for ``load_text``."""
    if stride == 1:
        return f"store_tail({pointer}, {index}, {value}, {left})" if left else f"store({pointer}, {index}, {value})"
    step = step or "0"
    if left:
        return f"store_strided_tail({pointer}, {index} * {step}, {step}, {value}, {left})"
    return f"store_strided({pointer}, {index} * {step}, {step}, {value})"


def footprint(tensor: Tensor) -> int:
    """Bytes touched: each stored element once, however often a broadcast repeats it."""
    total = tensor.type.size
    for n, s in zip(tensor.lens, tensor.strides):
        total *= n if s or n == 0 else 1
    return total


def indent(lines: Sequence[str], depth: int) -> list[str]:
    """Lines moved right by ``depth`` levels."""
    return [INDENT * depth + line for line in lines]
