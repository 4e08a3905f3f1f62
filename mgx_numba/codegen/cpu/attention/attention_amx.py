"""Attention over matrix tiles (AMX): products in bfloat16, or float32 products of operands split into bfloat16 parts.

Queries are the rows of both products, ``scores = q @ k^T`` and ``out = weights @ v``. A step handles a block of keys:
it rounds keys and values and packs them into panels of 32-bit words. A word of transposed keys holds two features of
one key; a word of values holds one feature of two successive keys. Scores stay in float32. A row of scores becomes a
row of bfloat16 softmax weights, the left-hand side of the second product.

In float32 products each operand is the sum of two bfloat16 parts. A step with rows that cannot be split (`row_note`) is
multiplied by ordinary float32 instructions.
"""

from __future__ import annotations

from ....core.dim import known_equal, known_less_equal, less, maximum, preferred, range_of
from ...problems.attention import AttentionProblem
from ...problems.element_types import ElementTypes, element_types
from ...statements import indent
from ..contraction.bf16_split_rows import LINE_ELEMENTS, row_note, split_vector
from ..contraction.macro_kernel import next_height
from ..contraction.tile_source import tile_record, tile_source
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import MATRIX_BLOCK, TILE_TABLE_ROWS, matrix_tile
from ..records import Record, RecordText, pointer
from .attention_kernel import BUFFER_BYTES, AttentionKernel, Blocks

TYPES = ElementTypes("float32", "bfloat16", "float32", "float32")
LINE = LINE_ELEMENTS
"""Number of elements that are rounded together: a cache line of bfloat16, two registers of float32."""
SCORES, VALUES = RecordText(MATRIX_BLOCK, "score_block"), RecordText(MATRIX_BLOCK, "value_block")
_NEAR = ("queries", "turning", "keys", "weights", "values")
NEAR = RecordText(Record("near operands", tuple(pointer(name) for name in _NEAR)), "near")
"""Record with the addresses of the scratch buffers of a step's rounded operands, which the kernel accesses as int32
words and as bfloat16. ``turning`` is the buffer for rows of keys before they are transposed, and for pairs of values
before they are interleaved."""
WORD = 4  # bytes


def attention_tile(problem: AttentionProblem) -> RegisterTile | None:
    """Return the tile of both products, or None if the CPU has none for the allowed precision."""
    if problem.dtype != "float32":
        return None
    if problem.bfloat16_products:
        return matrix_tile(TYPES)
    return matrix_tile(element_types("float32")) if problem.products_in_parts else None


def tiles_refusal(problem: AttentionProblem) -> str | None:
    """Return why this kernel cannot compute a problem; None if it can."""
    if problem.dtype != "float32" or not (problem.bfloat16_products or problem.products_in_parts):
        return "the products are neither of bfloat16 nor of float32 in parts"
    if problem.limited:
        return "the number of keys is read from memory"
    tile = attention_tile(problem)
    if tile is None:
        return "no tile of whole matrices is declared for them"
    if preferred(less(problem.queries, tile.step)):
        return f"fewer than {tile.step} queries fill no tile"
    if not problem.features_contiguous:
        return "features lie apart"
    longest = BUFFER_BYTES // WORD // tile.rows
    if not known_less_equal(maximum(problem.depth, problem.width), longest):
        return f"more than {longest} features of a head"
    if problem.mask is not None and not known_equal(problem.mask.strides[3], 1) and not known_equal(problem.keys, 1):
        return "successive keys do not lie side by side in the mask"
    return None


