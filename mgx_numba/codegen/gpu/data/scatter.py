"""Scatters: write or combine updates at positions found by a preceding launch (`positions_launch`).

Updates of one position are combined in row-major order of their indices by one thread, so that the result is
deterministic; of updates that replace elements the last one stays. Either each update is compared with the others of
its line, or, if there are too many to compare, one thread processes a whole line, which contains all updates that can
collide. Many updates that may be combined in any order are combined atomically (`atomic_scatter`).
"""

from __future__ import annotations

from math import prod

from ....core.dim import Length, known_in, less, preferred
from ....core.shape import row_major_strides
from ....core.types import Type
from ....dataclass import dataclass
from ...launch import Launch
from ...printer import VectorValue
from ...problems.cluster import Tensor
from ...problems.indexed_copy import Term
from ...space import Space, collapse
from ..cluster.flat_index import Axes
from ..printer import ThreadPrinter, dtype_name
from .elements import ElementText, threads_of_element

MOST_COMPARED = 1 << 21
"""Most comparisons (updates of all lines times updates per line, divided by the length) for the search. A device makes
some 5e12 a second; a single thread takes half a microsecond per update. No figures kept."""

MOST_SEARCHED = 1 << 23
"""Most comparisons of a search where atomic updates are possible: some 2 us of comparisons, as many as the launch
takes that they need less. 1536 lines of 1764 updates take 8.6 ms by search on an H200."""
ATOMIC = frozenset(
    (Type.float_type, Type.double_type, Type.int32_type, Type.uint32_type, Type.int64_type, Type.uint64_type)
)
"""Types that devices update atomically."""


@dataclass(frozen=True)
class ScatterLines:
    """Updates grouped into lines; different lines write to different elements.

    Attributes:
        terms: index terms of the positions.
        positions: int64, one per update of each line, or of some lines for all.
        entries: axes of a line's updates in row-major order of their indices, with the strides of updates.
        lines: axes of the lines, with the strides of updates, positions and output.
    """

    terms: tuple[Term, ...]
    positions: Tensor
    entries: Space
    lines: Space


def element_lines(axis: int, indices: Tensor, updates: Tensor, out: Tensor, checked: bool) -> ScatterLines:
    """Return the lines of ScatterElements: ``updates[i]`` goes to ``i`` with ``indices[i]`` along ``axis``; a line lies
    along the axis."""
    kept = [a for a in range(len(out.lens)) if a != axis]
    order = [*kept, axis]
    term = Term(
        "indices", indices.type, tuple(indices.strides[a] for a in order), length=out.lens[axis],
        stride=out.strides[axis], axis=axis, checked=checked,
    )  # fmt: skip
    same = [a != axis and known_in(indices.strides[a], 0) for a in order]  # the lines along the axis share positions
    lens = tuple(1 if shared else updates.lens[a] for a, shared in zip(order, same))
    positions = Tensor(Type.int64_type, lens, row_major_strides(lens))
    count = lens[-1]
    by_axis = {a: 0 if shared else s for a, s, shared in zip(order, positions.strides, same)}
    places = tuple(by_axis[a] for a in range(len(order)))
    lines = collapse(updates.lens, [updates.strides, places, out.strides], axes=kept)
    return ScatterLines((term,), positions, Space((count,), ((updates.strides[axis],),)), lines)


def slice_lines(indices: Tensor, updates: Tensor, out: Tensor, checked: list[bool]) -> ScatterLines:
    """Return the lines of ScatterND: slice ``updates[i]`` goes to position ``indices[i]``; a line has one element of
    every slice."""
    depth, step, tuples = indices.lens[-1], indices.strides[-1], len(indices.lens) - 1
    terms = tuple(
        Term(
            "indices", indices.type, indices.strides[:-1], k * step, length=out.lens[k], stride=out.strides[k], axis=k,
            checked=checked[k],
        )
        for k in range(depth)
    )  # fmt: skip
    lens = indices.lens[:-1]
    positions = Tensor(Type.int64_type, lens, row_major_strides(lens))
    entries = collapse(lens, [updates.strides[:tuples], positions.strides])
    rest = (0,) * (len(updates.lens) - tuples)
    slices = collapse(updates.lens[tuples:], [updates.strides[tuples:], rest, out.strides[depth:]])
    return ScatterLines(terms, positions, entries, slices)


def combines_in_any_order(combine: str, type: Type, fast_math: bool) -> bool:
    """Return whether updates may be combined in any order: integers, and floats with ``fast_math`` (sums and products
    are rounded in another order; which zero a minimum of both is depends on it, too)."""
    return combine != "none" and type.compute in ATOMIC and (fast_math or not type.is_floating)


def has_many_updates(lines: ScatterLines) -> Length:
    """Return the condition under which a search compares more updates than `MOST_SEARCHED`."""
    count = prod(lines.entries.lens)
    return less(MOST_SEARCHED, count * count * prod(lines.lines.lens))


