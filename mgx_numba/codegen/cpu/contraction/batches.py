"""Merge or drop the batch dimensions of a matrix product, consistently for all operands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....core.dim import Dim, Length, SharedLength, known_equal, known_in
from ....core.integers import plain_int
from ....dataclass import dataclass
from ...problems.epilogue import ALONG_N, MOVING, Epilogue
from ...problems.gemm import GemmProblem
from .solver import Strides

MOST_DIMS = 3
"""Batch dimensions that the kernel iterates over; further dimensions become separate launches."""


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
