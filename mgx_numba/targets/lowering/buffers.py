"""Buffers and views of the lowered form, and memory colouring, which lets buffers with disjoint lifetimes share the
arena's bytes."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from ...codegen.problems.cluster import Tensor
from ...core.dim import Dim, Length, SharedLength, hint, known_equal, known_in, known_less_equal, maximum
from ...core.shape import Shape
from ...core.strided import Strided
from ...core.types import Type
from ...dataclass import dataclass
from ...runtime.plan import Pointer, Region, TensorView

ALIGNMENT = 64  # bytes of a cache line
SHARED_BYTES = 1 << 14
"""Least size (bytes) of a buffer for which it matters which worker last wrote the memory."""
GROWTH = 1.25
"""Factor by which the arena may grow so that each worker reuses memory that it wrote itself."""
MOST_MIDDLES = 8
"""Maximum number of offsets tried for a buffer; colouring time is proportional to this number."""
SIZE_CLASS_BITS = 4
"""Leading bits of a size that define the size class of a small buffer: at most an eighth of a class is unused."""
MOST_SORTED = 1024
"""Number of largest buffers that are placed by comparison with all others; the remaining buffers are small beside
these."""


class Buffer:
    """A contiguous piece of memory in one region. An arena buffer lives from the first to the last step that touches
    it."""

    __slots__ = ("bytes", "first", "index", "last", "offset", "region")

    def __init__(self, region: Region, index: int = 0, bytes: Length = 0) -> None:
        self.region = region
        self.index = index
        self.bytes: SharedLength = bytes
        self.offset: SharedLength = 0
        self.first = -1
        self.last = -1

    def touch(self, step: int) -> None:
        """Record a use by a step; steps must come in ascending order."""
        if self.first < 0:
            self.first = step
        self.last = step


@dataclass(eq=False, slots=True)
class View:
    """A tensor in a buffer: ``offset`` elements from its start, with the actual strides, which may differ from the
    IR's.

    Views are never changed. They are not frozen dataclasses, which take three times as long to make; plans for new
    lengths make hundreds.
    """

    buffer: Buffer
    shape: Shape
    offset: int = 0

    @property
    def lens(self) -> tuple[int, ...]:
        """Lengths."""
        return self.shape.lens

    @property
    def strides(self) -> tuple[int, ...]:
        """Element strides."""
        return self.shape.strides

    @property
    def type(self) -> Type:
        """Element type."""
        return self.shape.type

    @property
    def byte_offset(self) -> int:
        """Bytes from the buffer's start to the first element."""
        return self.offset * self.shape.type.size

    @property
    def line_behind(self) -> bool:
        """Whether the cache line after the last element belongs to the same arena buffer."""
        end = self.byte_offset + self.shape.bytes
        return self.buffer.region is Region.ARENA and known_less_equal(end + ALIGNMENT, self.buffer.bytes)

    @property
    def tensor(self) -> Tensor:
        """The view as an operand of a cluster."""
        return Tensor(self.type, self.lens, self.strides, self.offset)

    def pointer(self, extra: int = 0) -> Pointer:
        """Return the address of the first element plus ``extra`` bytes."""
        buffer, start = self.buffer, self.buffer.offset + extra
        plain = type(self.offset) is int and not self.offset
        return Pointer(buffer.region, buffer.index, start if plain else start + self.byte_offset)

    def plan_view(self) -> TensorView:
        """The view in the form that the runtime takes."""
        return TensorView(self.pointer(), self.type.dtype_name, self.lens, self.strides)

    def with_shape(self, shape: Shape, offset: int = 0) -> View:
        """Return another window of the same buffer, ``offset`` elements after this view's start."""
        return View(self.buffer, shape, self.offset + offset)

    def without_repeats(self) -> View:
        """Return the view with length 1 along axes along which it repeats."""
        lens = [1 if known_in(s, 0) else n for n, s in zip(self.lens, self.strides)]
        return self.with_shape(Shape(self.type, lens, self.strides))

    def repeated(self, lens: Sequence[int]) -> View:
        """Return the view broadcast to ``lens``: with stride 0 along the axes that have length 1 here."""
        strides = [0 if known_less_equal(n, 1) else s for n, s in zip(self.lens, self.strides)]
        return self.with_shape(Shape(self.type, lens, strides))

    def viewed(self, function: Callable[[Strided], Strided | None]) -> View | None:
        """Return the view that ``function`` makes of this tensor's lengths and strides.

        None if ``function`` returns None, or raises ``ValueError`` because the result needs a copy.
        """
        try:
            found = function(Strided(self.lens, self.strides))
        except ValueError:
            return None
        if found is None:
            return None
        shape = Shape(self.type, found.lens, found.strides)
        return self.with_shape(shape, 0 if known_equal(shape.elements, 0) else found.offset)


