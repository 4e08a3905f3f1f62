"""Text of kernels: indentation, frames, loops, vector loads and stores.

Names in printed kernels, besides the names of their arguments:

Tasks
    args, call      the kernel's argument block; the argument block of a kernel that other kernels call
    begin, end      range of the tasks of this call; ``task`` is the loop's current task
    outer, group    a task's number without its innermost index; the group, or matrix of a batch, of the task
    rest            remainder of an index that is being split; elements of the last, partial vector of a row
    row, stop       the current row (a point of the outer dimensions); the end (exclusive) of the task's rows
    first, last     range of the columns of a row that a task computes; ``last`` is exclusive
    block, chunk    a task of several rows; a task of part of a row; in contractions ``block`` is a record (below)
Indices
    c               column along the innermost dimension, in elements; the first lane of the current vector
    left            number of remaining elements, or rows
    i0, i1, ...     indices of the outer dimensions; n0, n1, ... their lengths; s<k>_<d> the stride of operand k along d
    t<k>            stride of operand k along the innermost dimension
Pointers
    p_<operand>     start of an operand; r_<operand> start of its current row; q_<operand> position that a loop reads
Contractions
    m, n, k         rows, columns and terms of a product; m0, n0, k0 start of a block; ``depth``: terms of one tap
    x, w, out       left operand (or input), right operand (or weights), result; e<k> the epilogue's operands
    panel           ``columns`` successive columns of the right operand; ``wide`` if full, ``narrow`` if one vector wide
    height          rows of the next register tile
    sums, acc       accumulators in memory; one accumulator vector
    <operand>_row   offset of a row of the result or of an operand; <operand>_ld elements between successive rows
    tap, t0         position in a convolution's filter; the first tap of this step
    o_<axis>        coordinate in the output, of an axis d, h or w; i_<axis> in the input; k_<axis> of a tap
Records (`records`), each described where it is declared
    block, plain    argument block of a register tile (`TILE_BLOCK`, `STRASSEN_BLOCK`), or of a line (`LINE_BLOCK`)
    <product>_block argument block of one product of attention: ``score_block``, ``value_block``
    call, places    argument block of a kernel that another kernel calls; ``place``: a tile of a Winograd input
    panel           a result panel whose epilogue is deferred while a tile multiplies (`panel_block`)
    queue, entry    sums that Strassen's tiles compute as a by-product; the first word of a sum's entry
    fault           the call's fault record
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

from ..core.dim import Length, known_in
from ..core.types import Type

INDENT = "    "
"""One level of indentation."""


def indent(lines: Iterable[str], depth: int = 1) -> list[str]:
    """Return the lines indented by ``depth`` levels."""
    return [INDENT * depth + line for line in lines]


def kernel_text(body: Iterable[str], block: str = "args") -> str:
    """Return the text of a kernel with these statements, whose argument block is called ``block``."""
    return "\n".join([f"def kernel({block}, begin, end):", *indent(body)]) + "\n"


def for_tasks(body: Iterable[str]) -> list[str]:
    """Return the loop over the tasks of a call."""
    return ["for task in range(begin, end):", *indent(body)]


def dtype_name(type: Type) -> str:
    """Return the kernel language's name of an element type."""
    return type.dtype_name


def literal(value: float | int | bool) -> str:
    """Return a number as a literal of kernel source; infinities and NaN are names of `lang`."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NAN" if math.isnan(value) else "INF" if value > 0 else "-INF"
    return repr(value)


def const_text(dtype: str, value: float | int | bool, lanes: int) -> str:
    """Return the expression of a constant in every lane (a scalar if ``lanes`` is 0)."""
    return f"const_{dtype}({literal(value)}, {lanes})"


def cast_text(value: str, dtype: str, wanted: str) -> str:
    """Return the expression that converts a value from ``dtype`` to ``wanted``."""
    return value if dtype == wanted else f"cast_{wanted}({value})"


def reads_past(stride: Length) -> bool:
    """Return whether vectors with this stride are loaded contiguously, with the elements in between, and then
    shuffled."""
    return known_in(stride, 2, 3, 4)


_READ = re.compile(r"\b[a-z_]\w*\b(?!\()")
"""The names that an expression reads, without those of functions."""


def hoisted(lines: Sequence[str], invariant: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split single assignments into those of values that do not vary in a loop, and the other lines.

    Args:
        lines: statements of the loop's body.
        invariant: names that hold one value in all iterations.
    """
    known, varies, head, rest = set(invariant), True, [], []
    for line in lines:
        name, _, expression = line.partition(" = ")
        read = set(_READ.findall(expression))
        if expression and name.isidentifier() and read <= known:
            known.add(name)
            head.append(line)
            varies = varies and not read
        else:
            rest.append(line)
    return ([], list(lines)) if varies else (head, rest)


def load_text(
    pointer: str, index: str, stride: Length, step: str, lanes: int, left: str = "", near: bool = False
) -> str:
    """Return the expression that loads ``lanes`` elements along the innermost dimension.

    Args:
        pointer: the operand's pointer.
        index: the element index of the first lane.
        stride: the operand's element stride along the dimension.
        step: the argument that holds the stride, unless it is known to be 0 or 1 (`Arguments.step`).
        lanes: lanes of the vector.
        left: number of elements of a partial vector; empty for a whole one.
        near: whether elements follow those of whole vectors (``vector_loop`` with ``past``), which may be read if
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
    """Return the statement that stores a vector along the innermost dimension; arguments as for ``load_text``.

    ``streamed``: whether whole vectors of contiguous elements bypass the caches.
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
    """Return lines that run ``body`` for ``index`` from ``first`` to ``last`` in steps of ``lanes``.

    ``body("")`` prints a whole vector, ``body("left")`` the last, partial vector of ``left`` elements. With
    ``aligned``, a pointer, the first vector may be partial too, so that whole vectors start at a position that can be
    streamed. With ``past``, elements follow every whole vector; the last vector may then be whole but be passed as
    partial.
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
