"""The kernels of a product by Strassen's method: a driver of the tiles, and an epilogue kernel for rows of the result.

The inner level is in the tiles, seven products a call, in Winograd's form. The outer level, if there is one, is in the
driver. For each part of the reduction and some panels of a block it walks the outer products, and for each outer
product the panels.

While the tiles of one step run, they make the right-hand sums of the next step on the side, and left-hand sums of the
next outer product. Result blocks are accumulated in scratch. A strip goes through the epilogue after the last product
that is added to it.

An infinity or NaN in an operand would spread to all results that share a sum of blocks with it. So a task whose sums
are not all finite is recomputed as plain products.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from ....arguments import Arguments
from ....kernel import KernelSource
from ....launch import Launch, Operand, TaskRange
from ....problems.element_types import ITEMSIZE
from ....problems.epilogue import Epilogue
from ....problems.gemm import GemmProblem
from ....statements import for_tasks, indent, kernel_text
from ...kernel import cpu_kernel
from ...microkernels.register_tile import RegisterTile
from ...microkernels.tile_table import TILE_BLOCK, TILE_TABLE_ROWS, tile_for
from ...records import Holds, Record, RecordText, Word
from ..epilogue_rows import Rows, kernel_name
from ..macro_kernel import next_height
from ..pack_kernel import Batched
from ..panels import panel_count
from ..tile_source import tile_record, tile_source
from .strassen_blocking import FIRST, LAST, LEFT_PAD, MOST_PIECES, RESULT, RIGHT_PANELS, Cut, heights, next_strip
from .sums import RIGHT_OPERANDS, Sums, form, right_operand
from .tile_table import CHAIN_ENDS, INNER, LEFT_PITCH, PARKED_PRODUCTS, SIDE_STEPS, STRASSEN_BLOCK

CALL = RecordText(
    Record(
        "finished strip",
        (
            Word("arguments", "of the driver", Holds.WORDS),
            Word("sums", "elements from the start of scratch memory to the strip's"),
            Word("row", "of the result where the strip begins"),
            Word("panel", "of the result"),
            Word("strange", "(result) set if a sum is infinite or NaN"),
        ),
    ),
    "call",
)
"""The record passed to the epilogue kernel."""
_QUADRANTS = (2, 3, 1, 0)
"""The result quadrant that each product from `PARKED_PRODUCTS` on completes."""


@functools.lru_cache(maxsize=16)
def _tile_source(tile: RegisterTile) -> KernelSource:
    lines = [f"rows = {RecordText(STRASSEN_BLOCK, 'args').get('rows')}"]
    for index, rows in enumerate(heights(tile)):
        lines.append(f"{'elif' if index else 'if'} rows == {rows}:")
        lines.append(f"    strassen_tile_{tile.dtype}(args, begin, end, {rows}, {tile.vectors}, {tile.lanes})")
    return cpu_kernel(f"strassen_{tile.name}_{tile.dtype}_tile_kernel", kernel_text(lines))


def strassen_launch(
    levels: int,
    problem: GemmProblem,
    epilogue: Epilogue,
    batched: Batched,
    offsets: Mapping[str, int],
    w: Operand,
    cut: Cut,
    threads: int,
) -> tuple[Launch, int]:
    """Return the launch for one product of ``batched``, and its bytes of scratch, from the start of ``scratch``.

    Args:
        offsets: element offset of the product in each operand.
        w: packed panels.
    """
    tile, size = tile_for(problem.types), problem.itemsize
    columns, panels = tile.columns, panel_count(tile, problem.n)
    down, across = cut.tasks(batched.m, panels)
    grain = -(-down * across // threads)
    right, strip, panel = cut.areas(tile)
    a = Arguments()
    a.callee("tile", _tile_source(tile))
    a.callee("plain_tile", tile_source(tile))
    bytes_at = {"out": ITEMSIZE[epilogue.out_dtype(problem.dtype)] * offsets["out"]}
    bytes_at |= {f"e{k}": ITEMSIZE[o.dtype] * offsets.get(f"e{k}", 0) for k, o in enumerate(epilogue.operands)}
    same = epilogue.out_dtype(problem.dtype) == problem.dtype
    read = [f"e{k}" for k, o in enumerate(epilogue.operands) if o.access == "full" and o.dtype == problem.dtype]
    seen = read[0] if read else "out"
    a.pointer("x", Operand("x", offsets["x"] * size), problem.dtype)
    a.pointer("w", Operand(w.name, w.offset + offsets["w"] * size), problem.dtype)
    a.pointer("scratch", "scratch", problem.dtype)
    a.pointer("written", Operand("out", bytes_at["out"]), problem.dtype)
    a.pointer("seen", Operand(seen, bytes_at[seen]), problem.dtype)
    parts = problem.k // (cut.grid * cut.depth)
    a.integers(
        touched=(1 + bool(read)) * same, seen_ld=batched.strides[seen][-1], out_ld=batched.strides["out"][-1],
        x_ld=batched.strides["x"][-1], m=batched.m, n=problem.n, panels=panels, w_panel=problem.k * columns,
        levels=levels, grid=cut.grid, m_block=cut.rows, p_block=cut.panels, k_block=cut.depth, k_parts=parts,
        depth=problem.k, outers=cut.outers, steps=cut.outers * cut.panels * parts, held=cut.held(problem.k),
        down=down, across=across, down_every=across if cut.by_rows else 1,
        across_every=1 if cut.by_rows else down, grain=grain, claim_size=cut.claim(tile, problem.k),
        right_area=right, strip_size=strip, strips=cut.strips(tile),
        kept=cut.kept(problem.k), left_share=cut.left_share(tile, problem.k),
        most_pieces=MOST_PIECES, fewest_pieces=SIDE_STEPS * tile.vectors,
        together=cut.together, result_panel=panel,
    )  # fmt: skip
    common = a.names
    a.callee("finish")
    rows = Rows(epilogue, problem.dtype, tile.lanes)
    rows.pointers(a, bytes_at)
    for name, values in batched.strides.items():
        if name[0] == "e":
            a.integers(**{f"{name}_ld": values[-1]})
    a.provide("finish", _epilogue_source(a.bind(), rows, tile))
    text = kernel_text([*a.bind(common), *_Driver(tile, a).text()])
    flops = 2 * batched.m * problem.n * problem.k
    moved = size * (batched.m * (problem.k + problem.n) + problem.k * panels * columns)
    launch = Launch(cpu_kernel("gemm_strassen_kernel", text), a.values, TaskRange(down * across, grain), flops, moved)
    return launch, -(-down * across // grain) * cut.claim(tile, problem.k) * size


def _epilogue_source(lines: Sequence[str], rows: Rows, tile: RegisterTile) -> KernelSource:
    """Return the epilogue kernel for rows ``begin`` to ``end`` of one panel of a strip, which `CALL` describes."""
    starts = [f"out_row = ({CALL.get('row')} + i) * out_ld + n0"]
    for k, operand in enumerate(rows.epilogue.operands):
        if operand.access in ("full", "per_m"):
            column = " + n0" if operand.access == "full" else ""
            starts.append(f"e{k}_row = ({CALL.get('row')} + i) * e{k}_ld{column}")
    body = [
        f"args = {CALL.words('arguments')}",
        *lines,
        *rows.invariant(),
        f"sums = offset(scratch, {CALL.get('sums')})",
        f"strange = const_{tile.dtype}(0, {tile.lanes})",
        f"n0 = {CALL.get('panel')} * {tile.columns}",
        f"columns = imin(n - n0, {tile.columns})",
        "for i in range(begin, end):",
        *indent([
            f"sums_row = i * {tile.columns}",
            f"for c in range(0, {tile.columns}, {tile.lanes}):",
            f"    value = load(sums, sums_row + c, {tile.lanes})",
            "    strange = add(strange, sub(value, value))",
            *starts,
            *rows.text(),
        ]),
        "if reduce_or(ne(strange, strange)):",
        *indent([CALL.put("strange", 1)]),
    ]  # fmt: skip
    return cpu_kernel(kernel_name("strassen_finish", rows.epilogue), kernel_text(body, CALL.name))


class _Driver:
    """The text of the driver. ``block`` is the argument block of the Strassen tile, ``plain`` that of the plain
    tile."""

    def __init__(self, tile: RegisterTile, arguments: Arguments) -> None:
        self.block, self.plain = RecordText(STRASSEN_BLOCK, "block"), RecordText(TILE_BLOCK, "plain")
        self.sums = Sums(tile, self.block)
        self.tile, self.arguments = tile, arguments

    def text(self) -> list[str]:
        """Return the statements of the kernel after its arguments."""
        tile = self.tile
        unit = max(heights(tile)) * LEFT_PITCH
        return [
            self.block.local(),
            CALL.local(),
            f"parked = local_{tile.dtype}({PARKED_PRODUCTS * max(heights(tile)) * tile.columns})",
            CALL.put("arguments", "args"),
            "base = idiv(begin, grain) * claim_size",
            f"right_size = {RIGHT_PANELS} * right_area",
            "lefts = base + 2 * right_size",
            "results = lefts + kept * strips * strip_size",
            "shift = held * result_panel",
            self.block.put("parked", "parked"),
            *self.sums.locals(),
            *self.block.fill(depth="k_block", written_row="out_ld", read_row="seen_ld"),
            f"for u in range({INNER}):",
            f"    place = idiv(u, together) * {unit} + imod(u, together) * (k_block + {LEFT_PAD})",
            *indent([self.block.put("left", "place", "u")]),
            *(
                self.block.put("quadrant", f"({q >> 1} * grid + {q & 1}) * shift", i)
                for i, q in enumerate(_QUADRANTS)
            ),
            *for_tasks([
                "p0 = imod(idiv(task, across_every), across) * grid * p_block",
                "m0 = imod(idiv(task, down_every), down) * grid * m_block",
                "right_at = base",
                CALL.put("strange", 0),
                *self.sums.begin_left("0", "0"),
                "for step in range(-1, steps):",
                *indent(self._step()),
                f"if {CALL.get('strange')} != 0:",
                *indent(self._plainly()),
            ]),
        ]  # fmt: skip

    def _plainly(self) -> list[str]:
        """Return statements that recompute the task's result blocks as plain products of the whole depth."""
        columns, plain = self.tile.columns, self.plain
        return [
            *tile_record(plain),
            f"table = local_int64({TILE_TABLE_ROWS})",
            *plain.fill(
                offsets="table", zero="scratch", taps=1, depth="depth", x_step=1, w_step=columns, w_panel="w_panel",
                acc_row=columns, acc_panel="result_panel", accumulate=0, vectors=self.tile.vectors,
            ),
            "for part in range(grid * grid):",
            *indent([
                "line = m0 + idiv(part, grid) * m_block",
                "column = p0 + imod(part, grid) * p_block",
                "start = imin(line, m - m_block)",
                "panel = imin(column, panels - p_block)",
                CALL.put("row", "start"),
                "for q in range(column - panel, p_block):",
                *indent([
                    plain.put("w", "offset(w, (panel + q) * w_panel)"),
                    *CALL.fill(sums="results + part * shift", panel="panel + q"),
                    "row = 0",
                    "while row < m_block:",
                    *indent([
                        "left = m_block - row",
                        *next_height(self.tile, tall=True),
                        "left = imin(left, height)",
                        f"for i in range({TILE_TABLE_ROWS}):",
                        "    table[i] = imin(i, left - 1) * x_ld",
                        *plain.fill(
                            x="offset(x, (start + row) * x_ld)",
                            acc=f"offset(scratch, {CALL.get('sums')} + row * {columns})",
                            rows="height",
                        ),
                        self.arguments.call("plain_tile", plain.name, 0, 1),
                        "row += left",
                    ]),
                    self.arguments.call("finish", CALL.name, "imax(line - start, 0)", "m_block"),
                ]),
            ]),
        ]  # fmt: skip

    def _step(self) -> list[str]:
        """Return statements for one panel and part of the reduction of an outer product; before the first, only sums
        are made."""
        sums, numbers = self.sums, self._packed(RIGHT_OPERANDS)
        return [
            *self._number("imax(step, 0)", ""),
            f"for u in range({INNER}):",
            *indent([self.block.put_address("w", right_operand(f"({numbers} >> (3 * u)) & 7"), "u")]),
            "last_panel = 1",
            "if step >= 0 and first_panel == 0:",
            *indent([
                "last_panel = 1 if panel_of_block + 1 == end_panel else 0",
                "if panel_of_block == 0 and outer + 1 < outers:",
                *indent(sums.begin_left("outer + 1", "part_of_k")),
                "elif panel_of_block == 0 and part_of_k + 1 < k_parts:",
                *indent(sums.begin_left("0", "part_of_k + 1")),
            ]),
            "job = 0",
            "jobs = 0",
            "if step + 1 < steps:",
            *indent([*self._number("(step + 1)", "_next"), *sums.right()]),
            "waiting = 1 if step >= 0 else 0",
            "while waiting > 0 or job < jobs or (last_panel > 0 and making > 0):",
            *indent([
                *sums.left(),
                "if waiting > 0:",
                *indent(self._product()),
                *sums.directly(),
                "waiting = 0",
                "job = 0",
                "jobs = 0",
            ]),
            "right_at = 2 * base + right_size - right_at",
        ]  # fmt: skip

    @staticmethod
    def _packed(numbers: Sequence[int]) -> int:
        """Return ``numbers`` packed in one word, three bits each."""
        return sum(number << (3 * i) for i, number in enumerate(numbers))

    @staticmethod
    def _number(step: str, suffix: str) -> list[str]:
        """Return statements that decode the number of a step."""
        return [
            f"part_of_k{suffix} = idiv({step}, p_block * outers)",
            f"place_in_part = {step} - part_of_k{suffix} * p_block * outers",
            f"first_panel{suffix} = idiv(place_in_part, held * outers) * held",
            f"end_panel{suffix} = imin(first_panel{suffix} + held, p_block)",
            f"place_in_part -= first_panel{suffix} * outers",
            f"outer{suffix} = idiv(place_in_part, end_panel{suffix} - first_panel{suffix})",
            f"place_in_part -= outer{suffix} * (end_panel{suffix} - first_panel{suffix})",
            f"panel_of_block{suffix} = first_panel{suffix} + place_in_part",
        ]

    def _product(self) -> list[str]:
        """Return statements for all strips of the step and the strips that it completes."""
        return [
            *form("c_block", RESULT, "outer"),
            "targets = 1 + c_block_two",
            "panel_held = imod(panel_of_block, held)",
            "done = 0",
            "for t in range(targets):",
            *indent([
                "big = c_block1 if t > 0 else c_block0",
                "sign = c_block_sign if t > 0 else 0",
                f"begins = ({FIRST} >> (4 * outer + big)) & 1 if part_of_k == 0 else 0",
                f"ends = ({LAST} >> (4 * outer + big)) & 1 if levels == 2 else 1",
                self.block.put("mode", "0 if begins > 0 else 1 + sign", "t"),
                "if ends > 0 and part_of_k == k_parts - 1:",
                "    done |= 1 << t",
            ]),
            "row = 0",
            "x_at = lefts + imod(part_of_k * outers + outer, kept) * strips * strip_size",
            "while row < m_block:",
            *indent([
                *next_strip(self.tile, "m_block - row"),
                "left = imin(m_block - row, height)",
                *self.block.fill(x="offset(scratch, x_at)", rows="height", targets="targets", touched=0),
                *self.sums.take(),
                "for t in range(targets):",
                *indent(self._aim()),
                *self._pieces(),
                "row += left",
                "x_at += strip_size",
            ]),
        ]  # fmt: skip

    def _pieces(self) -> list[str]:
        """Return statements that call the tile.

        Quadrants that one chain of products completes go through the epilogue while the next chain runs, so that stores
        need not wait for memory.
        """
        lines = ["if done == 0:", *indent([self.arguments.call("tile", self.block.name, 0, INNER)]), "else:"]
        begin = 0
        for end in CHAIN_ENDS:
            lines += [
                *indent([self.arguments.call("tile", self.block.name, begin, end)]),
                "    for t in range(targets):",
                "        if (done >> t) & 1:",
                "            big = c_block1 if t > 0 else c_block0",
            ]
            for u in range(max(begin, PARKED_PRODUCTS), end):
                lines += indent(self._finish(_QUADRANTS[u - PARKED_PRODUCTS]), 3)
            begin = end
        return lines

    def _aim(self) -> list[str]:
        """Return statements that set target ``t`` of the tile, and the memory to prefetch at the target's last
        visit."""
        columns = self.tile.columns
        lines = [
            "big = c_block1 if t > 0 else c_block0",
            "place = results + ((big >> 1) * 2 * grid + (big & 1) * 2) * shift + panel_held * result_panel",
            self.block.put("target", f"offset(scratch, place + row * {columns})", "t"),
        ]
        aims = []
        for i, h in enumerate(_QUADRANTS):
            aims += [
                f"line = imin(m0 + ((big >> 1) * 2 + {h >> 1}) * m_block, m - m_block) + row",
                f"panel = imin(p0 + ((big & 1) * 2 + {h & 1}) * p_block, panels - p_block) + panel_of_block",
            ]
            for name, source, pitch in (("written", "written", "out_ld"), ("read", "seen", "seen_ld")):
                aims.append(self.block.put(name, f"offset({source}, line * {pitch} + panel * {columns})", i))
        return [*lines, "if (done >> t) & 1:", *indent([*aims, self.block.put("touched", "touched")])]

    def _finish(self, h: int) -> list[str]:
        """Return statements that call the epilogue kernel for the strip in quadrant ``h``: its sums, row in the result
        and panel."""
        return [
            f"block_row = (big >> 1) * 2 + {h >> 1}",
            f"block_column = (big & 1) * 2 + {h & 1}",
            "line = m0 + block_row * m_block",
            "column = p0 + block_column * p_block",
            "start = imin(line, m - m_block)",
            CALL.put("panel", "imin(column, panels - p_block) + panel_of_block"),
            "place = (block_row * grid + block_column) * shift + panel_held * result_panel",
            *CALL.fill(sums=f"results + place + row * {self.tile.columns}", row="start + row"),
            f"if {CALL.get('panel')} >= column:",
            *indent([self.arguments.call("finish", CALL.name, "imax(line - start - row, 0)", "left")]),
        ]
