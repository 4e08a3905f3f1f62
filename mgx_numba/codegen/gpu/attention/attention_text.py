"""Common code of attention kernel texts: online softmax on score fragments, masks, and the result.

A thread holds scores of two query rows, ``row0`` and ``row1``. Of each eight keys it holds columns ``2 * word`` and ``2
* word + 1``, as four lanes ``score0``, ``score1``, ...: the first row's two scores before the second row's. Value
accumulators have the same layout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....core.dim import (
    Dim,
    SharedLength,
    ceil_div,
    common_divisor,
    known_in,
    known_less_equal,
    less,
    less_equal,
    maximum,
    minimum,
    preferred,
)
from ....core.types import from_numpy, numpy_dtype
from ...arguments import Arguments
from ...launch import MOST_PLANES
from ...printer import CodeBuffer, VectorValue
from ...problems.attention import MASK_WORDS, AttentionProblem, MaskLayout, float64_bits
from ...problems.element_types import ITEMSIZE
from ..kernel import block_of_plane, plane_grid
from ..machine import machine
from ..printer import ThreadPrinter

LOG2_E = 1 / math.log(2)
LEAST_ADDED = -1e38
"""Lower clamp of finite mask values. Its product with `LOG2_E` is finite, so a row of such values still has a
maximum."""
MOST_SPLITS = 32
"""Most parts of the keys; each writes and reads its partial results once more. No figures kept."""
FULLER = 0.8
"""Most rounds of blocks that parts of the keys may take, relative to whole blocks, to be worth a second launch: 190
blocks on 132 multiprocessors take as long as 264, their halves three rounds of half the length. 144 blocks where 264
have room, 6 heads of 1500 of 64 features, take 22.8 us on an H200, and 17.6 in three parts on 132."""
FAR = 2.0**30
"""Scores (in units of log2(e)) beyond which float32 has no fractional bits: unequal scores differ by at least 64. From
2^32 on the rounding error of a product alone exceeds any exponent."""
EXPONENT = 0x7F800000
"""Exponent mask of a float32, as an int32."""


def declare_result(problem: AttentionProblem, arguments: Arguments) -> None:
    """Declare the result and the epilogue's operands."""
    arguments.pointer("p_out", "out", problem.out_dtype)
    for k, operand in enumerate(problem.epilogue.operands):
        arguments.pointer(f"p_e{k}", f"e{k}", operand.dtype)


def finished(problem: AttentionProblem, buffer: CodeBuffer, value: str, lanes: int) -> str:
    """Emit the epilogue of ``lanes`` float32 results; return the expression to store.

    Raises:
        UnsupportedError: no kernel exists for an operation of the epilogue.
    """
    epilogue = problem.epilogue
    if epilogue.body is None:
        return f"cast_{problem.dtype}({value})"
    printer = ThreadPrinter(buffer, lanes, epilogue.fast_math)
    extras = [printer.loaded(f"load_splat(p_e{k}, 0, {lanes})", o.dtype) for k, o in enumerate(epilogue.operands)]
    made = VectorValue(buffer.emit(value), from_numpy(numpy_dtype(problem.dtype)))
    return printer.stored(epilogue.body.evaluate(printer, [made, *extras]))


def masked(mask: MaskLayout, buffer: CodeBuffer, score: str, found: str) -> str:
    """Return the text of four scores, in units of log2(e), with the mask applied.

    A bool mask that replaces scores sets the scores that it does not keep to ``fill``; other masks are added.
    """
    if mask.dtype == "bool":
        return f"where({found}, {score}, {'splat(fill, 4)' if mask.replaces else 'const_float32(-INF, 4)'})"
    added = f"cast_float32({found})"
    if mask.dtype != "float16":
        least, none = (f"const_float32({number}, 4)" for number in (LEAST_ADDED, "-INF"))
        buffer.line(f"added = {added}")
        added = f"where(lt({none}, added), max(added, {least}), added)"
    return f"fma({added}, const_float32({LOG2_E!r}, 4), {score})"


