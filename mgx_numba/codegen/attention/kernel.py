"""Attention over blocks of queries: both products through the register tile, the softmax between them on the stack.

A task is a block of query rows of one head. Scores are computed transposed, keys by queries: the queries are packed
into panels (and scaled), the keys are read where they lie as the tile's rows. So the softmax runs along the rows of the
score block with queries in the lanes, without sums across lanes, and the block is the left-hand side of the product
with the values, which are read in place too. More keys than a block holds are taken block by block with running maxima
and sums (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022).
"""

from __future__ import annotations

from ..contraction.text import Arguments, indent
from ..contraction.tile_source import ROWS_SLOT, VECTORS_SLOT, tile_source
from ..cpu.tile_table import RegisterTile, tile_for
from ..kernel import KernelSource
from ..launch import Launch
from .blocks import BUFFER_BYTES, Blocks, heights
from .problem import AttentionProblem

__all__ = ["block_launch"]

OPERANDS = ("q", "k", "v", "out")
DIMS = ("batch", "head", "row", "step")


def block_launch(problem: AttentionProblem, blocks: Blocks) -> Launch:
    """The launch of one kernel for the whole problem; operands ``q``, ``k``, ``v``, ``out`` and perhaps ``mask``."""
    return _BlockKernel(problem, blocks).launch()