def color(buffers: Iterable[Buffer], reuse: bool = True, shares: int = 1) -> int:
    """Place arena buffers so that buffers alive at the same step do not overlap; return the size of the arena in bytes.

    Greedy by size: the largest buffers come first, each at the lowest gap between already placed neighbours. Of more
    than `MOST_SORTED` buffers the smaller ones follow the others, placed in the order of steps. Of buffers with
    symbolic sizes, hints determine the order by address, and offsets are expressions.

    Args:
        reuse: let buffers share bytes; without it every buffer has bytes of its own.
        shares: number of workers, which write equal shares of a buffer from its start to its end. With several workers,
            buffers are placed where shares coincide with the shares of earlier buffers. A worker then finds the memory
            in its own cache. The arena may grow by `GROWTH` for this.
    """
    given = list(buffers)
    if any(isinstance(buffer.bytes, Dim) for buffer in given):
        return _color_symbolic(given, reuse, shares)
    return _color(given, reuse, shares)


def _color_symbolic(buffers: Sequence[Buffer], reuse: bool, shares: int) -> SharedLength:
    """Place buffers with symbolic sizes; see `color`."""
    stand_ins = []
    for buffer in buffers:
        own = Buffer(buffer.region, buffer.index, max(0, hint(buffer.bytes)))
        own.first, own.last = buffer.first, buffer.last
        stand_ins.append(own)
    _color(stand_ins, reuse, shares)
    order = sorted(range(len(buffers)), key=lambda k: (stand_ins[k].offset, k))
    placed: list[tuple[Buffer, SharedLength]] = []  # with its end
    under: set[int] = set()  # buffers with another one above them, where the arena cannot end
    for k in order:
        buffer = buffers[k]
        below: list[Buffer] = []
        ends: dict[SharedLength, None] = {0: None}  # equal layers end at few places
        first, last = buffer.first, buffer.last
        beside = [one for one in placed if one[0].first <= last and first <= one[0].last] if reuse else placed
        for other, end in reversed(beside):
            # buffers below a buffer that is already below this one need no check
            if not any(one.first <= other.last and other.first <= one.last for one in below):
                below.append(other)
                ends[end] = None
        buffer.offset = maximum(*ends)
        placed.append((buffer, buffer.offset + _aligned(buffer.bytes)))
        under.update(map(id, below))
    return maximum(0, *dict.fromkeys([end for buffer, end in placed if id(buffer) not in under]))


def _color(buffers: Sequence[Buffer], reuse: bool, shares: int) -> int:
    """Place buffers with known sizes; see `color`."""
    ordered = sorted(buffers, key=lambda b: (-b.bytes, b.first))
    if not reuse:
        total = 0
        for buffer in ordered:
            buffer.offset = total
            total += _aligned(buffer.bytes)
        return total
    largest, others = ordered[:MOST_SORTED], ordered[MOST_SORTED:]
    total = _place(largest, lambda buffer, gaps, placed: gaps[0][0])
    if shares > 1:
        most = int(total * GROWTH)
        total = _place(largest, lambda buffer, gaps, placed: _matching(buffer, gaps, placed, shares, most))
    return _place_in_order(others, total)


