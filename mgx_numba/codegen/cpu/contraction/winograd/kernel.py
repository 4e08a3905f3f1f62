"""The kernels of a Winograd convolution: transforms and products of a block of tiles, then output transform and
epilogue."""

from __future__ import annotations

import math
from typing import ClassVar

from .....core.dim import Length, ceil_div
from ....arguments import Arguments
from ....kernel import KernelSource
from ....launch import Launch, Operand, Solution, TaskRange
from ....problems.convolution import ConvProblem
from ....problems.element_types import ITEMSIZE
from ....problems.epilogue import Epilogue
from ....statements import for_tasks, indent, kernel_text
from ...kernel import cpu_kernel
from ...microkernels.register_tile import RegisterTile
from ...microkernels.tile_table import PREFETCH_STEPS, TILE_BLOCK, TILE_TABLE_ROWS
from ...records import Holds, Record, RecordText, Word
from ..blocking_search import SUMS_BYTES
from ..conv import panel_lens
from ..conv_output_rows import row_offsets, stride_arguments
from ..epilogue_rows import Rows, finished_lanes, kernel_name
from ..macro_kernel import last_vectors, next_height
from ..tile_source import tile_record, tile_source
from .form import Form
from .transform_table import INPUT_PLACE
from .winograd_blocking import Block, tiles_of

CALL = RecordText(
    Record(
        "products of a block",
        (
            Word("arguments", "of the convolution kernel", Holds.WORDS),
            Word("scratch", "elements from the start of scratch memory to this thread's"),
            Word("fresh", "whether the inputs are still to be transformed: the task before had others"),
        ),
    ),
    "call",
)
"""The record passed to the kernel of transforms and products."""
_PLANE_PAD = 64
"""Padding (bytes) between the planes of the points, so that they do not fall into the same cache sets."""


def filter_plane(problem: ConvProblem, tile: RegisterTile, depth: Length = 0) -> Length:
    """Return the words from one point to the next of the transformed filters: of all panels, or of ``depth`` words of
    one panel."""
    groups, panels, _, whole, columns = panel_lens(problem, tile)
    words = tile.packing.parts * (depth or groups * panels * whole) * columns
    return words + _PLANE_PAD // ITEMSIZE[tile.right_word]


