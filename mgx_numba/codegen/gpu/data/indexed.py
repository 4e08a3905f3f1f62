"""Copies with source positions read from memory (gathers), and the computation of such positions."""

from __future__ import annotations

from collections.abc import Sequence

from ....core.dim import Length, known_in, minimum
from ...launch import Launch
from ...problems.cluster import Tensor
from ...problems.indexed_copy import IndexedCopy, Term
from ...space import Space, collapse
from ..cluster.flat_index import contiguous_lanes
from ..printer import most_lanes
from .elements import ElementText

MOST_GATHERED = 4
"""Most elements with an index each that a thread gathers: their loads are in flight together. No figures kept."""


def indexed_launch(problem: IndexedCopy) -> Launch:
    """Return the launch that fills the output."""
    source, out, terms = problem.source, problem.out, problem.terms
    space = _space(out.lens, [source.strides, *(t.strides for t in terms), out.strides])
    steps = tuple(t.stride for t in terms)
    stored = (space.strides[-1], out.offset)
    moving = [((*steps, *space.strides[0]), source.offset), stored]
    along = not all(known_in(strides[-1], 0) for strides in space.strides[1:-1])
    most = most_lanes(out.type.size)
    wide = [stored] if along else moving
    lanes = contiguous_lanes(min(MOST_GATHERED, most) if along else most, space.lens[-1], wide)
    text = ElementText([("x", source), *_operands(terms), ("out", out)], space.lens, space.strides, lanes)
    apart = [own[-1] for own in space.strides[:-1]] if along else []
    beside = [text.arguments.integer(f"beside{k}", stride) for k, stride in enumerate(apart)]
    walk = Positions(text, terms)
    text.begin()
    base = text.place(0)
    if along:
        own = []
        for lane in range(lanes):
            moved = walk.read(lane=lane, beside=beside[1:])
            first = [base, f"{lane} * {beside[0]}"] if lane else [base]
            own.append(text.buffer.emit(f"load(p_x, {' + '.join([*first, *moved])}, 1)"))
        text.store(own[0] if lanes == 1 else text.buffer.emit(f"join{lanes}({', '.join(own)})"))
    else:
        place = " + ".join([base, *walk.read()])
        load = "load" if lanes == 1 else "load_splat" if known_in(space.strides[0][-1], 0) else "load_aligned"
        text.store(text.buffer.emit(f"{load}(p_x, {place}, {lanes})"))
    moved_bytes = out.footprint + minimum(out.footprint, problem.elements * source.type.size)
    return text.launch(problem.name, problem.origin, moved_bytes, 0, walk.checks)


def positions_launch(terms: Sequence[Term], out: Tensor, origin: str = "") -> Launch:
    """Return the launch that writes to int64 ``out`` the offset that the index terms add up to, or -1 if an index is
    out of range."""
    space = _space(out.lens, [*(t.strides for t in terms), out.strides])
    text = ElementText([*_operands(terms), ("out", out)], space.lens, space.strides, 1)
    walk = Positions(text, terms, first=0)
    text.begin()
    text.buffer.line("inside = True")
    moved = walk.read("inside = False")
    text.buffer.line(f"place = {' + '.join(moved) or '0'}")
    with text.buffer.block("if not inside:"):
        text.buffer.line("place = -1")
    text.store("splat(place, 1)")
    return text.launch("positions_kernel", origin, 2 * out.footprint, 0, walk.checks)


def _space(lens: Sequence[Length], strides: Sequence[Sequence[Length]]) -> Space:
    """Return the merged axes, at least one, in the memory order of the last operand."""
    space = collapse(lens, strides)
    return space if space.rank else Space((1,), tuple((0,) for _ in strides))


def _operands(terms: Sequence[Term]) -> list[tuple[str, Tensor]]:
    """Return the distinct operands of the terms."""
    return list({t.operand: (t.operand, Tensor(t.type, (), ())) for t in terms}.values())


class Positions:
    """Statements that evaluate index terms.

    Attributes:
        checks: bounds of each index, for error messages.
    """

    def __init__(self, text: ElementText, terms: Sequence[Term], first: int = 1, number: int = 0) -> None:
        """Declare the arguments.

        Args:
            first: stride set of the text at which the terms' strides begin.
            number: number of the first term, among those of the kernel.
        """
        self._text, self._terms, self._first, self._number = text, terms, first, number
        self._places: list[str] = []
        self.checks = tuple(t.fits for t in terms)
        for k, term in enumerate(terms, number):
            text.arguments.integer(f"start{k}", term.offset)
            if not known_in(term.length, 0):
                text.arguments.integer(f"length{k}", term.length)
                text.arguments.integer(f"step{k}", term.stride)
        if any(t.checked for t in terms):
            text.faults()

    def read(self, outside: str = "", lane: int = 0, beside: Sequence[str] = ()) -> list[str]:
        """Emit the evaluation of all terms; return the offset that each adds.

        Args:
            outside: a statement to run for an index out of range, which then counts as 0.
            lane: number of the element among those of the thread.
            beside: for each term, the distance of the indices of neighbouring elements; needed if ``lane`` is not 0.
        """
        buffer = self._text.buffer
        self._places = self._places or [self._text.place(self._first + k) for k in range(len(self._terms))]
        moved = []
        for n, term in enumerate(self._terms):
            k = self._number + n
            at, further = f"at{k}_{lane}", [f"{lane} * {beside[n]}"] if lane else []
            place = " + ".join([self._places[n], f"start{k}", *further])
            found = buffer.emit(f"cast_int64(load_scalar(p_{term.operand}, {place}))")
            if known_in(term.length, 0):
                moved.append(found)
                continue
            buffer.line(f"{at} = {found}")
            if term.type.is_signed:
                with buffer.block(f"if {at} < 0:"):
                    buffer.line(f"{at} = {at} + length{k}")
            if term.checked or outside:
                with buffer.block(f"if ({at} < 0) | ({at} >= length{k}):"):
                    if term.checked:
                        buffer.line(f"note_fault(fault, step_number, {k}, {found})")
                    if outside:
                        buffer.line(outside)
                    buffer.line(f"{at} = 0")
            moved.append(buffer.emit(f"{at} * step{k}"))
        return moved
