"""Products of a few rows with 17-bit weights, which halve the bytes of weights that bound the product.

Weight rows that are only multiplied by zeros are not read: after a ReLU, half of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ....core.dim import known_equal
from ...backend import LoadKernels
from ...problems.gemm import GemmProblem
from ...statements import indent
from .. import host
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import tile_for
from .gemv import GemvPacked, chain_sets
from .int16_weights import (
    BLOCK,
    BLOCK_WORDS,
    DOWN,
    GROUP,
    SHARING,
    kernel_for,
    pack_by_kernel,
    pack_words,
    unpack,
    unpacked_scale,
    words_lens,
)
from .panels import SHARED_BYTES, aligned_zeros
from .solver import IsCompiled

UNROLL = 2
"""Rows of weights in a step of a loop of eight (measured: 2 and 4 are alike; 8 takes a quarter longer in memory)."""
SPARSE = 8
"""Parts of a block's rows; zero rows are skipped if at most `NEAR_ROWS` or `FAR_ROWS` parts have to be read."""
NEAR_ROWS = 7
"""Limit for weights that may be in a cache: one row in eight is multiplied by zero."""
FAR_ROWS = 3
"""Limit for weights of at least `FAR_BYTES`: memory delivers half of the rows no sooner than all of them (measured:
half takes 1.25 times as long)."""
FAR_BYTES = 1 << 24
"""Bytes of float32 weights from which caches are assumed not to hold them."""
PREFETCH_BYTES = 4096
"""Prefetch distance (bytes), at most a block (one core, weights in memory: 37 GB/s; 36 with half the distance, 34 with
a quarter; no difference in L3)."""
LISTED_BYTES = 1024
"""Prefetch distance (bytes) where rows are skipped: which rows of the next block are needed is not known yet."""
_MOST_ROWS = 3
"""Most rows; products of more rows are bound by the multiply-add units."""
_LEAST_BYTES = 1 << 17
"""Bytes of float32 weights from which products are bound by memory."""
FAR_SHARE, NEAR_SHARE = 0.58, 1.1
"""Time relative to float32 weights, bound by memory and not: 17 of 32 bits are read, and unpacking takes a tenth of the
time unless memory latency hides it."""