def exact_bases(buffer: CodeBuffer) -> None:
    """Emit exact ``bases`` and ``scales`` for rows whose largest score exceeds `FAR`.

    Normally ``score * scale - base`` is rounded once but ``base`` is itself a rounded product; its rounding error would
    be an exponent here. With the scale rounded down to a power of two both products are exact, and every score but the
    largest has weight 0. ``unscaled`` is the largest score of the tile, ``largest`` its product with ``scale``; if
    another tile has a larger one, this tile's weights are 0, too.
    """
    buffer.line(
        f"far = gt(abs(bases), const_float32({FAR}, 4))",
        f"short = bits_float32(bitwise_and(bits_int32(scales), const_int32({EXPONENT}, 4)))",
        "near = where(eq(largest, bases), mul(unscaled, short), const_float32(INF, 4))",
        "bases = where(far, near, bases)",
        "scales = where(far, short, scales)",
    )


class AttentionText:
    """Kernel text of one problem.

    Attributes:
        keys: keys per tile.
        width: padded value features, a multiple of eight.
        splits: parts of the keys; ``in_parts``: whether the text supports several.
        sharers: warps per block that share the keys of the same rows; 0: all warps read each tile.
        finishes: elements of a result that are computed together; None: two, if the keys are not split.
        loads_mask_early: whether the mask is loaded before the scores are known.
        ordered_rows: queries from ``first_row`` on that a thread's warps compare with keys together.
        threads: threads per block.
        resident_blocks: resident blocks per multiprocessor to aim at.
        blocks: grid: query rows, heads, batches times parts.
        shared_bytes: dynamic shared memory per block.
    """

    keys: int
    width: int
    ordered_rows: int
    splits: SharedLength = 1
    in_parts = False
    sharers = 0
    finishes: int | None = None
    loads_mask_early = False
    threads: int
    resident_blocks = 1
    blocks: tuple[SharedLength, SharedLength, SharedLength]
    shared_bytes: int

    def __init__(self, problem: AttentionProblem, pairs: bool) -> None:
        """Prepare the text.

        Args:
            pairs: whether the result is aligned to two elements.
        """
        self.problem = problem
        self.pairs = pairs and all(common_divisor(s) % 2 == 0 for s in problem.out_strides[:3])
        self.arguments = Arguments()

    @property
    def ordered(self) -> bool:
        """Return whether a later query of a block sees more keys."""
        return self.problem.causal and not self.problem.one_position

    @property
    def windowed(self) -> bool:
        """Return whether the first key that a query sees differs between the queries of a block."""
        return self.problem.window > 0 and not self.problem.one_position

    @property
    def scaled(self) -> bool:
        """Return whether the running maximum is taken before scaling; scaling then fuses with the subtraction of the
        maximum."""
        return self.problem.mask is None and self.problem.scale > 0

    @property
    def exact(self) -> bool:
        """Return whether `exact_bases` is needed; float16 reaches `FAR` only with 5,000 features."""
        return self.scaled and self.problem.dtype != "float16"

    def _split(self, blocks: SharedLength, wanted: int, most: SharedLength) -> SharedLength:
        """Split the keys for about ``wanted`` blocks of ``blocks``, in at most ``most`` parts; return the keys of a
        part."""
        tiles = ceil_div(self.problem.keys, self.keys)
        parts = maximum(1, minimum(wanted // blocks, most, MOST_SPLITS))
        if isinstance(blocks, int) and isinstance(tiles, int) and 2 * blocks > wanted and not self.problem.causal:
            rounds = {n: -(-blocks * n // wanted) / n for n in (1, 2, 3) if n == 1 or n <= most}
            best = min(rounds, key=lambda n: rounds[n])
            parts = best if rounds[best] <= FULLER * rounds[1] else 1
        part = ceil_div(tiles, parts)
        splits = ceil_div(tiles, part)
        self.in_parts = preferred(less(1, splits))  # of an open number of parts: either is right for one
        self.splits, part = (splits, part) if self.in_parts else (1, tiles)
        return part * self.keys

    def _spread(self, down: SharedLength) -> None:
        """Set `blocks` to ``down`` per head, batch and part of the keys. Declare how a block finds its ``head``, its
        batch and part, and its index among ``down``."""
        heads, lines = self.problem.heads, self.problem.batch * self.splits
        if self._longest_first(down, lines):
            self.blocks = (heads, lines, down)
            self.block, self._line, self._located = "block_index(2)", "block_index(1)", ["head = block_index(0)"]
            return
        if all(known_less_equal(n, MOST_PLANES) for n in (heads, lines)):
            self.blocks = (down, heads, lines)
            self.block, self._line, self._located = "block_index(0)", "block_index(2)", ["head = block_index(1)"]
            return
        self.blocks = plane_grid(down, heads * lines, self.threads).blocks
        self.block, places = block_of_plane(self.arguments, down, heads * lines)
        self._line, self._located = "line", [*places, "line = idiv(plane, heads)", "head = plane - line * heads"]

    def _longest_first(self, down: SharedLength, lines: SharedLength) -> bool:
        """Return whether the blocks with the most visible keys of all heads come first, then all next ones.

        With head after head, a long block is left for the end: 14 heads of 2340 of 128 features took 103 us on an H200
        in 266 blocks, cuDNN 61. All heads' keys and values are then in use at once, and have to stay in L2.
        """
        problem = self.problem
        if not problem.causal or not all(known_less_equal(n, MOST_PLANES) for n in (lines, down)):
            return False
        features = (problem.depth + problem.width) * ITEMSIZE[problem.dtype]
        used = problem.batch * problem.kv_heads * problem.keys * features
        return preferred(less_equal(used, machine().l2_bytes // 2))

    def _declare(self, part: SharedLength) -> None:
        """Declare the arguments of all attention kernels beside queries, keys and values."""
        problem, arguments = self.problem, self.arguments
        declare_result(problem, arguments)
        for axis, stride in zip("bhs", problem.out_strides):
            arguments.integer(f"out_{axis}", stride)
        arguments.integers(
            queries=problem.queries, keys=problem.keys, depth=problem.depth, width=problem.width,
            group=problem.group, part=part, batches=problem.batch, heads=problem.heads, scale_bits=problem.scale_bits,
        )  # fmt: skip
        if problem.limited:
            arguments.pointer("p_limits", "limits", "int64")
            if problem.window:
                arguments.integer("window", problem.window)
        else:
            arguments.integer("first_seen", problem.first_seen)
        if problem.mask is not None:
            arguments.pointer("p_mask", "mask", "int32" if problem.mask.bits else problem.mask.dtype)
            period = problem.mask.period
            arguments.integer("period", problem.batch if period is None else period)
            if problem.mask.replaces:
                arguments.integer("fill_bits", float64_bits(max(problem.mask.fill, LEAST_ADDED) * LOG2_E))
            for axis, stride in zip("bhst", problem.mask.strides):
                arguments.integer(f"mask_{axis}", stride)
        if self.in_parts:
            arguments.pointer("p_scratch", "scratch", "float32")
        if isinstance(self.splits, Dim):
            arguments.integer("splits", self.splits)

    def _begin(self, buffer: CodeBuffer) -> None:
        """Emit the arguments, the block's batch, head and part, and its range of keys."""
        buffer.line(
            *self.arguments.bind(),
            "thread = thread_index(0)",
            "warp = idiv(thread, 32)",
            "lane = thread - warp * 32",
            "row_in = idiv(lane, 4)",
            "word = lane - row_in * 4",
            *self._located,
            f"split = idiv({self._line}, batches)",
            f"batch = {self._line} - split * batches",
            "shared_head = idiv(head, group)",
            f"scale = cast_float32(mul(bits_float64(scale_bits), {LOG2_E!r}))",
            "begin = split * part",
            "end = imin(keys, begin + part)",
        )
        if self.problem.limited:
            buffer.line("first_seen = load_scalar(p_limits, batch * 2)")
            buffer.line("valid = load_scalar(p_limits, batch * 2 + 1)", "end = imin(end, valid)")
        if self.problem.mask is not None and self.problem.mask.replaces:
            buffer.line("fill = cast_float32(bits_float64(fill_bits))")
        lanes = self.finishes or (0 if self.in_parts else 2)
        for k, _ in enumerate(self.problem.epilogue.operands if lanes else ()):
            buffer.emit(
                f"load_splat(p_e{k}, 0, {lanes})"
            )  # `finished` finds it: at the end nothing would hide the wait

    def _limit_keys(self, buffer: CodeBuffer, first_row: str, rows: int) -> None:
        """Emit the range of keys that some of a block's ``rows`` queries see, of which the first is ``first_row``."""
        alone = self.problem.one_position
        if self.problem.causal:
            buffer.line(f"end = imin(end, {1 if alone else f'{first_row} + {rows}'} + first_seen)")
        if self.problem.window:
            buffer.line(f"begin = imax(begin, first_seen - window + {1 if alone else f'{first_row} + 1'})")

    def _begin_sums(self, buffer: CodeBuffer) -> None:
        """Emit the initial maximum and sum of weights of each row, and the addresses of its mask."""
        for name, value in (("top0", "-INF"), ("top1", "-INF"), ("sum0", "0"), ("sum1", "0")):
            buffer.line(f"{name} = const_float32({value}, 0)")
        self._mask_rows(buffer)

    def _mask_rows(self, buffer: CodeBuffer) -> None:
        if self.problem.mask is not None:
            base = "(batch - idiv32(batch, period) * period) * mask_b + head * mask_h"  # 64 bits would call a function
            for r in (0, 1):
                buffer.line(f"mask{r} = offset(p_mask, {base} + imin(row{r}, queries - 1) * mask_s)")

    def _weights(self, buffer: CodeBuffer) -> None:
        """Emit the weights from the scores (in units of log2(e)), and ``kept0`` and ``kept1``, the factors of earlier
        accumulators."""
        if not self.scaled:
            for j in range(self.keys // 8):
                buffer.line(f"score{j} = mul(score{j}, scale)")
        if self.problem.mask is not None:
            if not self.loads_mask_early:
                self._load_mask(buffer)
            self._mask(buffer)
        limits = [f"(start + {self.keys} > end)"]
        if self.ordered:
            limits.append(f"(start + {self.keys} > first_row + first_seen + 1)")
        if self.windowed:
            limits.append(f"(start <= first_row + {self.ordered_rows - 1} + first_seen - window)")
        with buffer.block(f"if {' | '.join(limits)}:"):
            self._hide(buffer)
        self._tops(buffer)
        self._exponentials(buffer)

    def _tops(self, buffer: CodeBuffer) -> None:
        """Emit the running maxima ``top0`` and ``top1``, the bases ``base0`` and ``base1`` to subtract (0 for rows
        without a visible key so far), and ``kept0`` and ``kept1``."""
        buffer.line("peak = max(score0, score1)")
        for j in range(2, self.keys // 8):
            buffer.line(f"peak = max(peak, score{j})")
        for r in (0, 1):
            buffer.line(f"high = max(extract(peak, {2 * r}), extract(peak, {2 * r + 1}))")
            for mask in (1, 2):
                buffer.line(f"high = max(high, shuffle_xor(high, {mask}))")
            if self.exact:
                buffer.line(f"unscaled{r} = high")
            if self.scaled:
                buffer.line("high = mul(high, scale)")
            if self.exact:
                buffer.line(f"largest{r} = high")
            buffer.line(f"high = max(high, top{r})")
            buffer.line(f"base{r} = where(high == -INF, const_float32(0, 0), high)")
            buffer.line(f"kept{r} = exp2_quick(sub(top{r}, base{r}))")
            buffer.line(f"top{r} = high")

    def _exponentials(self, buffer: CodeBuffer) -> None:
        """Emit the exponentials in place of the scores, and add them to ``sum0`` and ``sum1``."""
        scaled = self.scaled
        buffer.line("bases = join4(splat(base0, 1), splat(base0, 1), splat(base1, 1), splat(base1, 1))")
        buffer.line("total = const_float32(0, 4)")
        if scaled:
            buffer.line("scales = splat(scale, 4)")
        if self.exact:  # without a branch, across which ptxas schedules nothing: bfloat16 took 30 us, float16 23
            for name in ("unscaled", "largest"):
                rows = ", ".join(f"splat({name}{r}, 1)" for r in (0, 0, 1, 1))
                buffer.line(f"{name} = join4({rows})")
            exact_bases(buffer)
        if scaled:
            buffer.line("bases = neg(bases)")
        for j in range(self.keys // 8):
            relative = f"fma(score{j}, scales, bases)" if scaled else f"sub(score{j}, bases)"
            buffer.line(f"score{j} = exp2_quick({relative})")
            buffer.line(f"total = add(total, score{j})")
        for r in (0, 1):
            own = f"add(extract(total, {2 * r}), extract(total, {2 * r + 1}))"
            buffer.line(f"sum{r} = fma(sum{r}, kept{r}, {own})")

    def _load_mask(self, buffer: CodeBuffer) -> None:
        """Emit the loads of the mask of a tile's scores.

        Eight keys inside the mask are loaded from one address: with an address for each key registers spill (T5's
        attention, 4 x 12 heads of 256, took 29 us on an H200).
        """
        mask = self.problem.mask
        if mask is None:
            return
        if mask.bits:
            self._load_mask_bits(buffer, mask)
            return
        step = "" if known_in(mask.strides[3], 1) else " * mask_t"
        rows = self._mask_row_numbers(mask)
        buffer.line("near = start + word * 2", *(f"near{r} = offset(mask{r}, near{step})" for r in rows))
        for j in range(self.keys // 8):
            inside: list[str] = []
            beside: list[str] = []
            for k in (0,) if mask.pairs else (0, 1):
                beside.append(f"key = imin(near + {8 * j + k}, keys - {1 + mask.pairs})")
                for r in rows:
                    places = f"near{r}, {8 * j + k}{step}", f"mask{r}, key{step}"
                    for lines, place in zip((inside, beside), places):
                        load = f"load_aligned({place}, 2)" if mask.pairs else f"load_scalar({place})"
                        lines.append(f"found{r}_{j}_{k} = {load}")
            with buffer.block(f"if start + {8 * j + 8} <= keys:"):
                buffer.line(*inside)
            with buffer.block("else:"):
                buffer.line(*beside)

    def _load_mask_bits(self, buffer: CodeBuffer, mask: MaskLayout) -> None:
        """Emit the loads of the words of a tile's keys, shifted so that the bits of the thread's keys are at the same
        places in all threads."""
        count = self.keys // 32
        buffer.line("near = idiv(start, 32)", "turn = splat(cast_int32(word * 2), 4)")
        for r in self._mask_row_numbers(mask):
            if count == MASK_WORDS:
                buffer.line(f"words{r} = load_aligned(mask{r}, near, {MASK_WORDS})")
            else:
                own = [f"load(mask{r}, near + {i}, 1)" for i in range(count)]
                own += [own[-1]] * (MASK_WORDS - count)
                buffer.line(f"words{r} = join4({', '.join(own)})")
            buffer.line(f"found{r} = shift_right(words{r}, turn)")

    def _mask_row_numbers(self, mask: MaskLayout) -> tuple[int, ...]:
        """Return which of a thread's rows have a mask of their own."""
        return (0,) if known_in(mask.strides[2], 0) else (0, 1)

    def _mask(self, buffer: CodeBuffer) -> None:
        """Emit the application of the mask: a bool mask sets scores to -infinity, other masks are added."""
        mask = self.problem.mask
        assert mask is not None
        rows = self._mask_row_numbers(mask)
        if mask.bits:
            self._mask_by_bits(buffer, mask, rows)
            return
        for j in range(self.keys // 8):
            found = []
            for r in (0, 1):
                own = f"found{r if r in rows else 0}_{j}"
                found += [f"extract({own}_0, {k})" if mask.pairs else f"{own}_{k}" for k in (0, 1)]
            lanes = ", ".join(f"splat({value}, 1)" for value in found)
            buffer.line(f"score{j} = {masked(mask, buffer, f'score{j}', f'join4({lanes})')}")

    def _mask_by_bits(self, buffer: CodeBuffer, mask: MaskLayout, rows: Sequence[int]) -> None:
        """Emit the application of a mask in bits."""
        buffer.line("odd = bitwise_and(iota_int32(4), const_int32(1, 4))")
        for j in range(self.keys // 8):
            if j % 4 == 0:
                own = [f"splat(extract(found{r if r in rows else 0}, {j // 4}), 1)" for r in (0, 0, 1, 1)]
                buffer.line(f"kept = join4({', '.join(own)})")
            bits = f"shift_left(const_int32(1, 4), add(odd, const_int32({8 * (j % 4)}, 4)))"
            found = f"ne(bitwise_and(kept, {bits}), const_int32(0, 4))"
            buffer.line(f"score{j} = {masked(mask, buffer, f'score{j}', found)}")

    def _hide(self, buffer: CodeBuffer) -> None:
        """Emit the masking of keys beyond the end, of later keys and of those before a window."""
        for r in (0, 1):
            last = f"imin(end, row{r} + first_seen + 1)" if self.ordered else "end"
            buffer.line(f"seen{r} = cast_int32({last} - start - word * 2)")
            if self.windowed:
                buffer.line(f"left{r} = cast_int32(row{r} + first_seen - window - start - word * 2)")
        for name in ("seen", "left")[: 1 + self.windowed]:
            buffer.line(f"{name} = join4(splat({name}0, 1), splat({name}0, 1), splat({name}1, 1), splat({name}1, 1))")
        buffer.line("odd = bitwise_and(iota_int32(4), const_int32(1, 4))")
        for j in range(self.keys // 8):
            buffer.line(f"column = add(odd, const_int32({8 * j}, 4))", "inside = lt(column, seen)")
            if self.windowed:
                buffer.line("inside = logical_and(inside, lt(left, column))")
            buffer.line(f"score{j} = where(inside, score{j}, const_float32(-INF, 4))")

    def _finish(self, buffer: CodeBuffer) -> None:
        """Emit the division by the sums of weights and the stores; for a part of the keys, unnormalised partial
        results."""
        self._add_sums(buffer)
        for r in (0, 1):
            with buffer.block(f"if row{r} < queries:"):
                if self.in_parts:
                    self._keep(buffer, r)
                else:
                    self._store(buffer, r)

    def _add_sums(self, buffer: CodeBuffer) -> None:
        """Emit the sums of weights over the threads of a row."""
        for r in (0, 1):
            for mask in (1, 2):
                buffer.line(f"sum{r} = add(sum{r}, shuffle_xor(sum{r}, {mask}))")

    def _store(self, buffer: CodeBuffer, r: int) -> None:
        """Emit the store of a row's results.

        The reciprocal is one instruction: exact division calls a function for rare operands, and where the driver
        links kernels, ptxas makes warpgroup MMAs of a kernel with calls wait for one another. 4 x 16 heads of 2048
        queries and keys of 128 features took 314 us on an H200.
        """
        problem = self.problem
        empty = "" if problem.nan_rows else f"where(sum{r} == 0, const_float32(0, 0), "
        buffer.line(f"inverse = {empty}reciprocal_quick(sum{r}){')' * bool(empty)}")
        buffer.line(f"to = offset(p_out, batch * out_b + head * out_h + row{r} * out_s)")
        part = ("low2", "high2")[r]
        for j in range(self.width // 8):
            if 8 * j < problem.width:
                value = finished(problem, buffer, f"mul({part}(acc{j}), inverse)", 2)
                buffer.line(f"store{'_aligned' * self.pairs}(to, {8 * j} + word * 2, {value})")

    @property
    def _splits(self) -> str:
        """Return the text of the number of parts."""
        return "splits" if isinstance(self.splits, Dim) else str(self.splits)

    def _keep(self, buffer: CodeBuffer, r: int) -> None:
        """Emit the store of a row's partial results in scratch memory."""
        line = buffer.emit(f"((split * batches + batch) * heads + head) * queries + row{r}")
        beside = f"{self._splits} * batches * heads * queries * width + {line} * 2"
        self._store_part(buffer, r, "p_scratch", f"{line} * width", beside)

    def _store_part(self, buffer: CodeBuffer, r: int, to: str, at: str, beside: str) -> None:
        """Emit the store of a row's accumulators at an index of ``to``, and of its base and its sum of weights at
        another."""
        part = ("low2", "high2")[r]
        for j in range(self.width // 8):
            if 8 * j < self.problem.width:
                buffer.line(f"store_aligned({to}, {at} + {8 * j} + word * 2, {part}(acc{j}))")
        with buffer.block("if word == 0:"):
            buffer.line(f"store_aligned({to}, {beside}, join2(splat(top{r}, 1), splat(sum{r}, 1)))")
