"""Products of a few rows with block-quantised weights, bound by the bandwidth of the weights.

Under ``fast_math`` a separate launch quantises each block of a left-hand row to 16-bit integers with their own scale,
stored as high bytes and low bytes. Products with a block's codes are then exact sums of byte products. The error is at
most half a step of the block's largest element, 2**-16 of it. Where `BlockFormat.int8_rows` allows, rows have 8 bits:
2**-8 of the largest element.

Otherwise codes are converted to float32. So are rows with infinities, NaN, or numbers too large or small for a scale.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ....core.dim import Dim, SharedLength
from ...arguments import Arguments
from ...launch import Launch, Solution, TaskRange
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import NOT_COMPUTED, Epilogue
from ...problems.gemm import BlockFormat, GemmProblem
from ...statements import indent, kernel_text
from .. import host
from ..kernel import cpu_kernel
from ..machine import machine
from ..microkernels.tile_table import tile_for
from .block_quant import (
    LANES_TOGETHER,
    BlockSolver,
    block_words,
    codes_place,
    head_words,
    offset_of,
    packed_lens,
    points_of,
    scale_of,
    unit_of,
    unpacked_bytes,
    weight_of,
)
from .blocking import Blocking
from .epilogue_rows import Rows, kernel_name
from .gemv import CLAIM_BYTES, best_streams, finished_rows, task_grain
from .pack_kernel import Batched, collapse
from .quantised_rows import (
    QuantisedRows,
    bytes_each,
    multiplies_integers,
    multiplies_quads,
    needs_sums,
)
from .solver import Setting

MOST_ROWS = 16
"""Most rows for which weights, not arithmetic, bound a product."""
OPEN_ROWS = 4
"""Rows that a kernel for any number of rows multiplies at once: a decoder's batch. More rows re-read the weights from a
near cache.

With 6 rows a step of two panels needs more than 32 registers: prompts of a Llama of 1B take 1.13 times as long in Q4_0,
SmolLM2's 1.01 times in Q4_1 (Zen 4, one thread). 5 rows take as long as 6 there; on Zen 5 4, 6 and 8 rows take equally
long (Q4_0, 192 rows of 2048 and 8192).
"""
ROWS_TOGETHER = 8
"""Rows whose accumulators of high and low bytes fit the registers beside the weights; more rows re-read the weights."""
CHAINS = 24
"""Accumulator vectors that fit the registers beside their operands."""
STREAMS = {4: 0.97, 2: 1.0, 1: 1.05}
"""Relative read times by number of streams, as for `GemvPacked`."""
STREAMS_AHEAD = {2: 1.0, 1: 1.05}
"""Relative read times by number of streams, for prefetched weights.

On Zen 5, one thread while others used caches and memory, two streams take 0.86 to 0.98 of the time of four, three 0.9
to 1.0, one 0.8 to 1.1. In the last-level cache two take as long as four.
"""
STREAMS_IN_CACHE = {3: 1.0, 2: 1.04, 1: 1.08}
"""Relative read times by number of streams, for weights prefetched `NEAR_BYTES` ahead. The value of two is from 11008
columns (Zen 5, two threads); the value of one was not measured."""
UNROLL = 4
"""Vectors of words in the unrolled innermost loop: 8 products of a 4-bit code by a byte, added in pairs, stay below
2**15."""
ROLLED_SUMS = 4
"""Most accumulators of a panel for which prefetched words are read by a rolled loop of one cache line an iteration.

The hardware prefetcher extrapolates from each load instruction, further ahead the more load instructions there are,
beside the software prefetches. Relative to the rolled loop, loads of 4 vectors take 1.04 to 1.2 times as long for 23 to
25 MB with one or two accumulators. With 4 accumulators they take as long, with 8 they take 0.87 of the time (Zen 5, one
thread, the cache shared with other load).

