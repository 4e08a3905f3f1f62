"""Matrix products of 8-bit integers with exact int32 accumulators, over the tiles of `int8_table`.

The right-hand side is packed in words of several k: a constant once, an activation in each run. The left-hand side is
converted to the tile's format by a separate launch, unless it already has that format.

Products by ``vpmaddubsw`` are exact, although the instruction adds two products in 16 bits. Two products of an unsigned
byte fit 16 bits if the sum of their two weights is at most 128 in magnitude. Where it is larger, the second weight is
reduced until it fits. What is taken away, the residual, is multiplied in a further step.

A panel ends with its residuals: int32 ``starts[taps + 1]``, the number of the first residual of each tap; then for each
residual its tap and the number of its word of k in the tap, the same where taps along a row are one run of taps, and
the words of all columns of the panel. There is room for `_most_residuals`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ....core.dim import Length, SharedLength, known_equal, known_in, maximum
from ....core.types import numpy_dtype
from ...arguments import Arguments
from ...launch import Launch, Operand, Solution, TaskRange
from ...problems.element_types import ITEMSIZE, ElementTypes
from ...problems.epilogue import NOT_COMPUTED
from ...problems.gemm import GemmProblem
from ...statements import for_tasks, indent, kernel_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import claim
from ..microkernels.int8_table import INT8_TILES
from ..microkernels.register_tile import RegisterTile, TileTypes
from ..microkernels.tile_table import RESIDUAL_PLACES, residual_tile, tile_for
from .gemm import (
    LEFT,
    GemmPacked,
    GemmPacking,
    Unpacked,
    distinct_lens,
    distinct_matrices,
    left_repeats,
    product_launches,
    product_seconds,
)
from .pack_kernel import collapse, row_start
from .panels import aligned_zeros, pack_panels, panel_count, without_repeats, words_of
from .solver import Setting, UnsuitedWeights, integer_types_refused


class GemmInt8(GemmPacked):
    """Solver for uint8 or int8 by constant int8 matrices. Accumulators that overflow int32 wrap around."""

    name = "gemm_int8"

    def tile(self, types: ElementTypes) -> RegisterTile:
        """Return the register tile for these types."""
        return tile_for(types)

    def refused_types(self, problem: GemmProblem) -> str | None:
        return integer_types_refused(problem.types)

    def declines(self, problem: GemmProblem) -> str | None:
        return NOT_COMPUTED if problem.prologue else super().declines(problem)

    def packed_lens(self, problem: GemmProblem) -> tuple[int, ...]:
        """Return the packed lengths: matrices, panels, rows of a panel (column sums if the tile wants them, words, then
        residuals if it has them), columns."""
        tile = self.tile(problem.types)
        depth = maximum(tile.depth(problem.k), 1)
        rows = _first_row(tile) + depth + residual_rows(tile, 1, depth)
        return (distinct_matrices(problem), panel_count(tile, problem.n), rows, tile.columns)

    def pack_weights(self, problem: GemmProblem, weights: np.ndarray) -> np.ndarray:
        """Pack weights as `GemmPacked.pack_weights` does, in int32 words."""
        tile, lens = self.tile(problem.types), self.packed_lens(problem)
        out = aligned_zeros(lens, tile.right_word)
        distinct = without_repeats(weights, problem.b_strides)
        target = out.reshape(*distinct.shape[:-2], *lens[1:])
        first, depth = _first_row(tile), tile.depth(problem.k)
        for index in np.ndindex(*distinct.shape[:-2]):
            matrix, residuals = distinct[index], None
            if tile.packing.residuals:
                matrix, residuals = split_weights(matrix)
            if residuals is not None:
                pack_residuals(tile, [word_rows(tile, residuals)], target[index][:, first + depth :])
            pack_panels(word_rows(tile, matrix), target[index][:, first : first + depth])
            if first:
                pack_panels(distinct[index].sum(0, keepdims=True, dtype=np.int32), target[index][:, :first])
        return out

    def solve(self, problem: GemmProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        tile = self.tile(problem.types)
        *_, rows, columns = self.packed_lens(problem)
        pack: tuple[Launch, ...] = ()
        x, scratch, words = LEFT, 0, words_in_place(problem, tile)
        if words is None:
            pack, words, scratch = left_words(problem, tile)
            x = Operand("scratch")
        product = dataclasses.replace(problem, a_strides=words)
        w = Operand("w", _first_row(tile) * columns * ITEMSIZE[tile.right_word])
        batched = collapse(product, epilogue, strides, self.panel_strides(problem))
        steps = (columns, columns * rows)
        launches = product_launches(
            product, epilogue, batched, w, steps, threads, blocking, x=x, name=self.name, tile=tile
        )
        return Solution((*pack, *launches), scratch)

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        return product_seconds(problem, threads, self.tile(problem.types))


class GemmInt8Residual(GemmInt8):
    """`GemmInt8` with bytes that are multiplied in pairs of 16 bits, for weights of which few are too large for
    that."""

    name = "gemm_int8_residual"
    looks_at_values = True

    def tile(self, types: ElementTypes) -> RegisterTile:
        return tile_with_residuals(types)

    def refused_types(self, problem: GemmProblem) -> str | None:
        return super().refused_types(problem) or residual_tile_refused(problem.types)


class GemmPackingInt8(Unpacked):
    """Solver for uint8 or int8 by int8 activations of any strides, packed into scratch memory by a separate launch."""

    name = "gemm_packing_int8"

    def refused_types(self, problem: GemmProblem) -> str | None:
        return integer_types_refused(problem.types)

    def solve(self, problem: GemmProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        tile = _tile_without_sums(problem.types)
        left: tuple[Launch, ...] = ()
        x, start, words = LEFT, 0, words_in_place(problem, tile)
        if words is None:
            left, words, start = left_words(problem, tile)
            x, start = Operand("scratch"), -(-start // host.CACHE_LINE) * host.CACHE_LINE
        depth, size = tile.depth(problem.k), ITEMSIZE[tile.right_word]
        matrix = panel_count(tile, problem.n) * depth * tile.columns
        lens = distinct_lens(problem.batch, problem.b_strides)
        w_strides = tuple(
            0 if known_in(s, 0) else matrix * math.prod(lens[d + 1 :]) for d, s in enumerate(problem.b_strides[:-2])
        )
        right = word_panels(problem, tile, lens, start)
        product = dataclasses.replace(problem, a_strides=words)
        batched = collapse(product, epilogue, strides, w_strides)
        w, steps = Operand("scratch", start), (tile.columns, tile.columns * depth)
        launches = product_launches(
            product, epilogue, batched, w, steps, threads, blocking, x=x, name="gemm_int8", tile=tile
        )
        return Solution((*left, right, *launches), start + math.prod(lens) * matrix * size)

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        return GemmPacking().estimate(problem, threads)


def _tile_without_sums(types: ElementTypes) -> RegisterTile:
    """Return the best tile that reads no sums of columns, which the launch that packs activations does not compute."""
    own, cpu = TileTypes.of(types), host.host()
    return next(t for t in INT8_TILES if t.types == own and t.isa(cpu) and not t.packing.column_sums)


def word_panels(problem: GemmProblem, tile: RegisterTile, lens: Sequence[Length], start: Length) -> Launch:
    """Return the launch that packs `word_rows` of the right-hand side ``w[*lens, k, n]`` into panels, ``start`` bytes
    into scratch.

    A panel is one task. The last words and the last panel are padded with zeros.
    """
    given, together, word = problem.types.b, tile.packing.k_interleave, tile.right_word
    bits = 8 * ITEMSIZE[word] // together
    panels = panel_count(tile, problem.n)
    arguments = Arguments()
    arguments.pointer("w", "w", given)
    arguments.pointer("packed", Operand("scratch", start), word)
    k_stride, n_stride = problem.b_strides[-2:]
    arguments.integers(n=problem.n, k=problem.k, k_stride=k_stride, n_stride=n_stride, panels=panels)
    rows = row_start(arguments, [*lens, panels], [*problem.b_strides[:-2], tile.columns * n_stride])
    contiguous = known_equal(n_stride, 1) or known_equal(problem.n, 1)

    def element(j: int) -> str:
        if contiguous:
            value = f"load_tail(w, place + {j} * k_stride, left, 0, {tile.lanes})"
        else:
            value = f"load_strided_tail(w, place + {j} * k_stride, n_stride, left, 0, {tile.lanes})"
        value = f"cast_{word}({value})"
        if (j + 1) * bits < 8 * ITEMSIZE[word]:
            value = f"bitwise_and({value}, const_{word}({(1 << bits) - 1}, {tile.lanes}))"
        return f"shift_left({value}, const_{word}({j * bits}, {tile.lanes}))" if j else value

    joined = [f"word = bitwise_or(word, {element(j)})" for j in range(1, together)]
    store = "store(packed, target + c, word)"
    task = [
        *rows,
        f"columns = imin(n - imod(task, panels) * {tile.columns}, {tile.columns})",
        f"target = task * idiv(k + {together - 1}, {together}) * {tile.columns}",
        f"for row in range(0, k, {together}):",
        f"    for c in range(0, {tile.columns}, {tile.lanes}):",
        f"        left = imax(imin(columns - c, {tile.lanes}), 0)",
        "        place = start + row * k_stride + c * n_stride",
        f"        word = {element(0)}",
        f"        if k - row >= {together}:",
        *indent(joined, 3),
        "        else:",
        *(
            line
            for j in range(1, together)
            for line in (f"            if k - row > {j}:", f"                {joined[j - 1]}")
        ),
        f"        {store}",
        f"    target += {tile.columns}",
    ]
    name = f"panels_{given}_as_{word}_of_{together}_{'rows' if contiguous else 'strided'}_kernel"
    source = cpu_kernel(name, kernel_text([*arguments.bind(), *for_tasks(task)]))
    count = math.prod(lens)
    moved = count * (problem.k * problem.n + panels * tile.depth(problem.k) * tile.columns * ITEMSIZE[word])
    return Launch(source, arguments.values, TaskRange(count * panels, 1), 0, moved)


def _first_row(tile: RegisterTile) -> int:
    """Return the index of the first panel row that holds weights: 1 after a row of column sums, else 0."""
    return int(tile.packing.column_sums)


def words_in_place(problem: GemmProblem, tile: RegisterTile) -> tuple[SharedLength, ...] | None:
    """Return the strides of the left-hand side in words if the tile can read it in place, else None."""
    together = tile.packing.k_interleave
    *outer, k_stride = problem.a_strides
    as_it_is = tile.packing.a in ("", problem.types.a) and known_equal(k_stride, 1)
    whole = known_equal(problem.k % (together * tile.step), 0)
    if not as_it_is or not whole or not all(known_equal(stride % together, 0) for stride in outer):
        return None
    return (*(stride // together for stride in outer), 1)


def word_rows(tile: RegisterTile, matrices: np.ndarray) -> np.ndarray:
    """Return weights ``[..., k, n]`` as words ``[..., depth, n]`` of successive k, the last word padded with zeros."""
    *outer, k, n = matrices.shape
    together, depth = tile.packing.k_interleave, tile.depth(k)
    dtype = numpy_dtype(tile.packing.b or tile.types.b)
    if k == depth * together and matrices.dtype == dtype:
        whole = matrices
    else:
        whole = np.zeros((*outer, depth * together, n), dtype)
        whole[..., :k, :] = matrices
    return words_of(whole, together, tile.right_word)


def left_words(
    problem: GemmProblem, tile: RegisterTile, pitch: int = 0
) -> tuple[tuple[Launch, ...], tuple[SharedLength, ...], SharedLength]:
    """Return the left-hand side in the tile's format: the launch that converts it, its strides in words, and its
    scratch bytes.

    A row is one task. Rows that a batch repeats are stored once. The zeros (converted as any element) pad the last word
    of a row.

    Args:
        pitch: elements from row to row; nothing is then written past a row. 0: a pitch that suits the cache.
    """
    form, given = tile.packing.a or tile.types.a, problem.types.a
    lanes, size = host.lanes(form), ITEMSIZE[form]
    close = pitch > 0
    if not close:  # successive rows should fall into different cache sets
        pitch = -(-problem.k // lanes) * lanes + host.CACHE_LINE // size
    lens = [*distinct_lens(problem.batch, problem.a_strides), problem.m]
    row_words = pitch // tile.packing.k_interleave
    words = [row_words * math.prod(lens[d + 1 :]) for d in range(len(lens))]
    words = [0 if left_repeats(problem, d) else w for d, w in enumerate(words)]
    rows = math.prod(lens)
    strides = (*words, 1)
    if problem.k == 0:
        return (), strides, 0
    arguments = Arguments()
    arguments.pointer("x", "x", given)
    arguments.pointer("packed", "scratch", "int8" if size == 1 else form)
    arguments.integers(k=problem.k, k_stride=problem.a_strides[-1], pitch=pitch)
    task = row_start(arguments, lens, problem.a_strides)
    contiguous = known_equal(problem.a_strides[-1], 1) or known_equal(problem.k, 1)

    def vector(left: str) -> list[str]:
        return _pack_vector(given, form, lanes, contiguous, left, close)

    task += vector_loop(lanes, vector, "0", "k")
    name = f"left_{given}_as_{form}_{'rows' if contiguous else 'strided'}{'_close' if close else ''}_kernel"
    source = cpu_kernel(name, kernel_text([*arguments.bind(), *for_tasks(task)]))
    moved = rows * (problem.k + pitch * size)
    tasks = TaskRange(rows, claim(rows, moved))
    return (Launch(source, arguments.values, tasks, 0, moved),), strides, rows * pitch * size


def _pack_vector(given: str, form: str, lanes: int, contiguous: bool, left: str, close: bool) -> list[str]:
    """Return statements that convert one vector, or the last ``left`` elements of a row, to the tile's format."""
    tail, fill = ("_tail", f"{left}, 0, ") if left else ("", "")
    if contiguous:
        value = f"load{tail}(x, start + c, {fill}{lanes})"
    else:
        value = f"load_strided{tail}(x, start + c * k_stride, k_stride, {fill}{lanes})"
    if ITEMSIZE[given] == ITEMSIZE[form] == 1:
        value = f"bits_int8({value})" if given == "uint8" else value
        if given != form:  # shifted by 128
            value = f"bitwise_xor({value}, const_int8(-128, {lanes}))"
    elif given != form:
        value = f"cast_{form}({value})"
    if close and left:
        return [f"store_tail(packed, task * pitch + c, {value}, pitch - c)"]
    return [f"store(packed, task * pitch + c, {value})"]


