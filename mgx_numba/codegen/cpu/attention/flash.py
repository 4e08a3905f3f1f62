"""Attention over blocks of queries: both products through the register tile, the softmax between them on the stack.

Scores are computed transposed, keys by queries: the queries are packed into panels (and scaled), the keys are read
where they lie as the tile's rows. So the softmax runs down the columns of the score block with queries in the lanes,
without sums across lanes, and the block is the left-hand side of the product with the values, which are read where they
lie but for a panel that they do not fill. More keys than a block holds are taken block by block with running maxima and
sums (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022).
"""

from __future__ import annotations

from ..contraction.epilogue_rows import indent
from ..contraction.tile_source import ROWS_SLOT, VECTORS_SLOT, tile_block, tile_source
from ..microkernels.tile_table import TILE_TABLE_ROWS
from .base import AttentionKernel
from .blocks import BUFFER_BYTES

__all__ = ["ManyQueries"]


class ManyQueries(AttentionKernel):
    """A task is a block of queries of one head, taken panel by panel; ``scores`` holds [key, column] of one panel."""

    def setup(self) -> list[str]:
        mask, columns = self.problem.mask, self.columns
        self.tile_slot = self.arguments.callee(tile_source(self.tile))
        turned = []
        if mask is not None and not self.mask_per_key():
            turned = [f"turned = local_{mask.dtype}({self.lanes * self.lanes})"]
        return [
            *(f"{name} = local_{self.dtype}({BUFFER_BYTES // self.problem.itemsize})" for name in ("packed", "panel")),
            *self._tile_block("score", "k_row", "k_step", str(columns), str(columns), "0"),
            *self._tile_block("value", "1", str(columns), str(columns), "sums_row", "0"),
            *turned,
        ]

    def mask_name(self) -> str:
        return super().mask_name() + ("" if self.problem.mask is None or self.mask_per_key() else "_rows")

    def body(self) -> list[str]:
        columns, lanes = self.columns, self.lanes
        panel = [
            f"left = imin(rows - p, {columns})",
            # what the panel's last query sees
            "count = imin(imin(seen, m0 + p + left + first_seen) - j0, k_block)",
            "if count <= 0:",
            "    if not started:",
            f"        for i in range(p * sums_row, (p + left) * sums_row, {lanes}):",
            f"            store(sums, i, const_{self.dtype}(0, {lanes}))",
            "    continue",
            *self._scores(),
            "last = m0 + p + first_seen - j0",
            *self._mask_rows(),
            *self._causal(),
            "if narrow:",
            *indent(self._softmax(1)),
            "else:",
            *indent(self._softmax(self.tile.vectors)),
            *self.rescale("p", "p + left"),
            *self._values(),
        ]
        return [
            "for j0 in range(first, seen, k_block):",
            "    count = imin(seen - j0, k_block)",
            *indent(self.skip_hidden()),
            f"    for p in range(0, rows, {columns}):",
            *indent(panel, 2),
            "    started = 1",
        ]

    def _scores(self) -> list[str]:
        """Scores of the block's keys; long features are added up in parts."""
        return [
            f"narrow = cast_int64(left <= {self.lanes})",
            "for d0 in range(0, depth, d_block):",
            "    some = imin(depth - d0, d_block)",
            "    place = offset(packed, p * some)",
            "    if not started or d_block < depth:",
            *indent(self._pack(), 2),
            "    put_pointer(score_block, 3, place)",
            "    score_block[6] = some",
            "    score_block[12] = d0",
            *indent(
                self._heights(
                    "0",
                    "count",
                    [
                        "put_pointer(score_block, 0, offset(k, k0 + (j0 + i) * k_row + d0 * k_step))",
                        f"put_pointer(score_block, 4, offset(scores, i * {self.columns}))",
                        *self._run_tile("score"),
                    ],
                )
            ),
        ]

    def _pack(self) -> list[str]:
        """The panel [feature, column] of the scaled queries; missing columns repeat the last row."""
        columns, lanes = self.columns, self.lanes
        return [
            f"whole = some - imod(some, {lanes}) if q_step == 1 else 0",
            f"for i in range(0, left, {lanes}):",
            f"    there = imin(left - i, {lanes})",
            "    source = q0 + (m0 + p + i) * q_row + d0 * q_step",
            "    goal = offset(place, i)",
            f"    for f in range(0, whole, {lanes}):",
            f"        block = offset(goal, f * {columns})",
            f"        transpose_block(offset(q, source + f), q_row, there, block, {columns}, {lanes})",
            "    for f in range(whole, some):",
            f"        for c in range({lanes}):",
            "            x = load_scalar(q, source + imin(c, there - 1) * q_row + f * q_step)",
            f"            store_scalar(goal, f * {columns} + c, x)",
            f"    for f in range(0, some * {columns}, {columns}):",
            f"        store(goal, f, mul(load(goal, f, {lanes}), scale))",
        ]

    def _causal(self) -> list[str]:
        """Hide the keys after each query's last one; there are none where ``first_seen`` is the number of keys.

        A mask of each key is applied, and hidden with the key, where the maxima are found.
        """
        if self.mask_per_key():
            return []
        lanes = self.lanes
        return [
            "for j in range(imax(last + 1, 0), count):",
            f"    for c in range(0, left, {lanes}):",
            f"        place = j * {self.columns} + c",
            f"        x = load(scores, place, {lanes})",
            f"        store(scores, place, where(lane_mask(j - last - c, {lanes}), -INF, x))",
        ]

    def _mask_rows(self) -> list[str]:
        """Apply a mask that differs from query to query, turned block by block."""
        if self.problem.mask is None or self.mask_per_key():
            return []
        lanes = self.lanes
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
            f"            place = (j + a) * {self.columns} + c",
            f"            x = load(scores, place, {lanes})",
            f"            store(scores, place, {self.masked(f'load(turned, a * {lanes}, {lanes})')})",
        ]

    def _softmax(self, vectors: int) -> list[str]:
        """Scores of so many vectors of queries become weights; running maxima and sums, factors for earlier sums."""
        lanes = self.lanes
        places = [(u, f"p + {u * lanes}", f"j * {self.columns} + {u * lanes}") for u in range(vectors)]
        lines = [f"peak{u} = load(top, {row}, {lanes})" for u, row, _ in places]
        if self.mask_per_key():
            lines += ["shown = imin(imax(last + 1, 0), count)"]
            ranges = [("range(shown)", False), ("range(shown, count)", True)]
        else:
            ranges = [("range(count)", False)]
        for keys, hidden in ranges:
            lines += [f"for j in {keys}:"]
            if self.mask_per_key():
                lines += [f"    hides = load_splat(mask, mask0 + (j0 + j) * mask_step, {lanes})"]
            for u, _, place in places:
                lines += [f"    x = load(scores, {place}, {lanes})"]
                lines += [f"    x = {self.masked('hides')}"] if self.mask_per_key() else []
                lines += [f"    x = where(lane_mask(j - last - {u * lanes}, {lanes}), -INF, x)"] if hidden else []
                lines += [f"    store(scores, {place}, x)"] if self.mask_per_key() else []
                lines += [f"    peak{u} = where(gt(x, peak{u}), x, peak{u})"]
        for u, row, _ in places:
            lines += [
                # without any key so far all weights are exp(-infinity - 0)
                f"base{u} = where(ne(peak{u}, -INF), peak{u}, 0)",
                f"again = {self.exp}(sub(load(top, {row}, {lanes}), base{u}))",
                f"store(top, {row}, peak{u})",
                f"store(factor, {row}, again)",
                f"weights{u} = mul(load(total, {row}, {lanes}), again)",
            ]
        lines += ["for j in range(count):"]
        for u, _, place in places:
            lines += [
                f"    x = {self.exp}(sub(load(scores, {place}, {lanes}), base{u}))",
                f"    store(scores, {place}, x)",
                f"    weights{u} = add(weights{u}, x)",
            ]
        return lines + [f"store(total, {row}, weights{u})" for u, row, _ in places]

    def _values(self) -> list[str]:
        """Add the weighted values of the block's keys to the sums, a panel of values at a time."""
        columns, lanes = self.columns, self.lanes
        return [
            "value_block[6] = count",
            "value_block[12] = started",
            f"for e in range(0, wide, {columns}):",
            f"    some = imin(wide - e, {columns})",
            "    values = offset(v, v0 + j0 * v_row + (e0 + e) * v_step)",
            f"    value_block[8] = v_row if v_step == 1 and some == {columns} else {columns}",
            f"    if v_step == 1 and some == {columns}:",
            "        put_pointer(value_block, 3, values)",
            "    else:",
            "        put_pointer(value_block, 3, panel)",
            *indent(self._copy_panel(), 2),
            f"    narrow = cast_int64(some <= {lanes})",
            *indent(
                self._heights(
                    "0",
                    "left",
                    [
                        "put_pointer(value_block, 0, offset(scores, i))",
                        "put_pointer(value_block, 4, offset(sums, (p + i) * sums_row + e))",
                        *self._run_tile("value"),
                    ],
                ),
            ),
        ]

    def _copy_panel(self) -> list[str]:
        """Values [key, column] of the ``some`` columns of a last panel, or of one whose features lie apart."""
        columns, lanes, vectors = self.columns, self.lanes, range(self.tile.vectors)
        part = []
        for u in vectors:
            count = f"imin(imax(some - {u * lanes}, 0), {lanes})"
            x = f"load_tail(values, at + {u * lanes}, {count}, 0, {lanes})"
            part.append(f"store(panel, j * {columns} + {u * lanes}, {x})")
        return [
            "for j in range(count):",
            "    at = j * v_row",
            "    if v_step == 1:",
            *indent(part, 2),
            "    else:",
            f"        for c in range({columns}):",
            f"            store_scalar(panel, j * {columns} + c, load_scalar(values, at + imin(c, some - 1) * v_step))",
        ]

    def _tile_block(self, name: str, row: str, x_step: str, w_step: str, acc_row: str, acc_panel: str) -> list[str]:
        """Statements that make the argument block ``<name>_block`` of a tile; its rows are ``row`` elements apart."""
        return [
            *tile_block(f"{name}_block"),
            f"{name}_rows = local_int64({TILE_TABLE_ROWS})",
            f"for i in range({TILE_TABLE_ROWS}):",
            f"    {name}_rows[i] = i * {row}",
            f"put_pointer({name}_block, 1, {name}_rows)",
            # no row is missing, so that nothing is read from here
            f"put_pointer({name}_block, 2, scores)",
            f"{name}_block[5] = 1",
            f"{name}_block[7] = {x_step}",
            f"{name}_block[8] = {w_step}",
            f"{name}_block[9] = {self.columns}",
            f"{name}_block[10] = {acc_row}",
            f"{name}_block[11] = {acc_panel}",
        ]

    def _run_tile(self, name: str) -> list[str]:
        """Run ``<name>_block`` for ``height`` rows over one panel, of which a single vector is enough if ``narrow``."""
        vectors = str(self.tile.vectors) if self.tile.vectors == 1 else f"1 if narrow else {self.tile.vectors}"
        return [
            f"{name}_block[{ROWS_SLOT}] = height",
            f"{name}_block[{VECTORS_SLOT}] = {vectors}",
            f"call_kernel(args, {self.tile_slot}, {name}_block, 0, 1)",
        ]

    def _heights(self, first: str, count: str, body: list[str]) -> list[str]:
        """A loop over ``count`` rows from ``first`` on, ``i``, by the tallest variants of the tile that fit."""
        heights = self.tile.variants()
        # the one of more rows than a block only ends a loop: it spares a tile of a single row
        most = max(heights)
        table = sum(max(h for h in heights if h <= r) << (4 * r) for r in range(1, most + 1))
        return [
            f"i = {first}",
            f"stop = {first} + {count}",
            "while i < stop:",
            f"    height = stop - i if stop - i <= {most} else {self.tile.rows}",
            f"    height = ({table} >> (4 * height)) & 15",
            *indent(body),
            "    i += height",
        ]
