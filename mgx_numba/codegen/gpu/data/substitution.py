"""Systems of linear equations with triangular matrices, by substitution: a thread solves a column."""

from __future__ import annotations

from math import prod

from ....ops.determinant import SolveTriangular
from ...launch import Launch
from ...problems.cluster import Tensor
from .elements import ElementText


def solve_triangular_launch(op: SolveTriangular, a: Tensor, b: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch of `SolveTriangular` in float32 or float64; operands ``a``, ``b`` and ``out``."""
    length = out.lens[-2]
    lens = (*out.lens[:-2], out.lens[-1])
    strides = [(*t.strides[:-2], last) for t, last in ((a, 0), (b, b.strides[-1]), (out, out.strides[-1]))]
    text = ElementText([("a", a), ("b", b), ("out", out)], lens, strides, 1)
    buffer, integer = text.buffer, text.arguments.integer
    count, column = integer("length", length), integer("a_column", a.strides[-1])
    steps = [integer(f"{name}_row", t.strides[-2]) for name, t in (("a", a), ("b", b), ("out", out))]
    text.begin()
    places = [text.place(k) for k in range(3)]
    row, given, own = (f"{place} + {{}} * {step}" for place, step in zip(places, steps))
    end = f"{count} - 1 - " if op.upper else ""
    with buffer.block(f"if {text.active}:"), buffer.block(f"for k in range({count}):"):
        buffer.line(f"i = {end}k", f"line = {row.format('i')}", f"total = load(p_b, {given.format('i')}, 1)")
        with buffer.block("for l in range(k):"):
            buffer.line(f"j = {end}l", f"known = load(p_out, {own.format('j')}, 1)")
            buffer.line(f"total = fma(neg(load(p_a, line + j * {column}, 1)), known, total)")
        if not op.unit:
            buffer.line(f"total = div(total, load(p_a, line + i * {column}, 1))")
        buffer.line(f"store(p_out, {own.format('i')}, total)")
    moved = a.footprint + b.footprint + out.footprint
    return text.launch("solve_triangular_kernel", origin, moved, prod(out.lens) * length)