class _BlockKernel:
    def __init__(self, problem: AttentionProblem, blocks: Blocks) -> None:
        self.problem, self.blocks = problem, blocks
        self.dtype = problem.dtype
        self.tile: RegisterTile = tile_for(problem.dtype)
        self.lanes, self.columns = self.tile.lanes, self.tile.columns

    def launch(self) -> Launch:
        p, b = self.problem, self.blocks
        arguments = self._arguments()
        text = ["def kernel(args, begin, end):"]
        text += indent([*arguments.lines, *self._setup(), "for task in range(begin, end):", *indent(self._task())])
        name = "_".join(filter(None, ("attention", self._mask_name(), "kernel")))
        return Launch(
            KernelSource(name, "\n".join(text) + "\n"),
            tuple(arguments.values),
            tasks=p.batch * p.heads * -(-p.queries // b.queries) * -(-p.width // b.width),
            flops=p.flops,
            bytes=p.bytes,
        )

    def _mask_name(self) -> str:
        mask = self.problem.mask
        if mask is None:
            return ""
        return f"{'where' if mask.dtype == 'bool' else 'add'}{'' if self._mask_per_key() else '_rows'}"

    def _mask_per_key(self) -> bool:
        """Whether all queries of a head have the same mask."""
        mask = self.problem.mask
        return mask is not None and (mask.strides[2] == 0 or self.problem.queries == 1)

    def _arguments(self) -> Arguments:
        p, b = self.problem, self.blocks
        arguments = Arguments()
        self.score_slot = arguments.callee(tile_source(self.tile))
        self.value_slot = arguments.callee(tile_source(self.tile, masked=True))
        strides = {"q": p.q_strides, "k": p.k_strides, "v": p.v_strides, "out": p.out_strides}
        for name in OPERANDS:
            arguments.pointer(name, name, p.dtype)
        if p.mask is not None:
            arguments.pointer("mask", "mask", p.mask.dtype)
            strides["mask"] = p.mask.strides
        for name, values in strides.items():
            arguments.integers(**{f"{name}_{dim}": s for dim, s in zip(DIMS, values)})
        arguments.integers(
            heads=p.heads, group=p.group, queries=p.queries, keys=p.keys, depth=p.depth, width=p.width,
            first_seen=p.first_seen, scale_bits=p.scale_bits, q_block=b.queries, k_block=b.keys, d_block=b.depth,
            e_block=b.width, q_blocks=-(-p.queries // b.queries), e_blocks=-(-p.width // b.width),
        )  # fmt: skip
        return arguments

    def _setup(self) -> list[str]:
        dtype, tile = self.dtype, self.tile
        count = BUFFER_BYTES // self.problem.itemsize
        lines = [
            f"scale = cast_{dtype}(bits_float64(scale_bits))",
            "score_block = local_int64(16)",
            "value_block = local_int64(16)",
            "score_rows = local_int64(16)",
            "value_rows = local_int64(16)",
            f"packed = local_{dtype}({count})",
            f"scores = local_{dtype}({count})",
            f"sums = local_{dtype}({count})",
            f"top = local_{dtype}({count // tile.rows})",
            f"total = local_{dtype}({count // tile.rows})",
            f"factor = local_{dtype}({count // tile.rows})",
            "for i in range(16):",
            "    score_rows[i] = i * k_row",
            "    value_rows[i] = i",
        ]
        if self.problem.mask is not None and not self._mask_per_key():
            lines.append(f"turned = local_{self.problem.mask.dtype}({self.lanes * self.lanes})")
        for block, rows, left, x_step, w_step, acc_row in (
            ("score_block", "score_rows", "packed", "k_step", self.columns, self.columns),
            ("value_block", "value_rows", "scores", self.columns, "v_row", "sums_row"),
        ):
            if block == "value_block":
                lines.append(f"sums_row = idiv(imin(width, e_block) + {self.columns - 1}, {self.columns}) * {self.columns}")
            lines += [
                f"put_pointer({block}, 1, {rows})",
                f"put_pointer({block}, 2, {left})",
                f"{block}[5] = 1",
                f"{block}[7] = {x_step}",
                f"{block}[8] = {w_step}",
                f"{block}[10] = {acc_row}",
            ]
        return [
            *lines,
            f"score_block[11] = k_block * {self.columns}",
            f"value_block[9] = {self.columns}",
            f"value_block[11] = {self.columns}",
        ]

    def _task(self) -> list[str]:
        columns, lanes = self.columns, self.lanes
        bases = [
            f"{name}0 = batch * {name}_batch + {'kv_head' if name in 'kv' else 'head'} * {name}_head"
            for name in (*OPERANDS, *(("mask",) if self.problem.mask else ()))
        ]
        return [
            "e0 = imod(task, e_blocks) * e_block",
            "rest = idiv(task, e_blocks)",
            "m0 = imod(rest, q_blocks) * q_block",
            "rest = idiv(rest, q_blocks)",
            "head = imod(rest, heads)",
            "batch = idiv(rest, heads)",
            "kv_head = idiv(head, group)",
            *bases,
            "rows = imin(queries - m0, q_block)",
            "wide_now = imin(width - e0, e_block)",
            "value_block[15] = wide_now",
            # the task's last query sees most
            "seen = imin(keys, m0 + rows + first_seen)",
            f"for i in range(0, rows, {lanes}):",
            f"    store(top, i, const_{self.dtype}(-INF, {lanes}))",
            f"    store(total, i, const_{self.dtype}(0, {lanes}))",
            "if seen < 1:",
            f"    for i in range(0, rows * sums_row, {lanes}):",
            f"        store(sums, i, const_{self.dtype}(0, {lanes}))",
            "for j0 in range(0, seen, k_block):",
            "    count = imin(seen - j0, k_block)",
            *indent(self._scores()),
            f"    for p in range(0, rows, {columns}):",
            f"        left = imin(rows - p, {columns})",
            "        block = p * k_block",
            *indent([*self._causal(), *self._mask_rows()], 2),
            f"        for c in range(0, left, {lanes}):",
            *indent(self._softmax(), 3),
            *indent(self._values(), 2),
            *self._store(),
        ]

    def _call(self, slot: int, block: str, panels: str, narrow: str) -> list[str]:
        """Run a tile over ``panels`` panels, the last one with a single vector if ``narrow``."""
        call = f"call_kernel(args, {slot}, {block}"
        if self.tile.vectors == 1:
            return [f"{block}[{VECTORS_SLOT}] = 1", f"{call}, 0, {panels})"]
        return [
            f"{block}[{VECTORS_SLOT}] = {self.tile.vectors}",
            f"{call}, 0, {panels} - {narrow})",
            f"if {narrow}:",
            f"    {block}[{VECTORS_SLOT}] = 1",
            f"    {call}, {panels} - 1, {panels})",
        ]

    def _height(self, left: str) -> str:
        return f"({heights(self.tile)} >> (4 * imin({left}, {self.tile.rows}))) & 15"

    def _panels(self, name: str, total: str) -> list[str]:
        """``<name>_panels`` that hold ``total`` columns, and whether a single vector of the last one is enough."""
        return [
            f"{name}_panels = idiv({total} + {self.columns - 1}, {self.columns})",
            f"{name}_narrow = cast_int64({total} <= {name}_panels * {self.columns} - {self.columns - self.lanes})",
        ]

    def _scores(self) -> list[str]:
        """Scores [panel, key, column] of the block's keys; long features are added up in parts."""
        return [
            *self._panels("score", "rows"),
            "for d0 in range(0, depth, d_block):",
            "    part = imin(depth - d0, d_block)",
            "    if j0 == 0 or d_block < depth:",
            *indent(self._pack(), 2),
            "    score_block[6] = part",
            f"    score_block[9] = part * {self.columns}",
            "    score_block[12] = d0",
            "    put_pointer(score_block, 3, packed)",
            "    j = 0",
            "    while j < count:",
            f"        height = {self._height('count - j')}",
            "        put_pointer(score_block, 0, offset(k, k0 + (j0 + j) * k_row + d0 * k_step))",
            f"        put_pointer(score_block, 4, offset(scores, j * {self.columns}))",
            f"        score_block[{ROWS_SLOT}] = height",
            *indent(self._call(self.score_slot, "score_block", "score_panels", "score_narrow"), 2),
            "        j += height",
        ]

    def _pack(self) -> list[str]:
        """Panels [panel, feature, column] of the scaled queries; missing columns repeat the last row."""
        columns, lanes = self.columns, self.lanes
        whole = f"part - imod(part, {lanes})"
        return [
            f"whole = {whole} if q_step == 1 else 0",
            f"for i in range(0, rows, {lanes}):",
            f"    there = imin(rows - i, {lanes})",
            "    source = q0 + (m0 + i) * q_row + d0 * q_step",
            f"    goal = idiv(i, {columns}) * part * {columns} + imod(i, {columns})",
            f"    for f in range(0, whole, {lanes}):",
            f"        place = offset(packed, goal + f * {columns})",
            f"        transpose_block(offset(q, source + f), q_row, there, place, {columns}, {lanes})",
            "    for f in range(whole, part):",
            f"        for c in range({lanes}):",
            f"            x = load_scalar(q, source + imin(c, there - 1) * q_row + f * q_step)",
            f"            store_scalar(packed, goal + f * {columns} + c, x)",
            "    if scale != 1:",
            f"        for f in range(goal, goal + part * {columns}, {columns}):",
            f"            store(packed, f, mul(load(packed, f, {lanes}), scale))",
        ]

    def _causal(self) -> list[str]:
        """Hide the keys after each query's last one; there are none where ``first_seen`` is the number of keys."""
        columns, lanes = self.columns, self.lanes
        return [
            "last = m0 + p + first_seen - j0",
            "for j in range(imax(last + 1, 0), count):",
            f"    for c in range(0, left, {lanes}):",
            f"        place = block + j * {columns} + c",
            f"        x = load(scores, place, {lanes})",
            f"        store(scores, place, where(lane_mask(j - last - c, {lanes}), -INF, x))",
        ]

    def _masked(self, mask: str) -> str:
        """Expression of the score ``x`` under a mask vector."""
        assert self.problem.mask is not None
        return f"where({mask}, x, -INF)" if self.problem.mask.dtype == "bool" else f"add(x, {mask})"

    def _mask_rows(self) -> list[str]:
        """Apply a mask that differs from query to query, turned block by block."""
        if self.problem.mask is None or self._mask_per_key():
            return []
        columns, lanes = self.columns, self.lanes
        return [
            f"for c in range(0, left, {lanes}):",
            f"    there = imin(left - c, {lanes})",
            f"    for j in range(0, count, {lanes}):",
            f"        some = imin(count - j, {lanes})",
            "        source = offset(mask, mask0 + (m0 + p + c) * mask_row + (j0 + j) * mask_step)",
            f"        if mask_step == 1 and some == {lanes}:",
            f"            transpose_block(source, mask_row, there, turned, {lanes}, {lanes})",
            "        else:",
            "            for a in range(some):",
            f"                for i in range({lanes}):",
            "                    at = imin(i, there - 1) * mask_row + a * mask_step",
            f"                    store_scalar(turned, a * {lanes} + i, load_scalar(source, at))",
            "        for a in range(some):",
            f"            place = block + (j + a) * {columns} + c",
            f"            x = load(scores, place, {lanes})",
            f"            store(scores, place, {self._masked(f'load(turned, a * {lanes}, {lanes})')})",
        ]

    def _softmax(self) -> list[str]:
        """Scores of one vector of queries become weights; running maximum, sum, and the factor for earlier sums."""
        columns, lanes = self.columns, self.lanes
        exp = "exp_fast" if self.problem.fast_math else "exp"
        masking = []
        if self._mask_per_key():
            mask = f"load_splat(mask, mask0 + (j0 + j) * mask_step, {lanes})"
            masking = [f"    x = {self._masked(mask)}", "    store(scores, place, x)"]
        return [
            f"before = load(top, p + c, {lanes})",
            "peak = before",
            "for j in range(count):",
            f"    place = block + j * {columns} + c",
            f"    x = load(scores, place, {lanes})",
            *masking,
            "    peak = where(gt(x, peak), x, peak)",
            # a column without any key so far keeps weights of zero
            "base = where(eq(peak, -INF), 0, peak)",
            f"again = {exp}(sub(before, base))",
            "store(top, p + c, peak)",
            "store(factor, p + c, again)",
            f"weights = mul(load(total, p + c, {lanes}), again)",
            "for j in range(count):",
            f"    place = block + j * {columns} + c",
            f"    x = {exp}(sub(load(scores, place, {lanes}), base))",
            "    store(scores, place, x)",
            "    weights = add(weights, x)",
            "store(total, p + c, weights)",
        ]

    def _values(self) -> list[str]:
        """Add the weighted values of the block to the sums of one panel's queries."""
        lanes = self.lanes
        return [
            "if j0 > 0:",
            "    for i in range(p, p + left):",
            f"        again = load_splat(factor, i, {lanes})",
            f"        for e in range(i * sums_row, (i + 1) * sums_row, {lanes}):",
            f"            store(sums, e, mul(load(sums, e, {lanes}), again))",
            *self._panels("value", "wide_now"),
            "value_block[6] = count",
            "value_block[12] = j0",
            "put_pointer(value_block, 3, offset(v, v0 + j0 * v_row + e0))",
            "i = 0",
            "while i < left:",
            f"    height = {self._height('left - i')}",
            "    put_pointer(value_block, 0, offset(scores, block + i))",
            "    put_pointer(value_block, 4, offset(sums, (p + i) * sums_row))",
            f"    value_block[{ROWS_SLOT}] = height",
            *indent(self._call(self.value_slot, "value_block", "value_panels", "value_narrow")),
            "    i += height",
        ]

    def _store(self) -> list[str]:
        """The sums over the total weight; zeros for queries that saw no key."""
        lanes = self.lanes
        return [
            f"for i in range(0, rows, {lanes}):",
            f"    x = load(total, i, {lanes})",
            "    store(factor, i, where(eq(x, 0), 0, div(1, x)))",
            "for i in range(rows):",
            f"    weight = load_splat(factor, i, {lanes})",
            "    place = out0 + (m0 + i) * out_row + e0",
            f"    for e in range(0, wide_now, {lanes}):",
            f"        x = mul(load(sums, i * sums_row + e, {lanes}), weight)",
            f"        if e + {lanes} <= wide_now:",
            "            store(out, place + e, x)",
            "        else:",
            "            store_tail(out, place + e, x, wide_now - e)",
        ]
