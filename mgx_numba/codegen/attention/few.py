"""Attention of a few queries, as when decoding token by token: keys and values are read once, from wherever they lie.

The keys are multiplied by the queries row by row with features in the lanes; the softmax runs along the keys. The
product with the values goes through the register tile.
"""

from __future__ import annotations

from ..cluster.text import load_text
from ..contraction.text import indent
from .frame import AttentionKernel

__all__ = ["FewQueries"]

TOGETHER = 4
"""Keys whose products run at the same time."""


class FewQueries(AttentionKernel):
    """A task is all queries of one head; ``scores`` holds [query, key]. Features are contiguous in q, k and v."""

    name = "attention_few"
    in_place = True

    def setup(self) -> list[str]:
        return [
            f"scores_row = k_block + {self.lanes}",
            *self.tile_block("value", "scores_row", "1", "v_row", "sums_row", str(self.columns)),
            f"whole = depth - imod(depth, {self.lanes})",
        ]

    def body(self) -> list[str]:
        return [
            "for j0 in range(first, seen, k_block):",
            "    count = imin(seen - j0, k_block)",
            *indent([*self.skip_hidden(), *self._scores()]),
            "    for r in range(rows):",
            "        row = r * scores_row",
            # what is hidden, by the causal bound or for want of keys
            "        last = imin(m0 + r + first_seen - j0, count - 1)",
            f"        for j in range(imax(last + 1, 0), count + {self.lanes}):",
            "            store_scalar(scores, row + j, -INF)",
            *indent(self._softmax(), 2),
            *indent([*self.rescale("0", "rows"), *self._values(), "started = 1"]),
        ]

    def _scores(self) -> list[str]:
        lanes = self.lanes
        keys = range(TOGETHER)
        step = [f"sum{u} = add_fast(sum{u}, mul_fast(x, load(k, key{u} + f, {lanes})))" for u in keys]
        tail = [f"sum{u} = add_fast(sum{u}, mul_fast(x, load_tail(k, key{u} + whole, rest, 0, {lanes})))" for u in keys]
        return [
            f"for j in range(0, count, {TOGETHER}):",
            *(f"    key{u} = k0 + (j0 + imin(j + {u}, count - 1)) * k_row" for u in keys),
            "    for r in range(rows):",
            "        query = q0 + (m0 + r) * q_row",
            *(f"        sum{u} = const_{self.dtype}(0, {lanes})" for u in keys),
            f"        for f in range(0, whole, {lanes}):",
            f"            x = load(q, query + f, {lanes})",
            *indent(step, 3),
            "        if whole < depth:",
            "            rest = depth - whole",
            f"            x = load_tail(q, query + whole, rest, 0, {lanes})",
            *indent(tail, 3),
            *(f"        store_scalar(scores, r * scores_row + j + {u}, mul(reduce_add(sum{u}), scale))" for u in keys),
        ]

    def _softmax(self) -> list[str]:
        """Scores of one query become weights; running maximum and sum, and the factor for earlier sums."""
        lanes, mask = self.lanes, self.problem.mask
        masking = []
        if mask is not None:
            whole, part = (
                load_text("seen_at", "c", mask.strides[3], "mask_step", lanes, rest) for rest in ("", "count - c")
            )
            masking = [
                f"    if c + {lanes} <= count:",
                f"        x = {self.masked(whole)}",
                "    else:",
                f"        x = {self.masked(part)}",
                "    store(scores, row + c, x)",
            ]
        return [
            *([] if mask is None else ["seen_at = offset(mask, mask0 + (m0 + r) * mask_row + j0 * mask_step)"]),
            "before = load_scalar(top, r)",
            f"peaks = splat(before, {lanes})",
            f"for c in range(0, count, {lanes}):",
            f"    x = load(scores, row + c, {lanes})",
            *masking,
            "    peaks = where(gt(x, peaks), x, peaks)",
            "peak = reduce_max(peaks)",
            # without any key so far all weights are exp(-infinity - 0)
            "base = where(ne(peak, -INF), peak, 0)",
            f"again = {self.exp}(sub(before, base))",
            "store_scalar(top, r, peak)",
            "store_scalar(factor, r, again)",
            f"weights = const_{self.dtype}(0, {lanes})",
            f"for c in range(0, count, {lanes}):",
            f"    x = {self.exp}(sub(load(scores, row + c, {lanes}), base))",
            "    store(scores, row + c, x)",
            "    weights = add(weights, x)",
            "store_scalar(total, r, add(mul(load_scalar(total, r), again), reduce_add(weights)))",
        ]

    def _values(self) -> list[str]:
        """Add the weighted values of the block's keys to the sums."""
        tile = [
            "put_pointer(value_block, 0, offset(scores, i * scores_row))",
            "put_pointer(value_block, 4, offset(sums, i * sums_row))",
            *self.run_tile(self.tile_slot, "value", "value_panels", "value_narrow"),
        ]
        return [
            "value_block[6] = count",
            "value_block[12] = started",
            "value_block[15] = wide",
            "put_pointer(value_block, 3, offset(v, v0 + j0 * v_row + e0))",
            *self.heights("0", "rows", tile),
        ]
