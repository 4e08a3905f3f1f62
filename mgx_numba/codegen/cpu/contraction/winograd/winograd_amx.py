"""Convolutions by Winograd's minimal filtering over matrix tiles (AMX), with float32 in two parts.

F(2 x 2, 3 x 3) needs 16 products where the direct method needs 36. Its transforms add at most four numbers, so that
results have errors of 1e-5 of the largest (direct method: 4e-6). F(4 x 4, 3 x 3) would have errors of 1e-4. Single
bfloat16 products would have errors of 4e-3 (direct method: 2e-3), so bfloat16 is left to the direct method.

The kernels differ from `kernel` in that the input transform writes both parts, and a call of the register tile computes
all panels of a block. If all inputs of a tile are so small that their parts would be denormal, the inputs are
multiplied by a power of two, and the outputs divided by it.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import ClassVar

import numpy as np

from .....core.dim import Length, ceil_div, less, select
from .....dataclass import dataclass
from ....problems.convolution import ConvProblem
from ....statements import indent
from ...host import CACHE_LINE
from ...machine import Machine, machine
from ...microkernels.register_tile import RegisterTile
from ...microkernels.tile_table import MATRIX_BLOCK, matrix_tile
from ...records import Record, RecordText
from ..blocking import Blocking
from ..conv import panel_lens, tap_matrices
from ..gemm_amx import MOST_BLOCKINGS, part_rows, refused_tiles, tile_of
from ..macro_kernel import next_height, run_tile
from ..panels import aligned_zeros, pack_panels, panel_count
from ..solver import UnsuitedWeights
from .form import Form
from .kernel import CALL, WinogradWriter, filter_plane
from .solver import ConvWinograd
from .transform_table import INPUT_PLACE, PAIRED, SCALE, SMALL_BITS
from .winograd_blocking import Block, stacked_panels, tiles_of


def row_words(tile: RegisterTile, depth: int) -> int:
    """Return the words from one transformed tile to the next at a point: an odd number of cache lines.

    The rows of a register then fall into different cache sets.
    """
    return (depth // tile.step | 1) * tile.step


class WinogradAmxWriter(WinogradWriter):
    """Text and arguments of the kernels for one problem, over a tile of two parts."""

    record: ClassVar[Record] = MATRIX_BLOCK

    @property
    def name(self) -> str:
        return self.form.name + "_tiles"

    def _held(self) -> Length:
        return self.block.tiles

    def _row(self, depth: int) -> int:
        return row_words(self.tile, depth)

    def _input_words(self, words: int) -> int:
        return 2 * words + self.block.tiles

    def _declare(self, words: int) -> None:
        tile, depth = self.tile, self.tile.depth(self.problem.group_in)
        blocks = ceil_div(self.block.tiles, tile.rows)
        far = 4 * self.form.points * filter_plane(self.problem, tile) > machine().l2_bytes // 2
        lines = select(less(1, blocks), -(-tile.step_bytes // CACHE_LINE // blocks), 0) if far else 0
        self.arguments.integers(low=words, factors=2 * words, row_words=self._row(depth), far_share=lines)

    def _transformed_input(self, channels: str) -> list[str]:
        def call(scaled: int) -> str:
            target = f"offset(u, t * row_words), u_plane, low, {channels}"
            return f"winograd_input_parts(x, place, zero, {target}, {self.form.side}, {scaled}, {2 * PAIRED})"

        bits = RecordText(INPUT_PLACE, "place").get("bits")
        return [
            call(0),
            f"small = {bits} > 0 and {bits} < {SMALL_BITS}",
            f"store_scalar(u, factors + t, {1 / SCALE!r} if small else 1.0)",
            "if small:",
            f"    {call(1)}",
        ]

    def _products(self) -> list[str]:
        """Return statements for the products, point by point, each block of rows over all panels.

        Where filters come from beyond the L2 cache, each of several blocks prefetches a share of the next point's
        filters.
        """
        return [
            "if narrow:",
            "    wide -= 1",
            f"for point in range({self.form.points}):",
            *indent([
                "first_panel = point * v_plane + (group * panels + p0) * w_panel",
                self.tile_block.put("w", "offset(w, first_panel)"),
                "far = first_panel + v_plane",
                f"far_lines = far_share if point + 1 < {self.form.points} else 0",
                self.tile_block.put("far_lines", "far_lines"),
                "row = 0",
                "while row < count:",
                *indent([
                    "left = count - row",
                    *next_height(self.tile, tall=False),
                    *self.tile_block.fill(
                        exist="imin(left, height)", x_row="row_words", x_low="low",
                        x="offset(u, point * u_plane + row * row_words)",
                        acc="offset(products, point * m_plane + row * sums_ld)", far="offset(w, far)",
                    ),
                    *run_tile(self.tile, self.arguments, self.tile_block),
                    "far += far_lines * depth",
                    "row += height",
                ]),
            ]),
        ]  # fmt: skip

    def _after_output(self) -> list[str]:
        lanes = self.tile.lanes
        return [
            f"factor = load_scalar(scratch, {CALL.get('scratch')} + factors + t)",
            "if factor < 1.0:",
            f"    for c in range(0, {self.form.out**2} * sums_ld, {lanes}):",
            f"        store(sums, c, mul(load(sums, c, {lanes}), factor))",
        ]


_SMALLEST_FILTER = 2.0**-40
"""Least magnitude of a column's largest transformed filter: with inputs above 2**-63, products are far above the
denormals."""
_NEAR_EIGHTHS, _KEPT_EIGHTHS = 6, 5
"""Eighths of the L2 cache for a task's transformed tiles and products while filters stream past.

