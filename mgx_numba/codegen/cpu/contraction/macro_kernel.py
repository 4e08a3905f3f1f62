"""The loop nest around the register tile that every contraction kernel shares.

A task is a block of output rows by a block of weight panels. Within it each group of tile rows visits all panels of the
block, and the epilogue runs while the accumulators are in the L1 cache. A reduction too long for the cache is cut into
steps (of taps, or of channels of one tap); the accumulators of the whole block then stay on the stack between steps.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field, fields

from ....core.dim import Length, ceil_div
from ....dataclass import dataclass
from ...arguments import Arguments
from ...kernel import KernelSource
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import Epilogue
from ...statements import for_tasks, indent, kernel_text
from ..host import CACHE_LINE, host
from ..kernel import cpu_kernel
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import MATRIX_BLOCK, RESIDUAL_BLOCK, RUNS, TILE_TABLE_ROWS, finish_block, panel_block
from ..records import RecordText
from .blocking import Blocking
from .blocking_search import SUMS_BYTES, TABLE_TAPS
from .epilogue_kernel import PANEL_ROWS, epilogue_kernel_source, place_words, placed_rows, rows_at_once
from .epilogue_rows import Rows, finished_lanes, kernel_name
from .tile_source import epilogue_source, tile_record, tile_source


@dataclass
class MacroKernel:
    """A contraction kernel under construction; the parts that differ between solvers are lists of statements.

    Attributes:
        decode: statements that compute from ``group`` (a batch or group number) ``x0``, ``w0``, ``column0`` and the
            values that ``row`` needs.
        table: statements that write the element offsets from ``x`` of ``height`` rows starting with ``row``, of which
            ``left`` exist, for the taps ``t0`` to ``t0 + taps_now``, at ``k0`` of the depth.
        row: statements that define ``out_row`` and ``e<k>_row``, the offsets of row ``row + i``.
        row_steps: names of the usual increments of ``out`` and of each ``e<k>`` from row to row.
        steady: condition under which the increments of ``row_steps`` always hold.
        x_row: constant distance of the rows in ``table``, "" if there is none.
        in_place: whether ``x_row`` holds beyond the rows of one tile.
        contiguous: whether ``x_step`` is 1.
        runs: words of a tile whose taps are runs; empty for other tiles.
        masked: whether no right-hand column past the last may be read.
        scratch: statements that unpack the right-hand side of a step to the buffer ``scratch``, which the tile then
        reads
            (empty: it is read in place).
        some_exist: whether the statements of ``row`` set ``exists``: whether the row has a result.
        instead: statements before a matrix tile that set ``special``: whether they have computed its accumulators.

    Where row offsets grow steadily, tiles of full height run the epilogue in registers (`epilogue_source`).
    """

    solver: str
    dtype: str
    tile: RegisterTile
    epilogue: Epilogue
    arguments: Arguments = field(default_factory=Arguments)
    setup: list[str] = field(default_factory=list)
    decode: list[str] = field(default_factory=list)
    table: list[str] = field(default_factory=list)
    before_rows: list[str] = field(default_factory=list)
    row: list[str] = field(default_factory=list)
    row_steps: dict[str, str] = field(default_factory=dict)
    steady: str = ""
    x_row: str = ""
    in_place: bool = False
    contiguous: bool = True
    runs: Mapping[str, str] = field(default_factory=dict)
    several_taps: bool = False
    masked: bool = False
    scratch: list[str] = field(default_factory=list)
    some_exist: bool = False
    instead: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = Rows(self.epilogue, self.dtype, finished_lanes(self.tile, self.epilogue))
        self.arguments.callee("tile", tile_source(self.tile, self.masked))
        matrix = self.tile.step > 1
        plain = RESIDUAL_BLOCK if self.tile.packing.residuals else finish_block(len(self.epilogue.operands))
        self.block = RecordText(MATRIX_BLOCK if matrix else plain, "block")
        self.panel = RecordText(panel_block(len(self.epilogue.operands)), "panel")
        if matrix:
            self.arguments.callee("finisher", epilogue_kernel_source(self.tile, self.epilogue))

    def sizes(
        self,
        blocking: Blocking,
        m: Length,
        n: Length,
        panels: Length,
        depth: Length,
        taps: int,
        groups: Length,
        beside: bool,
        inside: bool = False,
    ) -> None:
        """Declare the sizes of one group's product and of its blocks as arguments.

        Args:
            beside: groups are adjacent in the rows. Successive tasks walk all groups of a part of the rows, else all
                parts of a group.
            inside: successive tasks walk all groups of a block of panels, which the groups share.
        """
        p_blocks = ceil_div(panels, blocking.panels)
        around = 1 if inside else p_blocks
        self.arguments.integers(
            m=m, n=n, panels=panels, depth=depth, m_block=blocking.rows, p_block=blocking.panels,
            m_blocks=blocking.row_blocks(m), p_blocks=p_blocks, panel_every=groups if inside else 1,
            parts=blocking.parts, part_every=p_blocks * (groups if beside or inside else 1), groups=groups,
            group_every=around if beside or inside else around * blocking.parts,
            k_block=blocking.depth, keep=blocking.steps(taps, depth),
        )  # fmt: skip
        if self.several_taps:
            self.arguments.integers(taps=taps, tap_block=blocking.taps)
        if self.steady:
            even = RUNS if self.runs else int(bool(self.x_row))
            columns = n if isinstance(n, int) else self.tile.columns + n % self.tile.columns
            assert isinstance(columns, int), f"sums of {n} columns are finished in registers"
            kernel = epilogue_source(self.tile, self.epilogue, even, columns, self.contiguous)
            self.arguments.callee("finishing_tile", kernel)

    def source(self) -> KernelSource:
        """Return the finished kernel; equal kernels are printed once."""
        parts = [getattr(self, own.name) for own in fields(self) if own.name != "arguments"]
        key = (host(), self.arguments.declared, *(_hashable(part) for part in parts))
        found = _printed.get(key)
        if found is None:
            if len(_printed) >= KEPT:
                _printed.clear()
            found = _printed[key] = self._printed()
        return found

    def _printed(self) -> KernelSource:
        lines = [*self.arguments.bind(), *self._locals(), *self.setup]
        if self.tile.step > 1:
            done, waiting = (self.block.get(name) for name in ("done", "waiting"))
            last = self.arguments.call("finisher", self.panel.name, done, waiting)
            lines += self.tile.in_state(
                [*self._finishing(), *for_tasks(self._task()), f"if {done} < {waiting}:", *indent([last])]
            )
        else:
            lines += [*self.rows.invariant(), *self.tile.in_state(for_tasks(self._task()))]
        return cpu_kernel(kernel_name(self.solver, self.epilogue), kernel_text(lines))

    def _locals(self) -> Sequence[str]:
        taps = TABLE_TAPS if self.several_taps else 1
        return (
            *tile_record(self.block),
            f"table = local_int64({TILE_TABLE_ROWS * taps})",
            f"sums = local_{self.dtype}({SUMS_BYTES // ITEMSIZE[self.dtype]})",
            *self.block.fill(
                offsets="table", zero="zero", taps=1, x_step="x_step", w_step="w_step", w_panel="w_panel",
                acc_panel=self.tile.columns,
            ),
        )  # fmt: skip

    def _finishing(self) -> list[str]:
        """Return statements before all tasks of a matrix tile that set up the epilogue kernel of its panels and its
        arguments."""
        block, panel, tile = self.block, self.panel, self.tile
        size = tile.rows * tile.columns
        operands = {f"e{k}": f"e{k}_at" for k in range(len(self.epilogue.operands))}
        return [
            f"two_panels = local_{self.dtype}({2 * size})",
            f"{PANEL_ROWS} = local_int64({2 * tile.rows * place_words(self.epilogue)})",
            panel.local(),
            *panel.fill(sums="two_panels", out="out", **operands),
            *block.fill(finisher=self.arguments.code("finisher"), panel=panel.name),
            *block.fill(spare=f"offset(two_panels, {size})", places=PANEL_ROWS),
            f"first_place = {block.address('places')}",
            "side = 0",
        ]

    def at_row(self) -> str:
        """Return the statement that points the left-hand side to ``row``, for rows ``x_ld`` elements apart."""
        return self.block.put("x", "offset(x, x0 + row * x_ld + k0 * x_step)")

    def read_even_rows(self) -> None:
        """Set ``setup`` and ``table`` for rows ``x_ld`` elements apart."""
        self.setup += ["filled = 0"]
        self.table = [*even_table("x_ld"), self.at_row()]

    def read_matrix(self, low: Length, apart: str = "x_ld") -> None:
        """Set ``setup`` for a matrix tile: rows are ``apart`` apart, low parts ``low`` behind the high parts."""
        self.arguments.integers(x_low=low)
        self.setup += self.block.fill(x_row=apart, x_low="x_low")

    def _task(self) -> list[str]:
        columns = self.tile.columns
        lines = [
            "outer = idiv(task, m_blocks)",
            "m0 = task - outer * m_blocks",
            "p0 = imod(idiv(outer, panel_every), p_blocks) * p_block",
            "group = imod(idiv(outer, group_every), groups)",
            "more = m0 + 1 < m_blocks or (panel_every > 1 and group + 1 < groups)",
            "m0 = (imod(idiv(outer, part_every), parts) * m_blocks + m0) * m_block",
            *self.decode,
            "m1 = imin(m, m0 + m_block)",
            "wide = imin(panels - p0, p_block)",
            f"sums_ld = wide * {columns}",
            self.block.put("acc_row", "sums_ld"),
            f"columns = imin(n - p0 * {columns}, sums_ld)",
            self.block.put("columns", "columns"),
            f"n0 = column0 + p0 * {columns}",
        ]
        if self.tile.vectors > 1:
            lines += [*last_vectors(self.tile), "if narrow:", "    wide -= 1"]
        if self.several_taps:
            lines += ["for t0 in range(0, taps, tap_block):", "    taps_now = imin(tap_block, taps - t0)"]
            lines += indent(
                [self.block.put("taps", "taps_now"), *self._steps("t0 * depth + k0", " and t0 + taps_now == taps")]
            )
        else:
            lines += self._steps("k0", "")
        return lines

    def _steps(self, start: str, last_tap: str) -> list[str]:
        right = "offset(near, 0)" if self.scratch else f"offset(w, w0 + p0 * w_panel + ({start}) * w_step)"
        return [
            "for k0 in range(0, depth, k_block):",
            *indent([
                "depth_now = imin(k_block, depth - k0)",
                f"summed = {start}",
                *self.scratch,
                *self.block.fill(depth="depth_now", accumulate="summed", w=right),
                *(self._residuals() if self.tile.packing.residuals else []),
                f"finish = k0 + depth_now == depth{last_tap}",
                "row = m0",
                *self._far(start),
                "while row < m1:",
                *indent(self._tile_rows()),
            ]),
        ]  # fmt: skip

    def _residuals(self) -> list[str]:
        """Return statements that let the first step of each tap add the products of the panels' residuals."""
        taps, first, now = ("taps", "t0", "taps_now") if self.several_taps else ("1", "0", "1")
        return [
            f"after = ({taps} - {first}) * depth * w_step",
            *self.block.fill(
                first_residual=f"after + {first} if k0 == 0 else 0",
                last_residual=now,
                residuals=f"after + {taps} + 1",
                skipped_taps=first,
                residual_place=0,
            ),
        ]

    def _far(self, start: str) -> list[str]:
        """Return statements that choose the right-hand data to prefetch: the next step's, else the first step's of the
        next panels.

        The row blocks of a matrix tile prefetch equal numbers of its cache lines.
        """
        terms = self._terms()
        far = [
            "if finish:",
            "    far = w0 + (p0 if more else p0 + p_block) * w_panel",
            "else:",
            f"    far = w0 + p0 * w_panel + ({start} + {terms}) * w_step",
        ]
        if self.tile.step > 1:
            rows, lines, least = self.tile.rows, self.tile.step_bytes // CACHE_LINE, rows_at_once(self.epilogue)
            return [
                *far,
                self.block.put("pace", f"imax({least}, idiv({rows * self.tile.step}, {terms}) + 1)"),
                f"far_left = 0 if finish and (more or p0 + p_block >= panels) else {lines}",
                f"blocks = imax(idiv(m1 - m0 + {rows - 1}, {rows}), 1)",  # the last part may have none
                f"far_share = idiv({lines - 1} + blocks, blocks)",
            ]
        if not self.steady:
            return []
        first = ["stream = 0", self.block.put("finish", "1 if finish else 0")]
        if self.scratch:
            return [*first, self.block.put("far_panels", 0), self.block.put("far", "offset(near, 0)")]
        return [
            *first,
            self.block.put("far_panels", "0 if finish and more and keep == 0 else p_block"),
            *far,
            self.block.put("far", "offset(w, far)"),
        ]

    def _terms(self) -> str:
        """Return the expression of the words of a row in this step."""
        return "depth_now * taps_now" if self.several_taps else "depth_now"

    def _tile_rows(self) -> list[str]:
        if self.tile.step > 1:
            return [
                "left = m1 - row",
                *next_height(self.tile, tall=False),
                "sums_row = (row - m0) * sums_ld * keep",
                *self.block.fill(acc="offset(sums, sums_row)", rows="height"),
                *self._matrix_rows(),
            ]
        return [
            "left = m1 - row",
            *next_height(self.tile, tall=not self.masked),
            "sums_row = (row - m0) * sums_ld * keep",
            *self.block.fill(acc="offset(sums, sums_row)", rows="height"),
            *(["tiles = 0", *self._finished_rows(), "if tiles == 0:"] if self.steady else []),
            *indent(self._parked_rows(), int(bool(self.steady))),
        ]

    def _parked_rows(self) -> list[str]:
        """Return statements for one tile whose accumulators are in memory between the products and the epilogue."""
        return [
            "left = imin(left, height)",
            *self.table,
            self.block.put("touched", 0),
            *([] if self.steady else self._touch()),
            *run_tile(self.tile, self.arguments, self.block),
            "if finish:",
            *indent([*self.before_rows, "for i in range(left):"]),
            *indent([*self.row, *self.rows.text(), "sums_row += sums_ld"], 2),
            "row += left",
        ]

    def _matrix_rows(self) -> list[str]:
        """Return statements for one matrix tile, whose panels are finished while it multiplies the next panels.

        Accumulators that ``instead`` has computed replace those of earlier steps.
        """
        block, words = self.block, place_words(self.epilogue)
        placed = placed_rows(self.epilogue, self.tile.columns)
        if self.some_exist:
            placed = ["if exists:", *indent(placed)]
        special = [*self.instead, "if special > 0:", *indent(block.fill(depth=0, accumulate=1))]
        again = ["if special > 0:", *indent(block.fill(depth="depth_now", accumulate="summed"))]
        return [
            "left = imin(left, height)",
            *self.table,
            block.put("finish", 0),
            "if finish:",
            *indent([
                f"other = {self.tile.rows * words} - side",
                "at = other",
                *self.before_rows,
                "for i in range(left):",
                *indent([*self.row, *placed]),
                *block.fill(finish=f"idiv(at - other, {words})", column="n0"),
                block.put_address("places", "first_place + 8 * other"),
                "if at > other:",  # a call without rows leaves the panel of the call before waiting
                "    side = other",
            ]),
            "far_lines = imin(far_share, far_left)",
            *block.fill(exist="left", far="offset(w, far)", far_lines="far_lines"),
            *(special if self.instead else []),
            *run_tile(self.tile, self.arguments, block),
            *(again if self.instead else []),
            "far_left -= far_lines",
            f"far += far_lines * {self._terms()}",
            "row += left",
        ]  # fmt: skip

    def _finished_rows(self) -> list[str]:
        """Return statements for ``tiles`` tiles of full height whose accumulators never leave the registers."""
        tile = self.tile
        lines, words = ["tiles = 1", "left = height", *self.table], {"tiles": "tiles", "stream": "stream"}
        if self.in_place:
            lines = [f"tiles = idiv(left, {tile.rows})", self.at_row()]
            if tile.tall:
                more = tile.tall - tile.rows
                lines[1:1] = [f"if height == {tile.tall}:", f"    tiles = idiv(over + {more - 1}, {more})"]
        if self.x_row:
            words["x_row"] = self.x_row
        words |= self.runs
        if tile.vectors > 1:
            words["last"] = f"columns - whole * {tile.columns}"
        words["out_row"] = self.row_steps["out"]
        places = {"out": "offset(out, out_row)"}
        for k, operand in enumerate(self.epilogue.operands):
            row = {"per_n": "n0", "scalar": "0"}.get(operand.access, f"e{k}_row")
            places[f"e{k}"] = f"offset(e{k}_at, {row})"
            if operand.access in ("full", "per_m"):
                words[f"e{k}_row"] = self.row_steps[f"e{k}"]
        return [
            f"if {self.steady} and height >= {tile.rows} and left >= height:",
            *indent([
                *lines,
                f"whole = idiv(columns, {tile.columns})",
                "i = 0",
                *self.before_rows,
                *self.row,
                *self.block.fill(**places, **words),
                self.arguments.call("finishing_tile", "block", 0, "whole"),
                "row += tiles * height",
                "stream += tiles * (whole - 1)",
            ]),
        ]  # fmt: skip

    def _touch(self) -> list[str]:
        """Return statements that name the memory that the epilogue will use, so that it is prefetched during the
        products."""
        read = [f"e{k}" for k, o in enumerate(self.epilogue.operands) if o.access == "full" and o.dtype == self.dtype]
        places = {"written": "out"} | ({"read": read[0]} if read else {})
        if self.epilogue.out_dtype(self.dtype) != self.dtype or not all(n in self.row_steps for n in places.values()):
            return []
        lines = []
        for place, name in places.items():
            pointer = "out" if name == "out" else f"{name}_at"
            lines.append(self.block.put(place, f"offset({pointer}, {name}_row)"))
            lines.append(self.block.put(f"{place}_row", self.row_steps[name]))
        lines.append(self.block.put("touched", len(places)))
        return ["if finish:", *indent(["i = 0", *self.before_rows, *self.row, *lines])]