class GemvInt16(GemvPacked):
    """`GemvPacked` with 17-bit weights (`int16_weights`), for ``fast_math``.

    Results differ by about 1e-5 of their scale (measured with normal weights). The error is 1e-4 if one weight in 4096
    is 100 times as large, and 5e-3 if that weight is the largest accepted and is multiplied by zero.

    `DOWN` makes rows whose elements are all below 1e-29 denormal, which loses bits; below 1e-34 it loses all bits.
    """

    name = "gemv_int16"
    rounds_weights = True
    _streams: ClassVar = {2: 1.0, 1: 1.03, 4: 1.1}
    packed_as = name
    _most_rows = _MOST_ROWS
    _stored_as = "int32"

    def refused_types(self, problem: GemmProblem) -> str | None:
        uniform = problem.types.uniform
        if uniform is None:
            return f"the element types differ: {problem.types}"
        return None if uniform == "float32" else f"the element type is {uniform}, not float32"

    def declines(self, problem: GemmProblem) -> str | None:
        if not problem.fast_math:
            return "weights may not be rounded without fast_math"
        return super().declines(problem)

    def rewrites(self, problem: GemmProblem) -> bool:
        return True

    def packed_lens(self, problem: GemmProblem) -> tuple[int, ...]:
        """Return the packed lengths: panels, words of all blocks of k in a panel, columns in pairs of vectors."""
        columns = self._panel_columns(problem, tile_for(problem.types))
        return words_lens(-(-problem.n // columns), problem.k, columns, True)

    def pack_weights(self, problem: GemmProblem, weights: np.ndarray) -> np.ndarray:
        """Pack ``weights[*ones, k, n]`` into int32 words.

        Raises:
            UnsuitedWeights: a weight is infinite or NaN, too large for a scale, or too large beside others of its
                column.
        """
        out = aligned_zeros(self.packed_lens(problem), "int32")
        pack_words(weights.reshape(weights.shape[-2:]), out, tile_for(problem.types).lanes, True)
        return out

    def pack_by_kernel(
        self, problem: GemmProblem, weights: np.ndarray, load: LoadKernels, compiled: IsCompiled
    ) -> np.ndarray | None:
        """Pack weights as `pack_weights` does, by a kernel.

        Returns None unless rows or columns are contiguous, and unless the weights are many or the kernel is already
        compiled.
        """
        matrix = weights.reshape(weights.shape[-2:])
        lens, lanes = self.packed_lens(problem), tile_for(problem.types).lanes
        if matrix.itemsize not in matrix.strides or min(matrix.strides) < 0:
            return None
        if 4 * math.prod(lens) < SHARED_BYTES and not compiled(kernel_for(matrix, lens, lanes)):
            return None
        out = aligned_zeros(lens, "int32")
        pack_by_kernel(matrix, out, lanes, load)
        return out

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        """Return about half of the time of float32 weights where memory bounds the product."""
        bytes_ = 2 * problem.itemsize * math.prod(self.packed_lens(problem))
        return (FAR_SHARE if bytes_ >= _LEAST_BYTES else NEAR_SHARE) * super().estimate(problem, threads)

    def _panel_columns(self, problem: GemmProblem, tile: RegisterTile) -> int:
        return (4 if problem.n > 2 * tile.lanes else 2) * tile.lanes

    def _product(self, problem: GemmProblem, tile: RegisterTile, streams: int, starts: Sequence[str]) -> list[str]:
        """Return statements that accumulate ``sums`` [row, column] of the group's panels; panels after the last one
        repeat it."""
        m, lanes = len(starts), tile.lanes
        columns = self._panel_columns(problem, tile)
        vectors, row = columns // lanes, columns // 2
        cells = [(q, v, r) for q in range(streams) for v in range(vectors) for r in range(m)]
        sets = chain_sets(len(cells), UNROLL)
        listing = known_equal(problem.a_strides[-1], 1)
        needed = FAR_ROWS if 4 * math.prod(self.packed_lens(problem)) >= FAR_BYTES else NEAR_ROWS
        step = "" if listing else " * x_step"
        ahead, listed_ahead = (min(BLOCK, bytes_ // (4 * row)) for bytes_ in (PREFETCH_BYTES, LISTED_BYTES))

        words = [(q, v) for q in range(streams) for v in range(vectors // 2)]

        def term(place: str, s: int, near: str) -> list[str]:
            """Return the statements for row ``k``, whose words start at ``place``."""
            lines = [f"word = ({place}) * {row}", f"near = ({near}) * {row}"]
            lines += [f"a{r} = mul(load_splat(x, {starts[r]} + (k){step}, {lanes}), down)" for r in range(m)]
            for q in range(streams):
                lines += [f"prefetch(w{q}, near + {at})" for at in range(0, row, host.CACHE_LINE // 4)]
            for q, v in words:
                lines += unpack(f"w{q}", f"word + {v * lanes}", lanes, f"last{q}_{v}")
                for half in range(2):
                    sums = [f"s{s}_{q}_{2 * v + half}_{r}" for r in range(m)]
                    lines += [f"{sums[r]} = fma(a{r}, b{half}, {sums[r]})" for r in range(m)]
            return lines

        def lowest(place: str, half: str, shift: str = "") -> list[str]:
            """Return statements that load the words whose bits 16 and 15 are the lowest bits of a row."""
            lines = [f"turn = splat(cast_int32(({half}) * {2 * SHARING}), {lanes})"]
            lines += [f"up = splat(cast_int32({shift or 1}), {lanes})"]
            for q, v in words:
                load = f"load(w{q}, ({place}) * {row} + {v * lanes}, {lanes})"
                lines.append(f"last{q}_{v} = shift_left(shift_right({load}, turn), up)")
            return lines

        shifted = [f"last{q}_{v} = shift_left(last{q}_{v}, const_int32(2, {lanes}))" for q, v in words]
        zero = f"const_float32(0, {lanes})"
        lines_of = [(q, at) for q in range(streams) for at in range(0, row, host.CACHE_LINE // 4)]
        block = [f"s{s}_{q}_{v}_{r} = {zero}" for s in range(sets) for q, v, r in cells]
        block += [f"first = block * {BLOCK}", f"rows = imin(depth - first, {BLOCK})", f"start = block * {BLOCK_WORDS}"]
        block += [f"prefetch(w{q}, (start + {ahead}) * {row} + {at})" for q, at in lines_of]
        every = [
            f"for head in range(0, rows, {SHARING}):",
            f"    before = start + 2 + idiv(head, {GROUP})",
            *indent(lowest(f"before - 1 + head - imod(head, {GROUP})", f"imod(idiv(head, {SHARING}), 2)")),
            *(f"    prefetch(w{q}, (before + head + {SHARING - 1 + ahead}) * {row} + {at})" for q, at in lines_of),
            f"    if rows - head >= {SHARING}:",
            f"        for i in range(head, head + {SHARING}, {UNROLL}):",
        ]
        for u in range(UNROLL):
            place = f"before + i + {u}"
            every += indent([f"k = first + i + {u}", *term(place, u % sets, f"{place} + {ahead}"), *shifted], 3)
        every += ["    else:", "        for i in range(head, rows):"]
        every += indent(["k = first + i", *term("before + i", 0, "before + i"), *shifted], 3)
        if listing:
            block += ["found = rows", "if look:", *indent(_list_rows(starts, lanes, listed_ahead))]
            block += [f"if found * {SPARSE} > rows * {needed}:", "    look = False", *indent(every), "else:"]
            some = [
                "i = cast_int64(load_scalar(listed, j))",
                "k = first + i",
                f"group_of = idiv(i, {GROUP})",
                f"later = cast_int64(load_scalar(listed, j + {listed_ahead}))",
                *lowest(
                    f"start + 1 + group_of * {GROUP + 1}", f"imod(idiv(i, {SHARING}), 2)", f"1 + 2 * imod(i, {SHARING})"
                ),
                *term(
                    "start + 2 + i + group_of", 0, f"start + 2 + later + idiv(later, {GROUP}) + idiv(later, {BLOCK})"
                ),
            ]
            heads = [BLOCK_WORDS, *range(BLOCK_WORDS + 1, 2 * BLOCK_WORDS, GROUP + 1)]
            soon = [f"prefetch(w{q}, (start + {head}) * {row} + {at})" for head in heads for q, at in lines_of]
            block += indent([*soon, "for j in range(found):", *indent(some)])
        else:
            block += every
        for q, v in words:
            block.append(f"scales = load(w{q}, start * {row} + {v * lanes}, {lanes})")
            for half in range(2):
                block.append(unpacked_scale("scales", half, lanes))
                for r in range(m):
                    cell = f"{q}_{2 * v + half}_{r}"
                    total = f"s0_{cell}"
                    for s in range(1, sets):
                        total = f"add({total}, s{s}_{cell})"
                    block.append(f"t{cell} = fma({total}, scale, t{cell})")
        return [
            f"blocks = idiv(depth + {BLOCK - 1}, {BLOCK})",
            f"size = (depth + blocks + idiv(depth + {GROUP - 1}, {GROUP})) * {row}",
            f"down = const_float32({DOWN!r}, {lanes})",
            *([f"listed = local_int32({BLOCK + max(listed_ahead, lanes) + lanes})", "look = True"] if listing else []),
            *(f"w{q} = offset(w, imin(panel + {q}, panels - 1) * size)" for q in range(streams)),
            *(f"t{q}_{v}_{r} = {zero}" for q, v, r in cells),
            "for block in range(blocks):",
            *indent(block),
            *(f"store(sums, {(r * streams + q) * columns + v * lanes}, t{q}_{v}_{r})" for q, v, r in cells),
        ]


def _list_rows(starts: Sequence[str], lanes: int, ahead: int) -> list[str]:
    """Return statements that write to ``listed`` the ``found`` rows of a block that are not multiplied by zeros only.

    Another ``ahead`` entries follow for prefetching: the first rows of the next block.
    """
    mask = "ne(load_tail(x, {} + first + i, imin(rows - i, {lanes}), 0, {lanes}), 0)"
    lines = [f"some = {mask.format(starts[0], lanes=lanes)}"]
    lines += [f"some = logical_or(some, {mask.format(start, lanes=lanes)})" for start in starts[1:]]
    numbers = f"add(splat(cast_int32(i), {lanes}), iota_int32({lanes}))"
    lines.append(f"found += store_where(listed, found, {numbers}, some)")
    after = f"add(splat(cast_int32({BLOCK} + i), {lanes}), iota_int32({lanes}))"
    return [
        "found = 0",
        f"for i in range(0, rows, {lanes}):",
        *indent(lines),
        f"for i in range(0, {ahead}, {lanes}):",
        f"    store(listed, found + i, {after})",
    ]