Tiles and products of at most `_KEPT_EIGHTHS` stay there: 196 tiles of 128 channels took 0.19 ms in blocks of 32, but
0.29 to 0.41 in blocks of 96, which with the filters exceed the cache.
"""
_TILE_COUNTS = (32, 64, 96, 128, 192)
"""Numbers of tiles of a task that are tried beside equal shares: multiples of the register tile's rows."""

# Cycles: instructions of the printed loops at the rates of Golden Cove's vector ports.
_INPUT_VECTOR, _INPUT_TILE = 4.5, 60.0
"""Cycles of a vector of one point of a transformed input tile in parts (7 operations on two ports), and of a tile."""
_OUTPUT_POINT, _OUTPUT_VECTOR, _OUTPUT_PIXEL = 1.5, 5.0, 30.0
"""Cycles of a point of the output transform, and of a vector and a pixel of the result with its epilogue."""
_CALL = 100.0
"""Cycles of a call of the register tile."""
_START = 50000.0
"""Fixed cycles of a convolution.

Least squares over 60 layers of 14 networks (two cores of an Emerald Rapids) give 31 us beyond the other costs, and 8 us
for direct convolutions; filters take as long to read in either form.
"""
_PANEL = 250.0
"""Cycles of a panel for a block of rows: four accumulator registers are stored, and the next wait for their first
operands."""
_NEAR_RATE, _FAR_RATE = 24.0, 9.0
"""Bytes of filters a cycle from the L2 cache and from beyond it (12 to 29 GB/s a thread, Emerald Rapids)."""
_FEW_TILES, _COLD_RATE = 64, 5.0
"""Number of tiles below which most filters are read for the first time, and bytes of such filters a cycle.

With 256 channels 49 tiles took 0.52 to 0.54 ms (direct: 0.48 and 0.72), 256 tiles 0.8 to 1.2 ms (direct: 1.6; two
threads of an Emerald Rapids).
"""


