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


def indexed_launch(problem: IndexedCopy) -> Launch:
    """Return the launch that fills the output."""
    source, out, terms = problem.source, problem.out, problem.terms
    space = _space(out.lens, [source.strides, *(t.strides for t in terms), out.strides])
    steps = tuple(t.stride for t in terms)
    moving = [((*steps, *space.strides[0]), source.offset), (space.strides[-1], out.offset)]
    along = not all(known_in(strides[-1], 0) for strides in space.strides[1:-1])
    lanes = 1 if along else contiguous_lanes(most_lanes(out.type.size), space.lens[-1], moving)
    text = ElementText([("x", source), *_operands(terms), ("out", out)], space.lens, space.strides, lanes)
    walk = _Positions(text, terms)
    text.begin()
    walk.read()
    place = " + ".join([text.place(0), *walk.moved])
    moves = not known_in(space.strides[0][-1], 0)
    load = "load" if lanes == 1 else "load_aligned" if moves else "load_splat"
    text.store(text.buffer.emit(f"{load}(p_x, {place}, {lanes})"))
    moved = out.footprint + minimum(out.footprint, problem.elements * source.type.size)
    return text.launch(problem.name, problem.origin, moved, 0, walk.checks)


def positions_launch(terms: Sequence[Term], out: Tensor, origin: str = "") -> Launch:
    """Return the launch that writes to int64 ``out`` the offset that the index terms add up to, or -1 if an index is
    out of range."""
    space = _space(out.lens, [*(t.strides for t in terms), out.strides])
    text = ElementText([*_operands(terms), ("out", out)], space.lens, space.strides, 1)
    walk = _Positions(text, terms, first=0)
    text.begin()
    text.buffer.line("inside = True")
    walk.read("inside = False")
    text.buffer.line(f"place = {' + '.join(walk.moved) or '0'}")
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


class _Positions:
    """Statements that evaluate index terms.

    Attributes:
        moved: names of the offset that each term adds.
        checks: bounds of each index, for error messages.
    """

    def __init__(self, text: ElementText, terms: Sequence[Term], first: int = 1) -> None:
        """Declare the arguments; the terms' strides begin at stride set ``first`` of the text."""
        self._text, self._terms, self._first = text, terms, first
        self.moved: list[str] = []
        self.checks = tuple(t.fits for t in terms)
        for k, term in enumerate(terms):
            text.arguments.integer(f"start{k}", term.offset)
            if not known_in(term.length, 0):
                text.arguments.integer(f"length{k}", term.length)
                text.arguments.integer(f"step{k}", term.stride)
        if any(t.checked for t in terms):
            text.faults()

    def read(self, outside: str = "") -> None:
        """Emit the evaluation of all terms. ``outside`` is a statement to run for an index out of range, which then
        counts as 0."""
        buffer = self._text.buffer
        for k, term in enumerate(self._terms):
            place = f"{self._text.place(self._first + k)} + start{k}"
            found = buffer.emit(f"cast_int64(load_scalar(p_{term.operand}, {place}))")
            if known_in(term.length, 0):
                self.moved.append(found)
                continue
            buffer.line(f"at{k} = {found}")
            if term.type.is_signed:
                with buffer.block(f"if at{k} < 0:"):
                    buffer.line(f"at{k} = at{k} + length{k}")
            if term.checked or outside:
                with buffer.block(f"if (at{k} < 0) | (at{k} >= length{k}):"):
                    if term.checked:
                        buffer.line(f"note_fault(fault, step_number, {k}, {found})")
                    if outside:
                        buffer.line(outside)
                    buffer.line(f"at{k} = 0")
            self.moved.append(f"at{k} * step{k}")