def scatter_launch(combine: str, lines: ScatterLines, updates: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch that combines updates into ``out``, which holds the data; operands ``positions``, ``updates``,
    ``out``.

    ``combine`` is none, add, mul, min or max. 16-bit floats are combined in float32 and rounded once.
    """
    count, outer = prod(lines.entries.lens), prod(lines.lines.lens)
    exact = out.type.compute is out.type or combine == "none"
    together = exact and preferred(less(MOST_COMPARED, count * outer))
    replaces = combine == "none" and not together
    text = _replacing(lines, updates, out) if replaces else _ScatterText(combine, lines, updates, out, together)
    moved = updates.footprint + 8 * count + 2 * updates.footprint
    return text.launch(f"scatter_{combine}_kernel", origin, moved)


def _replacing(lines: ScatterLines, updates: Tensor, out: Tensor) -> ElementText:
    """Return the text of updates that replace elements: those that no later one has the position of. Some threads share
    an update's comparisons."""
    entries, outer = lines.entries, lines.lines
    count = prod(entries.lens)
    group = threads_of_element(count * prod(outer.lens), count)
    fixed, none = (0,) * len(entries.lens), (0,) * len(outer.lens)
    sets = [
        (*entries.strides[0], *outer.strides[0], 0),
        (*fixed, *outer.strides[1], 0),
        (*row_major_strides(entries.lens), *none, 0),
        (*fixed, *none, 1),
        (*fixed, *outer.strides[2], 0),
    ]
    tensors = [("updates", updates), ("positions", lines.positions), ("out", out)]
    text = ElementText(tensors, (*entries.lens, *outer.lens, group), sets, 1)
    text.arguments.integer("count", count)
    text.begin()
    buffer = text.buffer
    for name, number in (("update", 0), ("row", 1), ("entry", 2), ("lane", 3), ("base", 4)):
        buffer.line(f"{name} = {text.place(number)}")
    buffer.line("own = load_scalar(p_positions, row + entry)", "later = 0")
    same = "if load_scalar(p_positions, row + j) == own:"
    with buffer.block(f"for j in range(entry + 1 + lane, count, {group}):"), buffer.block(same):
        buffer.line("later = 1")
    for mask in (1 << n for n in range(group.bit_length() - 1)):
        buffer.line(f"later = later + shuffle_xor(later, {mask})")
    with buffer.block(f"if ({text.active}) & (lane == 0) & (later == 0) & (own >= 0):"):
        buffer.line("store(p_out, base + own, load(p_updates, update, 1))")
    return text


class _ScatterText(ElementText):
    """Kernel text of a scatter; with ``together`` a thread processes a whole line."""

    def __init__(self, combine: str, lines: ScatterLines, updates: Tensor, out: Tensor, together: bool) -> None:
        entries, outer = lines.entries, lines.lines
        count = prod(entries.lens)
        lens = (*(() if together else (count,)), *outer.lens) or (1,)
        own = [(*(() if together else (0,)), *strides) for strides in outer.strides]
        numbers = (*(() if together else (1,)), *(0 for _ in outer.lens))
        strides = [s or (0,) for s in (*own, numbers)]
        tensors = [("updates", updates), ("positions", lines.positions), ("out", out)]
        super().__init__(tensors, lens, strides, 1)
        self._combine, self._type = combine, out.type
        self._entries = Axes(self.arguments, "e", entries.lens, entries.strides[:1])
        self.arguments.integer("count", count)
        self.begin()
        buffer = self.buffer
        for name, number in (("update", 0), ("row", 1), ("base", 2)):
            buffer.line(f"{name} = {self.place(number)}")
        with buffer.block(f"if {self.active}:"):
            if together:
                self._line()
            else:
                buffer.line(f"entry = {self.place(3)}")
                self._first_of_position()

    def _line(self) -> None:
        """Emit the updates of a line in order."""
        buffer = self.buffer
        with buffer.block("for j in range(count):"):
            buffer.line("own = load_scalar(p_positions, row + j)")
            with buffer.block("if own >= 0:"):
                buffer.line("total = load(p_out, base + own, 1)")
                self._add()
                buffer.line("store(p_out, base + own, total)")

    def _first_of_position(self) -> None:
        """Emit the combination of all updates of a position by the thread of the first one."""
        buffer, compute = self.buffer, dtype_name(self._type.compute)
        wide = compute != dtype_name(self._type) and self._combine != "none"
        buffer.line("own = load_scalar(p_positions, row + entry)")
        buffer.line("first = own >= 0")
        same = "if load_scalar(p_positions, row + j) == own:"
        with buffer.block("for j in range(entry):"), buffer.block(same):
            buffer.line("first = False")
        with buffer.block("if first:"):
            start = "load(p_out, base + own, 1)"
            buffer.line(f"total = cast_{compute}({start})" if wide else f"total = {start}")
            with buffer.block("for j in range(entry, count):"), buffer.block(same):
                self._add()
            value = f"cast_{dtype_name(self._type)}(total)" if wide else "total"
            buffer.line(f"store(p_out, base + own, {value})")

    def _add(self) -> None:
        """Emit the combination of ``total`` with the update of entry ``j``."""
        buffer = self.buffer
        printer = ThreadPrinter(buffer, 1)
        places = self._entries.split(buffer, "j") if self._entries.lens else []
        new = buffer.emit(f"load(p_updates, update + {self._entries.offset(0, places)}, 1)")
        if self._combine == "none":
            buffer.line(f"total = {new}")
            return
        total = VectorValue("total", self._type)
        combined = getattr(printer, self._combine)(total, printer.loaded(new, self._type))
        buffer.line(f"total = {printer.register(combined)}")
