"""Convolution as an implicit matrix product: each output pixel is a row whose terms are read from the input in place.

Every row of the register tile has its own input address for each kernel position (tap). A tap in the padding reads a
row of zeros. One kernel serves every size, stride, dilation, padding and number of groups.

`CopiedPixels` copies the input pixels of a register tile's rows to a small buffer, tap by tap. Input pixels that are a
multiple of 4 KiB apart (512 channels at stride 2, 1024 at stride 1) share a set of the L1 cache
(`prologue.rows_conflict`). In the buffer a row has the terms of all its taps, one tap behind the other, so the tile
reads evenly spaced rows of one tap. One thread of Zen 4, 512 channels to 512, 3 taps at stride 2: 92 GFLOP/s, in place
49.

Before a grouped 1x1 convolution channels may be shuffled (`ShuffledRows`). A group reads its channels in runs, one run
from each of the shuffled groups. Tiles that finish in registers read the runs as taps of their own lengths. For the
last rows, which other tiles compute, the runs are copied to a small buffer, one behind the other. Weights are packed in
the same order.

Copying all rows takes as long as a copy of the whole input: 12 us of 54 us for 28x28 pixels by 4 groups of 34 to 34
channels on Zen 5, where runs as taps take 5.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import numpy as np

from ....core.dim import Length, all_of, any_of, equal, known_equal, known_less_equal
from ....dataclass import dataclass
from ...launch import Launch, Operand, Solution, TaskRange
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE, ElementTypes
from ...problems.epilogue import NOT_COMPUTED, Epilogue
from ...problems.gemm import GemmProblem
from ...statements import indent
from ..host import CACHE_LINE
from ..microkernels.register_tile import Packing, RegisterTile
from ..microkernels.tile_table import MOST_RUNS, TILE_TABLE_ROWS, tile_for
from ..records import RecordText
from .blocking import Blocking, cut, fit, odd
from .conv_output_rows import (
    Lattice,
    image_strides,
    lattice_arguments,
    lattice_rows,
    phase_of_group,
    pixel_rows,
    stride_arguments,
)
from .convert_on_the_fly import convert_on_the_fly
from .gemm import GemmPacked
from .gemm_int8 import residual_rows
from .indirection import PLACES_BLOCK, call_places, place_locals, spatial_arguments
from .macro_kernel import MacroKernel, even_table
from .panels import aligned_zeros, pack_panels, panel_count
from .prologue import LINE, SCRATCH_BYTES, rows_conflict
from .solver import Setting, Solver, seconds, stored_types_refused

TAP_OPERATIONS = 40.0
"""Cost of computing the address of a tap of a pixel, in operations. No figures kept."""


class ConvPointwise(Solver[ConvProblem]):
    """Solver for 1x1 convolutions over evenly spaced pixels: a matrix product."""

    name = "conv_1x1"
    open_batch = open_lens = True
    _gemm = GemmPacked()

    def declines(self, problem: ConvProblem) -> str | None:
        if problem.transposed:
            return "the convolution is transposed"
        if problem.groups > 1:
            return "the convolution is grouped"
        if problem.taps > 1 or max(problem.stride) > 1:
            return "the kernel or a stride is larger than 1"
        if any(problem.pads_begin) or any(problem.pads_end):
            return "the input is padded or cropped"
        return uneven_pixels(problem)

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        return self._gemm.packed_lens(pixel_product(problem))

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        matrix = weights.reshape(weights.shape[:2]).T
        return self._gemm.pack_weights(pixel_product(problem), matrix[None])

    def refused_types(self, problem: ConvProblem) -> str | None:
        return self._gemm.refused_types(pixel_product(problem))

    def solve(self, problem: ConvProblem, setting: Setting) -> Solution:
        return self._gemm.solve(pixel_product(problem), setting)

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        return self._gemm.estimate(pixel_product(problem), threads)


def uneven_pixels(problem: ConvProblem) -> str | None:
    """Return why the pixels of an image are not evenly spaced rows of a matrix; None if they are."""
    inner = problem.x_strides[-1]
    for length, stride in zip(reversed(problem.in_lens), reversed(problem.x_strides[1:])):
        if not known_less_equal(length, 1) and not known_equal(stride, inner):
            return "the input's pixels are not evenly spaced"
        inner = inner * length
    return None


def pixel_product(problem: ConvProblem) -> GemmProblem:
    """Return the product of evenly spaced pixels by the weights of one tap.

    Where there are gaps between output lines, the product's rows are numbered as if there were none.
    """
    pixel, out = problem.x_strides[-1], problem.out_strides
    if not known_equal(problem.line_gap, 0):
        out = (problem.out_pixels * out[-1], out[-1])
    if known_equal(problem.in_lens[-1], 1):
        inner = zip(problem.in_lens[::-1], problem.x_strides[:0:-1])
        pixel = next((s for n, s in inner if not known_less_equal(n, 1)), pixel)
    return GemmProblem(
        problem.in_pixels,
        problem.out_channels,
        problem.in_channels,
        (problem.batch,),
        (problem.x_strides[0], pixel, 1),
        (0, problem.out_channels, 1),
        out,
        problem.types,
        fast_math=problem.fast_math,
        prologue=problem.prologue,
        low_parts=problem.low_parts,
    )


class ConvDirect(Solver[ConvProblem]):
    """Solver for every convolution that is not transposed; weights may be stored in fewer bits than the input."""

    name = "conv_direct"
    open_batch = open_lens = True
    reads_shuffled = True

    def tile(self, types: ElementTypes) -> RegisterTile:
        """Return the register tile for these types."""
        return tile_for(types)

    def refused_types(self, problem: ConvProblem) -> str | None:
        return stored_types_refused(problem.types) if problem.types.uniform is None else super().refused_types(problem)

    def declines(self, problem: ConvProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        if problem.shuffled and not (problem.types.uniform and _evenly_spaced(problem.volume())):
            return "the channels are shuffled of pixels that are not evenly spaced, or of weights in another type"
        if problem.shuffled and not ShuffledRows(problem, tile_for(problem.types)).fits():
            return "the channels are shuffled of too many groups, or too many for each group"
        return "the convolution is transposed" if problem.transposed else None

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Return the length of the packed weights: panels of all groups, then a row of zeros in the input's dtype."""
        tile = tile_for(problem.types)
        *_, depth, _ = lens = panel_lens(problem, tile)
        return (math.prod(lens) + -(-depth * ITEMSIZE[tile.left_word] // ITEMSIZE[tile.right_word]),)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        tile = tile_for(problem.types)
        lens = panel_lens(problem, tile)
        out = aligned_zeros(self.packed_lens(problem), tile.right_word)
        panels = out[: math.prod(lens)].reshape(lens)
        if problem.shuffled:
            grouped = weights.reshape(problem.groups, problem.group_out, *weights.shape[1:])
            order = shuffled_order(problem)[:, None].reshape(problem.groups, 1, -1, *(1 for _ in problem.kernel))
            weights = np.take_along_axis(grouped, order, 2).reshape(weights.shape)
        matrices = np.moveaxis(_split_groups(weights, problem.groups), (2, 1), (-2, -1))  # [group, *kernel, in, out]
        pack_panels(matrices, panels.reshape(*lens[:2], *problem.kernel, *lens[3:]), axes=len(problem.kernel) + 1)
        return out

    def solve(self, problem: ConvProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        zeros = math.prod(panel_lens(problem, tile_for(problem.types)))
        table = image_strides(problem, epilogue, strides)
        return Solution((direct_launch(problem.volume(), epilogue, table, threads, 0, zeros, given=blocking),))

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        tile = self.tile(problem.types)
        columns = panel_count(tile, problem.group_out) * tile.columns
        rows = problem.batch * problem.out_pixels
        terms = problem.taps * problem.group_in
        left, right, out = (ITEMSIZE[dtype] for dtype in (problem.types.a, problem.types.b, problem.types.out))
        moved = left * problem.batch * problem.in_pixels * problem.in_channels + out * rows * problem.out_channels
        moved += right * problem.groups * terms * columns
        table = rows * problem.groups * problem.taps * TAP_OPERATIONS
        return seconds(tile, 2 * rows * problem.groups * columns * terms + table, moved, threads)


def tap_matrices(problem: ConvProblem, weights: np.ndarray) -> list[np.ndarray]:
    """Return for each tap, in row-major order, the view ``[group, group_in, group_out]`` of the weights."""
    grouped = _split_groups(weights, problem.groups)
    views = [grouped[(Ellipsis, *index)] for index in np.ndindex(*problem.kernel)]
    return [view if problem.transposed else view.swapaxes(1, 2) for view in views]


def _split_groups(weights: np.ndarray, groups: int) -> np.ndarray:
    """Return a view of the weights whose first dimension is split into groups and channels of a group."""
    first, *rest = weights.strides
    lens = (groups, weights.shape[0] // groups, *weights.shape[1:])
    strides = (first * lens[1], first, *rest)
    return np.lib.stride_tricks.as_strided(weights, lens, strides, writeable=False)


def panel_lens(problem: ConvProblem, tile: RegisterTile) -> tuple[int, int, int, int, int]:
    """Return the lengths of the packed weights in words: groups, panels, taps, depth, columns of a panel."""
    depth = tile.depth(problem.group_in)
    return problem.groups, panel_count(tile, problem.group_out), problem.taps, depth, tile.columns


def _evenly_spaced(problem: ConvProblem) -> bool:
    """Return whether successive rows, over all images, read pixels that are a constant number of elements apart.

    ``problem`` has three spatial dimensions.
    """
    if problem.taps > 1 or max(problem.stride) > 1 or any(problem.pads_begin) or any(problem.pads_end):
        return False
    step = problem.x_strides[3]
    lens = (problem.batch, *problem.in_lens)
    return all(
        known_equal(n, 1) or known_equal(s, step * math.prod(lens[k + 1 :]))
        for k, (n, s) in enumerate(zip(lens, problem.x_strides))
    )


def copied_pixels(problem: ConvProblem, tile: RegisterTile) -> CopiedPixels | None:
    """Return how the tile's rows are copied if successive pixels of a line evict each other from the L1 cache."""
    apart = problem.stride[2] * problem.x_strides[3]
    plain = tile.step == 1 and tile.packing == Packing()
    if not plain or not isinstance(apart, int) or not rows_conflict(tile, apart * ITEMSIZE[tile.left_word]):
        return None
    return CopiedPixels(tile)


def direct_launch(
    problem: ConvProblem,
    epilogue: Epilogue,
    strides: dict[str, tuple[int, int]],
    threads: int,
    start: int,
    zeros: int,
    lattice: Lattice | None = None,
    given: Blocking | None = None,
    phased: bool = False,
    x: Operand | str = "x",
    name: str = "conv",
    tile: RegisterTile | None = None,
) -> Launch:
    """Return one launch of the direct kernel for ``problem``, which has three spatial dimensions.

    Args:
        problem: the convolution; its input strides count words of the tile.
        epilogue: the pointwise operations on the accumulators.
        strides: see `image_strides`.
        threads: threads to plan the blocking for.
        start: word of ``w`` at which the panels begin.
        zeros: word of ``w`` at which the row of zeros begins.
        lattice: the output pixels are these points of a larger output.
        given: blocking to use instead of the computed one.
        phased: each group has all channels, and computes the lattice that starts at its own first point of the output.
        x: the operand that the input is read from.
        name: first part of the kernel's name.
        tile: register tile; None: the tile of the problem's types.
    """
    tile = tile or tile_for(problem.types)
    lens = panel_lens(problem, tile)
    groups, panels, taps, depth, columns = lens
    rows = problem.batch * problem.out_pixels
    even = (phased or not lattice) and _evenly_spaced(problem)
    copied = None if lattice or even or problem.shuffled else copied_pixels(problem, tile)
    blocking = cut(
        tile, rows, problem.group_out, depth, taps, groups, threads, given, beside=True, forming=copied is not None
    )
    sums_row = int(tile.packing.column_sums)
    packed_panel = (sums_row + taps * depth + residual_rows(tile, taps, depth)) * columns
    w_steps: tuple[int, Length] = columns, packed_panel
    left, right = ITEMSIZE[tile.left_word], ITEMSIZE[tile.right_word]
    scratch = convert_on_the_fly(tile, problem.types, rows, blocking, packed_panel)
    if scratch:
        tile, blocking = scratch.tile, scratch.fit(blocking, rows, problem.group_out, depth, taps)
        w_steps = scratch.steps(blocking)
    if phased:  # all phases of one part of the rows, then the next part
        blocking = replace(blocking, parts=blocking.parts * blocking.row_blocks(rows))
    shuffled = ShuffledRows(problem, tile) if problem.shuffled else None
    if shuffled:
        blocking = replace(blocking, depth=depth)
        name = "conv_shuffled"
    name = "conv_phases" if phased else "conv_transposed" if lattice else name
    if copied and not scratch:
        blocking = copied.fit(blocking, rows, problem.group_out, depth, taps)
        name = f"{name}_copying"
    accumulator = problem.types.accumulator
    macro = MacroKernel(name, accumulator, tile, epilogue, several_taps=not even)
    arguments = macro.arguments
    axes: tuple[str, ...] = ()
    if even:
        if lattice:
            axes = ("h", "w") if known_equal(lattice[0][2], 1) else ("d", "h", "w")
            arguments.integers(**{f"out_{axis}": problem.out_lens["dhw".index(axis)] for axis in axes})
        arguments.integers(pixels=problem.out_pixels, x_ld=problem.x_strides[3])
        if shuffled:
            shuffled.declare(macro)
        else:
            macro.read_even_rows()
    else:
        contiguous = known_equal(problem.x_strides[3], depth) and problem.dilation[2] == 1
        whole = known_equal(blocking.taps, taps) and known_equal(blocking.depth, depth)
        run = problem.kernel[2] if contiguous and whole else 1
        axes = spatial_arguments(arguments, problem, tile, run, lattice[0][2] if lattice else 1)
        macro.setup = place_locals()
        macro.table = [*call_places(arguments, macro.block), macro.block.put("x", "offset(x, x0 + k0 + anchor)")]
        if tile.packing.residuals:
            runs = f"2 if {macro.block.get('taps')} < taps_now else 0"
            macro.table.append(macro.block.put("residual_place", runs))
        if copied and not scratch:
            copied.declare(macro, blocking)
    arguments.pointer("x", x, tile.left_word)
    arguments.pointer(
        "w", Operand("w", (start + sums_row * columns) * right), scratch.word if scratch else tile.right_word
    )
    arguments.pointer("zero", Operand("w", zeros * right), tile.left_word)
    macro.rows.pointers(arguments)
    if not lattice and tile.finishes:
        alike = (equal(image, pixel * problem.out_pixels) for image, pixel in strides.values())
        steady = any_of(equal(problem.batch, 1), all_of(*alike))
        arguments.integers(steady=steady)
        macro.steady, macro.in_place = "steady", even
        macro.x_row = "x_ld" if even else macro.x_row
    macro.sizes(blocking, rows, problem.group_out, panels, depth, taps, groups, beside=True)
    arguments.integers(x_step=1, w_step=w_steps[0], w_panel=w_steps[1], w_group=panels * packed_panel)
    if scratch:
        scratch.declare(macro, blocking)
    stride_arguments(arguments, strides)
    macro.decode = [
        *(shuffled.find_runs() if shuffled else ["x0 = group * depth"]),
        "w0 = group * w_group",
        "column0 = group * n",
    ]
    if lattice:
        lattice_arguments(arguments, axes, lattice)
        if phased:
            macro.decode = ["x0 = 0", "w0 = group * w_group", "column0 = 0", *phase_of_group(axes)]
        macro.before_rows, macro.row = lattice_rows(epilogue, axes)
    else:
        macro.before_rows, macro.row = pixel_rows(epilogue)
        macro.row_steps = {name: f"{name}_pixel" for name in strides}
    moved = left * problem.batch * problem.in_pixels * groups * depth + right * math.prod(lens)
    moved += ITEMSIZE[epilogue.out_dtype(accumulator)] * rows * problem.out_channels
    tasks = blocking.tasks(rows, panels, groups)
    return Launch(macro.source(), arguments.values, TaskRange(tasks, 1), problem.flops, moved, epilogue.moving)


@dataclass
class CopiedPixels:
    """The copied rows of ``tile``, each of a step's taps times channels."""

    tile: RegisterTile

    @property
    def _size(self) -> int:
        return ITEMSIZE[self.tile.left_word]

    def fit(self, blocking: Blocking, m: Length, n: int, depth: int, taps: int) -> Blocking:
        """Return ``blocking`` with steps that fit the buffer: several whole taps, or channels of one tap."""
        most = (SCRATCH_BYTES // max(self.tile.variants()) // LINE - 1) * LINE // self._size
        steps = -(-depth // most)
        if steps > 1:
            smaller = dataclasses.replace(blocking, taps=1, depth=-(-depth // steps))
        else:
            smaller = dataclasses.replace(blocking, taps=min(blocking.taps, most // depth))
        return fit(smaller, self.tile, m, n, depth, taps)

    def declare(self, macro: MacroKernel, blocking: Blocking) -> None:
        """Add the copy to the macro-kernel's ``table``, after the statements that call the offsets kernel."""
        size, lanes, places = self._size, self.tile.lanes, RecordText(PLACES_BLOCK, "places")
        lines = -(-blocking.taps * blocking.depth * size // LINE)
        macro.arguments.integers(near_ld=odd(lines) * LINE // size)
        macro.x_row = "near_ld"
        macro.setup += [
            f"near = local_{self.tile.left_word}({SCRATCH_BYTES // size})",
            f"near_table = local_int64({TILE_TABLE_ROWS})",
            "filled = 0",
            macro.block.put("offsets", "near_table"),
        ]
        zeros = f"const_{self.tile.left_word}(0, {lanes})"
        macro.table += [
            *even_table("near_ld", "near_table"),
            f"terms = {places.get('tile_depth')}",
            f"rest = terms & {lanes - 1}",
            f"for t in range({places.get('tile_taps')}):",
            "    for i in range(left):",
            f"        place = table[t * {TILE_TABLE_ROWS} + i]",
            "        goal = i * near_ld + t * terms",
            "        if place < 0:",
            *indent(_copy(lanes, zeros, zeros), 3),
            "        else:",
            "            place += x0 + k0 + anchor",
            *indent(_copy(lanes, f"load(x, place + c, {lanes})", f"load_tail(x, place + c, rest, 1, {lanes})"), 3),
            *macro.block.fill(x="offset(near, 0)", taps=1, depth="taps_now * depth_now"),
        ]


def _copy(lanes: int, whole: str, part: str) -> list[str]:
    """Return statements that store ``terms`` elements at ``goal``: vectors ``whole``, and ``part`` for the rest."""
    return [
        f"for c in range(0, terms - rest, {lanes}):",
        f"    store(near, goal + c, {whole})",
        "if rest > 0:",
        "    c = terms - rest",
        f"    store_tail(near, goal + c, {part}, rest)",
    ]


def shuffled_order(problem: ConvProblem) -> np.ndarray:
    """Return for each group its channels in buffer order: int64 ``[groups, group_in]``."""
    channels = np.arange(problem.in_channels).reshape(problem.groups, problem.group_in)
    return np.argsort(channels % problem.shuffled, axis=1, kind="stable")


@dataclass
class ShuffledRows:
    """The rows of a convolution with a shuffled input, for evenly spaced pixels ``x_ld`` elements apart."""

    problem: ConvProblem
    tile: RegisterTile

    def _near_ld(self) -> int:
        """Return the elements of a buffer row: an odd number of cache lines, with room for a vector past the row."""
        line = CACHE_LINE // ITEMSIZE[self.tile.types.a]
        return (-(-(self.problem.group_in + self.tile.lanes) // line) | 1) * line

    def fits(self) -> bool:
        """Return whether the buffer and the table of runs have room for the rows of a tile."""
        rows = max(self.tile.variants())
        return (
            self.problem.shuffled <= MOST_RUNS and rows * self._near_ld() * ITEMSIZE[self.tile.types.a] <= SCRATCH_BYTES
        )

    def declare(self, macro: MacroKernel) -> None:
        """Set the macro-kernel's ``setup``, ``runs`` and, for tiles that do not finish in registers, ``table``."""
        problem, dtype, lanes = self.problem, self.tile.types.a, self.tile.lanes
        macro.arguments.integers(
            near_ld=self._near_ld(), shuffled=problem.shuffled, run_ld=problem.in_channels // problem.shuffled
        )
        macro.runs = {"taps": "shuffled", "depth": "idiv(depth + shuffled - 1, shuffled)", "runs": "runs"}
        macro.setup = [
            f"near = local_{dtype}({SCRATCH_BYTES // ITEMSIZE[dtype]})",
            f"runs = local_int64({2 * MOST_RUNS})",
            "filled = 0",
        ]
        macro.table = [
            *even_table("near_ld"),
            "near_place = 0",
            "for t in range(shuffled):",
            *indent([
                f"terms = runs[t + {MOST_RUNS}]",
                "place = row * x_ld + runs[t]",
                f"for c in range(0, terms, {lanes}):",
                f"    rest = imin(terms - c, {lanes})",
                "    for i in range(left):",
                f"        term = load_tail(x, place + i * x_ld + c, rest, 1, {lanes})",
                "        store(near, near_place + i * near_ld + c, term)",
                "near_place += terms",
            ]),
            *macro.block.fill(x="offset(near, 0)", taps=1, depth="depth_now"),
        ]  # fmt: skip

    def find_runs(self) -> list[str]:
        """Return statements for ``decode`` that compute the offsets of the runs of ``group``."""
        return [
            "x0 = group * depth",
            "for t in range(shuffled):",
            "    run = idiv(x0 + shuffled - 1 - t, shuffled)",
            "    runs[t] = t * run_ld + run",
            f"    runs[t + {MOST_RUNS}] = idiv(x0 + depth + shuffled - 1 - t, shuffled) - run",
            "x0 = 0",
        ]