class PrefillAttentionAmx(AttentionKernel):
    """Attention kernel over matrix tiles.

    A task computes a block of queries of one head, a group of as many queries as the tile has rows at a time.
    ``scores`` holds the scores [query, key] of a group for the keys of a step.
    """

    name = "attention_tiles"

    def __init__(self, problem: AttentionProblem, blocks: Blocks, origin: str = "") -> None:
        super().__init__(problem, blocks, origin)
        tile = attention_tile(problem)
        assert tile is not None
        self.matrix, self.parts = tile, tile.packing.parts
        if self.parts > 1:
            self.name = "attention_parts"

    def in_state(self, statements: list[str]) -> list[str]:
        return self.matrix.in_state(statements)

    def setup(self) -> list[str]:
        p, b, matrix = self.problem, self.blocks, self.matrix
        self.arguments.callee("tile", tile_source(matrix))
        depth = matrix.depth(p.depth)
        # an odd number of lines apart, so that rows of a tile fall into different cache sets
        q_ld, p_ld = (_odd(words // matrix.step) * matrix.step for words in (depth, matrix.depth(b.keys)))
        turning_ld = max(depth, b.width // 2)
        self.arguments.integers(q_words=depth, q_ld=q_ld, p_ld=p_ld, turning_ld=turning_ld)
        self.arguments.integers(
            q_low=b.queries * q_ld, weights_low=matrix.rows * p_ld, turning_low=matrix.step * turning_ld
        )
        words = {
            "queries": b.queries * q_ld,
            "turning": matrix.step * turning_ld,
            "keys": b.keys * depth,
            "weights": matrix.rows * p_ld,
            "values": b.keys // 2 * b.width,
        }
        lines = ["bound = local_float32(64)", NEAR.local()]
        for name in _NEAR:
            lines += [
                f"{name}_words = local_int32({_room(self.parts * words[name])})",
                NEAR.put(name, f"{name}_words"),
                f"{name}_near = {NEAR.elements(name, 'bfloat16')}",
            ]
        lines += [
            f"places = local_int64({TILE_TABLE_ROWS})",
            f"for i in range({TILE_TABLE_ROWS}):",
            "    places[i] = 0",
        ]
        for block in (SCORES, VALUES):
            lines += [*tile_record(block), block.put("offsets", "places")]
            lines += block.fill(
                zero="scores", taps=1, x_step=1, w_step=matrix.columns, acc_panel=matrix.columns,
                vectors=matrix.vectors,
            )  # fmt: skip
        lines += SCORES.fill(
            accumulate=0, x_row="q_ld", x_low="q_low", depth="q_words", w="keys_words",
            w_panel=f"q_words * {self.parts * matrix.columns}", acc="scores", acc_row="k_block",
        )  # fmt: skip
        lines += VALUES.fill(x="weights_words", x_row="p_ld", x_low="weights_low", w="values_words", acc_row="sums_row")
        return lines

    def body(self) -> list[str]:
        columns = self.matrix.columns
        return [
            *self._noted(self._round_queries(), "exact_queries"),
            "for j0 in range(first, seen, k_block):",
            *indent([
                "count = imin(k_block, seen - j0)",
                *self.skip_hidden(),
                f"panels = idiv(count + {columns - 1}, {columns})",
                f"padded = panels * {columns}",
                *self._noted(self._turn_keys(), "exact_scores", "exact_queries"),
                *self._noted(self._pair_values(), "exact_values"),
                *VALUES.fill(
                    accumulate="started",
                    depth=f"panels * {columns // 2}",
                    w_panel=f"padded * {self.parts * columns // 2}",
                ),
                "p = 0",
                "while p < rows:",
                *indent([
                    "left = rows - p",
                    *next_height(self.matrix, tall=False),
                    "left = imin(left, height)",
                    *SCORES.fill(x="offset(queries_words, p * q_ld)", rows="height", exist="left"),
                    *self._unless(
                        "exact_scores", self._exact_scores(), self.arguments.call("tile", SCORES.name, 0, "panels")
                    ),
                    *self._weigh(),
                    *self.rescale("p", "p + left"),
                    *VALUES.fill(acc="offset(sums, p * sums_row)", rows="height", exist="left"),
                    *self._unless(
                        "exact_values",
                        self._exact_values(),
                        self.arguments.call("tile", VALUES.name, 0, f"idiv(sums_row, {columns})"),
                    ),
                    "p += left",
                ]),
                "started = 1",
            ]),
        ]  # fmt: skip

    def _round_queries(self) -> list[str]:
        """Return statements that round the rows of the task's queries to bfloat16, padded with zeros to whole steps of
        the tile."""
        return [
            "for i in range(rows):",
            "    at = q0 + (m0 + i) * q_row",
            *indent(self._rounded("q", "at", "depth", "2 * q_words", "queries", "2 * i * q_ld", "q_low")),
        ]

    def _turn_keys(self) -> list[str]:
        """Return statements that pack keys into panels of words of two features, a column for each key.

        Columns without a key have arbitrary values.
        """
        step, columns = self.matrix.step, self.matrix.columns
        return [
            f"for j in range(0, count, {step}):",
            *indent([
                f"some = imin(count - j, {step})",
                "for i in range(some):",
                "    at = k0 + (j0 + j + i) * k_row",
                *indent(self._rounded("k", "at", "depth", "2 * q_words", "turning", "2 * i * turning_ld")),
                f"goal = idiv(j, {columns}) * q_words * {self.parts * columns} + imod(j, {columns})",
                f"for c in range(0, q_words, {step}):",
                *indent([
                    line
                    for part in range(self.parts)
                    for line in (
                        f"source = offset(turning_words, c + {part} * turning_low)",
                        f"target = offset(keys_words, goal + (c * {self.parts} + {part * step}) * {columns})",
                        f"transpose_block(source, turning_ld, some, target, {columns}, {step})",
                    )
                ]),
            ]),
        ]  # fmt: skip

    def _pair_values(self) -> list[str]:
        """Return statements that pack values into panels of words of two keys, with zeros for keys missing in the last
        panel."""
        step, columns = self.matrix.step, self.matrix.columns
        zero = f"bits_bfloat16(const_int16(0, {LINE}))"
        return [
            "for j in range(0, padded, 2):",
            *indent([
                "for i in range(2):",
                "    at = v0 + (j0 + j + i) * v_row + e0",
                "    if j + i < count:",
                *indent(self._rounded("v", "at", "wide", "sums_row", "turning", "2 * i * turning_ld"), 2),
                "    else:",
                f"        for c in range(0, sums_row, {LINE}):",
                *indent([
                    f"store(turning_near, 2 * (i * turning_ld + {part} * turning_low) + c, {zero})"
                    for part in range(self.parts)
                ], 3),
                f"pair = idiv(j, {2 * step}) * {self.parts * step} + imod(idiv(j, 2), {step})",
                f"for c in range(0, sums_row, {columns}):",
                f"    goal = (idiv(c, {columns}) * idiv(padded, 2) * {self.parts} + pair) * {columns}",
                *indent([
                    line
                    for part in range(self.parts)
                    for line in (
                        f"source = offset(turning_near, c + {2 * part} * turning_low)",
                        f"target = offset(values_near, 2 * (goal + {part * step * columns}))",
                        f"interleave(source, 2 * turning_ld, target, 2, {columns})",
                    )
                ]),
            ]),
        ]  # fmt: skip

    def _weigh(self) -> list[str]:
        """Return statements of the online softmax: turn the scores of ``left`` queries into weights, and update the
        queries' running maxima, their sums of weights, and ``factor``, by which earlier results are rescaled."""
        lanes = self.lanes
        return [
            "for i in range(left):",
            *indent([
                "row = i * k_block",
                "here = imin(imax(m0 + p + i + 1 + first_seen - j0, 0), count)",
                *(["at = mask0 + (m0 + p + i) * mask_row + j0"] if self.problem.mask else []),
                f"peak = const_float32(-INF, {LINE})",
                f"whole = here - (here & {LINE - 1})",
                f"for c in range(0, whole, {LINE}):",
                *indent(self._score(False)),
                f"for c in range(whole, padded, {LINE}):",
                *indent(self._score(True)),
                "store_scalar(bound, i, reduce_first_greater(peak))",
            ]),
            f"for i in range(0, left, {lanes}):",
            *indent([
                f"before = load(top, p + i, {lanes})",
                f"peak = first_greater(load(bound, i, {lanes}), before)",
                # without any visible key so far all weights are exp(-infinity - 0)
                "base = where(ne(peak, -INF), peak, 0)",
                "store(bound, i, base)",
                "store(top, p + i, peak)",
                f"store(factor, p + i, {self.exp}(sub(before, base)))",
            ]),
            "for i in range(left):",
            *indent([
                f"base = load_splat(bound, i, {LINE})",
                f"weights = const_float32(0, {LINE})",
                f"for c in range(0, padded, {LINE}):",
                f"    x = {self.exp}(sub(load(scores, i * k_block + c, {LINE}), base))",
                "    weights = add(weights, x)",
                *indent(self._weight()),
                "again = mul(load_scalar(total, p + i), load_scalar(factor, p + i))",
                "store_scalar(total, p + i, add(again, reduce_add(weights)))",
            ]),
        ]  # fmt: skip

    def _score(self, hidden: bool) -> list[str]:
        """Return statements that scale and mask the scores from key ``c`` and update the maxima.

        Args:
            hidden: give keys from position ``here`` on the score -infinity.
        """
        lines = [f"x = mul(load(scores, row + c, {LINE}), scale)"]
        if self.problem.mask:
            end, more = ("_tail", f"imin(imax(here - c, 0), {LINE}), 0, ") if hidden else ("", "")
            lines += [f"hides = load{end}(mask, at + c, {more}{LINE})", f"x = {self.masked('hides')}"]
        if hidden:
            lines.append(f"x = where(lane_mask(imin(imax(here - c, 0), {LINE}), {LINE}), x, -INF)")
        return [*lines, "store(scores, row + c, x)", "peak = first_greater(x, peak)"]

    def _weight(self) -> list[str]:
        """Return statements that store the weights ``x`` of query ``i`` from key ``c``."""
        if self.parts == 1:
            return ["store(weights_near, 2 * i * p_ld + c, round_bfloat16(x))"]
        return [
            "store(scores, i * k_block + c, x)",
            "high = round_bfloat16(x)",
            "store(weights_near, 2 * i * p_ld + c, high)",
            "store(weights_near, 2 * (i * p_ld + weights_low) + c, round_bfloat16(sub(x, cast_float32(high))))",
        ]

    def _rounded(
        self, x: str, at: str, count: str, whole: str, near: str, goal: str, low: str = "turning_low"
    ) -> list[str]:
        """Return statements that round ``count`` elements of ``x`` to bfloat16, or split them into parts.

        They read ``x`` from ``at`` on and write buffer ``near`` from ``goal`` on. ``whole``, a multiple of `LINE`, is
        the number of elements with the zeros that pad them; ``low`` is the distance, in words, of the low parts.
        """
        write = [f"store({near}_near, {goal} + c, round_bfloat16(value))"]
        before: list[str] = []
        if self.parts > 1:
            before = [f"packed = {near}_near", f"low = 2 * {low}"]
            write = split_vector("value", f"{goal} + c")
        return [
            *before,
            f"for c in range(0, {whole}, {LINE}):",
            f"    if c + {LINE} <= {count}:",
            f"        value = load({x}, {at} + c, {LINE})",
            "    else:",
            f"        value = load_tail({x}, {at} + c, imax({count} - c, 0), 0, {LINE})",
            *indent(write),
        ]

    def _noted(self, statements: list[str], name: str, other: str = "") -> list[str]:
        """Return ``statements``, which convert operands, and set the variable ``name`` to whether they cannot be split
        into parts, or ``other`` is set."""
        if self.parts == 1:
            return statements
        halved = f"halved or {other}" if other else "halved"
        return [f"largest = const_int32(0, {LINE})", *statements, *row_note(), f"{name} = {halved}"]

    def _unless(self, exact: str, statements: list[str], call: str) -> list[str]:
        """Return the call of the tile, with a branch to the float32 ``statements`` where ``exact`` is set."""
        if self.parts == 1:
            return [call]
        return [f"if {exact}:", *indent(statements), "else:", f"    {call}"]

    def _exact_scores(self) -> list[str]:
        """Return statements that compute the scores of ``left`` queries one by one."""
        return [
            "for i in range(left):",
            "    for j in range(count):",
            f"        x = const_float32(0, {LINE})",
            f"        for c in range(0, depth, {LINE}):",
            f"            some = imin(depth - c, {LINE})",
            f"            one = load_tail(q, q0 + (m0 + p + i) * q_row + c, some, 0, {LINE})",
            f"            x = fma(one, load_tail(k, k0 + (j0 + j) * k_row + c, some, 0, {LINE}), x)",
            "        store_scalar(scores, i * k_block + j, reduce_add(x))",
        ]

    def _exact_values(self) -> list[str]:
        """Return statements that compute the sums of ``left`` queries with all visible values of the step, in
        float32."""
        lanes = self.lanes
        return [
            "for i in range(left):",
            "    here = imin(imax(m0 + p + i + 1 + first_seen - j0, 0), count)",
            f"    for e in range(0, sums_row, {lanes}):",
            f"        x = const_float32(0, {lanes})",
            "        if started:",
            f"            x = load(sums, (p + i) * sums_row + e, {lanes})",
            "        for j in range(here):",
            f"            some = imin(imax(wide - e, 0), {lanes})",
            f"            one = load_tail(v, v0 + (j0 + j) * v_row + e0 + e, some, 0, {lanes})",
            f"            x = fma(load_splat(scores, i * k_block + j, {lanes}), one, x)",
            "        store(sums, (p + i) * sums_row + e, x)",
        ]


def _odd(count: int) -> int:
    """Return ``count`` if it is odd, else ``count + 1``."""
    return count + 1 - count % 2


def _room(words: int) -> int:
    """Return the size of a local array for up to ``words`` words, rounded up to a power of two, so that problems of
    different sizes share kernels."""
    most = range_of(words)[1]
    assert most is not None
    return 1 << (most - 1).bit_length()
