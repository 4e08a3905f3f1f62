"""One planned call of a kernel, with symbolic operands that the target replaces by addresses."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from typing import ClassVar

from ..core.dim import Dim, Length, SharedLength, evaluate, known_less, known_less_equal
from ..dataclass import dataclass
from ..errors import DeviceError
from .kernel import KernelSource

__all__ = [
    "DYNAMIC_ALIGNMENT", "MOST_PLANES", "Callee", "Geometry", "Grid", "Launch", "Mark", "OneCall",
    "OpenAxis", "Operand", "Solution", "TaskRange", "TensorLayout", "TensorMap", "Windows", "axis_text",
]  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """Address of a buffer that is not yet placed: ``offset`` bytes into the buffer called ``name``.

    Contractions use the names ``x`` (activations), ``w`` (packed weights, or the second activation operand), ``out``,
    ``scratch``, and ``e0``, ``e1``, ... for the operands of the epilogue.
    """

    name: str
    offset: SharedLength = 0


@dataclass(frozen=True)
class Callee:
    """Address of the machine code of another kernel, which the launched one calls."""

    kernel: KernelSource


class Mark(Enum):
    """What the executor puts into a slot: ``FAULT`` the address of the call's fault record, three words of int64;
    ``STEP`` the number of the launch's step in its plan, from 1.

    A kernel that meets an index out of range exchanges the first word from 0 to its step's number, and if it was 0
    writes the number of the check and the index into the others. The first one is kept, whatever comes later.
    """

    FAULT = "fault"
    STEP = "step"


class OpenAxis(str):
    """A text of `axis_text` whose length is symbolic."""

    axis: int
    length: Dim

    def at(self, values: Mapping[Dim, int]) -> str:
        """Return the text for values of the symbols."""
        return axis_text(self.axis, evaluate(self.length, values))


def axis_text(axis: int, length: Length) -> str:
    """Return what an index has to fit, as `Launch.checks` say it."""
    text = f"axis {axis} of length {length}"
    if not isinstance(length, Dim):
        return text
    found = OpenAxis(text)
    found.axis, found.length = axis, length
    return found


@dataclass(frozen=True)
class Windows:
    """How an image's pixels are walked where a filter lies on them, by the last two spatial axes, width first.

    Attributes:
        lower: first position of the filter's first tap, the padding before the image negated.
        upper: its last position, counted from the image's last pixel.
        steps: pixels from one position to the next.
    """

    lower: tuple[int, int]
    upper: tuple[int, int]
    steps: tuple[int, int]

    def positions(self, width: int, height: int) -> int:
        """Return the number of positions in an image: a copy that begins at none ends the launch with an error."""
        reach = zip((width, height), self.lower, self.upper, self.steps)
        counts = [(n - 1 + upper - lower) // step + 1 for n, lower, upper, step in reach]
        return counts[0] * counts[1]


@dataclass(frozen=True)
class TensorLayout:
    """A tensor of four dimensions as a GPU's copy engine takes it, the contiguous dimension first.

    Boxes lie in a block's memory in rows of 128 bytes, whose pieces of 16 bytes are exchanged: piece p of row r is at
    p ^ (r % 8). What lies outside of the tensor is 0; what a shorter row leaves of its 128 bytes is as it was, and does
    not count as brought. Rows that reach beyond the tensor come slowly: 100352 rows of 112 bytes and what they are
    multiplied with in 9.7 us on an H200, of 128 in 6.7.

    Attributes:
        dtype: of the elements.
        lens, strides: of the dimensions, in elements; the first stride is 1. Those of others are whole 16 bytes.
        box: elements of a box along each dimension; the first is whole 16 bytes, 128 at most.
        windows: None for boxes of neighbours; otherwise the dimensions are channels, width, height and image, a box
            has ``box[1]`` positions of a filter, one after the other, and of each one tap.
    """

    dtype: str
    lens: tuple[SharedLength, SharedLength, SharedLength, SharedLength]
    strides: tuple[SharedLength, SharedLength, SharedLength, SharedLength]
    box: tuple[int, int, int, int]
    windows: Windows | None = None


@dataclass(frozen=True)
class TensorMap:
    """What describes an operand to a GPU's copy engine: `WORDS` slots, of which the others are 0."""

    WORDS: ClassVar[int] = 16  # 128 bytes: CUDA driver API, `CUtensorMap`

    operand: Operand
    layout: TensorLayout


