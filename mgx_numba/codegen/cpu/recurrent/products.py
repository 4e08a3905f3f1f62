"""Source text of a recurrent step's products: states (rows) times weight panels, added to accumulators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....core.dim import equal, is_symbolic, preferred
from ...problems.recurrence import RecurrenceProblem
from ...statements import indent
from ..contraction.int16_weights import BLOCK
from ..contraction.quantised_rows import multiplies_quads
from ..microkernels.register_tile import RegisterTile
from .states import HALF
from .weights import TOGETHER, VECTORS, Phase, int8_rows, phases

STREAMS = 4
"""Most panels of weights read side by side."""
MOST_ROWS = 4
"""Most rows whose accumulators are in registers together; with more, LLVM hoists so many state loads that it spills
accumulators.

Zen 5, 16 sequences, lstm of 256 units, GFLOP/s: 4 rows 204, 5 194, 6 122; in 8 bits 4 rows 533, 6 450.
"""
UNROLL = 2
"""Terms of a product in one iteration of its loop."""


def together(problem: RecurrenceProblem, tile: RegisterTile, phase: Phase, rows: int) -> int:
    """Return the number of panels read side by side: few rows leave registers for several, and several streams from the
    caches are faster.

    Words of 16 bits are fastest from one stream (Zen 5, from L2: 168 GB/s from one, 122 from two to four), if its
    accumulators hide the instruction latency. Words of 8 bits are if several rows make as many accumulators (two rows
    of lstm, 256 units: 2.3 us a step from one, 3.4 from three).
    """
    one = problem.int16 or (problem.int8 and rows > 1)
    return max(1, min(-(-VECTORS // phase.vectors) if one else STREAMS, _most_rows(problem, tile, phase) // rows))


def rows_together(problem: RecurrenceProblem, tile: RegisterTile) -> int:
    """Return the number of sequences whose accumulators are in registers together, dividing the batch evenly."""
    room = min(_most_rows(problem, tile, phase) for phase in phases(problem))
    most = max(1, min(room, MOST_ROWS))
    if is_symbolic(problem.batch):
        return 1 if preferred(equal(problem.batch, 1)) else most
    return -(-problem.batch // -(-problem.batch // most))


def _most_rows(problem: RecurrenceProblem, tile: RegisterTile, phase: Phase) -> int:
    """Return the rows of a panel for which there are registers; states in two halves take two accumulators each."""
    return tile.rows * tile.vectors // (phase.vectors * (2 if problem.int16 else 1))


def product(
    problem: RecurrenceProblem, tile: RegisterTile, phase: Phase, rows: int, source: str, number: int
) -> list[str]:
    """Return statements that compute ``sums`` [row, vector] of some panels; missing rows and panels repeat the last."""
    lanes, vectors = tile.lanes, phase.vectors
    panels = range(together(problem, tile, phase, rows))
    columns = [(q, v) for q in panels for v in range(vectors)]
    cells = [(q, r, v) for r in range(rows) for q, v in columns]
    lines = [f"row{r} = imin(m0 + {r}, batch - 1)" for r in range(rows)]
    if not problem.packs_words:
        lines += [f"a{r} = offset(states, {source} + row{r} * row_size)" for r in range(rows)]
    lines += [f"panel{q} = imin(panel + {q}, last_panel)" for q in panels]
    size = vectors * lanes
    sums = [f"s{q}_{r}_{v}" for q, r, v in cells]
    if problem.int8:
        lines += _int8_sums(problem, phase, rows, panels, number, lanes)
    elif problem.int16:
        lines += _int16_sums(phase, rows, panels, source, number, lanes)
    else:
        lines += [f"w_{q} = offset(w{number}, (lane * panels{number} + panel{q}) * hidden * {size})" for q in panels]
        lines += [f"{sum_} = const_{problem.dtype}(0, {lanes})" for sum_ in sums]
        lines += _terms("0", "depth", lambda place: _term(place, rows, columns, size, lanes))
    for (q, r, v), sum_ in zip(cells, sums):
        lines.append(f"store(sums, (panel{q} * batch + row{r}) * {size} + {v * lanes}, {sum_})")
    return lines


def _terms(first: str, count: str, term: Callable[[str], list[str]]) -> list[str]:
    """Return statements that add ``count`` terms starting at ``first``."""
    lines = [f"whole = {first} + {count} - imod({count}, {UNROLL})", f"for k in range({first}, whole, {UNROLL}):"]
    for u in range(UNROLL):
        lines += indent(term(f"k + {u}"))
    return [*lines, f"for k in range(whole, {first} + {count}):", *indent(term("k"))]


def _term(place: str, rows: int, columns: Sequence[tuple[int, int]], size: int, lanes: int) -> list[str]:
    left = [f"a_{r} = load_splat(a{r}, {place}, {lanes})" for r in range(rows)]
    right = [f"b_{q}_{v} = load(w_{q}, ({place}) * {size} + {v * lanes}, {lanes})" for q, v in columns]
    by_row = [[f"s{q}_{r}_{v} = fma(a_{r}, b_{q}_{v}, s{q}_{r}_{v})" for q, v in columns] for r in range(rows)]
    # registers hold the accumulators, and the operand with fewer vectors: rows or columns
    if rows <= len(columns):
        steps = zip(right, zip(*by_row))
        return [*left, *(line for load, sums in steps for line in (load, *sums))]
    return [*right, *(line for load, sums in zip(left, by_row) for line in (load, *sums))]


def _int16_sums(phase: Phase, rows: int, panels: range, source: str, number: int, lanes: int) -> list[str]:
    """Return statements that accumulate 16-bit weights, scaled block by block, by the halves of states."""
    size = phase.vectors * lanes
    columns = [(q, v) for q in panels for v in range(phase.vectors)]
    cells = [(q, r, v) for q, v in columns for r in range(rows)]

    def term(place: str) -> list[str]:
        lines = [f"high{r} = load_splat(a{r}, {place}, {lanes})" for r in range(rows)]
        lines += [f"low{r} = load_splat(a{r}, row_words + {place}, {lanes})" for r in range(rows)]
        for q, v in columns:
            lines.append(f"b = load(w_{q}, (before + {place}) * {size} + {v * lanes}, {lanes})")
            for r in range(rows):
                for sum_, half in ((f"p{q}_{r}_{v}", "high"), (f"o{q}_{r}_{v}", "low")):
                    lines.append(f"{sum_} = add_dot2({sum_}, {half}{r}, b)")
        return lines

    block = [f"{name}{q}_{r}_{v} = const_int32(0, {lanes})" for q, r, v in cells for name in "po"]
    block += [f"first = block * {BLOCK // 2}", f"terms = imin(depth_words - first, {BLOCK // 2})", "before = block + 1"]
    block += _terms("first", "terms", term)
    for q, v in columns:
        block.append(f"scale = bits_float32(load(w_{q}, (first + block) * {size} + {v * lanes}, {lanes}))")
        for r in range(rows):
            cell = f"{q}_{r}_{v}"
            block += [
                f"whole_sum = fma(cast_float32(p{cell}), {float(HALF)!r}, cast_float32(o{cell}))",
                f"s{cell} = fma(mul(whole_sum, step{r}), scale, s{cell})",
            ]
    strange = [f"part{r} = load_scalar(states, {source} + row{r} * row_size + k)" for r in range(rows)]
    for q, v in columns:
        place = f"(idiv(k, {BLOCK}) + 1 + idiv(k, 2)) * {size} + {v * lanes}"
        strange += [
            f"b = shift_left(load(w_{q}, {place}, {lanes}), splat(cast_int32(16 - 16 * (k & 1)), {lanes}))",
            f"b = cast_float32(shift_right(b, const_int32(16, {lanes})))",
        ]
        for r in range(rows):
            strange += [
                f"if ne(sub(part{r}, part{r}), 0):",
                f"    s{q}_{r}_{v} = fma(splat(part{r}, {lanes}), b, s{q}_{r}_{v})",
            ]
    lines = ["row_words = idiv(row_size, 2)", f"blocks = idiv(hidden + {BLOCK - 1}, {BLOCK})"]
    lines += [f"a{r} = offset(state_words, own_words + row{r} * row_size)" for r in range(rows)]
    lines += [f"step{r} = load_splat(state_steps, own_steps + row{r}, {lanes})" for r in range(rows)]
    lines += [f"panel_size = (blocks + idiv(hidden + 1, 2)) * {size}"]
    lines += [f"w_{q} = offset(w{number}, (lane * panels{number} + panel{q}) * panel_size)" for q in panels]
    lines += [f"s{q}_{r}_{v} = const_float32(0, {lanes})" for q, r, v in cells]
    return [
        *lines,
        f"for block in range(idiv(depth_words + {BLOCK // 2 - 1}, {BLOCK // 2})):",
        *indent(block),
        "for k in range(hidden if strange > 0 else 0):",
        *indent(strange),
    ]


def _int8_sums(
    problem: RecurrenceProblem, phase: Phase, rows: int, panels: range, number: int, lanes: int
) -> list[str]:
    """Return statements that accumulate 8-bit weights by 8-bit states; the sums become float32 at the end."""
    size, before = phase.vectors * lanes, int8_rows(problem)
    columns = [(q, v) for q in panels for v in range(phase.vectors)]
    four = multiplies_quads()

    def term(place: str) -> list[str]:
        lines = [f"a_{r} = load_splat(a{r}, {place}, {lanes})" for r in range(rows)]
        if problem.dynamic and not four:  # bytes in two parts, below 128 each, so that no sum of pairs saturates
            for r in range(rows):
                half = f"shift_right(a_{r}, const_int32(1, {lanes}))"
                lines.append(f"half_{r} = bitwise_and({half}, const_int32({0x7F7F7F7F}, {lanes}))")
                lines.append(f"odd_{r} = bitwise_and(a_{r}, const_int32({0x01010101}, {lanes}))")
        for q, v in columns:
            lines.append(f"b = load(w_{q}, ({place} + {before}) * {size} + {v * lanes}, {lanes})")
            for r in range(rows):
                total = f"s{q}_{r}_{v}"
                if four or not problem.dynamic:
                    lines.append(f"{total} = {'add_dot4' if four else 'add_signed_dot4'}({total}, a_{r}, b)")
                else:
                    lines.append(f"{total} = add_pairs(add_pairs({total}, dot2(half_{r}, b), 2), dot2(odd_{r}, b), 1)")
        return lines

    def first(q: int, r: int, v: int) -> str:
        sums = f"load(w_{q}, {size + v * lanes}, {lanes})"
        if problem.dynamic:
            points = f"load(w_{q}, {2 * size + v * lanes}, {lanes})"
            return f"add(mul({sums}, splat(state_zero, {lanes})), mul({points}, total{r}))"
        return sums if four else f"const_int32(0, {lanes})"

    lines = [f"a{r} = offset(state_words, idiv(own_octets + row{r} * row_size, {TOGETHER}))" for r in range(rows)]
    if problem.dynamic:
        lines += [f"total{r} = load_splat(state_sums, own_steps + row{r}, {lanes})" for r in range(rows)]
    panel_size = f"(words + {before}) * {size}"
    lines += [f"w_{q} = offset(w{number}, (lane * panels{number} + panel{q}) * {panel_size})" for q in panels]
    lines += [f"s{q}_{r}_{v} = {first(q, r, v)}" for q, v in columns for r in range(rows)]
    lines += _terms("0", "depth_words", term)
    if not problem.dynamic:
        lines += [f"step{r} = load_splat(state_steps, own_steps + row{r}, {lanes})" for r in range(rows)]
    for q, v in columns:
        lines.append(f"scale = bits_float32(load(w_{q}, {v * lanes}, {lanes}))")
        if problem.dynamic:
            lines.append(f"scale = mul(scale, splat(state_step, {lanes}))")
            lines += [f"s{q}_{r}_{v} = mul(cast_float32(s{q}_{r}_{v}), scale)" for r in range(rows)]
            continue
        lines += [f"s{q}_{r}_{v} = mul(mul(cast_float32(s{q}_{r}_{v}), scale), step{r})" for r in range(rows)]
    return lines
