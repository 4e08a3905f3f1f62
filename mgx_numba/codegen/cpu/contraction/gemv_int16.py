"""Products of a few rows with weights of 16 bits: half the bytes to read, which is what such products wait for.

Rows of weights that are multiplied by zeros alone, as half of them are after a ReLU, are not read.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from ...problems.gemm import GemmProblem
from ...statements import indent
from .. import host
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import tile_for
from .gemv import GemvPacked, chain_sets
from .int16_packing import pack_by_kernel
from .int16_weights import BLOCK, DOWN, pack_words, unpack, words_lens
from .pack import SHARED_BYTES, aligned_zeros
from .solver import LoadKernels

__all__ = ["GemvInt16"]

UNROLL = 2
"""As for float32 weights; a step here has two rows of weights in it."""
SPARSE = 8
"""Rows are skipped where one in so many is zero on the left."""
PREFETCH_BYTES = 1024
"""How far ahead weights are asked for (measured: 0.5 to 2 KiB; without it L3 gives 180 instead of 230 GB/s)."""
_MOST_ROWS = 3
"""With more the multiply-add units are what a product waits for."""
_LEAST_BYTES = 1 << 17
"""Float32 weights from which on they are waited for."""


class GemvInt16(GemvPacked):
    """As `GemvPacked`, with weights of 16 bits; for fast_math, since results differ by about 1e-5 of their scale."""

    name = "gemv_int16"
    rounds_weights = True
    _streams: ClassVar = {2: 1.0, 1: 1.05, 4: 1.05}
    _stored_as = "int32"

    def refused_types(self, problem: GemmProblem) -> str | None:
        uniform = problem.types.uniform
        if uniform is None:
            return f"the element types differ: {problem.types}"
        return None if uniform == "float32" else f"the element type is {uniform}, not float32"

    def declines(self, problem: GemmProblem) -> str | None:
        if not problem.fast_math:
            return "weights may not be rounded without fast_math"
        if problem.m > _MOST_ROWS:
            return f"more than {_MOST_ROWS} rows"
        return super().declines(problem)

    def packed_lens(self, problem: GemmProblem) -> tuple[int, ...]:
        """Panels; in each the scales of all blocks, then the words of all k; columns in pairs of vectors."""
        columns = self._panel_columns(problem, tile_for(problem.types))
        return words_lens(-(-problem.n // columns), problem.k, columns)

    def pack_weights(self, problem: GemmProblem, weights: np.ndarray) -> np.ndarray:
        """Words (int32) of ``weights[*ones, k, n]``.

        Raises:
            UnsuitedWeights: a weight is infinite or NaN, or too large for a scale or beside others of its column.
        """
        out = aligned_zeros(self.packed_lens(problem), "int32")
        pack_words(weights.reshape(weights.shape[-2:]), out, tile_for(problem.types).lanes)
        return out

    def pack_by_kernel(self, problem: GemmProblem, weights: np.ndarray, load: LoadKernels) -> np.ndarray | None:
        """As `pack_weights`, of many weights of which rows or columns are contiguous."""
        matrix = weights.reshape(weights.shape[-2:])
        lens = self.packed_lens(problem)
        if 4 * math.prod(lens) < SHARED_BYTES or matrix.itemsize not in matrix.strides or min(matrix.strides) < 0:
            return None
        out = aligned_zeros(lens, "int32")
        pack_by_kernel(matrix, out, tile_for(problem.types).lanes, load)
        return out

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        """Half of the time of float32 weights, where these have to be waited for."""
        bytes_ = 2 * problem.itemsize * math.prod(self.packed_lens(problem))
        # Unpacking takes a tenth, where it is not hidden by waiting.
        return (0.55 if bytes_ >= _LEAST_BYTES else 1.1) * super().estimate(problem, threads)

    def _panel_columns(self, problem: GemmProblem, tile: RegisterTile) -> int:
        return (4 if problem.n > 2 * tile.lanes else 2) * tile.lanes

    def _product(self, problem: GemmProblem, tile: RegisterTile, streams: int) -> list[str]:
        """Statements: ``sums`` [row, column] of the group's panels; panels after the last one repeat it."""
        m, lanes = problem.m, tile.lanes
        columns = self._panel_columns(problem, tile)
        vectors, row = columns // lanes, columns // 2
        cells = [(q, v, r) for q in range(streams) for v in range(vectors) for r in range(m)]
        sets = chain_sets(len(cells), UNROLL)
        listing = problem.a_strides[-1] == 1
        step = "" if listing else " * x_step"
        ahead = PREFETCH_BYTES // (4 * row)

        def term(place: str, s: int, near: str) -> list[str]:
            lines = [f"word = ({place}) * {row}", f"near = ({near}) * {row}"]
            lines += [f"a{r} = mul(load_splat(x, {r} * x_ld + ({place}){step}, {lanes}), down)" for r in range(m)]
            for q in range(streams):
                lines += [f"prefetch(w{q}, near + {at})" for at in range(0, row, host.CACHE_LINE // 4)]
                for v in range(0, vectors, 2):
                    lines += unpack(f"w{q}", f"word + {v // 2 * lanes}", lanes)
                    for half in range(2):
                        sums = [f"s{s}_{q}_{v + half}_{r}" for r in range(m)]
                        lines += [f"{sums[r]} = fma(a{r}, b{half}, {sums[r]})" for r in range(m)]
            return lines

        zero = f"const_float32(0, {lanes})"
        block = [f"s{s}_{q}_{v}_{r} = {zero}" for s in range(sets) for q, v, r in cells]
        block += [f"first = block * {BLOCK}", f"rows = imin(depth - first, {BLOCK})"]
        every = [f"whole = rows - imod(rows, {UNROLL})", f"for k in range(first, first + whole, {UNROLL}):"]
        for u in range(UNROLL):
            every += indent(term(f"k + {u}", u % sets, f"k + {u + ahead}"))
        every += ["for k in range(first + whole, first + rows):", *indent(term("k", 0, "k"))]
        if listing:
            later = f"cast_int64(load_scalar(listed, j + {ahead}))"
            block += ["found = rows", "if look:", *indent(_list_rows(m, lanes, ahead))]
            block += [f"if found * {SPARSE} > rows * {SPARSE - 1}:", "    look = False", *indent(every), "else:"]
            block += ["    for j in range(found):"]
            block += indent(["k = cast_int64(load_scalar(listed, j))", *term("k", 0, later)], 2)
        else:
            block += every
        for q in range(streams):
            for v in range(vectors):
                block.append(f"scale = bits_float32(load(scales{q}, block * {columns} + {v * lanes}, {lanes}))")
                for r in range(m):
                    total = f"s0_{q}_{v}_{r}"
                    for s in range(1, sets):
                        total = f"add({total}, s{s}_{q}_{v}_{r})"
                    block.append(f"t{q}_{v}_{r} = fma({total}, scale, t{q}_{v}_{r})")
        own = [f"scales{q} = offset(w, imin(panel + {q}, panels - 1) * size)" for q in range(streams)]
        return [
            f"blocks = idiv(depth + {BLOCK - 1}, {BLOCK})",
            f"size = (2 * blocks + depth) * {row}",
            f"down = const_float32({DOWN!r}, {lanes})",
            *([f"listed = local_int32({BLOCK + max(ahead, lanes)})", "look = True"] if listing else []),
            *own,
            *(f"w{q} = offset(scales{q}, blocks * {columns})" for q in range(streams)),
            *(f"t{q}_{v}_{r} = {zero}" for q, v, r in cells),
            "for block in range(blocks):",
            *indent(block),
            *(f"store(sums, {(r * streams + q) * columns + v * lanes}, t{q}_{v}_{r})" for q, v, r in cells),
        ]


def _list_rows(m: int, lanes: int, ahead: int) -> list[str]:
    """Statements: ``listed``, the ``found`` rows of a block that the left-hand side does not multiply by zeros alone.

    So many as are asked for ``ahead`` follow them: the next block's first.
    """
    mask = "ne(load_tail(x, {} * x_ld + first + i, imin(rows - i, {lanes}), 0, {lanes}), 0)"
    lines = [f"some = {mask.format(0, lanes=lanes)}"]
    lines += [f"some = logical_or(some, {mask.format(r, lanes=lanes)})" for r in range(1, m)]
    numbers = f"add(splat(cast_int32(first + i), {lanes}), iota_int32({lanes}))"
    lines.append(f"found += store_where(listed, found, {numbers}, some)")
    after = f"add(splat(cast_int32(first + {BLOCK} + i), {lanes}), iota_int32({lanes}))"
    return [
        "found = 0",
        f"for i in range(0, rows, {lanes}):",
        *indent(lines),
        f"for i in range(0, {ahead}, {lanes}):",
        f"    store(listed, found + i, {after})",
    ]
