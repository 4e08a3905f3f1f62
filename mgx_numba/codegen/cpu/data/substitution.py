"""Systems of linear equations with triangular matrices, by substitution (``solve_triangular``).

Lanes run along the columns of the right-hand side, whose rows are solved one after another.
"""

from __future__ import annotations

from math import prod

from ....core.dim import known_less_equal
from ....ops.determinant import SolveTriangular
from ...arguments import Arguments
from ...launch import Launch
from ...problems.cluster import Tensor
from ...statements import dtype_name, indent, load_text, store_text, vector_loop
from .. import host
from .row_tasks import RowLoop

REGISTERS = 4
"""Registers of sums: as many as hide the latency of a multiplication with addition, of which two start in a cycle."""


def solve_triangular_launch(op: SolveTriangular, a: Tensor, b: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch of `SolveTriangular` in float32 or float64; operands ``a``, ``b`` and ``out``."""
    dtype, (length, columns) = dtype_name(out.type), out.lens[-2:]
    lanes = host.lanes(dtype)
    while lanes < REGISTERS * host.lanes(dtype) and not known_less_equal(columns, lanes):
        lanes *= 2
    arguments = Arguments()
    for name in ("a", "b", "out"):
        arguments.pointer(f"p_{name}", name, dtype)
    rows = [t.strides[:-2] for t in (a, b, out)]
    loop = RowLoop(arguments, out.lens[:-2], rows, columns, lanes, length * length, least=lanes)
    t0, t1 = (arguments.step(f"t{k}", t.strides[-1]) for k, t in enumerate((b, out)))
    for name, t in (("a", a), ("b", b), ("out", out)):
        arguments.integer(f"{name}_row", t.strides[-2])
    arguments.integers(a_column=a.strides[-1], length=length)
    end = "length - 1 - " if op.upper else ""

    def solve(left: str) -> list[str]:
        known = load_text("solved", "c", out.strides[-1], t1, lanes, left)
        return [
            "for k in range(length):",
            f"    i = {end}k",
            "    line = offset(r_a, i * a_row)",
            "    given = offset(r_b, i * b_row)",
            f"    total = {load_text('given', 'c', b.strides[-1], t0, lanes, left)}",
            "    for l in range(k):",
            f"        j = {end}l",
            "        solved = offset(r_out, j * out_row)",
            f"        total = fma(neg(load_splat(line, j * a_column, {lanes})), {known}, total)",
            *([] if op.unit else [f"    total = div(total, load_splat(line, i * a_column, {lanes}))"]),
            "    own = offset(r_out, i * out_row)",
            *indent([store_text("own", "c", out.strides[-1], t1, "total", left)]),
        ]

    inside = [f"r_{name} = offset(p_{name}, {loop.offset(k)})" for k, name in enumerate(("a", "b", "out"))]
    kernel = loop.kernel("solve_triangular_kernel", [*inside, *vector_loop(lanes, solve)], origin)
    moved = a.footprint + b.footprint + out.footprint
    return loop.launch(kernel, out.lens, moved, prod(out.lens) * length)
