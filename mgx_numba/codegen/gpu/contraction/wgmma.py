"""Products and convolutions with warpgroup MMA (wgmma) and TMA loads (sm_90a).

Warp-specialised: one producer thread per block issues TMA loads of slices (128 bytes of K per row and column) into a
multi-stage ring; consumer warpgroups multiply, 64 rows of the tile each, and keep accumulators in registers. Blocks are
persistent, so the ring refills during epilogues; with ping-pong scheduling, sets of warpgroups alternate between tiles.
In the epilogue four threads exchange accumulators of a row, so that each stores neighbouring elements. For a
convolution TMA gathers the pixels under a filter tap (im2col mode). With few tiles, several blocks compute partial sums
(split-K), and a second launch adds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from ....core.dim import (
    Length,
    ceil_div,
    equal,
    is_symbolic,
    known_equal,
    known_in,
    known_less_equal,
    minimum,
)
from ....core.integers import plain_int
from ....errors import CompileError
from ....ops.scalar_functions import COSTLY
from ...launch import DYNAMIC_ALIGNMENT, Grid, Launch, Operand, Solution
from ...printer import CodeBuffer
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem
from ...tuning.request import least_bytes
from ..architecture import WARP
from ..kernel import gpu_kernel
from ..machine import multiprocessors
from ..products import product_of
from .gpu_contraction import LINE_BYTES, VECTOR_BYTES, GpuContraction, line_padded
from .operands import Extent, ProductOperands
from .right_columns import OrderedColumns, ordered_columns
from .split_k import add_split_k
from .wgmma_epilogue import Part, WarpgroupEpilogueText
from .wgmma_operands import MOST_BATCH_AXES, TRANSPOSED_BYTES, Sharing, layout_of, moves, wants_order, windows_of
from .wgmma_pingpong import PingPong
from .wgmma_tiles import (
    NEIGHBOURS,
    SHORT_PIXELS,
    SLICE_BYTES,
    STEP_BYTES,
    WIDEST,
    TileQuestion,
    WarpgroupTile,
    chosen_tile,
    loaded_columns,
    loaded_rows,
    weighed_tiles,
)


def wgmma_solution(contraction: GpuContraction, tile: WarpgroupTile | None = None, splits: int = 0) -> Solution:
    """Return the launches of an applicable contraction.

    Convolution weights have the layout `weights.COLUMNS`; with `GpuContraction.any_order`, columns are permuted by
    `Solution.turns`. A missing ``tile`` or ``splits`` is chosen.

    Raises:
        UnsupportedError: no kernel exists for an operation of the epilogue.
    """
    return warpgroup_launches(WarpgroupText(contraction, tile, splits), "warpgroup")


def warpgroup_launches(text: WarpgroupText, how: str) -> Solution:
    """Return the launches of a text: conversion of the right operand if needed, the product, and the split-K sum if
    needed. ``how`` is part of the kernel's display name.

    Raises:
        UnsupportedError: no kernel exists for an operation of the epilogue.
    """
    contraction = text.contraction
    lines, problem, epilogue = text.lines(), contraction.request.problem, contraction.request.epilogue
    kind = "gemm" if isinstance(problem, GemmProblem) else "convolution"
    split = text.splits > 1
    work = f"{'_' * bool(epilogue.name)}{epilogue.name}" * (not split)
    tile, values, threads = text.tile, text.arguments.values, text.tile.threads
    name = f"{kind}_{how}_{problem.types.out}{work}_kernel"
    launch = Launch(
        kernel=gpu_kernel(name, lines, threads, len(values), blocks=tile.blocks, cluster=text.sharing.blocks),
        args=values,
        geometry=Grid((text.blocks, 1, text.splits), (threads, 1, 1), text.shared_bytes),
        flops=problem.flops,
        bytes=least_bytes(problem),
    )
    whole = add_split_k(contraction, launch, text.splits) if split else Solution((launch,))
    launches = (*text.before(), *whole.launches)
    scratch, lane_permutation, gated = text.scratch_bytes, text.lane_permutation, text.gated
    return replace(
        whole, launches=launches, scratch=scratch, lane_permutation=lane_permutation, gated=gated, halves=text.halves,
        channels=text.channels,
    )  # fmt: skip


def wgmma_tiles(contraction: GpuContraction) -> tuple[tuple[float, WarpgroupTile, int], ...]:
    """Return the tiles of an applicable contraction, see `weighed_tiles`."""
    return weighed_tiles(tile_question(contraction), multiprocessors())


def wgmma_choice(contraction: GpuContraction, parts: bool = False) -> tuple[WarpgroupTile, int]:
    """Return the tile and split-K factor of an applicable contraction, see `chosen_tile`."""
    return chosen_tile(tile_question(contraction, parts))


def tile_question(contraction: GpuContraction, parts: bool = False) -> TileQuestion:
    """Return the cost model's description of a contraction; ``parts``: float32 as three bfloat16 products."""
    problem = contraction.request.problem
    extent = Extent.of(problem)
    slice = SLICE_BYTES // ITEMSIZE[problem.types.a]
    if isinstance(problem, GemmProblem):
        transposed = (
            not known_in(problem.b_strides[len(problem.batch)], 1) and ITEMSIZE[problem.types.b] == TRANSPOSED_BYTES
        )
        slices = ceil_div(problem.k, slice)
    else:
        transposed = False
        slices = problem.taps * ceil_div(problem.group_in, slice)
    reads = any(o.access == "full" for o in contraction.request.epilogue.operands)
    gated = contraction.request.epilogue.gated
    widths = 16 if gated else 8
    shape = extent.rows, extent.columns, slices, extent.planes
    taps = problem.taps if isinstance(problem, ConvProblem) else 0
    body = contraction.request.epilogue.body
    activates = body is not None and any(call.method in COSTLY for call in body.calls)
    size = ITEMSIZE[problem.types.a]
    short = False
    left, right = LINE_BYTES, LINE_BYTES  # bfloat16 parts of right operands are whole lines
    if isinstance(problem, GemmProblem):
        rank = len(problem.batch)
        pitch = problem.a_strides[rank]
        left, short = _alignment(pitch, size), not is_symbolic(pitch) and plain_int(pitch) * size < LINE_BYTES
        right = right if parts else _alignment(problem.b_strides[rank if transposed else -1], size)
    else:
        left = _pixel_alignment(problem, size)
        right = right if parts else _alignment(_weight_channels(contraction), size)
    width = contraction.lanes(extent.columns // contraction.request.epilogue.sums, WIDEST)
    return TileQuestion(
        *shape,
        widths,
        reads,
        parts,
        gated,
        transposed,
        taps,
        contraction.constant,
        activates,
        left,
        right,
        width,
        short,
    )


def _alignment(pitch: Length, size: int) -> int:
    """Return the alignment (bytes, at most a line) of rows that lie ``pitch`` elements apart.

    Rows of up to one line, which are single slices, and rows of symbolic lengths count as aligned.
    """
    if is_symbolic(pitch) or pitch * size <= LINE_BYTES:
        return LINE_BYTES
    return max(VECTOR_BYTES, gcd(plain_int(pitch) * size, LINE_BYTES))


def _pixel_alignment(problem: ConvProblem, size: int) -> int:
    """Return the alignment (bytes, at most a line) of pixels, or `SHORT_PIXELS`."""
    pixel = problem.x_strides[-1]
    odd = not is_symbolic(pixel) and pixel * size // VECTOR_BYTES % 2 and VECTOR_BYTES < pixel * size < LINE_BYTES
    if odd:
        return SHORT_PIXELS if 4 * pixel * size < 3 * LINE_BYTES else VECTOR_BYTES
    return _alignment(pixel, size)


def _weight_channels(contraction: GpuContraction) -> Length:
    """Return the elements from one tap of a convolution's weights to the next: constants are padded."""
    problem = contraction.problem
    assert isinstance(problem, ConvProblem)
    padded = contraction.constant and not is_symbolic(problem.group_in) and problem.types.b != "float32"
    return line_padded(problem.group_in, ITEMSIZE[problem.types.b]) if padded else problem.group_in


class WarpgroupText(WarpgroupEpilogueText):
    """Kernel text of one contraction.

    Attributes:
        ordered: right operand that a preceding launch converts in ``scratch``; None if it is read in place.
        right: dtype of the right operand in the ring.
        arrivals: mbarrier arrivals per warpgroup when it releases a stage.
        channels: see `Solution`.
    """

    arrivals = 1
    channels = 0

    def __init__(self, contraction: GpuContraction, tile: WarpgroupTile | None, splits: int) -> None:
        super().__init__(contraction)
        problem = self.request.problem
        product = product_of(problem.types)
        assert product is not None
        self.product = product
        self.slice = SLICE_BYTES // product.size
        self.right = self._right_dtype()
        self.right_slice = SLICE_BYTES // ITEMSIZE[self.right]
        self.ordered = self._order(contraction)
        self._problem = problem if isinstance(problem, GemmProblem) else problem.volume()
        question = self._question(contraction)
        rows, columns, slices, planes = question.rows, question.columns, question.slices, question.planes
        self.transposed, self.reads = question.transposed, question.reads
        self.tile, splits = (tile, splits) if tile and splits else chosen_tile(question)
        part = ceil_div(slices, splits)
        self.splits: int = 1 if splits == 1 else ceil_div(slices, part)
        sharing = self.sharing = Sharing.of(self.tile)
        down = ceil_div(rows, self.tile.rows * sharing.down)
        across = ceil_div(columns, self.tile.columns * sharing.side)
        self.down = down
        tiles = down * across * planes
        clusters = minimum(tiles, max(1, multiprocessors() * self.tile.blocks // sharing.blocks // self.splits))
        self.blocks = clusters * sharing.blocks
        self.own_rows, self.own_columns = self.tile.rows // sharing.side, self.tile.columns // sharing.down
        if sharing.blocks == 1:
            if self.ordered is None and not is_symbolic(columns):
                self.own_columns = loaded_columns(self.tile, columns)
            if isinstance(self._problem, GemmProblem) and not (question.parts or is_symbolic(rows)):
                self.own_rows = loaded_rows(self.tile, rows)
        self._use_slices()
        sums = 4 * self.splits * planes * rows * columns if self.splits > 1 else 0
        self.ordered_at = -(-sums // DYNAMIC_ALIGNMENT) * DYNAMIC_ALIGNMENT
        self.scratch_bytes = sums if self.ordered is None else self.ordered_at + self.ordered.bytes
        self.arguments.integers(
            down=down, across=across, tiles=tiles, part=part, slices=slices, stride=clusters, planes=planes
        )
        if self.splits > 1:
            self.arguments.pointer("p_scratch", "scratch", self.accumulator)
        if isinstance(self._problem, GemmProblem):
            self._map_matrices(self._problem)
        else:
            self._map_images(self._problem)
        self._share_columns(columns)
        self.left_elements = self.tile.rows * self.slice
        kept = -(-self.tile.columns // self.slice) * self.slice if self.transposed else self.tile.columns
        self.right_elements = kept * self.right_slice
        self.shared_bytes = self.tile.transposed_bytes if self.transposed else self.tile.shared_bytes

    def _use_slices(self) -> None:
        """Set the MMA instructions per slice, ``steps``, and the TMA boxes of a slice."""
        depth = self._problem.k if isinstance(self._problem, GemmProblem) else self._problem.group_in
        own = SLICE_BYTES
        if self.ordered is None and not is_symbolic(depth):  # of an open sum whole slices are multiplied
            own = min(depth * self.product.size, SLICE_BYTES)
        self.steps = -(-own // STEP_BYTES)
        self.left_box = self.steps * STEP_BYTES // self.product.size  # behind the operand it has zeros
        self.right_box = self.left_box if self.ordered is None and not self.transposed else self.right_slice
        sizes = self.left_box * self.product.size, self.right_box * ITEMSIZE[self.right]
        self.stage_bytes = (
            self.sharing.side * self.own_rows * sizes[0] + self.sharing.down * self.own_columns * sizes[1]
        )

    def _map_matrices(self, problem: GemmProblem) -> None:
        """Declare the tensor maps of a product, and the batch axes along which each operand moves."""
        rank = len(problem.batch)
        axes = [d for d, n in enumerate(problem.batch) if moves(n)]
        self._moves = [[(d, not known_in(s[d], 0)) for d in axes] for s in (problem.a_strides, problem.b_strides)]
        left: Sequence[Length] = problem.a_strides
        deep: Length = problem.k
        right: tuple[Length, ...] = problem.b_strides
        if self.ordered is not None:
            right, deep = (*self.ordered.batch_strides(problem), 1, self.ordered.row), self.ordered.row
        lens = problem.batch
        a = [(problem.k, 1), (problem.m, left[rank])]
        b = [(deep, 1), (problem.n, right[-1])]
        if self.transposed:
            b = [(problem.n, 1), (problem.k, right[rank])]
        a += [(lens[d] if own else 1, left[d]) for d, own in self._moves[0]]
        b += [(lens[d] if own else 1, right[d]) for d, own in self._moves[1]]
        self.arguments.tensor_map("map_x", "x", layout_of(self.product.a, a, (self.left_box, self.own_rows, 1, 1)))
        if not self.transposed:
            self._map_right(b, (self.right_box, self.own_columns, 1, 1))
            return
        whole, rest = divmod(self.own_columns, self.slice)
        if whole:
            self._map_right(b, (self.slice, self.slice, 1, 1))
        if rest:
            self.arguments.tensor_map("map_rest", "w", layout_of(self.right, b, (rest, self.slice, 1, 1)))

    def _map_right(self, axes: Sequence[tuple[Length, Length]], box: tuple[int, int, int, int]) -> None:
        """Declare the tensor map of the right operand, or of its converted copy."""
        self.arguments.tensor_map("map_w", self._right_place(), layout_of(self.right, axes, box))

    def _right_place(self) -> Operand:
        return Operand("w") if self.right_is_given else Operand("scratch", self.ordered_at)

    def _map_images(self, full: ConvProblem) -> None:
        """Declare the tensor maps of a convolution."""
        channels, (_, high, wide) = full.in_channels, full.in_lens
        image, _, row, pixel = full.x_strides
        axes = [(channels, 1), (wide, pixel), (high, row), (full.batch, image)]
        box = (self.left_box, self.own_rows, 1, 1)
        windows = windows_of(full)
        if known_equal(equal(windows.positions(wide, high), full.out_pixels), 0):  # the copy engine traps at others
            raise CompileError(f"a tensor map has {windows.positions(wide, high)} positions of the filter of {full}")
        self.arguments.tensor_map("map_x", "x", layout_of(self.product.a, axes, box, windows))
        taps, outputs = full.taps, full.group_out
        inputs = full.group_in if self.ordered is None else self.ordered.row
        apart = inputs if self.ordered is not None else _weight_channels(self.contraction)
        self.channels = 0 if known_equal(inputs, apart) else plain_int(apart)
        weights = [(inputs, 1), (taps, apart), (outputs, taps * apart), (full.groups, outputs * taps * apart)]
        self._map_right(weights, (self.right_box, 1, self.own_columns, 1))
        self.arguments.integers(
            image_pixels=full.out_pixels, row_pixels=full.out_lens[2], taps_across=full.kernel[2],
            group_channels=full.group_in,
        )  # fmt: skip
        for axis, d in (("y", 1), ("x", 2)):
            self.arguments.integer(f"step_{axis}", full.stride[d])
            self.arguments.integer(f"pad_{axis}", full.pads_begin[d])
            self.arguments.integer(f"apart_{axis}", full.dilation[d])
        if self.contraction.first_channel:
            self.arguments.integer("first_channel", self.contraction.first_channel)

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer, tile = CodeBuffer(), self.tile
        ring = tile.stages * tile.rows * SLICE_BYTES
        buffer.line(
            *self.arguments.bind(),
            "thread = thread_index(0)",
            "warp = warp_index()",
            f"ring_x = dynamic_{self.product.a}(0)",
            f"ring_w = dynamic_{self.right}({ring})",
            f"full = shared_int64({tile.stages})",
            f"empty = shared_int64({tile.stages})",
            "begin = block_index(2) * part",
            "end = imin(slices, begin + part)",
            "slot = 0",
            "phase = 0",
        )
        pingpong = PingPong(tile)
        pingpong.declare(buffer)
        self.sharing.begin(buffer)
        arrivals = self.sharing.readers * tile.warpgroups * self.arrivals
        with buffer.block("if thread == 0:"):
            for stage in range(tile.stages):
                buffer.line(f"mbarrier_init(offset(full, {stage}), 1)")
                buffer.line(f"mbarrier_init(offset(empty, {stage}), {arrivals})")
            pingpong.begin_barriers(buffer)
            buffer.line("mbarrier_fence()")
        with buffer.block(f"if thread == {tile.consumers}:"):
            for name in self.arguments.names:
                if name.startswith("map_"):
                    buffer.line(f"tensor_prefetch({name})")
        together = "cluster_barrier()" if self.sharing.blocks > 1 else "barrier()"
        buffer.line(together)
        with buffer.block(f"if warp == {tile.consumers // WARP}:"), buffer.block(f"if thread == {tile.consumers}:"):
            self._begin_ring(buffer)
            with buffer.block("while tile < tiles:"):
                self._place(buffer)
                self._produce(buffer)
                buffer.line("tile = tile + stride")
        with buffer.block("else:"):
            buffer.line(
                "grid_wait()",
                "lane = thread - warp * 32",
                f"is_leader = imod(thread, {128 // self.arrivals}) == 0",
            )
            pingpong.begin(buffer)
            buffer.line("group = idiv(warp, 4)")
            with buffer.block("while tile < tiles:"):
                self._place(buffer)
                self._tile(buffer)
                pingpong.next_tile(buffer)
        if self.sharing.blocks > 1:  # no block ends before all that comes from another one is there
            buffer.line(together)
        return buffer.lines

    @property
    def halves(self) -> bool:
        return self.ordered is not None and self.ordered.stored

    def before(self) -> tuple[Launch, ...]:
        """Return the launch that converts the right operand; empty if it is read in place."""
        return () if self.right_is_given or self.ordered is None else (self.ordered.launch(self.ordered_at),)

    @property
    def right_is_given(self) -> bool:
        """Return whether the right operand is read in place."""
        return self.ordered is None or self.ordered.stored

    def _right_dtype(self) -> str:
        return self.product.b

    def _order(self, contraction: GpuContraction) -> OrderedColumns | None:
        return ordered_columns(contraction) if wants_order(contraction.problem) else None

    def _question(self, contraction: GpuContraction) -> TileQuestion:
        return tile_question(contraction)

    def _place(self, buffer: CodeBuffer) -> None:
        """Emit the plane, first row and first column of ``tile``."""
        if moves(self.operands.planes):
            buffer.line("plane = idiv32(tile, down * across)")
            buffer.line("number = tile - plane * down * across")
        else:
            buffer.line("plane = 0")
            buffer.line("number = tile")
        rows = self.tile.rows * self.sharing.down
        if not known_less_equal(self.down, NEIGHBOURS):
            buffer.line(f"band = idiv32(number, {NEIGHBOURS} * across) * {NEIGHBOURS}")
            buffer.line("inside = number - band * across")
            buffer.line(f"high = imin(down - band, {NEIGHBOURS})")
            buffer.line("aside = idiv32(inside, high)")
            buffer.line(f"first_row = (band + inside - aside * high) * {rows}")
        else:
            buffer.line("aside = idiv32(number, down)" if moves(self.down) else "aside = number")
            buffer.line(f"first_row = (number - aside * down) * {rows}")
        if self.sharing.down > 1:
            buffer.line(f"first_row = first_row + rank_down * {self.tile.rows}")
        buffer.line(f"first_column = aside * {self.tile.columns * self.sharing.side}")
        if self.sharing.side > 1:
            buffer.line(f"first_column = first_column + rank_side * {self.tile.columns}")
        self.operands.begin(buffer)

    def _advance(self, buffer: CodeBuffer) -> None:
        """Emit the step to the next slice and ring stage."""
        buffer.line("k = k + 1")
        buffer.line("slot = slot + 1")
        with buffer.block(f"if slot == {self.tile.stages}:"):
            buffer.line("slot = 0")
            buffer.line("phase = 1 - phase")

    def _begin_ring(self, buffer: CodeBuffer) -> None:
        """Emit loads before the dependency on preceding launches: slices of a constant right operand, as many as the
        ring holds; ``there`` counts them."""
        buffer.line("there = 0")
        if self.contraction.constant and self.right_is_given:
            with buffer.block("if begin < end:"):
                self._place(buffer)
                buffer.line("k = begin")
                with buffer.block(f"while (there < {self.tile.stages}) & (k < end):"):
                    if not isinstance(self._problem, GemmProblem):
                        self._taps(buffer, "k")
                    self._load_right(buffer, "there")
                    buffer.line("k = k + 1")
                    buffer.line("there = there + 1")
        buffer.line("grid_wait()")

    def _taps(self, buffer: CodeBuffer, k: str) -> None:
        """Emit the filter tap and the first channel of a convolution's slice."""
        buffer.line(
            f"pieces = idiv32(group_channels + {self.slice - 1}, {self.slice})",
            f"tap = idiv32({k}, pieces)",
            f"channel = ({k} - tap * pieces) * {self.slice}",
        )

    def _load_right(self, buffer: CodeBuffer, stage: str) -> None:
        """Emit the expected bytes of slice ``k`` in a stage, and the TMA load of its right operand."""
        buffer.line(f"arrived = offset(full, {stage})")
        buffer.line(f"mbarrier_expect(arrived, {self.stage_bytes})")
        own = self.own_columns
        begin = self.sharing.part(own * self.right_slice, "w")
        buffer.line(f"to_w = offset(ring_w, {stage} * {self.right_elements} + {begin})")
        buffer.line(f"own_column = first_column + {self.sharing.part(own, 'w')}")
        if not isinstance(self._problem, GemmProblem):
            times = self.right_slice // self.slice
            along = "channel" if times == 1 else f"channel * {times}"
            self.sharing.load(buffer, "w", "to_w", f"place4({along}, tap, own_column, plane)")
            return
        along, place = f"k * {self.right_slice}", self._batch_places(1)
        if not self.transposed:
            self.sharing.load(buffer, "w", "to_w", f"place4({along}, own_column, {place})")
            return
        for first in range(0, own, self.slice):
            to = f"offset(to_w, {first * self.slice})"
            operand = "w" if own - first >= self.slice else "rest"
            self.sharing.load(buffer, operand, to, f"place4(own_column + {first}, {along}, {place})")

    def _produce(self, buffer: CodeBuffer) -> None:
        """Emit the producer's loop over the slices of a tile."""
        gemm = isinstance(self._problem, GemmProblem)
        buffer.line(f"own_row = first_row + {self.sharing.part(self.own_rows, 'x')}")
        if not gemm:
            buffer.line(
                "image = idiv32(own_row, image_pixels)",
                "pixel = own_row - image * image_pixels",
                "line = idiv32(pixel, row_pixels)",
                "start_y = line * step_y - pad_y",
                "start_x = (pixel - line * row_pixels) * step_x - pad_x",
            )
            self._taps(buffer, "begin")
            if self.contraction.first_channel:
                buffer.line("left_out = 0")
                with buffer.block("if tap == 0:"):
                    buffer.line("left_out = first_channel")
            buffer.line("tap_y = idiv32(tap, taps_across)")
            buffer.line("tap_x = tap - tap_y * taps_across")
        buffer.line("k = begin")
        with buffer.block("while k < end:"):
            buffer.line("mbarrier_wait(offset(empty, slot), 1 - phase)")
            with buffer.block("if there > 0:"):
                buffer.line("there = there - 1")
            with buffer.block("else:"):
                self._load_right(buffer, "slot")
            buffer.line("arrived = offset(full, slot)")
            begin = self.sharing.part(self.own_rows * self.slice, "x")
            buffer.line(f"to_x = offset(ring_x, slot * {self.left_elements} + {begin})")
            if gemm:
                at = f"place4(k * {self.slice}, own_row, {self._batch_places(0)})"
                self.sharing.load(buffer, "x", "to_x", at)
            else:
                first = "left_out" if self.contraction.first_channel else "plane * group_channels + channel"
                at = f"place4({first}, start_x, start_y, image)"
                self.sharing.load(buffer, "x", "to_x", at, "tap_x * apart_x, tap_y * apart_y")
                if self.contraction.first_channel:
                    buffer.line("left_out = 0")
                buffer.line(f"channel = channel + {self.slice}")
                with buffer.block("if channel >= group_channels:"):
                    buffer.line("channel = 0", "tap = tap + 1", "tap_x = tap_x + 1")
                    with buffer.block("if tap_x == taps_across:"):
                        buffer.line("tap_x = 0")
                        buffer.line("tap_y = tap_y + 1")
            self._advance(buffer)

    def _batch_places(self, operand: int) -> str:
        """Return the batch coordinates of an operand's plane for its tensor map, which has two batch axes."""
        assert isinstance(self.operands, ProductOperands)
        indices = self.operands.plane_indices
        found = [indices[d] if own else "0" for d, own in self._moves[operand]]
        return ", ".join([*found, "0", "0"][:MOST_BATCH_AXES])

    def _consume(self, buffer: CodeBuffer) -> None:
        """Emit a warpgroup's loop over the slices of a tile."""
        tile, pingpong = self.tile, PingPong(self.tile)
        zero = "wgmma_zero" if self.accumulator == "float32" else f"wgmma_zero_{self.accumulator}"
        buffer.line(f"sums = {zero}({tile.columns})")
        buffer.line("last = slot")
        buffer.line("k = begin")
        pingpong.wait(buffer)
        with buffer.block("while k < end:"):
            buffer.line("mbarrier_wait(offset(full, slot), phase)")
            buffer.line(f"own = offset(ring_x, slot * {self.left_elements} + group * {64 * self.slice})")
            buffer.line(f"theirs = offset(ring_w, slot * {self.right_elements})")
            buffer.line("wgmma_fence()")
            buffer.line(f"sums = wgmma_{self.product.name}(sums, own, theirs, {int(self.transposed)}, {self.steps})")
            buffer.line("wgmma_commit()")
            buffer.line("sums = wgmma_wait(sums, 1)")  # the products before are complete: their stage is free
            with buffer.block("if is_leader & (k > begin):"):
                self.sharing.release(buffer)
            buffer.line("last = slot")
            self._advance(buffer)
        pingpong.hand_on(buffer)
        buffer.line("sums = wgmma_wait(sums, 0)")
        with buffer.block("if is_leader:"):
            self.sharing.release(buffer)

    def _tile(self, buffer: CodeBuffer) -> None:
        """Emit a warpgroup's work on a tile: the K loop and the epilogue, two rows of each thread at a time."""
        self._planes(buffer)
        if self.splits > 1:
            buffer.line("first_part = (block_index(2) * planes + plane) * rows")
        buffer.line("quarter = imod(lane, 4)")
        wide = max(2, self.width)
        ordered = self.lane_permutation or wide != 4  # else as `sums_row` has it
        side = f"quarter * {wide}" if ordered else "imod(quarter, 2) * 8 + idiv(quarter, 2) * 4"
        buffer.line(f"side = {side}")
        buffer.line("first_line = first_row + warp * 16 + idiv(lane, 4)")
        buffer.line(f"first_result = {'first_column' if self.sums == 1 else 'idiv32(first_column, 2)'}")
        buffer.line(f"results = {'columns' if self.sums == 1 else 'idiv32(columns, 2)'}")
        parts = [Part(piece, 4 * wide * piece) for piece in range(self.tile.columns // (4 * wide * self.sums))]
        ahead = self._parts_ahead()
        for part in parts[:ahead]:
            self._load_part(buffer, part)
        self._prefetch_vectors(buffer)
        self._consume(buffer)
        self._finish_tile(buffer, parts, ahead, wide)
