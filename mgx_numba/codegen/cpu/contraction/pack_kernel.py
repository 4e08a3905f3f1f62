"""Merge or drop the batch dimensions of a matrix product, and pack a right-hand side at run time into panels
(`panels`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....core.dim import Dim, Length, SharedLength, known_equal, known_in, known_less_equal
from ....core.integers import plain_int
from ....dataclass import dataclass
from ...arguments import Arguments
from ...launch import Launch, Operand, TaskRange
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import ALONG_N, MOVING, Epilogue
from ...problems.gemm import GemmProblem
from ...statements import for_tasks, kernel_text
from ..kernel import cpu_kernel
from ..microkernels.register_tile import RegisterTile
from .panels import panel_count
from .solver import Strides

MOST_DIMS = 3
"""Most dimensions of a packing after merging: batch, rows and columns."""


def pack_launch(
    tile: RegisterTile,
    lens: Sequence[Length],
    strides: Sequence[Length],
    n: Length,
    n_stride: Length,
    k: Length,
    k_stride: Length,
    offset: Length = 0,
    target: Length = 0,
) -> tuple[Launch, ...]:
    """Return launches that pack ``w[*lens, k, n]`` into ``scratch[*lens, panel, k, tile.columns]``.

    Missing columns of the last panel become copies of others.

    Args:
        strides: element strides of the dimensions ``lens``.
        offset: byte offset of the right-hand side in ``w``.
        target: byte offset in scratch.
    """
    lens, strides = list(lens), list(strides[: len(lens)])
    size = ITEMSIZE[tile.dtype]
    panels = panel_count(tile, n)
    matrix = panels * k * tile.columns
    if len(lens) > MOST_DIMS and not isinstance(lens[0], Dim):
        inner = math.prod(lens[1:])
        return tuple(
            launch
            for index in range(lens[0])
            for launch in pack_launch(
                tile, lens[1:], strides[1:], n, n_stride, k, k_stride,
                offset + index * strides[0] * size, target + index * inner * matrix * size,
            )
        )  # fmt: skip
    rank = max(MOST_DIMS, len(lens))
    lens, strides = [1] * (rank - len(lens)) + lens, [0] * (rank - len(lens)) + strides
    arguments = Arguments()
    arguments.pointer("w", Operand("w", offset), tile.dtype)
    arguments.pointer("packed", Operand("scratch", target), tile.dtype)
    arguments.integers(n=n, k=k, n_stride=n_stride, k_stride=k_stride, panels=panels)
    arguments.integers(**{f"len{d}": lens[d] for d in range(1, rank)})
    arguments.integers(**{f"stride{d}": strides[d] for d in range(rank)})
    rows_contiguous = known_equal(n_stride, 1) or known_equal(n, 1)
    if rows_contiguous:
        layout, body = "rows", _contiguous_rows(tile)
    elif known_equal(k_stride, 1):
        layout, body = "columns", _contiguous_columns(tile)
    else:
        layout, body = "scattered", ["for row in range(k):", *_strided_row(tile, "start + row * k_stride")]
    inner_places = [
        line
        for d in range(rank - 1, 0, -1)
        for line in (f"b{d} = imod(outer, len{d})", *([f"outer = idiv(outer, len{d})"] if d > 1 else ()))
    ]
    terms = " + ".join(f"b{d} * stride{d}" for d in range(1, rank))
    task = [
        "outer = idiv(task, panels)",
        f"n0 = imod(task, panels) * {tile.columns}",
        *inner_places,
        f"start = idiv(outer, len1) * stride0 + {terms} + n0 * n_stride",
        f"columns = imin(n - n0, {tile.columns})",
        f"target = task * k * {tile.columns}",
        *body,
    ]
    source = cpu_kernel(f"gemm_pack_{layout}_kernel", kernel_text([*arguments.bind(), *for_tasks(task)]))
    count = math.prod(lens)
    moved = count * k * (n + panels * tile.columns) * size
    return (Launch(source, arguments.values, TaskRange(count * panels, 1), 0, moved),)


def row_start(arguments: Arguments, lens: Sequence[Length], strides: Sequence[Length]) -> list[str]:
    """Return statements that compute ``start``, the first element of row ``task`` among rows of these lengths and
    strides."""
    dims = [(n, s) for n, s in zip(lens, strides) if not known_less_equal(n, 1)]
    for d, (length, stride) in enumerate(dims):
        arguments.integers(**{f"len{d}": length, f"stride{d}": stride})
    lines = ["rest = task", "start = 0"]
    for d in reversed(range(len(dims))):
        lines += [f"start += imod(rest, len{d}) * stride{d}", f"rest = idiv(rest, len{d})"]
    return lines


def _contiguous_rows(tile: RegisterTile) -> list[str]:
    lanes = tile.lanes
    return [
        "for row in range(k):",
        f"    if columns == {tile.columns}:",
        *(
            f"        store(packed, target + {j * lanes}, load(w, start + row * k_stride + {j * lanes}, {lanes}))"
            for j in range(tile.vectors)
        ),
        "    else:",
        f"        for c in range(0, columns, {lanes}):",
        f"            rest = imin(columns - c, {lanes})",
        f"            store(packed, target + c, load_tail(w, start + row * k_stride + c, rest, 0, {lanes}))",
        f"    target += {tile.columns}",
    ]


def _contiguous_columns(tile: RegisterTile) -> list[str]:
    lanes, columns = tile.lanes, tile.columns
    return [
        f"whole = k - imod(k, {lanes})",
        f"for row in range(0, whole, {lanes}):",
        f"    for c in range(0, columns, {lanes}):",
        "        place = offset(w, start + c * n_stride + row)",
        f"        goal = offset(packed, target + row * {columns} + c)",
        f"        transpose_block(place, n_stride, columns - c, goal, {columns}, {lanes})",
        "for row in range(whole, k):",
        *_strided_row(tile, "start + row"),
    ]


def _strided_row(tile: RegisterTile, first: str) -> list[str]:
    return [
        "    for c in range(columns):",
        f"        store_scalar(packed, target + row * {tile.columns} + c, load_scalar(w, {first} + c * n_stride))",
    ]


@dataclass
class Batched:
    """The batch of a product after dimensions are merged.

    Attributes:
        lens: lengths of the batch dimensions.
        m: rows of one product.
        strides: element strides by operand name (batch dimensions, then row): ``x``, ``w`` (row stride 0), ``out``,
            ``e<k>`` for epilogue operands that vary over rows, ``a<k>`` for prologue operands.
    """

    m: SharedLength
    lens: list[SharedLength]
    strides: dict[str, list[SharedLength]]

    @property
    def count(self) -> Length:
        """Return the number of products in the batch."""
        return math.prod(self.lens)

    def pieces(self, most: int = MOST_DIMS) -> Iterator[tuple[Batched, dict[str, SharedLength]]]:
        """Yield sub-batches of at most ``most`` batch dimensions plus the symbolic dimensions, each with the element
        offset of every operand."""
        if len(self.lens) <= most or isinstance(self.lens[0], Dim):
            yield self, dict.fromkeys(self.strides, 0)
            return
        inner = Batched(self.m, self.lens[1:], {name: s[1:] for name, s in self.strides.items()})
        for index in range(plain_int(self.lens[0])):
            for piece, offsets in inner.pieces(most):
                yield piece, {name: offset + index * self.strides[name][0] for name, offset in offsets.items()}


def collapse(problem: GemmProblem, epilogue: Epilogue, strides: Strides, w_strides: Sequence[Length]) -> Batched:
    """Drop and merge batch dimensions; dimensions that share the right-hand side become rows where strides allow.

    Symbolic dimensions are merged only if the merge is valid for all their values.

    Args:
        w_strides: batch strides of the right-hand side in the layout that the kernel reads.
    """
    rank = len(problem.batch)
    table: dict[str, list[SharedLength]] = {
        "x": list(problem.a_strides[: rank + 1]),
        "w": [*w_strides, 0],
        "out": list(problem.out_strides),
    }
    for k, operand in enumerate(epilogue.operands):
        if operand.access in MOVING:
            columns = problem.n if operand.access in ALONG_N else 1
            given = strides[k] if k < len(strides) else ()
            table[f"e{k}"] = list(given) or _contiguous(problem, columns)
    for k, own in enumerate(problem.prologue.operands if problem.prologue else ()):
        table[f"a{k}"] = [*own.batch_strides, 0]
    lens: list[SharedLength] = list(problem.batch)
    for d in range(rank - 1, -1, -1):
        alone = known_equal(lens[d], 1)
        if alone or (d + 1 < len(lens) and _mergeable(table, d, lens[d + 1])):
            if not alone:
                lens[d + 1] *= lens[d]
            del lens[d]
            for s in table.values():
                del s[d]
    m = problem.m
    shared = [s for name, s in table.items() if name[0] in "wa"]  # merged with the rows of one product
    while lens and all(known_in(s[-2], 0) for s in shared):
        alone = known_equal(m, 1)
        if not alone and not all(known_equal(s[-2], m * s[-1]) for s in table.values()):
            break
        if alone:
            for s in table.values():
                s[-1] = s[-2]
        m *= lens.pop()
        for s in table.values():
            del s[-2]
    return Batched(m, lens, table)


def _mergeable(table: dict[str, list[SharedLength]], d: int, inner: Length) -> bool:
    return all(known_equal(s[d], s[d + 1] * inner) for s in table.values())


def _contiguous(problem: GemmProblem, columns: Length) -> list[Length]:
    strides: list[Length] = [columns]
    for length in (problem.m, *problem.batch[:0:-1]):
        strides.insert(0, strides[0] * length)
    return strides if problem.batch else [columns]
