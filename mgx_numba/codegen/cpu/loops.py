"""Building blocks of cluster kernels: argument slots, loop nests over outer dimensions, operand access."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.types import Type
from ...errors import CompileError
from ..launch import Mark, Operand
from ..problems.cluster import Tensor
from . import host
from .machine import machine

__all__ = ["Slots", "dtype_name", "lanes_for"]

TASK_ELEMENTS = 16384
"""Elements of a task where there are enough: some microseconds, against tens of nanoseconds for a claim."""
LEAST_ELEMENTS = 4096
"""Elements that pay for claiming a task however few tasks there are: some hundred nanoseconds of work at least."""
CLAIM_CACHES = 2
"""Second-level caches that the memory of one claim would fill: longer runs of addresses end less evenly."""
AHEAD_BYTES = 4 << 10
"""How far ahead memory is asked for: a page, about what a core reads while it waits for memory once."""
FEWEST_CLAIMS = 32
"""Claims that a launch has at least, where it has the elements: for 8 threads, 4 each. Fewer end unevenly."""
MOST_TASKS = 1 << 30
"""Half of what claims are counted up to: the rest is for claims past the last task."""
LIGHT_NODES = 24
"""Instructions of a body whose values fit the registers for two vectors at a time. No figures kept."""
INDENT = "    "


def dtype_name(type: Type) -> str:
    """The kernel language's name of an element type."""
    return type.numpy.name


def lanes_for(nodes: int) -> int:
    """Lanes of a cluster kernel: two float32 registers for light bodies, one for heavy ones."""
    return host.lanes("float32") * (2 if nodes <= LIGHT_NODES else 1)


class Slots:
    """Argument slots of one kernel: the lines that read them and the values of one launch.

    Raises:
        CompileError: two slots have one name, or that of a parameter of the kernel.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.values: list[int | Operand | Mark] = []
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

    def fault(self) -> None:
        """Slots of the call's fault record, ``fault``, and of the step's number, ``step_number`` (see `Mark`)."""
        self._take("fault")
        self.lines.append(f"fault = words_at(args, {len(self.values)})")
        self.values.append(Mark.FAULT)
        self._take("step_number")
        self.lines.append(f"step_number = args[{len(self.values)}]")
        self.values.append(Mark.STEP)

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


def reads_past(stride: int) -> bool:
    """Whether whole vectors of elements so far apart are taken out of all that lies between them."""
    return stride in (2, 3, 4)


def load_text(pointer: str, index: str, stride: int, step: str, lanes: int, left: str = "", near: bool = False) -> str:
    """Expression that loads ``lanes`` elements along the innermost dimension (the first ``left`` of them, if given).

    ``stride`` is the operand's element stride there and ``step`` the slot that holds it when it is neither 0 nor 1.
    ``near``: there are elements behind those of whole vectors (``vector_loop`` with ``past``), which may be read where
    ``reads_past``.
    """
    if near and reads_past(stride):
        if left:
            return f"load_every_tail({pointer}, {index} * {stride}, {stride}, {left}, 1, {lanes})"
        return f"load_every({pointer}, {index} * {stride}, {stride}, {lanes})"
    if stride == -1 and not left and lanes > 1:
        return f"load_back({pointer}, -({index}), {lanes})"
    if stride == 0:
        return f"load_splat({pointer}, 0, {lanes})"
    if stride == 1:
        return f"load_tail({pointer}, {index}, {left}, 1, {lanes})" if left else f"load({pointer}, {index}, {lanes})"
    if left:
        return f"load_strided_tail({pointer}, {index} * {step}, {step}, {left}, 1, {lanes})"
    return f"load_strided({pointer}, {index} * {step}, {step}, {lanes})"


def store_text(
    pointer: str, index: str, stride: int, step: str, value: str, left: str = "", streamed: bool = False
) -> str:
    """Statement that stores a vector along the innermost dimension; arguments as for ``load_text``.

    ``streamed`` lets whole vectors of contiguous elements go past the caches.
    """
    if stride == 1:
        if left:
            return f"store_tail({pointer}, {index}, {value}, {left})"
        return f"{'store_stream' if streamed else 'store'}({pointer}, {index}, {value})"
    step = step or "0"
    if left:
        return f"store_strided_tail({pointer}, {index} * {step}, {step}, {value}, {left})"
    return f"store_strided({pointer}, {index} * {step}, {step}, {value})"


def vector_loop(
    lanes: int,
    body: Callable[[str], list[str]],
    first: str = "first",
    last: str = "last",
    index: str = "c",
    aligned: str = "",
    past: bool = False,
) -> list[str]:
    """Lines that run ``body`` for ``index`` from ``first`` to ``last`` in steps of ``lanes``.

    ``body("")`` prints a whole vector, ``body("left")`` the last, partial one of ``left`` elements. With ``aligned``, a
    pointer, the first one may be partial too, and whole ones start where its elements can be streamed. With ``past``
    there are elements behind every whole vector, so that the last one may be whole and passed as partial.
    """
    whole = [f"while {index} + {lanes} {'<' if past else '<='} {last}:", *indent([*body(""), f"{index} += {lanes}"], 1)]
    partial = body("left")
    if not aligned:
        return [
            f"{index} = {first}",
            *whole,
            f"if {index} < {last}:",
            *indent([f"left = {last} - {index}", *partial], 1),
        ]
    return [
        f"{index} = {first}",
        f"left = imin({last} - {index}, stream_head({aligned}, {index}))",
        "for part in range(2):",
        *indent(["if left > 0:", *indent([*partial, f"{index} += left"], 1), *whole, f"left = {last} - {index}"], 1),
    ]


def task_elements(total: int) -> int:
    """Elements of one task, of a launch over ``total``: enough to pay for claiming it, and enough tasks to share."""
    return max(LEAST_ELEMENTS, min(TASK_ELEMENTS, total // FEWEST_CLAIMS), total // MOST_TASKS)


def is_streamed(outputs: Sequence[Tensor]) -> bool:
    """Whether what a launch writes will have left the caches before it is read again."""
    return sum(footprint(t) for t in outputs) > machine().last_cache_bytes


def streamable(tensor: Tensor, lanes: int) -> bool:
    """Whether vectors of so many contiguous elements are whole cache lines."""
    return lanes * tensor.type.size % host.CACHE_LINE == 0


def claim(tasks: int, traffic: int) -> int:
    """Tasks to claim at a time, of a launch that moves ``traffic`` bytes of memory.

    Hardware prefetches, and memory serves, long runs of addresses by one thread better than short ones by turns.
    """
    return max(1, min(CLAIM_CACHES * machine().l2_bytes * tasks // max(traffic, 1), tasks // FEWEST_CLAIMS))


def footprint(tensor: Tensor) -> int:
    """Bytes touched: each stored element once, however often a broadcast repeats it."""
    total = tensor.type.size
    for n, s in zip(tensor.lens, tensor.strides):
        total *= n if s or n == 0 else 1
    return total


def indent(lines: Sequence[str], depth: int) -> list[str]:
    """Lines moved right by ``depth`` levels."""
    return [INDENT * depth + line for line in lines]