def _place_in_order(buffers: Sequence[Buffer], start: int) -> int:
    """Place buffers after ``start`` in the order of their steps; return the end of the last buffer.

    A buffer gets freed memory of its size class, else memory at the end. Memory of a size class is reused whole.
    """
    free: dict[int, list[int]] = {}
    alive: list[tuple[int, int, int]] = []
    for buffer in sorted(buffers, key=lambda b: b.first):
        while alive and alive[0][0] < buffer.first:
            _, offset, size = heapq.heappop(alive)
            free.setdefault(size, []).append(offset)
        unit = max(ALIGNMENT, 1 << max(0, buffer.bytes.bit_length() - SIZE_CLASS_BITS))
        size = max(1, -(-buffer.bytes // unit)) * unit
        if free.get(size):
            buffer.offset = free[size].pop()
        else:
            buffer.offset = start
            start += size
        heapq.heappush(alive, (buffer.last, buffer.offset, size))
    return start


Gaps = list[tuple[int, float]]
"""Start and end of each range that is free during a buffer's life, by address; the last range has no end."""


def _place(buffers: Sequence[Buffer], choose: Callable[[Buffer, Gaps, Sequence[Buffer]], int]) -> int:
    placed: list[Buffer] = []
    for buffer in buffers:
        gaps: Gaps = []
        start = 0
        first, last = buffer.first, buffer.last
        beside = [b for b in placed if b.first <= last and first <= b.last]  # alive at a common step
        for other in sorted(beside, key=attrgetter("offset")):
            if start + _aligned(buffer.bytes) <= other.offset:
                gaps.append((start, other.offset))
            start = max(start, other.offset + _aligned(other.bytes))
        buffer.offset = choose(buffer, [*gaps, (start, math.inf)], placed)
        placed.append(buffer)
    return max((b.offset + _aligned(b.bytes) for b in placed), default=0)


def _matching(buffer: Buffer, gaps: Gaps, placed: Sequence[Buffer], shares: int, most: int) -> int:
    """Return the offset, within an arena of ``most`` bytes, at which the fewest bytes move between workers.

    Candidates are the ends of the gaps, and the offsets that centre the buffer on one of the largest placed buffers.
    """
    lowest = gaps[0][0]
    if buffer.bytes < SHARED_BYTES:
        return lowest
    size = _aligned(buffer.bytes)
    rivals = [b for b in placed if b.bytes >= SHARED_BYTES]
    middles = list(dict.fromkeys(b.offset + b.bytes // 2 for b in rivals))[:MOST_MIDDLES]
    offsets: set[float] = {start for start, _ in gaps[:MOST_MIDDLES]}
    for middle in middles:
        wanted = (middle - size // 2) // ALIGNMENT * ALIGNMENT
        offsets |= {min(max(wanted, start), end - size) for start, end in gaps if start <= middle < end}
    fitting = [int(at) for at in offsets if at + size <= most] or [lowest]

    places = Counter((b.offset, b.bytes) for b in rivals)  # repeated blocks of a network share few places

    def moved(at: int) -> int:
        end, among = at + size, places.items()
        return sum(k * _moved(at, buffer.bytes, o, n, shares) for (o, n), k in among if o < end and at < o + n)

    return min(fitting, key=lambda at: (moved(at), at))


def _moved(at: int, size: int, other: int, other_size: int, shares: int) -> int:
    """Return the number of bytes common to two buffers that different workers write."""
    low, high = max(at, other), min(at + size, other + other_size)
    borders = ((at + size * k // shares, other + other_size * k // shares) for k in range(1, shares))
    return sum(max(0, min(high, max(pair)) - max(low, min(pair))) for pair in borders)


def _aligned(size: Length) -> SharedLength:
    return -(-size // ALIGNMENT) * ALIGNMENT
