"""Positions of the elements that are not zero (ONNX ``NonZero``), and how many there are."""

from __future__ import annotations

from math import prod

from ....core.dim import Length
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...statements import cast_text, dtype_name, for_tasks, indent, kernel_text
from .. import host
from ..kernel import cpu_kernel


def nonzero_launch(x: Tensor, counts: bool, origin: str = "") -> Launch:
    """Return the launch that finds the positions, in row-major order; one task.

    Operands: ``x``, row-major with at least one axis; int64 ``positions``. With ``counts`` these are row-major
    [rank, count] at the start of memory for rank * elements, and int64 ``count`` [1] is an operand, too; else they are
    [rank, elements], with zeros behind the last position found.

    While elements are read, the positions in axis k begin at k * elements. A row's positions are stored as whole
    vectors, so memory behind them is overwritten: never beyond the place of the vector's own elements, since at most
    all elements before it were found.
    """
    *outer, last = x.lens
    rank, lanes = len(x.lens), host.lanes("float32")
    dtype, compute = dtype_name(x.type), dtype_name(x.type.compute)
    arguments = Arguments()
    arguments.pointer("p_x", "x", dtype)
    arguments.pointer("p_positions", "positions", "int64")
    if counts:
        arguments.pointer("p_count", "count", "int64")
    arguments.integers(rows=prod(outer), last=last, room=prod(x.lens))
    sizes: list[Length] = [prod(outer[k + 1 :]) for k in range(len(outer))]
    arguments.integers(**{f"size{k}": size for k, size in enumerate(sizes[:-1])})

    def is_set(value: str) -> str:
        return f"ne({cast_text(value, dtype, compute)}, 0)"

    row = [
        f"p_last = offset(p_positions, {rank - 1} * room)",
        "before = found",
        "c = 0",
        f"while c + {lanes} <= last:",
        *indent(
            [
                f"mask = {is_set(f'load(p_x, row * last + c, {lanes})')}",
                "if reduce_or(mask):",
                f"    found += store_where(p_last, found, add(iota_int64({lanes}), c), mask)",
                f"c += {lanes}",
            ]
        ),
        "while c < last:",
        *indent(
            [
                "store_scalar(p_last, found, c)",
                f"found += cast_int64({is_set('load_scalar(p_x, row * last + c)')})",
                "c += 1",
            ]
        ),
    ]
    coordinates = ["rest = row"]
    for k in range(len(outer)):
        if k < len(outer) - 1:
            coordinates += [f"at = idiv(rest, size{k})", f"rest -= at * size{k}"]
        else:
            coordinates.append("at = rest")
        coordinates += ["for n in range(before, found):", f"    store_scalar(p_positions, {k} * room + n, at)"]
    if outer:
        row += ["if found > before:", *indent(coordinates)]
    end = []
    for k in range(1, rank) if counts else ():
        end += ["for n in range(found):"]
        end += [f"    store_scalar(p_positions, {k} * found + n, load_scalar(p_positions, {k} * room + n))"]
    for k in () if counts else range(rank):
        end += ["for n in range(found, room):", f"    store_scalar(p_positions, {k} * room + n, 0)"]
    if counts:
        end.append("store_scalar(p_count, 0, found)")
    task = ["found = 0", "for row in range(rows):", *indent(row), *end]
    text = kernel_text([*arguments.bind(), *for_tasks(task)])
    return Launch(
        kernel=cpu_kernel("nonzero_kernel", text, origin),
        args=arguments.values,
        geometry=TaskRange(1),
        bytes=x.footprint,
    )
