"""The kernels of a product by Strassen's method: one that drives the tiles, one that finishes rows of the result.

The driver walks the products of a task. While the tiles of one run, they make the operands of the next on the side:
the left-hand side strip by strip (as many rows as a tile has), each just before it is needed, the right-hand side at
once. Blocks of the result are summed in scratch; a strip of one is finished after the last product that goes to it.

An infinity or NaN in an operand would reach all that shares a sum of blocks with it. So a task whose sums are not all
finite is done again, as plain products.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from ..cpu.strassen_table import LEFT_PITCH, STRASSEN_SLOTS, TERM_COUNTS, strassen_slot
from ..cpu.tile_table import RegisterTile, tile_for
from ..kernel import KernelSource
from ..launch import Callee, Launch, Operand
from .batches import Batched
from .pack import panel_count
from .problem import ITEMSIZE, Epilogue, GemmProblem
from .skeleton import TABLE_ROWS, next_height
from .strassen_blocks import Cut, heights
from .strassen_form import FIRST, LAST, LEFT, PRODUCTS, RESULT, RIGHT
from .text import Arguments, Rows, indent, kernel_name
from .tile_source import ROWS_SLOT, VECTORS_SLOT, tile_block, tile_source

__all__ = ["strassen_launch"]

_ROLE = 16
"""Words of one sum in the table: how many terms, then row, column and sign of each."""
_NOW, _NEXT = 0, 3 * _ROLE
_LEFT, _RIGHT, _RESULT = 0, _ROLE, 2 * _ROLE
_AHEAD = 1024
"""Elements of packed panels that are brought near ahead of the sum."""


@functools.lru_cache(maxsize=16)
def _tile_source(tile: RegisterTile) -> KernelSource:
    slots = strassen_slot("rows"), strassen_slot("terms")
    lines = ["def kernel(args, begin, end):", f"    rows = args[{slots[0]}]", f"    terms = args[{slots[1]}]"]
    for terms in TERM_COUNTS:
        lines.append(f"    if terms == {terms}:")
        for index, rows in enumerate(heights(tile)):
            lines.append(f"        {'elif' if index else 'if'} rows == {rows}:")
            shape = f"{rows}, {tile.vectors}, {tile.lanes}, {terms}"
            lines.append(f"            strassen_tile_{tile.dtype}(args, begin, end, {shape})")
    return KernelSource(f"strassen_{tile.name}_{tile.dtype}_tile_kernel", "\n".join(lines) + "\n")


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
    """The launch for one product of ``batched`` (at ``offsets``, elements, by operand) and its bytes of scratch, from
    the start of ``scratch``. ``w`` are packed panels."""
    tile, size = tile_for(problem.dtype), problem.itemsize
    columns, panels = tile.columns, panel_count(tile, problem.n)
    down, across = cut.tasks(batched.m, panels)
    grain = -(-down * across // threads)
    right, left, panel = cut.areas(tile)
    a = Arguments()
    tile_slot, plain_slot = a.callee(_tile_source(tile)), a.callee(tile_source(tile))
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
    a.integers(
        touched=(1 + bool(read)) * same, seen_ld=batched.strides[seen][-1], out_ld=batched.strides["out"][-1],
        x_ld=batched.strides["x"][-1], m=batched.m, n=problem.n, panels=panels, w_panel=problem.k * columns,
        levels=levels, grid=cut.grid, m_block=cut.rows, p_block=cut.panels, k_block=cut.depth,
        depth=problem.k, steps_of_k=PRODUCTS**levels,
        steps=PRODUCTS**levels * (problem.k // (cut.grid * cut.depth)), down=down, across=across,
        down_every=across if cut.by_rows else 1, across_every=1 if cut.by_rows else down, grain=grain,
        claim_size=cut.claim(tile), right_size=right, left_size=left, result_panel=panel,
    )  # fmt: skip
    common = list(a.lines)
    finish_slot = len(a.values)
    a.values.append(0)
    rows = Rows(epilogue, problem.dtype, tile.lanes)
    rows.pointers(a, bytes_at)
    for name, values in batched.strides.items():
        if name[0] == "e":
            a.integers(**{f"{name}_ld": values[-1]})
    a.values[finish_slot] = Callee(_finish_source(a.lines, rows, tile))
    text = "\n".join(_Driver(tile, tile_slot, plain_slot, finish_slot).text(common)) + "\n"
    flops = 2 * batched.m * problem.n * problem.k
    moved = size * (batched.m * (problem.k + problem.n) + problem.k * panels * columns)
    launch = Launch(KernelSource("gemm_strassen_kernel", text), tuple(a.values), down * across, grain, flops, moved)
    return launch, -(-down * across // grain) * cut.claim(tile) * size


def _finish_source(lines: Sequence[str], rows: Rows, tile: RegisterTile) -> KernelSource:
    """Kernel that finishes rows ``begin`` to ``end`` of a strip: its words are those of `_Driver._finish`. The last one
    is set if a sum is infinite or NaN."""
    starts = ["out_row = (call[2] + i) * out_ld + n0"]
    for k, operand in enumerate(rows.epilogue.operands):
        if operand.access in ("full", "per_m"):
            column = " + n0" if operand.access == "full" else ""
            starts.append(f"e{k}_row = (call[2] + i) * e{k}_ld{column}")
    body = [
        "args = words_at(call, 0)",
        *lines,
        *rows.invariant(),
        "sums = offset(scratch, call[1])",
        f"strange = const_{tile.dtype}(0, {tile.lanes})",
        "for i in range(begin, end):",
        "    for panel in range(call[3], p_block):",
        *indent([
            f"n0 = (call[4] + panel) * {tile.columns}",
            f"columns = imin(n - n0, {tile.columns})",
            f"sums_row = panel * result_panel + i * {tile.columns}",
            f"for c in range(0, {tile.columns}, {tile.lanes}):",
            f"    value = load(sums, sums_row + c, {tile.lanes})",
            "    strange = add(strange, sub(value, value))",
            *starts,
            *rows.text(),
        ], 2),
        "if reduce_or(ne(strange, strange)):",
        "    call[5] = 1",
    ]  # fmt: skip
    text = "\n".join(["def kernel(call, begin, end):", *indent(body)]) + "\n"
    return KernelSource(kernel_name("strassen_finish", rows.epilogue), text)


class _Driver:
    """Text of the driver. ``block`` is the tile's argument block, ``terms`` the table of sums, of two products."""

    def __init__(self, tile: RegisterTile, tile_slot: int, plain_slot: int, finish_slot: int) -> None:
        self.tile, self.tile_slot, self.plain_slot, self.finish_slot = tile, tile_slot, plain_slot, finish_slot

    def text(self, arguments: Sequence[str]) -> list[str]:
        return [
            "def kernel(args, begin, end):",
            *indent([
                *arguments,
                f"block = local_int64({len(STRASSEN_SLOTS)})",
                f"terms = local_int64({2 * 3 * _ROLE})",
                "call = local_int64(6)",
                "put_words(call, 0, args)",
                "base = idiv(begin, grain) * claim_size",
                "results = base + 2 * right_size + 2 * left_size",
                self._set("depth", "k_block"),
                self._set("acc_panel", str(self.tile.columns)),
                self._set("written_row", "out_ld"),
                self._set("read_row", "seen_ld"),
                "right_at = base",
                "left_at = base + 2 * right_size",
                "for task in range(begin, end):",
                *indent([
                    "p0 = imod(idiv(task, across_every), across) * grid * p_block",
                    "m0 = imod(idiv(task, down_every), down) * grid * m_block",
                    "after_k = 0",
                    "call[5] = 0",
                    "for step in range(-1, steps):",
                    *indent(self._step()),
                    "if call[5] != 0:",
                    *indent(self._plainly()),
                ]),
            ]),
        ]  # fmt: skip

    def _plainly(self) -> list[str]:
        """The task's blocks of the result once more, each as one product of the whole depth."""
        columns = self.tile.columns
        return [
            *tile_block("plain"),
            f"table = local_int64({TABLE_ROWS})",
            "put_words(plain, 1, table)",
            "put_pointer(plain, 2, scratch)",
            "plain[5] = 1",
            "plain[6] = depth",
            "plain[7] = 1",
            f"plain[8] = {columns}",
            "plain[9] = w_panel",
            f"plain[10] = {columns}",
            "plain[11] = result_panel",
            "plain[12] = 0",
            f"plain[{VECTORS_SLOT}] = {self.tile.vectors}",
            "for part in range(grid * grid):",
            *indent([
                "line = m0 + idiv(part, grid) * m_block",
                "panel = p0 + imod(part, grid) * p_block",
                "call[2] = imin(line, m - m_block)",
                "call[4] = imin(panel, panels - p_block)",
                "call[1] = results + part * p_block * result_panel",
                "call[3] = panel - call[4]",
                "put_pointer(plain, 3, offset(w, call[4] * w_panel))",
                "row = 0",
                "while row < m_block:",
                *indent([
                    "left = m_block - row",
                    *next_height(self.tile, tall=True),
                    "left = imin(left, height)",
                    f"for i in range({TABLE_ROWS}):",
                    "    table[i] = imin(i, left - 1) * x_ld",
                    "put_pointer(plain, 0, offset(x, (call[2] + row) * x_ld))",
                    f"put_pointer(plain, 4, offset(scratch, call[1] + row * {columns}))",
                    f"plain[{ROWS_SLOT}] = height",
                    f"call_kernel(args, {self.plain_slot}, plain, 0, p_block)",
                    "row += left",
                ]),
                f"call_kernel(args, {self.finish_slot}, call, imax(line - call[2], 0), m_block)",
            ]),
        ]  # fmt: skip

    def _set(self, name: str, value: str) -> str:
        return f"block[{strassen_slot(name)}] = {value}"

    def _step(self) -> list[str]:
        """One product; before the first, a strip of one that goes nowhere, to make the sums for the first beside."""
        return [
            f"for i in range({_NEXT}):",
            f"    terms[i] = terms[{_NEXT} + i]",
            "row = 0",
            "if step < 0:",
            f"    row = imax(m_block - {heights(self.tile)[1]}, 0)",
            f"    terms[{_RIGHT}] = 2",
            f"    terms[{_RESULT}] = 0",
            "now_k = idiv(imax(step, 0), steps_of_k) * grid * k_block",
            "after = step + 1",
            "jobs = 0",
            "job = 0",
            "if after < steps:",
            *indent(self._take_apart()),
            *self._product(),
            "while row < m_block:",
            *indent(self._strip()),
            f"right_at = {self._other_right()}",
        ]

    @staticmethod
    def _other_right() -> str:
        return "2 * base + right_size - right_at"

    @staticmethod
    def _other_left() -> str:
        return "2 * base + 4 * right_size + left_size - left_at"

    def _take_apart(self) -> list[str]:
        """The sums of product ``after``, and how many parts those of its right-hand side are made in."""
        return [
            "block_k = idiv(after, steps_of_k)",
            "after_k = block_k * grid * k_block",
            "product = after - block_k * steps_of_k",
            f"outer = idiv(product, {PRODUCTS})",
            f"inner = product - outer * {PRODUCTS}",
            "for role in range(3):",
            *indent([
                f"form = {LEFT} if role == 0 else ({RIGHT} if role == 1 else {RESULT})",
                "first = (form >> (6 * outer)) & 63 if levels == 2 else 0",
                "second = (form >> (6 * inner)) & 63",
                f"place = {_NEXT} + role * {_ROLE}",
                "count = 0",
                "for i in range(1 + ((first >> 2) & 1)):",
                "    for j in range(1 + ((second >> 2) & 1)):",
                *indent([
                    "big = (first >> (3 * i)) & 3",
                    "small = (second >> (3 * j)) & 3",
                    "terms[place + 1 + 3 * count] = (big >> 1) * 2 + (small >> 1)",
                    "terms[place + 2 + 3 * count] = (big & 1) * 2 + (small & 1)",
                    "terms[place + 3 + 3 * count] = (i & (first >> 5)) ^ (j & (second >> 5))",
                    "count += 1",
                ], 2),
                "terms[place] = count",
            ]),
            f"jobs = p_block * {self.tile.vectors} if terms[{_NEXT + _RIGHT}] > 1 else 0",
        ]  # fmt: skip

    def _product(self) -> list[str]:
        columns = self.tile.columns
        return [
            f"panel = imin(p0 + terms[{_RIGHT + 2}] * p_block, panels - p_block)",
            f"right = offset(w, panel * w_panel + (now_k + terms[{_RIGHT + 1}] * k_block) * {columns})",
            "right_panel = w_panel",
            f"if terms[{_RIGHT}] > 1:",
            "    right = offset(scratch, right_at)",
            f"    right_panel = k_block * {columns}",
            f"targets = terms[{_RESULT}]",
            "inner = imax(step, 0)",
            f"outer = idiv(imod(inner, steps_of_k), {PRODUCTS})",
            f"inner = imod(inner, {PRODUCTS})",
            *self._modes(),
        ]

    def _modes(self) -> list[str]:
        """How each target is changed, and (in ``done``, a bit each) whether this was the last time."""
        mode, target = strassen_slot("mode0"), _RESULT + 1
        return [
            "done = 0",
            "for t in range(targets):",
            *indent([
                f"line = terms[{target} + 3 * t]",
                f"column = terms[{target + 1} + 3 * t]",
                "big = (line >> 1) * 2 + (column >> 1)",
                "small = (line & 1) * 2 + (column & 1)",
                f"begins = ({FIRST} >> (4 * inner + small)) & 1",
                f"ends = ({LAST} >> (4 * inner + small)) & 1",
                "if levels == 2:",
                f"    begins &= ({FIRST} >> (4 * outer + big)) & 1",
                f"    ends &= ({LAST} >> (4 * outer + big)) & 1",
                f"block[{mode} + t] = 0 if begins > 0 and now_k == 0 else 1 + terms[{target + 2} + 3 * t]",
                "if ends > 0 and now_k + grid * k_block == depth:",
                "    done |= 1 << t",
            ]),
        ]  # fmt: skip

    def _strip(self) -> list[str]:
        """The next rows of all blocks that the product goes to.

        What sums are left after the last strip is made beside tiles of few rows that go nowhere.
        """
        return [
            *self._height("m_block - row", "height"),
            "left = imin(m_block - row, height)",
            "below = m_block - row - left",
            f"put_pointer(block, {strassen_slot('x')}, offset(scratch, left_at))",
            "q = 0",
            "while q < p_block or (below == 0 and job < jobs):",
            *indent([
                self._set("terms", "0"),
                "if q == 0 and (below > 0 or after < steps):",
                *indent(self._left_sum()),
                "elif job < jobs:",
                *indent(self._right_sum()),
                "aims = targets if q < p_block else 0",
                self._set("targets", "aims"),
                self._set("rows", f"height if q < p_block else {heights(self.tile)[1]}"),
                self._set("touched", "0"),
                "for t in range(aims):",
                *indent(self._aim()),
                f"put_pointer(block, {strassen_slot('w')}, offset(right, imin(q, p_block - 1) * right_panel))",
                f"call_kernel(args, {self.tile_slot}, block, q, q + 1)",
                "q += 1",
            ]),
            f"left_at = {self._other_left()}",
            "for t in range(targets):",
            "    if (done >> t) & 1:",
            *indent(self._finish(), 2),
            "row += left",
        ]  # fmt: skip

    def _height(self, left: str, name: str) -> list[str]:
        """Statements: the ``name``d height of the strip that is next where ``left`` rows are."""
        tile = self.tile
        most, few, *tall = heights(tile)
        lines = [f"rows_left = {left}", f"{name} = {most} if rows_left >= {most} else {few}"]
        if tall:
            lines += [f"over = imod(rows_left, {most})"]
            lines += [f"if over > 0 and over <= idiv(rows_left, {most}):", f"    {name} = {tall[0]}"]
        return lines

    def _aim(self) -> list[str]:
        """Target ``t`` of the tile, and what its last visit will touch besides."""
        columns = self.tile.columns
        row, column = f"terms[{_RESULT + 1} + 3 * t]", f"terms[{_RESULT + 2} + 3 * t]"
        place = f"(({row} * grid + {column}) * p_block + q) * result_panel + row * {columns}"
        return [
            f"put_pointer(block, {strassen_slot('target0')} + t, offset(scratch, results + {place}))",
            "if (done >> t) & 1:",
            *indent([
                f"line = imin(m0 + {row} * m_block, m - m_block) + row",
                f"panel = imin(p0 + {column} * p_block, panels - p_block)",
                f"put_pointer(block, {strassen_slot('written')}, offset(written, line * out_ld + panel * {columns}))",
                f"put_pointer(block, {strassen_slot('read')}, offset(seen, line * seen_ld + panel * {columns}))",
                self._set("touched", "touched"),
            ]),
        ]  # fmt: skip

    def _finish(self) -> list[str]:
        """Call the kernel that finishes the strip: its sums, its row in the result, its panels, those taken already."""
        row, column = f"terms[{_RESULT + 1} + 3 * t]", f"terms[{_RESULT + 2} + 3 * t]"
        return [
            f"line = m0 + {row} * m_block",
            f"panel = p0 + {column} * p_block",
            "start = imin(line, m - m_block)",
            "call[4] = imin(panel, panels - p_block)",
            f"call[1] = results + ({row} * grid + {column}) * p_block * result_panel + row * {self.tile.columns}",
            "call[2] = start + row",
            "call[3] = panel - call[4]",
            f"call_kernel(args, {self.finish_slot}, call, imax(line - start - row, 0), left)",
        ]

    def _left_sum(self) -> list[str]:
        """The left-hand side of the strip below, or of the next product's first."""
        return [
            f"table = {_NOW + _LEFT} if below > 0 else {_NEXT + _LEFT}",
            "first_row = row + left if below > 0 else 0",
            "first_k = now_k if below > 0 else after_k",
            *self._height("below if below > 0 else m_block", "sum_height"),
            self._set("terms", "terms[table]"),
            self._set("sum_rows", "imin(rows_left, sum_height)"),
            self._set("sum_vectors", f"idiv(k_block, {self.tile.lanes})"),
            self._set("sum_row", str(LEFT_PITCH)),
            self._set("source_row", "x_ld"),
            self._set("ahead", "2 * x_ld"),
            f"put_pointer(block, {strassen_slot('sum')}, offset(scratch, {self._other_left()}))",
            "for t in range(terms[table]):",
            *indent([
                "line = imin(m0 + terms[table + 1 + 3 * t] * m_block, m - m_block) + first_row",
                "source = line * x_ld + first_k + terms[table + 2 + 3 * t] * k_block",
                f"put_pointer(block, {strassen_slot('source0')} + t, offset(x, source))",
                f"block[{strassen_slot('sign0')} + t] = terms[table + 3 + 3 * t]",
            ]),
        ]  # fmt: skip

    def _right_sum(self) -> list[str]:
        """Part ``job`` of the next product's right-hand sum: as many vectors of a panel as the depth has steps."""
        lanes, vectors, columns = self.tile.lanes, self.tile.vectors, self.tile.columns
        table = _NEXT + _RIGHT
        return [
            f"own = idiv(job, {vectors})",
            f"shift = (job - own * {vectors}) * k_block * {lanes}",
            "job += 1",
            self._set("terms", f"terms[{table}]"),
            self._set("sum_rows", "1"),
            self._set("sum_vectors", "k_block"),
            self._set("sum_row", "0"),
            self._set("source_row", "0"),
            self._set("ahead", str(_AHEAD)),
            f"put_pointer(block, {strassen_slot('sum')}, "
            f"offset(scratch, {self._other_right()} + own * k_block * {columns} + shift))",
            f"for t in range(terms[{table}]):",
            *indent([
                f"panel = imin(p0 + terms[{table + 2} + 3 * t] * p_block, panels - p_block) + own",
                f"source = panel * w_panel + (after_k + terms[{table + 1} + 3 * t] * k_block) * {columns} + shift",
                f"put_pointer(block, {strassen_slot('source0')} + t, offset(w, source))",
                f"block[{strassen_slot('sign0')} + t] = terms[{table + 3} + 3 * t]",
            ]),
        ]  # fmt: skip