Loads of 8 or 16 vectors take up to twice as long without software prefetch. Where upper codes have accumulators of
their own, the rolled loop takes 1.03 to 1.1 times as long. With two threads it takes 0.82 to 0.92 of the time on a
quiet machine, 0.95 to 1.11 in one of three runs.
"""
AHEAD_BYTES = 16 << 10
"""Prefetch distance (bytes, all streams together) for weights that the last-level cache may not hold.

The few accumulator vectors in flight would otherwise stall on misses. Measured on Zen 5, two streams, one thread, the
cache shared with other load:

- 6 KiB a stream take 0.75 to 1.0 of the time without prefetch for 23 MB, 0.97 to 1.1 for 57 to 76 MB.
- 3 and 4.5 KiB take up to 1.25 times as long as 6.
- In the rolled loop, 8 KiB take 0.88 to 0.95 of the time of 6; 7 are as good as 8; 10 take up to 1.15 times as long.
- In the last-level cache prefetching costs 4 to 8% for 9 to 13 MB.
- One thread on a quiet machine loses a quarter for 17 to 21 MB, more than 4 KiB pages in the TLB.
- Prefetching into L2 costs 30% for 9 MB in that cache, and 10% for weights from memory.
"""
NEAR_BYTES = 12 << 10
"""Prefetch distance (bytes) for weights that the last-level cache may hold in part, at most `NEAR_SHARE` a thread, in
loops that are not rolled.

With three streams that takes, relative to `AHEAD_BYTES` with two, 0.93 and 0.92 of the time for 25 and 23 MB of 11008
columns in blocks of 32 and 128. For 4096 columns it takes 1.02 and 0.98. 16 KiB take 0.95, 0.93, 1.02 and 1.0; 24 KiB
take longer than with two streams (Zen 5, two threads, quiet machine).
"""
NEAR_SHARE = 16 << 20
"""Most bytes of a thread's part of such weights.

Two threads of 12 MB each gain as `NEAR_BYTES` says; one thread that reads 25 MB takes 1.1 to 1.2 times as long (Zen 5).
Sizes between were not measured, and the cause is unknown.
"""
CLAIM_BYTES_AHEAD = 64 << 10
"""`gemv.CLAIM_BYTES` for prefetched weights: 3 or 4 groups of three panels of 11008 rows at a time take 0.97 to 0.99 of
the time of one group. 12 groups of 4096 rows take as long as 5 (Zen 5, two threads)."""
KEPT_SHARE = 0.5
"""Fraction of the last-level cache that weights may take and still be found there in the next run.

