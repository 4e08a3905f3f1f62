"""The text of a step's products: ``sums`` of some panels by the states of some rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...problems.recurrence import RecurrenceProblem
from ...statements import indent
from ..contraction.int16_weights import BLOCK, DOWN, unpack, unpacked_scale
from ..microkernels.register_tile import RegisterTile
from .phases import Phase
from .states import multiplies_four
from .weights import INT8_ROWS, TOGETHER

__all__ = ["product", "together"]

STREAMS = 4
"""Most panels of weights read side by side."""
UNROLL = 2
"""Terms of a product in one round of its loop."""


def together(tile: RegisterTile, phase: Phase, rows: int) -> int:
    """Panels read side by side: few rows leave registers for it, and several streams come faster from the caches."""
    return max(1, min(STREAMS, tile.rows * tile.vectors // (rows * phase.vectors)))


def product(
    problem: RecurrenceProblem, tile: RegisterTile, phase: Phase, rows: int, source: str, number: int
) -> list[str]:
    """Statements: ``sums`` [row, vector] of some panels; missing rows and panels repeat the last one."""
    lanes, vectors = tile.lanes, phase.vectors
    panels = range(together(tile, phase, rows))
    columns = [(q, v) for q in panels for v in range(vectors)]
    cells = [(q, r, v) for r in range(rows) for q, v in columns]
    lines = [f"row{r} = imin(m0 + {r}, batch - 1)" for r in range(rows)]
    if not problem.int8:
        lines += [f"a{r} = offset(states, {source} + row{r} * row_size)" for r in range(rows)]
    lines += [f"panel{q} = imin(panel + {q}, last_panel)" for q in panels]
    size = vectors * lanes
    sums = [f"s{q}_{r}_{v}" for q, r, v in cells]
    if problem.int8:
        lines += _int8_sums(phase, rows, panels, number, lanes)
    elif problem.int16:
        lines += _int16_sums(problem, phase, rows, panels, number, lanes)
    else:
        lines += [f"w_{q} = offset(w{number}, (lane * panels{number} + panel{q}) * hidden * {size})" for q in panels]
        lines += [f"{sum_} = const_{problem.dtype}(0, {lanes})" for sum_ in sums]
        lines += _terms("0", "depth", lambda place: _term(place, rows, columns, size, lanes))
    for (q, r, v), sum_ in zip(cells, sums):
        lines.append(f"store(sums, (panel{q} * batch + row{r}) * {size} + {v * lanes}, {sum_})")
    return lines


def _terms(first: str, count: str, term: Callable[[str], list[str]]) -> list[str]:
    """Statements that add the ``count`` terms from ``first`` on."""
    lines = [f"whole = {first} + {count} - imod({count}, {UNROLL})", f"for k in range({first}, whole, {UNROLL}):"]
    for u in range(UNROLL):
        lines += indent(term(f"k + {u}"))
    return [*lines, f"for k in range(whole, {first} + {count}):", *indent(term("k"))]


def _term(place: str, rows: int, columns: Sequence[tuple[int, int]], size: int, lanes: int) -> list[str]:
    left = [f"a_{r} = load_splat(a{r}, {place}, {lanes})" for r in range(rows)]
    right = [f"b_{q}_{v} = load(w_{q}, ({place}) * {size} + {v * lanes}, {lanes})" for q, v in columns]
    by_row = [[f"s{q}_{r}_{v} = fma(a_{r}, b_{q}_{v}, s{q}_{r}_{v})" for q, v in columns] for r in range(rows)]
    # held in registers: the sums, and the fewer of rows and columns
    if rows <= len(columns):
        steps = zip(right, zip(*by_row))
        return [*left, *(line for load, sums in steps for line in (load, *sums))]
    return [*right, *(line for load, sums in zip(left, by_row) for line in (load, *sums))]


def _int16_sums(
    problem: RecurrenceProblem, phase: Phase, rows: int, panels: range, number: int, lanes: int
) -> list[str]:
    """Statements: the sums over weights of 16 bits, whose blocks are scaled one by one."""
    row = phase.words * lanes
    cells = [(q, r, v) for q in panels for r in range(rows) for v in range(phase.vectors)]

    def term(place: str) -> list[str]:
        lines = [f"a_{r} = mul(load_splat(a{r}, {place}, {lanes}), down)" for r in range(rows)]
        for q in panels:
            for pair in range(phase.words):
                lines += unpack(f"w_{q}", f"(before + {place}) * {row} + {pair * lanes}", lanes)
                for v in range(2 * pair, min(2 * pair + 2, phase.vectors)):
                    lines += [f"p{q}_{r}_{v} = fma(a_{r}, b{v % 2}, p{q}_{r}_{v})" for r in range(rows)]
        return lines

    zero = f"const_float32(0, {lanes})"
    block = [f"p{q}_{r}_{v} = {zero}" for q, r, v in cells]
    block += [f"first = block * {BLOCK}", f"terms = imin(depth - first, {BLOCK})", "before = block + 1"]
    block += _terms("first", "terms", term)
    for q in panels:
        for v in range(phase.vectors):
            if v % 2 == 0:
                place = f"(first + block) * {row} + {v // 2 * lanes}"
                block.append(f"scales = load(w_{q}, {place}, {lanes})")
            block.append(unpacked_scale("scales", v % 2, lanes))
            block += [f"s{q}_{r}_{v} = fma(p{q}_{r}_{v}, scale, s{q}_{r}_{v})" for r in range(rows)]
    return [
        f"down = const_float32({DOWN!r}, {lanes})",
        f"blocks = idiv(hidden + {BLOCK - 1}, {BLOCK})",
        f"panel_size = (blocks + hidden) * {row}",
        *(f"w_{q} = offset(w{number}, (lane * panels{number} + panel{q}) * panel_size)" for q in panels),
        *(f"s{q}_{r}_{v} = {zero}" for q, r, v in cells),
        f"for block in range(idiv(depth + {BLOCK - 1}, {BLOCK})):",
        *indent(block),
    ]


def _int8_sums(phase: Phase, rows: int, panels: range, number: int, lanes: int) -> list[str]:
    """Statements: the sums over weights of 8 bits, by states in 8 bits; they become float32 at the end."""
    size = phase.vectors * lanes
    columns = [(q, v) for q in panels for v in range(phase.vectors)]
    four = multiplies_four()

    def term(place: str) -> list[str]:
        lines = [f"a_{r} = load_splat(a{r}, {place}, {lanes})" for r in range(rows)]
        for q, v in columns:
            lines.append(f"b = load(w_{q}, ({place} + {INT8_ROWS}) * {size} + {v * lanes}, {lanes})")
            for r in range(rows):
                total = f"s{q}_{r}_{v}"
                lines.append(f"{total} = {'add_dot4' if four else 'add_signed_dot4'}({total}, a_{r}, b)")
        return lines

    first = "load(w_{q}, {at}, {lanes})" if four else "const_int32(0, {lanes})"
    lines = [f"a{r} = offset(state_words, idiv(own_octets + row{r} * row_size, {TOGETHER}))" for r in range(rows)]
    panel_size = f"(words + {INT8_ROWS}) * {size}"
    lines += [f"w_{q} = offset(w{number}, (lane * panels{number} + panel{q}) * {panel_size})" for q in panels]
    lines += [
        f"s{q}_{r}_{v} = {first.format(q=q, at=size + v * lanes, lanes=lanes)}" for q, v in columns for r in range(rows)
    ]
    lines += _terms("0", "depth_words", term)
    lines += [f"step{r} = load_splat(state_steps, own_steps + row{r}, {lanes})" for r in range(rows)]
    for q, v in columns:
        lines.append(f"scale = bits_float32(load(w_{q}, {v * lanes}, {lanes}))")
        lines += [f"s{q}_{r}_{v} = mul(mul(cast_float32(s{q}_{r}_{v}), scale), step{r})" for r in range(rows)]
    return lines
