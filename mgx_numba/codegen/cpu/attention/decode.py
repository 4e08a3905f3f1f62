"""Attention of a few queries, as in token-by-token decoding: keys and values are read once, in place.

Features are in the lanes: the keys are multiplied by the queries row by row, the values by their weights. Several
places of the keys or values are read at a time, since several memory streams are faster than one. The softmax runs
along the keys.
"""

from __future__ import annotations

from collections.abc import Callable

from ...problems.element_types import ITEMSIZE
from ...statements import indent, load_text
from .. import host
from .attention_kernel import AHEAD, AttentionKernel

STREAMS = 4
"""Places in the keys, and in the values, that are read at the same time."""
NEAR_KEYS = 64
"""Keys whose values are multiplied by the weights of two queries at a time while they stay in the L1 cache.

The same for any number of queries, since sums begin anew with each such block."""
MANY_REGISTERS = 16
"""A tile with more accumulators than this implies 32 vector registers."""


class DecodeAttention(AttentionKernel):
    """The kernel for few queries: a task is all queries of one head. ``scores`` holds [query, key].

    Features are contiguous in q, k and v.
    """

    name = "attention_few"

    def setup(self) -> list[str]:
        return [f"scores_row = k_block + {self.lanes}", f"whole = depth - imod(depth, {self.lanes})"]

    def body(self) -> list[str]:
        return [
            f"for i in range(0, rows * sums_row, {self.lanes}):",
            f"    store(sums, i, const_{self.dtype}(0, {self.lanes}))",
            "for j0 in range(first, seen, k_block):",
            "    count = imin(seen - j0, k_block)",
            *indent([*self.find_rows(), *self.skip_hidden()]),
            f"    stride = idiv(count, {STREAMS})",
            *indent(self._scores()),
            "    for r in range(rows):",
            "        row = r * scores_row",
            *indent(self._softcap(), 2),
            # keys that are hidden by the causal bound, or missing
            "        last = imin(m0 + r + first_seen - j0, count - 1)",
            f"        for j in range(imax(last + 1, 0), count + {self.lanes}):",
            "            store_scalar(scores, row + j, -INF)",
            *indent([*self._windowed(), *self.hide_missing(["store_scalar(scores, row + hidden, -INF)"])], 2),
            *indent(self._softmax(), 2),
            *indent([*self.rescale("0", "rows"), *self._values(), "started = 1"]),
        ]

    def _softcap(self) -> list[str]:
        if self.problem.softcap <= 0:
            return []
        return [
            f"for c in range(0, count, {self.lanes}):",
            f"    store(scores, row + c, {self.capped(f'load(scores, row + c, {self.lanes})')})",
        ]

    def _windowed(self) -> list[str]:
        """Return statements that hide the keys before the window of query ``r``."""
        if not self.problem.window or self.problem.one_position:
            return []
        return [
            "for j in range(0, imin(lowest + m0 + r - j0, count)):",
            "    store_scalar(scores, row + j, -INF)",
        ]

    def _scores(self) -> list[str]:
        return [
            "for j in range(stride):",
            *indent([line for u in range(STREAMS) for line in self._soon("k", u, "0", "depth")]),
            *indent(self._by_rows(lambda rows: self._products(STREAMS, rows))),
            f"for j in range(stride * {STREAMS}, count):",
            *indent(self._by_rows(lambda rows: self._products(1, rows))),
        ]

    def _soon(self, name: str, stream: int, first: str, columns: str) -> list[str]:
        """Return statements that prefetch columns of a later row of a stream, where rows lie in blocks."""
        if not self.paged:
            return []
        step = host.CACHE_LINE // ITEMSIZE[self.problem.kv_dtype or self.dtype]
        return [
            f"soon = load_scalar({name}_rows, j + {stream} * stride + {AHEAD}) + {first}",
            f"for column in range(0, {columns}, {step}):",
            f"    prefetch({name}, soon + column)",
        ]

    def _by_rows(self, body: Callable[[int], list[str]]) -> list[str]:
        """Return a loop over the queries ``r``, two at a time."""
        return [
            "for r in range(0, rows, 2):",
            "    if r + 1 < rows:",
            *indent(body(2), 2),
            "    else:",
            *indent(body(1), 2),
        ]

    def _products(self, streams: int, rows: int) -> list[str]:
        """Return statements that compute the scores of the ``j``-th key of each stream."""
        lanes, dtype = self.lanes, self.dtype
        every = [(i, u) for i in range(rows) for u in range(streams)]
        tail = f"load_tail({{}}, {{{{}}}}, rest, 0, {lanes})"

        def step(f: str, q: str, k: str) -> list[str]:
            lines = [f"x{i} = {q.format(f'query{i} + {f}')}" for i in range(rows)]
            for u in range(streams):
                lines += [f"y = {k.format(f'key{u} + {f}')}"]
                lines += [f"sum{i}_{u} = add_fast(sum{i}_{u}, mul_fast(x{i}, y))" for i in range(rows)]
            return lines

        return [
            *(line for u in range(streams) for line in self.row_of("k", f"j + {u} * stride", f"key{u}")),
            *(f"query{i} = q0 + (m0 + r + {i}) * q_row" for i in range(rows)),
            *(f"sum{i}_{u} = const_{dtype}(0, {lanes})" for i, u in every),
            f"for f in range(0, whole, {lanes}):",
            *indent(step("f", f"load(q, {{}}, {lanes})", self.kv(f"load(k, {{}}, {lanes})"))),
            "if whole < depth:",
            "    rest = depth - whole",
            *indent(step("whole", tail.format("q"), self.kv(tail.format("k")))),
            *(
                f"store_scalar(scores, (r + {i}) * scores_row + j + {u} * stride, mul(reduce_add(sum{i}_{u}), scale))"
                for i, u in every
            ),
        ]

    def _softmax(self) -> list[str]:
        """Return statements that turn the scores of one query into weights, and update the running maximum, sum and
        factor."""
        lanes, mask = self.lanes, self.problem.mask
        masking = []
        if mask is not None:
            whole, part = (
                load_text("seen_at", "c", mask.strides[3], "mask_step", lanes, rest) for rest in ("", "shown")
            )
            masking = [
                f"    if c + {lanes} <= last + 1:",
                f"        x = {self.masked(whole)}",
                "    else:",
                # adding infinity or NaN must not unhide a key
                "        shown = imax(last + 1 - c, 0)",
                f"        x = where(lane_mask(shown, {lanes}), {self.masked(part)}, -INF)",
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
            # without any visible key so far all weights are exp(-infinity - 0)
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
        """Return statements that add the weighted values of the block's keys to the sums."""
        return [
            f"for start in range(0, stride, {NEAR_KEYS // STREAMS}):",
            f"    stop = imin(start + {NEAR_KEYS // STREAMS}, stride)",
            *indent(self._weigh(STREAMS)),
            f"start = stride * {STREAMS}",
            "stop = count",
            "if start < stop:",
            *indent(self._weigh(1)),
        ]

    def _weigh(self, streams: int) -> list[str]:
        """Return statements for the keys ``start`` to ``stop`` of each stream, for all queries."""
        lanes = self.lanes
        together = 4 if self.tile.rows * self.tile.vectors > MANY_REGISTERS else 2

        def columns(rows: int) -> list[str]:
            return [
                "e = 0",
                f"while e + {together * lanes} <= wide:",
                *indent(self._columns(streams, rows, together, self.kv(f"load(v, value + {{}}, {lanes})"))),
                f"    e += {together * lanes}",
                "while e < wide:",
                *indent(
                    self._columns(
                        streams, rows, 1, self.kv(f"load_tail(v, value + {{}}, imin(wide - e, {lanes}), 0, {lanes})")
                    )
                ),
                f"    e += {lanes}",
            ]

        return self._by_rows(columns)

    def _columns(self, streams: int, rows: int, vectors: int, load: str) -> list[str]:
        """Return statements for ``vectors`` vectors of the sums of ``rows`` queries, from column ``e``."""
        lanes = self.lanes
        every = [(i, c) for i in range(rows) for c in range(vectors)]
        # two sums over half of the streams each: the accumulators of one row are too few to hide the latency of adding,
        # and rows are added in one order, whatever their number is
        sets = 2 if streams > 1 else 1
        place = "(r + {}) * sums_row + e + {}"
        lines = [f"s{i}_{c}_0 = load(sums, {place.format(i, c * lanes)}, {lanes})" for i, c in every]
        lines += [f"s{i}_{c}_{k} = const_{self.dtype}(0, {lanes})" for i, c in every for k in range(1, sets)]
        lines += ["for j in range(start, stop):"]
        for u in range(streams):
            lines += [*indent(self.row_of("v", f"j + {u} * stride", "value")), "    value += e0 + e"]
            lines += indent(self._soon("v", u, "e0 + e", str(vectors * lanes)) if streams > 1 else [])
            lines += [
                f"    w{i} = load_splat(scores, (r + {i}) * scores_row + j + {u} * stride, {lanes})"
                for i in range(rows)
            ]
            for c in range(vectors):
                lines += [f"    x = {load.format(c * lanes)}"]
                for i in range(rows):
                    name = f"s{i}_{c}_{u % sets}"
                    lines += [f"    {name} = add_fast({name}, mul_fast(w{i}, x))"]
        for i, c in every:
            total = f"add(s{i}_{c}_0, s{i}_{c}_1)" if sets > 1 else f"s{i}_{c}_0"
            lines += [f"store(sums, {place.format(i, c * lanes)}, {total})"]
        return lines