More weights come at least partly from memory where other layers or processes use the cache, too. Of 32 MB, 23 are read
faster with prefetch (Zen 5). If all constants of a program exceed the cache (`BlockFormat.from_memory`), all weights
are prefetched: successive products of 9 MB, 200 MB in all, take 0.93 of the time, one thread 0.86 (Zen 5).
"""
FLOAT_CYCLES = 1.5
"""Cycles to convert a vector of codes to float32: six instructions, four at a time."""


class GemvBlockQuant(BlockSolver):
    """Solver for up to `MOST_ROWS` rows, counted over the whole batch."""

    name = "gemv_nbits"
    revision = 2

    def declines(self, problem: GemmProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        rows = problem.batch_count * problem.m
        if isinstance(rows, Dim) and problem.batch:
            return "a symbolic number of rows is not that of one product"
        if isinstance(rows, Dim) and rows < 1:
            return "there are no rows"
        if rows > MOST_ROWS:
            return f"more than {MOST_ROWS} rows"
        return "the sum is empty" if problem.k == 0 else None

    def solve(self, problem: GemmProblem, setting: Setting) -> Solution:
        """Return the launches of the product.

        For a symbolic number of rows `OPEN_ROWS` rows are multiplied at once, or one if the example is one. Missing
        rows repeat the last row.
        """
        if isinstance(problem.m, Dim) and problem.m == 1:
            problem = dataclasses.replace(problem, m=1)
        return planned_product(problem, setting, OPEN_ROWS if isinstance(problem.m, Dim) else 0)

    def blockings(self, problem: GemmProblem, threads: int) -> list[Blocking]:
        """Return no alternatives: weights are read once, in memory order."""
        return []

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        form, tile = problem.blocks, tile_for(problem.types)
        assert form is not None
        vectors = math.prod(self.packed_lens(problem)) / tile.lanes * 32 / form.bits / LANES_TOGETHER
        rows = problem.batch_count * problem.m
        cycles = vectors * (
            rows * bytes_each(problem) / 2
            if multiplies_integers(problem)
            else LANES_TOGETHER * (FLOAT_CYCLES + 0.5 * rows)
        )
        moved = 4 * math.prod(self.packed_lens(problem))
        return max(cycles / machine().clock / max(threads, 1), moved / machine().bandwidth(threads))


def planned_product(problem: GemmProblem, setting: Setting, together: int) -> Solution:
    """Return the launches of a product of rows by packed blocks.

    Args:
        together: rows that are multiplied at once, in a loop over all rows; 0 for all rows.
    """
    epilogue, strides, threads, _ = setting
    left = QuantisedRows(problem, threads)
    flat = collapse(left.packed(), epilogue, strides, (0,) * len(problem.batch))
    launches = [_launch(problem, epilogue, *one, left, threads, together) for one in flat.pieces(0)]
    return Solution((left.launch(), *launches), left.bytes)


class _WeightReading(NamedTuple):
    """How weights are read: relative times by number of streams (`best_streams`), prefetch distance (bytes, all
    streams), and whether loops are rolled to one cache line an iteration."""

    streams: Mapping[int, float]
    ahead: int
    rolled: bool

    @staticmethod
    def of(form: BlockFormat, size: int, threads: int) -> _WeightReading:
        if not form.from_memory and size <= KEPT_SHARE * machine().last_cache_bytes:
            return _WeightReading(STREAMS, 0, False)
        if not form.from_memory and size <= min(machine().last_cache_bytes, NEAR_SHARE * threads):
            return _WeightReading(STREAMS_IN_CACHE, NEAR_BYTES, False)
        return _WeightReading(STREAMS_AHEAD, AHEAD_BYTES, True)


def _launch(
    problem: GemmProblem,
    epilogue: Epilogue,
    batched: Batched,
    offsets: dict[str, SharedLength],
    left: QuantisedRows,
    threads: int,
    together: int,
) -> Launch:
    """Return the launch of the product of ``batched.m`` rows; a task is a group of panels."""
    most_rows = together or batched.m
    form, lanes = left.form, tile_for(problem.types).lanes
    words = packed_lens(problem)[1]
    panels = -(-problem.n // lanes)
    most = CHAINS // (min(most_rows, ROWS_TOGETHER) * (left.each if left.integers else 1))
    size = 4 * words * panels
    reads = _WeightReading.of(form, size, threads)
    streams = best_streams(reads.streams, most, panels, threads)
    groups = -(-panels // streams)
    arguments = Arguments()
    left.pointers(arguments, offsets["x"])
    arguments.pointer("w", "w", "int32")
    if form.half_scales:
        arguments.pointer("halves", "w", "float16")
    rows = Rows(epilogue, problem.dtype, lanes)
    bytes_at = {"out": ITEMSIZE[epilogue.out_dtype(problem.dtype)] * offsets["out"]}
    bytes_at |= {f"e{k}": ITEMSIZE[o.dtype] * offsets.get(f"e{k}", 0) for k, o in enumerate(epilogue.operands)}
    rows.pointers(arguments, bytes_at)
    arguments.integers(n=problem.n, panels=panels, panel_words=words, groups=groups)
    arguments.integers(first_words=head_words(form, problem.k, lanes), block_words=block_words(form))
    for name, values in batched.strides.items():
        if name not in ("x", "w"):
            arguments.integers(**{f"{name}_ld": values[-1]})
    ahead = reads.ahead // streams // host.CACHE_LINE * host.CACHE_LINE
    if left.integers:
        arguments.integers(flag_count=batched.m * left.shares)
    product = _Product(form, lanes, streams, most_rows, ahead, left.each, reads.rolled)
    sums, count = [], ""
    if together:
        arguments.integers(count=batched.m)
        product.numbers, count = [f"r{r}" for r in range(most_rows)], "count"
        sums = [f"r{r} = imin(row0 + {r}, count - 1)" for r in range(most_rows)]
    sums += product.text(left.integers)
    body = finished_rows(most_rows, epilogue, rows, streams * lanes, sums, streams, count)
    text = kernel_text([*arguments.bind(), *(product.look() if left.integers else ()), *body])
    points = "_points" * form.zero_points + "_offsets" * form.offsets + "_halves" * form.half_scales
    octets = "_int8" if left.integers and left.each == 1 else ""
    name = f"gemv_{form.bits}bits{points}{octets}{'_ahead' if ahead else ''}"
    kernel = cpu_kernel(kernel_name(name, epilogue), text)
    grain = task_grain(groups, size, threads, CLAIM_BYTES_AHEAD if ahead else CLAIM_BYTES)
    moved = size + batched.m * (4 * left.padded + ITEMSIZE[problem.dtype] * problem.n)
    flops = 2 * batched.m * problem.n * problem.k
    return Launch(kernel, arguments.values, TaskRange(groups, grain), flops, moved)


class _Product:
    """The text of a product of m rows by ``streams`` panels of weights.

    Attributes:
        numbers: expressions of the rows' numbers.
        ahead: prefetch distance in bytes.
        rolled: whether rows use the rolled loop where it is faster.
        halves: names of the bytes of the rows' integers: high and low, or low alone.
    """

    def __init__(
        self, form: BlockFormat, lanes: int, streams: int, m: int, ahead: int, each: int, rolled: bool
    ) -> None:
        self.form, self.lanes, self.streams, self.m, self.ahead, self.rolled = form, lanes, streams, m, ahead, rolled
        self.numbers = [str(r) for r in range(m)]
        self.halves = "hl"[-each:]
        self.depth = block_words(form)
        self.unit = unit_of(form)

    def look(self) -> list[str]:
        """Return statements that count in ``flags_set`` the shares of rows that are not quantised."""
        add = "    flags_set += cast_int64(load_scalar(flags, flag))"
        return ["flags_set = 0", "for flag in range(flag_count):", add]

    def text(self, integers: bool) -> list[str]:
        """Return statements that accumulate ``sums`` [row, column] of the group's panels; panels after the last one
        repeat it.

        A stream continues from the panel of one group to the adjacent panel, so that it does not restart with each
        group.
        """
        lines = []
        for q in range(self.streams):
            lines.append(f"at{q} = imin(group + {q} * groups, panels - 1) * panel_words")
            lines.append(f"w{q} = offset(w, at{q} + first_words)")
            lines.append(f"p{q} = offset(w, at{q})")
            if self.form.half_scales:
                lines.append(f"h{q} = offset(halves, 2 * (at{q} + first_words))")
        floats = self._sums(self._float_block, False)
        if not integers:
            return lines + floats
        exact = self._sums(self._integer_block, self.form.half_scales)
        return [*lines, "if flags_set == 0:", *indent(exact), "else:", *indent(floats)]

    def _factor(self, q: int) -> str:
        """Return the expression of the factors of the columns' float16 scales."""
        return f"bits_float32(load(p{q}, 0, {self.lanes}))"

    def _sums(self, block: Callable[[range], list[str]], factored: bool) -> list[str]:
        """Return statements that accumulate ``sums``.

        Args:
            block: returns the statements for a range of rows.
            factored: the accumulated values lack `_factor`.
        """
        lines = []
        for first in range(0, self.m, ROWS_TOGETHER):
            rows = range(first, min(first + ROWS_TOGETHER, self.m))
            cells = [(q, r) for q in range(self.streams) for r in rows]
            lines += [f"t{q}_{r} = const_float32(0, {self.lanes})" for q, r in cells]
            lines += ["for block in range(blocks):", f"    at = {codes_place(self.form, 'block', self.lanes)}"]
            if self.ahead:
                lines += [f"    prefetch(w{q}, at + {self.ahead // 4 - self.lanes})" for q in range(self.streams)]
            lines += indent(block(rows))
            for q, r in cells:
                total = f"mul(t{q}_{r}, {self._factor(q)})" if factored else f"t{q}_{r}"
                lines.append(f"store(sums, {(r * self.streams + q) * self.lanes}, {total})")
        return lines

    def _rolled(self, rows: range) -> bool:
        """Return whether ``rows`` rows use the rolled loop over integers."""
        few = len(rows) * len(self.halves) <= ROLLED_SUMS
        return self.rolled and multiplies_quads() and few and unit_of(self.form).words == 1

    def _units(self, body: Callable[[int], list[str]], rolled: bool) -> list[str]:
        """Return statements that run ``body`` for each unit of the block, whose vectors of words `_raw` of each panel
        names."""
        words, units = self.unit.words, self.depth // self.unit.words
        unroll = min(max(1, host.CACHE_LINE // (4 * self.lanes)) if rolled else max(1, UNROLL // words), units)
        lines = [f"for unit in range(0, {'block_words' if rolled else units}, {unroll}):"]
        lines += ["    keep_rolled()"] if rolled else []
        for u in range(unroll):
            for i in range(words):
                line = u * words + i
                lines.append(f"    here = at + (unit * {words} + {line}) * {self.lanes}")
                if self.ahead and not 4 * line * self.lanes % host.CACHE_LINE:
                    lines += [f"    prefetch(w{q}, here + {self.ahead // 4})" for q in range(self.streams)]
                lines += [f"    {self._raw(q)[i]} = load(w{q}, here, {self.lanes})" for q in range(self.streams)]
            lines += indent(body(u))
        return lines

    def _raw(self, q: int) -> list[str]:
        """Return the names of a unit's vectors of words of panel ``q``."""
        return [f"raw{q}_{i}" for i in range(self.unit.words)]

    def _integer_block(self, rows: range) -> list[str]:
        lanes, per, quads = self.lanes, self.unit.groups, multiplies_quads()
        last, groups = min(UNROLL, self.depth) - 1, self.form.size // LANES_TOGETHER
        apart, rolled = self._apart(rows), self._rolled(rows)

        def products(name: str, q: int, first: bool) -> str:
            if quads:
                return f"{name} = add_dot4({name}, b{q}, x)"
            return f"{name} = dot2(b{q}, x)" if first else f"{name} = add({name}, dot2(b{q}, x))"

        def body(u: int) -> list[str]:
            lines = []
            for part in range(per):
                lines.append(f"k = block * {len(self.halves) * groups} + (unit + {u}) * {per} + {part}")
                lines += [
                    f"b{q} = {unpacked_bytes(self.form, self._raw(q), lanes, apart)[part]}" for q in range(self.streams)
                ]
                for r in rows:
                    for half, name in enumerate(self.halves):
                        place = f"{self.numbers[r]} * parts_pitch + k + {half * groups}"
                        lines.append(f"x = load_splat(parts, {place}, {lanes})")
                        name = f"{name}u" if apart and part else name
                        lines += [products(f"{name}{q}_{r}", q, u == part == 0) for q in range(self.streams)]
            if u == last and not quads:
                for name in self.halves:
                    lines += [f"v{c} = add_pairs(v{c}, {name}{c}, {256 if name == 'h' else 1})" for c in cells]
            return lines

        cells = [f"{q}_{r}" for q in range(self.streams) for r in rows]
        names = [*self.halves, *(f"{half}u" for half in self.halves if apart)] if quads else ["v"]
        points = self.form.zero_points
        lines = [f"total{r} = load_splat(totals, {self.numbers[r]} * blocks + block, {lanes})" for r in rows]
        for name in names:
            from_total = not needs_sums(self.form) and name in ("l", "v")
            for r in rows:
                start = f"total{r}" if from_total else f"const_int32(0, {lanes})"
                lines += [f"{name}{q}_{r} = {start}" for q in range(self.streams)]
        lines += self._units(body, rolled)
        lines += [f"step{r} = load_splat(steps, {self.numbers[r]} * blocks + block, {lanes})" for r in rows]
        for q in range(self.streams):
            lines.append(f"scale = {scale_of(self.form, f'w{q}', f'h{q}', 'block', lanes)}")
            if points:
                lines.append(f"point = neg({points_of(self.form, f'p{q}', 'block', 'float32', lanes)})")
            if self.form.offsets:
                lines.append(f"shift = {offset_of(self.form, f'w{q}', f'h{q}', 'block', lanes)}")
            for r in rows:
                parts = {half: f"{half}{q}_{r}" for half in (self.halves if quads else "v")}
                if apart:
                    parts = {half: f"add({half}{q}_{r}, shift_right({half}u{q}_{r}, 4))" for half in parts}
                *above, whole = parts.values()
                if above:
                    whole = f"add(shift_left({above[0]}, 8), {whole})"
                value = f"fma(point, total{r}, cast_float32({whole}))" if points else f"cast_float32({whole})"
                lines.append(f"value = {value}")
                scaled = f"fma(value, scale, mul(shift, total{r}))" if self.form.offsets else "mul(value, scale)"
                lines.append(f"t{q}_{r} = fma({scaled}, step{r}, t{q}_{r})")
        return lines

    def _apart(self, rows: range) -> bool:
        """Return whether upper codes of bytes are multiplied in place, 16 times too large, into accumulators of their
        own.

        That saves a shift of each word and costs three instructions for each accumulator. Weights in L2 take 0.85 of
        the time in blocks of 128, as long in blocks of 32, and 1.05 times as long there with two-byte integers (Zen 5).
        Vectors of 256 bits may have half the registers. Sums of half of a block's codes, 16 times too large, must fit
        32 bits.
        """
        sums = len(rows) * len(self.halves)
        pays = 3 * sums < self.depth and 2 * self.streams * sums <= CHAINS
        fits = self.form.size // 2 * 0xF0 * 128 < 1 << 31
        wanted = fits and pays and not self._rolled(rows)
        return wanted and self.form.bits == 4 and multiplies_quads() and host.host().vector_bits == 512

    def _float_block(self, rows: range) -> list[str]:
        lanes, form, half = self.lanes, self.form, self.form.half_scales
        per = LANES_TOGETHER * self.unit.groups

        def body(u: int) -> list[str]:
            lines = [f"k = block * {form.size} + (unit + {u}) * {per}"]
            for j in range(per):
                for q in range(self.streams):
                    weight = weight_of(form, self._raw(q), j, f"point{q}", f"scale{q}", f"shift{q}")
                    lines.append(f"b{q} = {weight}")
                for r in rows:
                    lines.append(f"x = load_splat(floats, {self.numbers[r]} * pitch + k + {j}, {lanes})")
                    lines += [f"t{q}_{r} = fma(x, b{q}, t{q}_{r})" for q in range(self.streams)]
            return lines

        lines = [f"scale{q} = {scale_of(form, f'w{q}', f'h{q}', 'block', lanes)}" for q in range(self.streams)]
        if form.offsets:
            lines += [f"shift{q} = {offset_of(form, f'w{q}', f'h{q}', 'block', lanes)}" for q in range(self.streams)]
        for name in ("scale", "shift")[: half * (1 + form.offsets)]:
            lines += [f"{name}{q} = mul({name}{q}, {self._factor(q)})" for q in range(self.streams)]
        if not form.offsets:
            lines += [f"point{q} = {points_of(form, f'p{q}', 'block', 'int32', lanes)}" for q in range(self.streams)]
        return lines + self._units(body, rolled=False)
