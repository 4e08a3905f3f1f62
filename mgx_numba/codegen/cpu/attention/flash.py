"""Attention over blocks of queries: both products through the register tile, the softmax between them on the stack.

Scores are computed transposed, keys by queries: the queries are packed into panels (and scaled), the keys are read in
place as the tile's rows. So the softmax runs down the columns of the score block with queries in the lanes, without
reductions across lanes. The block is the left-hand side of the product with the values, which are copied to panels on
the stack: in place, rows that are a multiple of 512 bytes apart share few sets of the L1 cache and displace each other.

More keys than a block holds are processed block by block with running maxima and sums (Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....core.dim import all_of, equal, known_equal, less_equal
from ....core.types import from_numpy
from ...body import scalar_body
from ...problems.epilogue import Epilogue, EpilogueOperand
from ...statements import indent
from ..contraction.tile_source import epilogue_source, tile_record, tile_source
from ..microkernels.tile_table import TILE_TABLE_ROWS, finish_block
from ..records import RecordText
from .attention_kernel import BUFFER_BYTES, STEP_BYTES, AttentionKernel, inverse, score_row

BLOCK = finish_block(1)
SCORES, VALUES = RecordText(BLOCK, "score_block"), RecordText(BLOCK, "value_block")
"""The argument blocks of the tiles of both products."""
FEW = 32
"""Most mask elements that are transposed one by one: transposing a block takes some sixty instructions."""


class PrefillAttention(AttentionKernel):
    """The kernel for blocks of queries: a task is a block of queries of one head, by groups of panels.

    ``scores`` holds [key, column] of a group, in rows of ``scores_row``.
    """

    def _declare(self) -> None:
        super()._declare()
        b = self.blocks
        direct = all_of(equal(b.splits, 1), less_equal(self.problem.keys, b.keys))
        self.arguments.integers(q_group=b.group, scores_row=score_row(b.group, self.problem.itemsize), direct=direct)

    def setup(self) -> list[str]:
        mask = self.problem.mask
        self.arguments.callee("tile", tile_source(self.tile))
        # a last panel has one vector, unless it is computed whole
        columns = self.columns + self.lanes
        type = from_numpy(np.dtype(self.dtype))
        product = scalar_body(lambda s, total, weight: s.mul(total, weight), (type, type))
        weighted = Epilogue((EpilogueOperand(self.dtype, "per_m"),), product, name="mul")
        self.arguments.callee("finishing_tile", epilogue_source(self.tile, weighted, True, columns, True))
        transposed = []
        if mask is not None and self.mask_rows():
            transposed = [f"turned = local_{mask.dtype}({self.tile.vectors * self.lanes * self.lanes})"]
        room = BUFFER_BYTES // self.problem.itemsize
        values = STEP_BYTES // self.problem.itemsize
        return [
            f"packed = local_{self.dtype}({room})",
            f"near_v = local_{self.dtype}({values})",
            *([f"near_k = local_{self.dtype}({room + self.lanes})"] if self.problem.gathered else []),
            *self._tile_block(SCORES, "score_rows", *self._key_strides, "scores_row"),
            *self._tile_block(VALUES, "value_rows", 1, "scores_row", "sums_row"),
            *VALUES.fill(w="near_v", w_panel=f"k_block * {self.columns}"),
            *transposed,
        ]

    def mask_transposed(self) -> bool:
        """Return whether the mask's elements for successive queries are contiguous."""
        mask = self.problem.mask
        return mask is not None and not self.mask_per_key() and known_equal(mask.strides[2], 1)

    def mask_rows(self) -> bool:
        """Return whether the mask's elements for successive queries are not contiguous."""
        return self.problem.mask is not None and not self.mask_per_key() and not self.mask_transposed()

    def mask_name(self) -> str:
        kind = "" if self.mask_per_key() else "_turned" if self.mask_transposed() else "_rows"
        return super().mask_name() + ("" if self.problem.mask is None else kind)

    def body(self) -> list[str]:
        columns, lanes = self.columns, self.lanes
        group = [
            "left = imin(rows - p, q_group)",
            # the keys that the group's last query sees
            "count = imin(imin(seen, m0 + p + left + first_seen) - j0, k_block)",
            "if count <= 0:",
            "    if not started:",
            f"        for i in range(p * sums_row, (p + left) * sums_row, {lanes}):",
            f"            store(sums, i, const_{self.dtype}(0, {lanes}))",
            "    continue",
            *self._scores(),
            "last = m0 + p + first_seen - j0",
            *self._softcap(),
            *self._hide_missing(),
            *self._causal(),
            f"for c in range(0, left, {columns}):",
            f"    if left - c <= {lanes}:",
            *indent(self._softmax(1), 2),
            "    else:",
            *indent(self._softmax(self.tile.vectors), 2),
            *self.rescale("p", "p + left"),
            *self._values(),
        ]
        return [
            "for j0 in range(first, seen, k_block):",
            "    count = imin(seen - j0, k_block)",
            *indent([*self.skip_hidden(), *self._gather()]),
            "    for p in range(0, rows, q_group):",
            *indent(group, 2),
            "    started = 1",
        ]

    @property
    def _key_strides(self) -> tuple[str, str]:
        """Return the strides of a step's keys and of their features."""
        return ("depth", "1") if self.problem.gathered else ("k_row", "k_step")

    def _gather(self) -> list[str]:
        """Return the statements that copy one step's keys and values to the stack.

        - Keys are copied if they are paged (stored in blocks) or narrow. The last vector of a key's row may overwrite
          the start of the next row, which is stored afterwards.
        - Values are packed into panels.
        """
        if not self.problem.gathered:
            return self._pack_values()
        lanes = self.lanes
        load = self.kv(f"load(k, at + f, {lanes})")
        tail = self.kv(f"load_tail(k, at + f, depth - f, 0, {lanes})")
        return [
            *self.find_rows(),
            "for j in range(count):",
            *indent(self.row_of("k", "j", "at")),
            f"    for f in range(0, depth, {lanes}):",
            f"        if f + {lanes} <= depth:",
            f"            store(near_k, j * depth + f, {load})",
            "        else:",
            f"            store(near_k, j * depth + f, {tail})",
            *self._pack_values(),
        ]

    def _pack_values(self) -> list[str]:
        """Return statements that copy the values of a step to ``near_v``: panels [key, column] of ``k_block`` keys.

        Columns beyond the last are zeros, or repeat the last column of strided features.
        """
        columns, lanes = self.columns, self.lanes
        whole, part = [], []
        for u in range(0, columns, lanes):
            count = f"imin(imax(some - {u}, 0), {lanes})"
            whole.append(f"store(panel, j * {columns} + {u}, {self.kv(f'load(v, at + {u}, {lanes})')})")
            tail = self.kv(f"load_tail(v, at + {u}, {count}, 0, {lanes})")
            part.append(f"store(panel, j * {columns} + {u}, {tail})")
        strided = [
            f"for c in range({columns}):",
            f"    store_scalar(panel, j * {columns} + c, load_scalar(v, at + imin(c, some - 1) * v_step))",
        ]
        copy = [f"if e + {columns} <= wide:", *indent(whole), "else:", "    some = wide - e", *indent(part)]
        if not self.problem.gathered:
            strided = [f"some = imin(wide - e, {columns})", *strided]
            copy = ["if v_step == 1:", *indent(copy), "else:", *indent(strided)]
        return [
            "for j in range(count):",
            *indent(self.row_of("v", "j", "row")),
            f"    for e in range(0, wide, {columns}):",
            "        at = row + (e0 + e) * v_step",
            "        panel = offset(near_v, e * k_block)",
            *indent(copy, 2),
        ]

    def _hide_missing(self) -> list[str]:
        """Return statements that hide the scores of keys in blocks that do not exist."""
        lanes = self.lanes
        return self.hide_missing(
            [
                f"for c in range(0, left, {lanes}):",
                f"    store(scores, hidden * scores_row + c, const_{self.dtype}(-INF, {lanes}))",
            ]
        )

    def _scores(self) -> list[str]:
        """Return statements that compute the scores of the block's keys; long features are accumulated in parts."""
        row, step = self._key_strides
        first = "near_k, 0" if self.problem.gathered else "k, k0 + j0 * k_row"
        return [
            f"panels = idiv(left, {self.columns})",
            f"narrow = cast_int64(left - panels * {self.columns} <= {self.lanes})",
            f"some = left - panels * {self.columns}",
            "panels += 1 - narrow",
            "narrow = cast_int64(narrow and some > 0)",
            "for d0 in range(0, depth, d_block):",
            "    some = imin(depth - d0, d_block)",
            "    place = offset(packed, p * some)",
            "    if not started or d_block < depth:",
            *indent(self._pack(), 2),
            *indent(SCORES.fill(w="place", depth="some", w_panel=f"some * {self.columns}", accumulate="d0")),
            *indent(
                self._product(SCORES, "count", f"offset({first} + i * {row} + d0 * {step})", "scores, i * scores_row")
            ),
        ]

    def _pack(self) -> list[str]:
        """Return statements that pack the panels [feature, column] of the queries; missing columns repeat the last row.

        Queries are scaled here unless the scores are scaled with the maxima, as they are with masks.
        """
        columns, lanes = self.columns, self.lanes
        scaled = [
            f"for f in range(0, some * {columns}, {columns}):",
            f"    store(goal, f, mul(load(goal, f, {lanes}), scale))",
        ]
        return [
            f"whole = some if q_step == 1 and some >= {lanes} else 0",
            f"for i in range(0, left, {lanes}):",
            f"    there = imin(left - i, {lanes})",
            "    source = q0 + (m0 + p + i) * q_row + d0 * q_step",
            f"    goal = offset(place, idiv(i, {columns}) * some * {columns} + imod(i, {columns}))",
            f"    for f0 in range(0, whole, {lanes}):",
            # the last features are transposed with features before them
            f"        f = imin(f0, some - {lanes})",
            f"        block = offset(goal, f * {columns})",
            f"        transpose_block(offset(q, source + f), q_row, there, block, {columns}, {lanes})",
            "    for f in range(whole, some):",
            f"        for c in range({lanes}):",
            "            x = load_scalar(q, source + imin(c, there - 1) * q_row + f * q_step)",
            f"            store_scalar(goal, f * {columns} + c, x)",
            *([] if self.problem.mask else indent(scaled)),
        ]

    def _softcap(self) -> list[str]:
        if self.problem.softcap <= 0:
            return []
        return [
            "for j in range(count):",
            f"    for c in range(0, left, {self.lanes}):",
            "        place = j * scores_row + c",
            f"        store(scores, place, {self.capped(f'load(scores, place, {self.lanes})')})",
        ]

    def _causal(self) -> list[str]:
        """Return statements that hide the keys after each query's last key; none where ``first_seen`` is the number of
        keys.

        With a mask, keys are hidden where the maxima are computed.
        """
        if self.problem.mask:
            return []
        lanes = self.lanes
        return [
            "for j in range(imax(last + 1, 0), count):",
            f"    for c in range(0, left, {lanes}):",
            "        place = j * scores_row + c",
            f"        x = load(scores, place, {lanes})",
            f"        store(scores, place, where(lane_mask(j - last - c, {lanes}), -INF, x))",
        ]

    def _turned(self, vectors: int) -> list[str]:
        """Return statements that transpose the mask of the keys ``block`` to ``block + some``.

        The buffer ``turned`` then has, from row ``back``, contiguous mask elements of ``vectors`` vectors of successive
        queries. Padding is left as it is.
        """
        lanes = self.lanes
        lines = [
            f"some = imin(count - block, {lanes})",
            # a last part is transposed with keys before it
            f"back = {lanes} - some if mask_step == 1 and count >= {lanes} else 0",
        ]
        for u in range(vectors):
            lines += [
                f"there = imin(left - c - {u * lanes}, {lanes})",
                f"at = mask0 + (m0 + p + c + {u * lanes}) * mask_row + (j0 + block - back) * mask_step",
                "source = offset(mask, at)",
                f"goal = offset(turned, {u * lanes * lanes})",
                f"if mask_step == 1 and some + back == {lanes} and some * there > {FEW}:",
                f"    transpose_block(source, mask_row, there, goal, {lanes}, {lanes})",
                "else:",
                "    for a in range(back, back + some):",
                "        for i in range(there):",
                f"            store_scalar(goal, a * {lanes} + i, load_scalar(source, i * mask_row + a * mask_step))",
            ]
        return lines

    def _softmax(self, vectors: int) -> list[str]:
        """Return statements that turn the scores of ``vectors`` vectors of queries into weights, and update maxima,
        sums and factors."""
        lanes = self.lanes
        places = [(u, f"p + c + {u * lanes}", f"j * scores_row + c + {u * lanes}") for u in range(vectors)]
        lines = [f"peak{u} = load(top, {row}, {lanes})" for u, row, _ in places]
        lines += ["shown = imin(imax(last + c + 1, 0), count)"] if self.problem.mask else []
        if self.mask_transposed():
            lines += [f"there{u} = imin(imax(left - c - {u * lanes}, 0), {lanes})" for u, _, _ in places]
        if self.mask_rows():
            lines += [
                f"for block in range(0, count, {lanes}):",
                *indent(self._turned(vectors)),
                "    edge = imin(imax(shown - block, 0), some)",
                "    for j in range(block, block + edge):",
                *indent(self._maxima(places, False), 2),
                "    for j in range(block + edge, block + some):",
                *indent(self._maxima(places, True), 2),
            ]
        elif self.problem.mask:
            lines += ["for j in range(shown):", *indent(self._maxima(places, False))]
            lines += ["for j in range(shown, count):", *indent(self._maxima(places, True))]
        else:
            lines += ["for j in range(count):", *indent(self._maxima(places, False))]
        for u, row, _ in places:
            lines += [
                # without any visible key so far all weights are exp(-infinity - 0)
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

    def _maxima(self, places: Sequence[tuple[int, str, str]], hidden: bool) -> list[str]:
        """Return statements that add the masked scores of key ``j`` to the maxima.

        Args:
            hidden: hide the key from queries before it.
        """
        lanes, masked = self.lanes, self.problem.mask is not None
        # queries at one position have the same window, whose first key is the first of their task
        windowed = self.problem.window and not self.problem.one_position
        lines = []
        if self.mask_per_key():
            lines.append(f"hides = load_splat(mask, mask0 + (j0 + j) * mask_step, {lanes})")
        elif self.mask_transposed():
            lines.append("at = mask0 + (j0 + j) * mask_step + m0")
        for u, row, place in places:
            lines += [f"x = load(scores, {place}, {lanes})"]
            lines += ["x = mul_fast(x, scale)"] if masked else []
            if self.mask_transposed():
                lines += [f"hides = load_tail(mask, at + {row}, there{u}, 0, {lanes})"]
            elif self.mask_rows():
                lines += [f"hides = load(turned, ({u * lanes} + back + j - block) * {lanes}, {lanes})"]
            lines += [f"x = {self.masked('hides').replace('add(', 'add_fast(')}"] if masked else []
            lines += [f"x = where(lane_mask(j - last - c - {u * lanes}, {lanes}), -INF, x)"] if hidden else []
            if windowed:
                low = f"j0 + j + 1 - lowest - m0 - {row.replace(' + ', ' - ')}"
                lines += [f"x = where(lane_mask({low}, {lanes}), x, -INF)"]
            lines += [f"store(scores, {place}, x)"] if masked or windowed else []
            lines += [f"peak{u} = where(gt(x, peak{u}), x, peak{u})"]
        return lines

    def _values(self) -> list[str]:
        """Return statements that add the weighted values of the block's keys to the sums.

        If the block has all keys, the result is stored at once.
        """
        columns, lanes = self.columns, self.lanes
        return [
            *VALUES.fill(depth="count", accumulate="started"),
            f"panels = idiv(wide, {columns})",
            f"some = wide - panels * {columns}",
            f"narrow = cast_int64(some > 0 and some <= {lanes})",
            f"panels += cast_int64(some > {lanes})",
            # sums are divided by the total weights at the end of the task
            f"finish = cast_int64(direct and ready == p and (some == 0 or some == {lanes}))",
            VALUES.put("finish", "finish"),
            "if finish:",
            f"    for i in range(p, p + left, {lanes}):",
            f"        x = load(total, i, {lanes})",
            f"        store(factor, i, {inverse('x', self.problem)})",
            *self._product(VALUES, "left", "offset(scores, i)", "sums, (p + i) * sums_row", finish=True),
            "if finish:",
            *indent(self.store_rows("p + done", "p + left")),
            "    ready = p + left",
        ]

    def _tile_block(self, block: RecordText, table: str, row: int | str, x_step: str, acc_row: str) -> list[str]:
        """Return statements that fill the argument block of a tile.

        Args:
            table: name of the array for the offsets of the tile's rows, which are ``row`` elements apart.
        """
        return [
            *tile_record(block),
            f"{table} = local_int64({TILE_TABLE_ROWS})",
            f"for i in range({TILE_TABLE_ROWS}):",
            f"    {table}[i] = i * {row}",
            block.put("offsets", table),
            # no row is missing and nothing is prefetched, so that this address is never read
            *block.fill(zero="scores", far="scores", out="scores", e0="scores"),
            *block.fill(
                taps=1, x_step=x_step, w_step=self.columns, acc_row=acc_row, acc_panel=self.columns, x_row=row,
                finish=0, far_panels=0, stream=0, out_row="out_row", e0_row=1,
            ),
        ]  # fmt: skip

    def _product(self, block: RecordText, count: str, x: str, acc: str, finish: bool = False) -> list[str]:
        """Return statements that run the tile over ``count`` rows ``i``, for ``panels`` panels and, if ``narrow``, a
        single-vector panel.

        One call computes all tiles of full height; a few of them are one row taller if that leaves no remainder. A
        table has the heights of the variants for the remaining rows.

        Args:
            finish: tiles of full height may store the first ``done`` rows of the result.
        """
        rows, tall, call = self.tile.rows, self.tile.tall, self.arguments.call
        lower = [h for h in self.tile.heights if h < rows]
        table = sum(max(h for h in lower if h <= r) << (4 * r) for r in range(1, rows))
        place = block.fill(x=x, acc=f"offset({acc})")
        if finish:
            place += block.fill(out="offset(out, out0 + (m0 + p + i) * out_row + e0)", e0="offset(factor, p + i)")

        last = [block.put("vectors", 1), call("tile", block.name, "panels", "panels + 1")]

        def several(height: int, tiles: str) -> list[str]:
            return [
                f"if {tiles} > 0:",
                *indent(
                    [
                        *place,
                        *block.fill(rows=height, tiles=tiles, last="narrow"),
                        call("finishing_tile", block.name, 0, "panels"),
                        f"i += {height} * {tiles}",
                    ]
                ),
            ]

        lines = ["i = 0", f"tiles = idiv({count}, {rows})"]
        if tall:
            lines += [
                f"rest = {count} - tiles * {rows}",
                f"high = rest if rest <= tiles else rest - (({table} >> (4 * rest)) & 15)",
                "high = high if high <= tiles else 0",
                "tiles -= high",
                *several(tall, "high"),
            ]
        lines += several(rows, "tiles")
        return [
            *lines,
            "done = i",
            f"while i < {count}:",
            f"    height = ({table} >> (4 * ({count} - i))) & 15",
            *indent(
                [
                    *place,
                    *block.fill(rows="height", vectors=self.tile.vectors),
                    call("tile", block.name, 0, "panels"),
                    *(["if narrow:", *indent(last)] if self.tile.vectors > 1 else []),
                    "i += height",
                ]
            ),
        ]
