"""Determinants and inverses of square matrices, by Gaussian elimination with row pivots in float64."""

from __future__ import annotations

from math import prod
from typing import Any

from ....core.dim import Length, ceil_div
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...statements import cast_text, const_text, dtype_name, for_tasks, indent, kernel_text, store_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import tasks_unless_empty

WORK = "float64"
"""The type of all computations: LAPACK, as NumPy calls it, takes the same for narrower types."""


def elimination_pitch(length: Length) -> Any:
    """Return the elements of scratch memory for a row of ``length`` elements, in whole vectors."""
    return ceil_div(length, host.lanes(WORK)) * host.lanes(WORK)


def elimination_launch(x: Tensor, inverted: bool, groups: Length, origin: str = "") -> Launch:
    """Return the launch that computes the determinant, or with ``inverted`` the inverse, of each matrix of ``x``.

    The inverse of a matrix with a pivot of 0 is NaN. Operands, all contiguous:

    - ``x`` [..., n, n] and ``out``, of the type of ``x``: [...], or [..., n, n] for inverses.
    - scratch memory: ``work`` [groups, n, pitch] of `WORK`, for `elimination_pitch` as pitch; for inverses also int64
      ``pivots`` [groups, n].

    Args:
        x: the matrices.
        inverted: whether inverses are computed.
        groups: number of tasks, each of which computes several matrices.
        origin: the instruction that the kernel is made from.
    """
    storage, compute, lanes = dtype_name(x.type), dtype_name(x.type.compute), host.lanes(WORK)
    arguments = Arguments()
    for name, dtype in (("x", storage), ("out", storage), ("work", WORK)):
        arguments.pointer(f"p_{name}", name, dtype)
    if inverted:
        arguments.pointer("p_pivots", "pivots", "int64")
    matrices, length = prod(x.lens[:-2]), x.lens[-1]
    arguments.integers(last=length, matrices=matrices, batch=ceil_div(matrices, groups))
    arguments.integers(pitch=elimination_pitch(length))

    def narrow(value: str) -> str:
        return cast_text(cast_text(value, WORK, compute), compute, storage)

    def read(left: str) -> list[str]:
        loaded = f"load_tail(r_x, c, left, 0, {lanes})" if left else f"load(r_x, c, {lanes})"
        return [f"store(row, c, {cast_text(cast_text(loaded, storage, compute), compute, WORK)})"]

    def write(left: str) -> list[str]:
        value = f"where(regular, load(row, c, {lanes}), {const_text(WORK, float('nan'), lanes)})"
        return [store_text("r_out", "c", 1, "", narrow(value), left)]

    each = [
        "for i in range(last):",
        "    r_x = offset(p_x, (matrix * last + i) * last)",
        "    row = offset(work, i * pitch)",
        *indent(vector_loop(lanes, read, first="0")),
        *(["regular = True"] if inverted else [f"result = {const_text(WORK, 1, 0)}"]),
        "for k in range(last):",
        *indent(_step(inverted, lanes)),
    ]
    if inverted:
        each += [
            "for i in range(last):",
            "    row = offset(work, i * pitch)",
            "    r_out = offset(p_out, (matrix * last + i) * last)",
            "    for e in range(last):",  # rows were swapped, so the columns of the inverse are, in the opposite order
            "        k = last - 1 - e",
            "        other = load_scalar(pivots, k)",
            "        moved = load_scalar(row, k)",
            "        store_scalar(row, k, load_scalar(row, other))",
            "        store_scalar(row, other, moved)",
            *indent(vector_loop(lanes, write, first="0")),
        ]
    else:
        each.append(f"store_scalar(p_out, matrix, {narrow('result')})")
    task = [
        "work = offset(p_work, task * last * pitch)",
        *(["pivots = offset(p_pivots, task * last)"] if inverted else []),
        "for matrix in range(task * batch, imin(matrices, task * batch + batch)):",
        *indent(each),
    ]
    name, products = "inverse_kernel" if inverted else "determinant_kernel", matrices * length**3
    return Launch(
        kernel=cpu_kernel(name, kernel_text([*arguments.bind(), *for_tasks(task)]), origin),
        args=arguments.values,
        geometry=TaskRange(tasks_unless_empty(groups, x.lens[:-2])),
        flops=2 * products if inverted else products,
        bytes=x.footprint,
    )


def _step(inverted: bool, lanes: int) -> list[str]:
    """Return lines that make column ``k`` zero in all rows below row ``k``, by multiples of that row.

    For inverses in all other rows, by multiples of the row divided by its pivot; the column's place then takes the
    column of the inverse that the step gives (Gauss-Jordan elimination in place).
    """

    def columns(*body: str) -> list[str]:
        return ["c = start", "while c < pitch:", *indent([*body, f"c += {lanes}"])]

    zero, one = (const_text(WORK, value, 0) for value in (0, 1))
    swap = columns(f"v = load(top, c, {lanes})", f"store(top, c, load(row, c, {lanes}))", "store(row, c, v)")
    add = columns(f"store(row, c, fma(factor, load(top, c, {lanes}), load(row, c, {lanes})))")
    lines = [
        "top = offset(work, k * pitch)",
        "start = 0" if inverted else f"start = idiv(k, {lanes}) * {lanes}",
        "other = k",
        "best = abs(load_scalar(top, k))",
        "for i in range(k + 1, last):",
        "    candidate = abs(load_scalar(work, i * pitch + k))",
        "    if gt(candidate, best):",
        "        best = candidate",
        "        other = i",
        "if other != k:",
        "    row = offset(work, other * pitch)",
        *indent(swap),
        *([] if inverted else ["    result = neg(result)"]),
        "pivot = load_scalar(top, k)",
    ]
    if not inverted:
        return [
            *lines,
            "result = mul(result, pivot)",
            f"if ne(pivot, {zero}):",
            "    for i in range(k + 1, last):",
            "        row = offset(work, i * pitch)",
            "        factor = neg(div(load_scalar(row, k), pivot))",
            *indent(add, 2),
        ]
    return [
        *lines,
        "store_scalar(pivots, k, other)",
        f"if eq(pivot, {zero}):",
        "    regular = False",
        *columns(f"store(top, c, div(load(top, c, {lanes}), pivot))"),
        f"scale = div({one}, pivot)",
        "for i in range(last):",
        "    if i != k:",
        "        row = offset(work, i * pitch)",
        "        factor = neg(load_scalar(row, k))",
        *indent(add, 2),
        "        store_scalar(row, k, mul(factor, scale))",  # behind the vectors: loads of them would wait for it
        "store_scalar(top, k, scale)",
    ]
