"""Text of kernels: indentation, frames, loops, and how vectors are loaded and stored.

The words that printed kernels use, besides the names of their arguments:

Tasks
    args, call      the kernel's argument block, and that of a kernel which other kernels call
    begin, end      the tasks of this call; ``task`` is the one that its loop is at
    outer, group    a task's number without its innermost index; the group, or matrix of a batch, that it belongs to
    rest            what is left of a number that is being taken apart; elements of the last, partial vector of a row
    row, stop       the row (a point of the outer dimensions) that is computed, and the one behind the task's last
    first, last     the columns of a row that a task computes: from ``first`` to before ``last``
    block, chunk    several rows, and a part of one, that make a task; in contractions ``block`` is a record (below)
Indices
    c               column along the innermost dimension, in elements; the first lane of the current vector
    left            elements, or rows, that are still to do
    i0, i1, ...     indices of the outer dimensions; n0, n1, ... their lengths; s<k>_<d> the stride of operand k along d
    t<k>            stride of operand k along the innermost dimension
Pointers
    p_<operand>     where an operand begins; r_<operand> where its current row does; q_<operand> where a loop reads it
Contractions
    m, n, k         rows, columns and terms of a product; m0, n0, k0 where a block begins; ``depth``: terms of one tap
    x, w, out       left-hand side (or input), right-hand side (or weights), result; e<k> the epilogue's operands
    panel           ``columns`` successive columns of the right-hand side; ``wide`` full ones, if ``narrow`` a vector
    height          rows of the register tile that is run next
    sums, acc       accumulated products in memory, and one vector of them
    <operand>_row   offset of a row of the result or of an operand; <operand>_ld elements from one to the next
    tap, t0         positions of a convolution's kernel; the first of them in this step
    o_<axis>        coordinate in the output, of an axis d, h or w; i_<axis> in the input; k_<axis> of a tap
Records (`records`), each told of where it is declared
    block, plain    argument block of a register tile (`TILE_BLOCK`, `STRASSEN_BLOCK`), or of a line (`LINE_BLOCK`)
    <product>_block the same of one product of attention: ``score_block``, ``value_block``
    call, places    what a kernel is called with by another kernel; a tile of a Winograd input is a ``place``
    panel           what is waiting to be finished while a tile multiplies (`panel_block`)
    queue, entry    sums that Strassen's tiles make on the side; the first word of one of them
    fault           the call's fault record
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from ..core.dim import Length, known_in
from ..core.types import Type

__all__ = [
    "INDENT",
    "cast_text",
    "const_text",
    "dtype_name",
    "for_tasks",
    "indent",
    "kernel_text",
    "literal",
    "load_text",
    "reads_past",
    "store_text",
    "vector_loop",
]

INDENT = "    "
"""One level."""


def indent(lines: Iterable[str], depth: int = 1) -> list[str]:
    """Lines moved right by ``depth`` levels."""
    return [INDENT * depth + line for line in lines]


def kernel_text(body: Iterable[str], block: str = "args") -> str:
    """The kernel of these statements, whose argument block is called ``block``."""
    return "\n".join([f"def kernel({block}, begin, end):", *indent(body)]) + "\n"


def for_tasks(body: Iterable[str]) -> list[str]:
    """The loop over the tasks of a call."""
    return ["for task in range(begin, end):", *indent(body)]


def dtype_name(type: Type) -> str:
    """The kernel language's name of an element type."""
    return type.dtype_name


def literal(value: float | int | bool) -> str:
    """A number as kernel source spells it; infinities and NaN are names of `lang`."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NAN" if math.isnan(value) else "INF" if value > 0 else "-INF"
    return repr(value)


def const_text(dtype: str, value: float | int | bool, lanes: int) -> str:
    """Expression of a constant in every lane (a scalar if ``lanes`` is 0)."""
    return f"const_{dtype}({literal(value)}, {lanes})"


def cast_text(value: str, dtype: str, wanted: str) -> str:
    """Expression of a value of ``dtype`` as ``wanted``."""
    return value if dtype == wanted else f"cast_{wanted}({value})"


def reads_past(stride: Length) -> bool:
    """Whether whole vectors of elements so far apart are taken out of all that lies between them."""
    return known_in(stride, 2, 3, 4)


def load_text(
    pointer: str, index: str, stride: Length, step: str, lanes: int, left: str = "", near: bool = False
) -> str:
    """Expression that loads ``lanes`` elements along the innermost dimension (the first ``left`` of them, if given).

    ``stride`` is the operand's element stride there and ``step`` the argument that holds it unless it is known to be 0
    or 1 (`Arguments.step`).
    ``near``: there are elements behind those of whole vectors (``vector_loop`` with ``past``), which may be read where
    ``reads_past``.
    """
    if near and reads_past(stride):
        if left:
            return f"load_every_tail({pointer}, {index} * {stride}, {stride}, {left}, 1, {lanes})"
        return f"load_every({pointer}, {index} * {stride}, {stride}, {lanes})"
    if known_in(stride, -1) and not left and lanes > 1:
        return f"load_back({pointer}, -({index}), {lanes})"
    if known_in(stride, 0):
        return f"load_splat({pointer}, 0, {lanes})"
    if known_in(stride, 1):
        return f"load_tail({pointer}, {index}, {left}, 1, {lanes})" if left else f"load({pointer}, {index}, {lanes})"
    if left:
        return f"load_strided_tail({pointer}, {index} * {step}, {step}, {left}, 1, {lanes})"
    return f"load_strided({pointer}, {index} * {step}, {step}, {lanes})"


def store_text(
    pointer: str, index: str, stride: Length, step: str, value: str, left: str = "", streamed: bool = False
) -> str:
    """Statement that stores a vector along the innermost dimension; arguments as for ``load_text``.

    ``streamed`` lets whole vectors of contiguous elements go past the caches.
    """
    if known_in(stride, 1):
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
    whole = [f"while {index} + {lanes} {'<' if past else '<='} {last}:", *indent([*body(""), f"{index} += {lanes}"])]
    partial = body("left")
    if not aligned:
        return [
            f"{index} = {first}",
            *whole,
            f"if {index} < {last}:",
            *indent([f"left = {last} - {index}", *partial]),
        ]
    return [
        f"{index} = {first}",
        f"left = imin({last} - {index}, stream_head({aligned}, {index}))",
        "for part in range(2):",
        *indent(["if left > 0:", *indent([*partial, f"{index} += left"]), *whole, f"left = {last} - {index}"]),
    ]