class WinogradWriter:
    """Text and arguments of the kernels for one problem.

    The input transforms and the products are a separate kernel, which is shared by kernels with different epilogues. It
    reads their argument block, in which its sizes come first.
    """

    record: ClassVar[Record] = TILE_BLOCK
    """The argument block of the register tile."""

    def __init__(
        self,
        form: Form,
        problem: ConvProblem,
        tile: RegisterTile,
        epilogue: Epilogue,
        strides: dict[str, tuple[int, int]],
        block: Block,
        whole_vectors: bool,
    ) -> None:
        self.form, self.problem, self.epilogue, self.strides, self.block = form, problem, epilogue, strides, block
        self.whole_vectors = whole_vectors
        self.tile = tile
        # Transformed inputs and filters are stored in words as large as the accumulators.
        self.word_bytes = ITEMSIZE[tile.right_word]
        self.rows = Rows(epilogue, self.tile.types.accumulator, finished_lanes(self.tile, epilogue))
        self.arguments = Arguments()
        self.arguments.callee("tile", tile_source(self.tile))
        self.tile_block = RecordText(self.record, "block")

    def plan(self) -> Solution:
        """Return the launch and its scratch, a part for each claim."""
        problem, tile, block, points = self.problem, self.tile, self.block, self.form.points
        groups, panels, taps, depth, columns = panel_lens(problem, tile)
        high, across = tiles_of(self.form, problem)
        tiles = problem.batch * high * across
        blocks, p_blocks = ceil_div(tiles, block.tiles), ceil_div(panels, block.panels)
        tasks = groups * blocks * p_blocks
        pad = _PLANE_PAD // self.word_bytes
        held = self._held()
        u_plane, m_plane = held * self._row(depth) + pad, held * block.panels * columns + pad
        v_plane = filter_plane(problem, tile, block.depth)
        u_words = self._input_words(points * u_plane)
        u_size, m_size, v_size = (-(-words // pad) * pad for words in (u_words, points * m_plane, points * v_plane))
        claim = u_size + m_size + (v_size if block.depth else 0)
        a = self.arguments
        a.integers(
            grain=block.grain, claim_size=claim, u_size=u_size, m_size=m_size, m_plane=m_plane, tiles=tiles,
            tile_block=block.tiles, blocks=blocks, panels=panels, p_block=block.panels, p_blocks=p_blocks,
            n=problem.group_out, high=high, across=across,
        )  # fmt: skip
        a.pointer("scratch", "scratch", tile.types.accumulator)
        self._declare(points * u_plane)
        common = a.names
        a.pointer("x", "x", problem.types.a)
        a.pointer("w", "w", tile.right_word)
        zeros = points * v_plane if self.form.stored else groups * panels * taps * depth * columns
        a.pointer("zero", Operand("w", zeros * self.word_bytes), problem.types.a)
        a.integers(
            u_plane=u_plane, depth=depth, v_plane=v_plane,
            w_panel=(taps if block.depth else tile.packing.parts) * depth * columns,
            in_h=problem.in_lens[-2], in_w=problem.in_lens[-1], pad_h=problem.pads_begin[-2],
            pad_w=problem.pads_begin[-1], x_image=problem.x_strides[0], x_h=problem.x_strides[-2],
            x_w=problem.x_strides[-1],
        )  # fmt: skip
        if block.depth:
            a.integers(k_block=block.depth)
        a.callee("products", self._products_source(a.bind()))
        before = len(a.names)
        self.rows.pointers(a)
        a.integers(out_h=problem.out_lens[-2], out_w=problem.out_lens[-1])
        stride_arguments(a, self.strides)
        text = kernel_text([*a.bind((*common, *a.names[before:])), *self._body()])
        source = cpu_kernel(kernel_name(self.name, self.epilogue), text)
        moved = ITEMSIZE[problem.types.a] * problem.batch * problem.in_pixels * problem.in_channels
        moved += self.word_bytes * zeros
        results = problem.batch * problem.out_pixels * problem.out_channels
        moved += self.epilogue.stored_bytes(problem.types.out) * results
        seen = self.epilogue.moving
        launch = Launch(source, a.values, TaskRange(tasks, block.grain), problem.flops, moved, seen)
        return Solution((launch,), ceil_div(tasks, block.grain) * claim * self.word_bytes)

    @property
    def name(self) -> str:
        """Return the kernels' name."""
        return self.form.name

    def _held(self) -> Length:
        """Return the rows of a point in scratch; the register tile may compute more rows than there are tiles."""
        return self.block.tiles + self.tile.rows

    def _row(self, depth: int) -> int:
        """Return the words from one transformed tile to the next at a point."""
        return depth

    def _input_words(self, words: int) -> int:
        """Return the words kept of a block's inputs, where one part takes ``words`` words at all points."""
        return words

    def _declare(self, words: int) -> None:
        """Declare further input arguments of both kernels; one part of the inputs takes ``words`` words."""

    def _filter(self, source: str, target: str, plane: str) -> str:
        form, columns = self.form, self.tile.columns
        literals = f"{form.side}, {form.taps}, {self.tile.lanes}"
        return f"winograd_filter({source}, {target}, {plane}, now * {columns}, {literals})"

    def _body(self) -> list[str]:
        """Return the statements of the kernel after its arguments."""
        return [
            CALL.local(),
            *CALL.fill(arguments="args", scratch="idiv(begin, grain) * claim_size"),
            f"products = offset(scratch, {CALL.get('scratch')} + u_size)",
            f"sums = local_{self.tile.types.accumulator}({SUMS_BYTES // self.word_bytes})",
            *self.rows.invariant(),
            "before = -1",
            *for_tasks([
                *self._block(),
                CALL.put("fresh", "1 if outer != before else 0"),
                "before = outer",
                self.arguments.call("products", CALL.name, "task", "task + 1"),
                "for t in range(count):",
                *indent([*self._place(), *self._output()]),
            ]),
        ]  # fmt: skip

    def _products_source(self, sizes: list[str]) -> KernelSource:
        """Return the kernel that multiplies the block of task ``begin``, as `CALL` says."""
        columns = self.tile.columns
        lines = [
            f"args = {CALL.words('arguments')}",
            *sizes,
            f"u = offset(scratch, {CALL.get('scratch')})",
            "products = offset(u, u_size)",
            *tile_record(self.tile_block),
            f"table = local_int64({TILE_TABLE_ROWS})",
            f"for i in range({TILE_TABLE_ROWS}):",
            "    table[i] = i * depth",
            *self.tile_block.fill(
                offsets="table", zero="zero", taps=1, depth="depth", x_step=1, w_step=columns, w_panel="w_panel",
                acc_panel=columns, accumulate=0,
            ),
            "task = begin",
            *self._block(),
            self.tile_block.put("acc_row", "sums_ld"),
            *last_vectors(self.tile),
            f"if {CALL.get('fresh')} != 0:",
            *indent(self._inputs()),
            *self.tile.in_state(self._products_with_own_filters() if self.block.depth else self._products()),
        ]  # fmt: skip
        kind = "_products_kernel" if self.form.stored else "_filter_products_kernel"
        return cpu_kernel(self.name + kind, kernel_text(lines, CALL.name))

    def _block(self) -> list[str]:
        columns = self.tile.columns
        return [
            "outer = idiv(task, p_blocks)",
            "p0 = (task - outer * p_blocks) * p_block",
            "group = idiv(outer, blocks)",
            "first = (outer - group * blocks) * tile_block",
            "count = imin(tiles - first, tile_block)",
            "wide = imin(panels - p0, p_block)",
            f"sums_ld = wide * {columns}",
            f"columns = imin(n - p0 * {columns}, sums_ld)",
            f"n0 = group * n + p0 * {columns}",
        ]

    def _place(self) -> list[str]:
        """Return statements that compute the image and first output pixel of tile ``first + t``."""
        out = self.form.out
        return [
            "line = idiv(first + t, across)",
            f"left_edge = (first + t - line * across) * {out}",
            "image = idiv(line, high)",
            f"top = (line - image * high) * {out}",
        ]

    def _inputs(self) -> list[str]:
        together = self.tile.packing.k_interleave
        depth = "depth" if together == 1 else f"depth * {together}"
        place = RecordText(INPUT_PLACE, "place")
        return [
            place.local(),
            *place.fill(x_h="x_h", x_w="x_w"),
            "for t in range(count):",
            *indent([
                *self._place(),
                "top -= pad_h",
                "left_edge -= pad_w",
                *place.fill(
                    start=f"image * x_image + top * x_h + left_edge * x_w + group * {depth}",
                    top="-top", bottom="in_h - top", left="-left_edge", right="in_w - left_edge",
                ),
                *self._transformed_input(depth),
            ]),
        ]  # fmt: skip

    def _transformed_input(self, channels: str) -> list[str]:
        """Return statements that transform ``channels`` channels of tile ``t`` at ``place``."""
        lanes, count = self.tile.lanes * self.tile.packing.k_interleave, self.problem.group_in
        if not self.whole_vectors:
            lanes = count if count < lanes else math.gcd(count, lanes)
        target = f"offset(u, t * depth), u_plane, {channels}"
        return [f"winograd_input(x, place, zero, {target}, {self.form.side}, {lanes})"]

    def _products(self) -> list[str]:
        """Return statements for the products with stored filters, point by point and panel by panel.

        The first tiles of a block load a panel; later tiles find it in the L1 cache and prefetch the next panel.
        """
        columns = self.tile.columns
        tile = [
            self.tile_block.put("elsewhere", f"w_panel if row > 0 and 2 * height > {self.tile.rows} else 0"),
            *self._call_tile(),
        ]
        return [
            f"for point in range({self.form.points}):",
            *indent([
                "for panel in range(wide):",
                *indent([
                    self._panel_vectors(),
                    self.tile_block.put("w", "offset(w, point * v_plane + (group * panels + p0 + panel) * w_panel)"),
                    *self._rows("point * u_plane", f"point * m_plane + panel * {columns}", tile),
                ]),
            ]),
        ]  # fmt: skip

    def _products_with_own_filters(self) -> list[str]:
        """Return statements that, panel by panel, transform a block of filter channels and multiply it at all
        points."""
        columns, taps = self.tile.columns, self.form.taps**2
        return [
            "v = offset(products, m_size)",
            "for panel in range(wide):",
            *indent([
                self._panel_vectors(),
                "for k0 in range(0, depth, k_block):",
                *indent([
                    "now = imin(k_block, depth - k0)",
                    f"source = offset(w, (group * panels + p0 + panel) * w_panel + k0 * {taps * columns})",
                    self._filter("source", "v", "v_plane"),
                    *self.tile_block.fill(depth="now", accumulate="k0"),
                    f"for point in range({self.form.points}):",
                    *indent([
                        self.tile_block.put("w", "offset(v, point * v_plane)"),
                        *self._elsewhere(),
                        *self._rows("point * u_plane + k0", f"point * m_plane + panel * {columns}", self._call_tile()),
                    ]),
                ]),
            ]),
        ]  # fmt: skip

    def _call_tile(self) -> list[str]:
        return [self.tile_block.put("rows", "height"), self.arguments.call("tile", self.tile_block.name, 0, 1)]

    def _panel_vectors(self) -> str:
        """Return the statement that sets how many vectors of ``panel`` are computed."""
        return self.tile_block.put("vectors", f"last_vectors if panel == wide - 1 else {self.tile.vectors}")

    def _elsewhere(self) -> list[str]:
        """Return statements by which products prefetch the filters at ``source``, which are transformed next.

        Every ``every``-th point prefetches a part as long as the point's filters.
        """
        columns, taps = self.tile.columns, self.form.taps**2
        every, shift = max(1, self.form.points // taps), self.word_bytes.bit_length() - 1
        block = self.tile_block
        gap = f"({block.get('elsewhere')} - {block.address('w')}) >> {shift}"
        return [
            block.put("elsewhere", 0),
            f"if imod(point, {every}) == 0 and point < {taps * every}:",
            *indent([
                f"part = {taps} + idiv(point, {every})",
                block.put_pointer("elsewhere", f"offset(source, part * now * {columns})"),
                block.put("elsewhere", f"({gap}) - {PREFETCH_STEPS * columns}"),
            ]),
        ]  # fmt: skip

    def _rows(self, u_start: str, m_start: str, tile: list[str]) -> list[str]:
        """Return statements that run the register tile over all tiles of one point."""
        return [
            "row = 0",
            "while row < count:",
            *indent([
                *self._height(),
                *self.tile_block.fill(
                    x=f"offset(u, {u_start} + row * depth)", acc=f"offset(products, {m_start} + row * sums_ld)"
                ),
                *tile,
                "row += height",
            ]),
        ]  # fmt: skip

    def _height(self) -> list[str]:
        """Return statements that choose the rows of the next register tile, as `tile_rows` does."""
        return ["left = count - row", *next_height(self.tile, tall=True)]

    def _output(self) -> list[str]:
        out, lanes = self.form.out, self.tile.lanes
        call = "winograd_output(offset(products, t * sums_ld), m_plane, sums, sums_ld, sums_ld"
        return [
            f"{call}, {self.form.side}, {out}, {lanes})",
            *self._after_output(),
            f"for i in range(imin({out}, out_h - top)):",
            f"    for j in range(imin({out}, out_w - left_edge)):",
            *indent(
                [
                    "pixel = (top + i) * out_w + left_edge + j",
                    f"sums_row = (i * {out} + j) * sums_ld",
                    *row_offsets(self.epilogue),
                    *self.rows.text(),
                ],
                2,
            ),
        ]

    def _after_output(self) -> list[str]:
        """Return statements after the output transform of tile ``t``, on its ``sums``."""
        return []