@dataclass(frozen=True)
class TaskRange:
    """The tasks 0 to ``tasks``, which threads claim ``grain`` at a time: ``kernel(args, begin, end)``."""

    tasks: SharedLength
    grain: SharedLength = 1

    @property
    def empty(self) -> bool:
        """Whether it is known that there is nothing to do."""
        return known_less_equal(self.tasks, 0)


DYNAMIC_ALIGNMENT = 1024
"""Bytes that the memory which a launch gives each block begins at a multiple of: eight rows of 128 bytes, after which
the copy engine's swizzling repeats."""


MOST_PLANES = 65535
"""Blocks of a grid along its second and third axis: CUDA C++ programming guide, technical specifications."""


@dataclass(frozen=True)
class Grid:
    """Blocks of threads that share memory, along three axes each: ``kernel(args)`` in every thread.

    ``shared_bytes`` is the memory of each block besides what the kernel's text declares; it begins at a multiple of
    `DYNAMIC_ALIGNMENT` bytes. Blocks that wait for each other are ``cooperative``: all of them are on the device at the
    same time, or the launch fails.
    """

    blocks: tuple[SharedLength, SharedLength, SharedLength]
    threads: tuple[int, int, int]
    shared_bytes: int = 0
    cooperative: bool = False

    @property
    def empty(self) -> bool:
        """Whether it is known that there is nothing to do."""
        return any(known_less_equal(n, 0) for n in self.blocks)

    def check(self) -> None:
        """Raises `DeviceError` if its second or third axis is known to have more than `MOST_PLANES` blocks."""
        if any(known_less(MOST_PLANES, n) for n in self.blocks[1:]):
            raise DeviceError(f"a launch of {self.blocks} blocks; axes 1 and 2 can have {MOST_PLANES}")


@dataclass(frozen=True)
class OneCall:
    """A library's call: how its work is shared is the library's."""

    @property
    def empty(self) -> bool:
        """Never: nobody asks a library for nothing."""
        return False


Geometry = TaskRange | Grid | OneCall


@dataclass(frozen=True)
class Launch:
    """One run of a kernel over all of ``geometry``.

    ``args`` are the kernel's int64 slots; a `Callee` among them names a kernel that has to be loaded too. ``flops``
    and ``bytes`` are what the whole launch computes and the least it must move. A launch may read what earlier
    launches of the same list wrote; its own tasks are independent. ``replaceable`` names operands that ``out`` may take
    the place of: where these lie like the result, each element is read before the result's there is written, the only
    time. ``checks`` says for each check of the kernel what an index has to fit, ``axis 0 of length 5``.
    """

    kernel: KernelSource
    args: tuple[SharedLength | Operand | Callee | Mark | TensorMap, ...]
    geometry: Geometry
    flops: SharedLength = 0
    bytes: SharedLength = 0
    replaceable: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether the launch has no task at any length."""
        return self.geometry.empty

    @cached_property
    def kernels(self) -> tuple[KernelSource, ...]:
        """The launched kernel and those that it calls."""
        return (self.kernel, *(arg.kernel for arg in self.args if isinstance(arg, Callee)))

    @cached_property
    def unplaced(self) -> tuple[tuple[int, SharedLength | Operand | Callee | Mark | TensorMap], ...]:
        """The slots that hold no plain integer, with what they hold."""
        return tuple([(slot, arg) for slot, arg in enumerate(self.args) if type(arg) is not int])

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of the operands that it has an address of."""
        operands = [arg.operand if isinstance(arg, TensorMap) else arg for _, arg in self.unplaced]
        return tuple(dict.fromkeys(arg.name for arg in operands if isinstance(arg, Operand)))


@dataclass(frozen=True)
class Solution:
    """How a problem is computed.

    Attributes:
        launches: in order.
        scratch: bytes that they share, 64-byte aligned.
        turns: 0, or how many columns of a contraction's right operand turns give to each of four threads
            (`gpu.contraction.placed.in_turns`): it is wanted in that order.
        gated: 0, or after how many columns of the right operand's first half as many of its second half are wanted
            (`gpu.contraction.placed.interleaved`), then both in turns.
        halves: whether the right operand is wanted as `gpu.contraction.right_columns.in_halves` makes it.
    """

    launches: tuple[Launch, ...]
    scratch: SharedLength = 0
    turns: int = 0
    gated: int = 0
    halves: bool = False

    @property
    def kernels(self) -> tuple[KernelSource, ...]:
        """All kernels that the launches need, each once."""
        return tuple(dict.fromkeys(kernel for launch in self.launches for kernel in launch.kernels))