KEPT = 256
"""Kernels that are cached, of some kilobytes each: a network has a dozen."""
_printed: dict[Hashable, KernelSource] = {}


def _hashable(part: object) -> Hashable:
    if isinstance(part, dict):
        return tuple(part.items())
    return tuple(part) if isinstance(part, list) else part


def even_table(apart: str, table: str = "table") -> list[str]:
    """Return statements that fill the array ``table`` with rows ``apart`` elements apart, unless it already has that
    number of rows."""
    return [
        "if left != filled:",
        "    filled = left",
        f"    for i in range({TILE_TABLE_ROWS}):",
        f"        {table}[i] = imin(i, left - 1) * {apart}",
    ]


def last_vectors(tile: RegisterTile) -> list[str]:
    """Return statements that set ``last_vectors``, the number of vectors of the last panel that have columns, and
    ``narrow``, whether these are fewer than the tile's."""
    if tile.vectors == 1:
        return ["last_vectors = 1", "narrow = False"]
    return [
        f"last_vectors = {tile.vectors} - idiv(sums_ld - columns, {tile.lanes})",
        f"narrow = last_vectors < {tile.vectors}",
    ]


def run_tile(tile: RegisterTile, arguments: Arguments, block: RecordText) -> list[str]:
    """Return statements that run ``height`` rows over ``wide`` full panels, then if ``narrow`` over a panel of
    ``last_vectors`` vectors.

    The tile kernel is the callee ``tile`` of the arguments.
    """
    lines = block.fill(rows="height", vectors=tile.vectors)
    whole = arguments.call("tile", block.name, 0, "wide")
    if tile.vectors == 1:
        return [*lines, whole]
    lines += ["if wide > 0:", *indent([whole])]
    last = [block.put("vectors", "last_vectors"), arguments.call("tile", block.name, "wide", "wide + 1")]
    return [*lines, "if narrow:", *indent(last)]


def next_height(tile: RegisterTile, tall: bool) -> list[str]:
    """Return statements that choose the ``height`` of the next tile for ``left`` remaining rows; ``tall`` tiles are
    allowed if set."""
    if tile.step > 1:
        return [f"height = {tile.rows} if left > {tile.heights[1]} else {tile.heights[1]}"]
    lines = [f"height = ({height_table(tile)} >> (4 * imin(left, {tile.rows}))) & 15"]
    if tall and tile.tall:
        more = f"over <= idiv(left, {tile.rows}) * {tile.tall - tile.rows}"
        lines += [f"over = imod(left, {tile.rows})", f"if over > 0 and {more}:", f"    height = {tile.tall}"]
    return lines


@functools.lru_cache(maxsize=64)
def height_table(tile: RegisterTile) -> int:
    """Return the tile height to take for r remaining rows in bits 4r to 4r+3; a little more than r where that is
    cheaper."""
    table = 0
    for left in range(1, tile.rows + 1):
        below = max(h for h in tile.heights if h <= left)
        above = min(h for h in tile.heights if h >= left)
        table |= (below if (left - below) * 3 <= below else above) << (4 * left)
    return table
