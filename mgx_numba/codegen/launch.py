"""Launches: planned kernel calls whose operands are symbolic until the runtime places them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from typing import ClassVar

from ..core.dim import Dim, Length, SharedLength, evaluate, known_less, known_less_equal
from ..dataclass import dataclass
from ..errors import DeviceError, IndexRangeError, ShapeError
from .kernel import KernelSource


@dataclass(frozen=True)
class Operand:
    """Address of a buffer that is not placed yet: ``offset`` bytes into buffer ``name``.

    Contractions use ``x`` (activations), ``w`` (packed weights, or the second activation operand), ``out``,
    ``scratch``, and ``e0``, ``e1``, ... for the epilogue's operands.
    """

    name: str
    offset: SharedLength = 0


@dataclass(frozen=True)
class Callee:
    """Address of the machine code of a kernel that the launched kernel calls."""

    kernel: KernelSource


class Mark(Enum):
    """A slot that the executor fills: ``FAULT``: the address of the call's fault record (three int64 words); ``STEP``:
    the number of the launch's step in its plan, from 1.

    A kernel that meets an index out of range compare-exchanges the first word from 0 to its step number; on success it
    writes the check's number and the index. The first fault is kept.
    """

    FAULT = "fault"
    STEP = "step"


class OpenAxis(str):
    """A text of `axis_text` with a symbolic length."""

    axis: int
    length: Dim

    def at(self, values: Mapping[Dim, int]) -> str:
        """Return the text for values of the symbols."""
        return axis_text(self.axis, evaluate(self.length, values))


def axis_text(axis: int, length: Length) -> str:
    """Return the bounds of an index, as in `Launch.checks`."""
    text = f"axis {axis} of length {length}"
    if not isinstance(length, Dim):
        return text
    found = OpenAxis(text)
    found.axis, found.length = axis, length
    return found


INDEX = "{index}"
"""Stands for the recorded number in a text of `Launch.checks` that is a whole message."""


def fault_error(place: str, who: str, what: str, index: int) -> ShapeError:
    """Return the error for a fault record.

    Args:
        place: prefix of errors where the step lies.
        who: names the operator.
        what: the check's text, see `Launch.checks`.
        index: the recorded number.
    """
    if INDEX in what:
        return ShapeError(what.replace(INDEX, str(index)))
    return IndexRangeError(f"{place}{who}: index {index} is out of range for {what}")


@dataclass(frozen=True)
class Windows:
    """Filter positions of an im2col tensor map over the last two spatial axes, width first.

    Attributes:
        lower: first position of the first tap: the negated leading padding.
        upper: its last position relative to the image's last pixel.
        steps: stride in pixels.
    """

    lower: tuple[int, int]
    upper: tuple[int, int]
    steps: tuple[int, int]

    def positions(self, width: int, height: int) -> int:
        """Return the filter positions per image. A TMA load that starts beyond them aborts the launch."""
        reach = zip((width, height), self.lower, self.upper, self.steps)
        counts = [(n - 1 + upper - lower) // step + 1 for n, lower, upper, step in reach]
        return counts[0] * counts[1]


@dataclass(frozen=True)
class TensorLayout:
    """A four-dimensional tensor for TMA, contiguous axis first.

    Boxes are stored in shared memory as 128-byte rows with 128-byte swizzle: 16-byte piece p of row r is at p ^ (r %
    8). Elements outside the tensor are 0; the rest of a shorter row is unchanged and not counted as loaded. Rows that
    exceed the tensor load slowly: 100352 rows of 112 bytes with their other operand take 9.7 us on an H200, of 128
    bytes 6.7.

    Attributes:
        dtype: element type.
        lens, strides: per axis, in elements; the first stride is 1, others are multiples of 16 bytes.
        box: elements of a box per axis; the first is a multiple of 16 bytes, at most 128.
        windows: None for boxes of neighbours; otherwise axes are channels, width, height, image, and a box holds one
            tap of ``box[1]`` successive filter positions.
    """

    dtype: str
    lens: tuple[SharedLength, SharedLength, SharedLength, SharedLength]
    strides: tuple[SharedLength, SharedLength, SharedLength, SharedLength]
    box: tuple[int, int, int, int]
    windows: Windows | None = None


@dataclass(frozen=True)
class TensorMap:
    """TMA descriptor of an operand: `WORDS` slots, the first one symbolic, the others 0."""

    WORDS: ClassVar[int] = 16  # 128 bytes: CUDA driver API, `CUtensorMap`

    operand: Operand
    layout: TensorLayout


@dataclass(frozen=True)
class TaskRange:
    """Tasks 0 to ``tasks``, which threads claim ``grain`` at a time: ``kernel(args, begin, end)``."""

    tasks: SharedLength
    grain: SharedLength = 1

    @property
    def empty(self) -> bool:
        """Return whether there is provably nothing to do."""
        return known_less_equal(self.tasks, 0)


DYNAMIC_ALIGNMENT = 1024
"""Alignment (bytes) of dynamic shared memory: eight 128-byte rows, after which TMA's swizzle repeats."""