PAIR_LIMIT = 128
"""Largest magnitude of the sum of two weights: 255 times as much fits an int16."""
ROOM = 8
"""A panel has room for residuals of one word of k in this many. A residual takes as long as 1.2 words, and a word of
four k 0.77 of the time of two words of two k (Zen 3)."""


def tile_with_residuals(types: ElementTypes) -> RegisterTile:
    """Return the tile of `residual_tile`, or the plain tile of the types, for which solvers refuse the types."""
    return residual_tile(types) or tile_for(types)


def residual_tile_refused(types: ElementTypes) -> str | None:
    """Return why products of these types need no residuals; None if a tile is declared."""
    return None if residual_tile(types) else "the CPU adds four products at once, or none of bytes"


def residual_rows(tile: RegisterTile, taps: int, depth: int) -> int:
    """Return the rows of a panel that hold its residuals, 0 for a tile without residuals."""
    if not tile.packing.residuals:
        return 0
    return -(-(taps + 1 + _most_residuals(taps * depth) * (tile.columns + RESIDUAL_PLACES)) // tile.columns)


def _most_residuals(words: int) -> int:
    return words // ROOM + 1


def split_weights(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return int8 weights ``[..., k, n]`` whose pairs along k fit 16 bits, and their residuals, None if there are
    none."""
    first, second = weights[..., 0:-1:2, :], weights[..., 1::2, :]
    sums = first.astype(np.int16) + second
    if not sums.size or max(sums.max(), -int(sums.min())) <= PAIR_LIMIT:
        return weights, None
    excess = (sums - sums.clip(-PAIR_LIMIT, PAIR_LIMIT)).astype(np.int8)
    fitting, residuals = weights.copy(), np.zeros_like(weights)
    fitting[..., 1::2, :] -= excess
    residuals[..., 1::2, :] = excess
    return fitting, residuals


def pack_residuals(tile: RegisterTile, taps: Sequence[np.ndarray | None], out: np.ndarray, run: int = 1) -> None:
    """Write the residuals of one matrix into ``out[panel, row, column]``, the last rows of its panels.

    Args:
        taps: for each tap the residuals as words ``[depth, n]``; None: it has none.
        run: taps along a row.

    Raises:
        UnsuitedWeights: there are more than a panel has room for.
    """
    panels, columns = out.shape[0], tile.columns
    depth = next((len(words) for words in taps if words is not None), 0)
    words = np.zeros((panels, len(taps), depth, columns), np.int32)
    for tap, own in enumerate(taps):
        if own is not None:
            wide = np.zeros((depth, panels * columns), np.int32)
            wide[:, : own.shape[1]] = own
            words[:, tap] = wide.reshape(depth, panels, columns).swapaxes(0, 1)
    used = words.any(-1)
    counts = used.sum((1, 2))
    if counts.max(initial=0) > _most_residuals(len(taps) * depth):
        raise UnsuitedWeights("many pairs of weights do not fit 16 bits")
    places = np.nonzero(used)
    panel, tap_of, word = places
    flat = out.reshape(panels, -1)
    flat[:, 1 : len(taps) + 1] = used.sum(2).cumsum(1)
    number = np.arange(len(panel)) - (counts.cumsum() - counts)[panel]
    place = len(taps) + 1 + number * (columns + RESIDUAL_PLACES)
    for k, value in enumerate((tap_of, word, tap_of // run, tap_of % run * depth + word)):
        flat[panel, place + k] = value
    flat[panel[:, None], (place + RESIDUAL_PLACES)[:, None] + np.arange(columns)] = words[places]