@dataclass(frozen=True)
class ConvWinogradAmx(ConvWinograd):
    """Solver for float32 by constant float32 weights, with a multiple of 32 channels in a group."""

    looks_at_values: ClassVar[bool] = True
    most_blockings: ClassVar[int] = MOST_BLOCKINGS
    revision: ClassVar[int] = 1
    error_variance: ClassVar[float] = 3.0
    most_tiles: ClassVar[int] = max(_TILE_COUNTS)
    writer: ClassVar[type[WinogradWriter]] = WinogradAmxWriter
    """Each result sums 9 of the 16 products, each of sums of four inputs. Errors are 1.75 times those of the direct
    method in theory, and 1.6 to 2.1 times in light_vgg19 (2.8e-5 and 5.9e-5)."""

    @property
    def name(self) -> str:
        return self.form.name + "_tiles"

    def refused_types(self, problem: ConvProblem) -> str | None:
        tile = matrix_tile(problem.types)
        if tile is not None and tile.packing.parts == 1:
            return "one product in bfloat16 would lose twice as much as the direct method's"
        return refused_tiles(problem.types, problem.fast_math)

    def declines(self, problem: ConvProblem) -> str | None:
        if problem.group_in % (2 * PAIRED):
            return f"the input channels of a group are not a multiple of {2 * PAIRED}"
        return super().declines(problem)

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Return the packed length in words: transformed panels of each point, then a row of zeros."""
        return (self.form.points * filter_plane(problem, tile_of(problem.types)) + problem.group_in,)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        """Pack weights into int32 words.

        Raises:
            UnsuitedWeights: the transformed weights cannot be split into bfloat16 parts.
        """
        tile = tile_of(problem.types)
        groups, panels, _, depth, columns = panel_lens(problem, tile)
        out = aligned_zeros(self.packed_lens(problem), tile.right_word)
        planes = out[: -problem.group_in].reshape(self.form.points, -1)
        target = planes[:, : groups * panels * tile.packing.parts * depth * columns]
        target = target.reshape(self.form.points, groups, panels, tile.packing.parts * depth, columns)
        taps = np.stack(tap_matrices(problem, _paired(weights)))
        for point, factors in enumerate(self.form.scale * self.form.filter_matrix().T):
            with np.errstate(invalid="ignore", over="ignore"):  # weights whose transform is not finite are refused
                # without BLAS, whose threads take longer than the sums (measured: 6 times)
                filters = np.einsum("t,t...->...", factors, taps).astype(np.float32)
            largest = np.abs(filters).max(axis=-2, initial=0)
            if ((largest > 0) & (largest < _SMALLEST_FILTER)).any():
                raise UnsuitedWeights("products of a column of transformed filters could be denormals")
            pack_panels(part_rows(tile, filters), target[point])
        return out

    def tile(self, problem: ConvProblem) -> RegisterTile:
        return tile_of(problem.types)

    def best_block(self, problem: ConvProblem, threads: int) -> tuple[Block, float]:
        return _best_block(tile_of(problem.types), self.form, problem, threads, machine())

    def blockings(self, problem: ConvProblem, threads: int) -> list[Blocking]:
        """Return blockings with other numbers of tiles (``rows``) and panels in a task."""
        tile = tile_of(problem.types)
        own, _ = self.best_block(problem, threads)
        tiles, panels = problem.batch * math.prod(tiles_of(self.form, problem)), panel_count(tile, problem.group_out)
        counts = [n for n in _TILE_COUNTS if n < tiles] + ([tiles] if tiles <= max(_TILE_COUNTS) else [])
        most = min(panels, stacked_panels(tile, self.form))
        some = sorted({most, *(max(1, min(most, n)) for n in (own.panels // 2, 2 * own.panels, -(-panels // threads)))})
        pairs = [*((n, own.panels) for n in counts), *((own.tiles, p) for p in some)]
        return [Blocking(n, p, 1, 1 << 16) for n, p in pairs if (n, p) != (own.tiles, own.panels)]


def _paired(weights: np.ndarray) -> np.ndarray:
    """Return weights with input channels in the order of words: two channels `PAIRED` apart are adjacent."""
    outputs, channels, *taps = weights.shape
    pairs = weights.reshape(outputs, channels // (2 * PAIRED), 2, PAIRED, *taps).swapaxes(2, 3)
    return np.ascontiguousarray(pairs).reshape(weights.shape)


@functools.lru_cache(maxsize=1024)
def _best_block(
    tile: RegisterTile, form: Form, problem: ConvProblem, threads: int, here: Machine
) -> tuple[Block, float]:
    """Return the cheapest tasks, and the estimated cycles of the thread with the most tasks."""
    panels, depth = panel_count(tile, problem.group_out), tile.depth(problem.group_in)
    tiles = problem.batch * math.prod(tiles_of(form, problem))
    words = tile.packing.parts * form.points * depth
    held = tile.packing.parts * form.points * row_words(tile, depth)
    room = _NEAR_EIGHTHS * here.l2_bytes // 8
    counts = {n for n in _TILE_COUNTS if n < tiles} | {min(tiles, -(-tiles // share)) for share in range(1, 9)}
    splits = {-(-panels // split) for split in (1, 2, 3, 4, 6, 8, 16)}
    steps, vectors = depth // tile.step, -(-problem.group_out // tile.lanes)
    product = tile.cycles * tile.step * tile.step * tile.vectors  # cycles of 16 rows by one step of a panel
    filters = 4 * words * tile.columns
    far_rate = _COLD_RATE if tiles < _FEW_TILES else _FAR_RATE
    best, best_cycles = Block(1, 1, 1, 0), math.inf
    for count, p_block in itertools.product(sorted(counts), sorted(splits)):
        size = 4 * count * (held + form.points * p_block * tile.columns)
        free = here.l2_bytes - filters * panels if 8 * filters * panels <= _KEPT_EIGHTHS * here.l2_bytes else room
        if p_block > stacked_panels(tile, form) or (size > min(free, room) and (count > tile.rows or p_block > 1)):
            continue
        blocks, p_blocks = problem.groups * -(-tiles // count), -(-panels // p_block)
        claim = -(-blocks * p_blocks // threads)
        fresh = min(blocks, -(-claim // p_blocks) + (1 if claim % p_blocks and claim > p_blocks else 0))
        inputs = count * (form.points * 2 * steps * _INPUT_VECTOR + _INPUT_TILE)
        heights = -(-count // tile.step)
        calls = -(-count // tile.rows)
        products = form.points * (p_block * (heights * steps * product + calls * _PANEL) + calls * _CALL)
        reading = filters * p_block / (_NEAR_RATE if filters * panels + size <= here.l2_bytes else far_rate)
        back = count * (
            min(p_block * tile.vectors, vectors) * (_OUTPUT_POINT * form.points + _OUTPUT_VECTOR * form.out**2)
            + _OUTPUT_PIXEL * form.out**2
        )
        share = panels / (p_blocks * p_block)
        cycles = _START + fresh * inputs + claim * share * (max(products, reading) + back)
        if cycles < best_cycles:
            best, best_cycles = Block(count, p_block, claim, 0), cycles
    return best, best_cycles