MOST_PLANES = 65535
"""Most blocks of a grid along axes 1 and 2: CUDA C++ programming guide, "Technical specifications per compute
capability"."""


@dataclass(frozen=True)
class Grid:
    """Thread blocks along three axes: ``kernel(args)`` in every thread.

    ``shared_bytes`` is the dynamic shared memory per block, aligned to `DYNAMIC_ALIGNMENT`. Blocks that wait for each
    other are ``cooperative``: all are resident, or the launch fails.
    """

    blocks: tuple[SharedLength, SharedLength, SharedLength]
    threads: tuple[int, int, int]
    shared_bytes: int = 0
    cooperative: bool = False

    @property
    def empty(self) -> bool:
        """Return whether there is provably nothing to do."""
        return any(known_less_equal(n, 0) for n in self.blocks)

    def check(self) -> None:
        """Check the limits of axes 1 and 2.

        Raises:
            DeviceError: one provably exceeds `MOST_PLANES`.
        """
        if any(known_less(MOST_PLANES, n) for n in self.blocks[1:]):
            raise DeviceError(f"a launch of {self.blocks} blocks; axes 1 and 2 can have {MOST_PLANES}")


@dataclass(frozen=True)
class OneCall:
    """A library call; the library parallelises it."""

    @property
    def empty(self) -> bool:
        """Return False: calls are never empty."""
        return False


Geometry = TaskRange | Grid | OneCall


@dataclass(frozen=True)
class Launch:
    """One run of a kernel over all of ``geometry``.

    ``args`` are the kernel's int64 slots; a `Callee` among them names another kernel to load. ``flops`` and ``bytes``
    are the launch's total work and least memory traffic. A launch may read results of earlier launches of the same
    list; its own tasks are independent. ``replaceable`` lists operands whose memory ``out`` may reuse if the layouts
    are equal: each element is read, once, before the result's is written. ``checks`` gives the bounds of each index
    check, ``axis 0 of length 5``, or the message of another check, with `INDEX` for the number that it records.
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
        """Return whether the launch has no task at any length."""
        return self.geometry.empty

    @cached_property
    def kernels(self) -> tuple[KernelSource, ...]:
        """Return the launched kernel and the kernels that it calls."""
        return (self.kernel, *(arg.kernel for arg in self.args if isinstance(arg, Callee)))

    @cached_property
    def unplaced(self) -> tuple[tuple[int, SharedLength | Operand | Callee | Mark | TensorMap], ...]:
        """Return the slots that do not hold plain integers, with their contents."""
        return tuple([(slot, arg) for slot, arg in enumerate(self.args) if type(arg) is not int])

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Return the names of the operands whose address it takes."""
        operands = [arg.operand if isinstance(arg, TensorMap) else arg for _, arg in self.unplaced]
        return tuple(dict.fromkeys(arg.name for arg in operands if isinstance(arg, Operand)))


@dataclass(frozen=True)
class Solution:
    """The computation of a problem.

    Attributes:
        launches: in order.
        scratch: scratch bytes that they share, 64-byte aligned.
        lane_permutation: nonzero if the right operand's columns must be permuted: columns per thread of four
            (`gpu.contraction.gpu_contraction.permuted_lanes`).
        gated: nonzero if the halves of the right operand's columns must be interleaved: columns per run
            (`gpu.contraction.gpu_contraction.interleaved`), before ``lane_permutation``.
        halves: whether the right operand must be split by `gpu.contraction.right_columns.in_halves`.
        channels: nonzero if the input channels of a convolution's constant weights must be padded to so many.
    """

    launches: tuple[Launch, ...]
    scratch: SharedLength = 0
    lane_permutation: int = 0
    gated: int = 0
    halves: bool = False
    channels: int = 0

    @property
    def kernels(self) -> tuple[KernelSource, ...]:
        """Return all kernels of the launches, each once."""
        return tuple(dict.fromkeys(kernel for launch in self.launches for kernel in launch.kernels))
