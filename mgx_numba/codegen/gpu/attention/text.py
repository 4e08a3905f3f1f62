"""What the texts of attention kernels have in common: scores in registers become weights, and sums the result.

A thread has of two rows of queries, ``row0`` and ``row1``, of each eight keys two: columns 2 ``word`` and the next, in
four lanes ``score0``, ``score1``, ..., those of the first row before those of the second. Its sums of values lie alike.
"""

from __future__ import annotations

import math

from ....core.dim import Dim, SharedLength, common_divisor, known_in, known_less_equal
from ....core.types import from_numpy, numpy_dtype
from ...arguments import Arguments
from ...launch import MOST_PLANES
from ...printer import CodeBuffer, VectorValue
from ...problems.attention import AttentionProblem, MaskLayout, float64_bits
from ..kernel import block_of_plane, plane_grid
from ..printer import ThreadPrinter

__all__ = ["LOG2_E", "AttentionText", "declare_result", "exact_bases", "finished", "masked"]

LOG2_E = 1 / math.log(2)
LEAST_ADDED = -1e38
"""Finite numbers of masks that are less count as this one, whose product with `LOG2_E` is finite: rows of nothing else
then have a maximum."""
FAR = 2.0**30
"""Units of log2(e) beyond which scores have no fractions left: any two are 64 apart, if not equal. From 2^32 on the
rounding of a product alone is beyond any exponent."""
EXPONENT = 0x7F800000
"""The bits of a float32 that are the power of two below it."""


def declare_result(problem: AttentionProblem, arguments: Arguments) -> None:
    """Declare the result and what the epilogue reads."""
    arguments.pointer("p_out", "out", problem.out_dtype)
    for k, operand in enumerate(problem.epilogue.operands):
        arguments.pointer(f"p_e{k}", f"e{k}", operand.dtype)


def finished(problem: AttentionProblem, buffer: CodeBuffer, value: str, lanes: int) -> str:
    """Emit the epilogue of a result, ``lanes`` of float32; gives what is stored.

    Raises:
        UnsupportedError: an operation of it has no kernel.
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
    """Emit other ``bases`` and ``scales`` for rows whose largest score is `FAR` from zero.

    A score times ``scale`` less its base is rounded once, a base is a rounded product: what the rounding took would be
    an exponent there. With a power of two as the scale both products are exact, and what is not the largest score still
    has no weight. ``unscaled`` are the largest scores of a tile, ``largest`` these times ``scale``: where another
    tile's is larger, this tile's have no weight either.
    """
    buffer.line(
        f"far = gt(abs(bases), const_float32({FAR}, 4))",
        f"short = bits_float32(bitwise_and(bits_int32(scales), const_int32({EXPONENT}, 4)))",
        "near = where(eq(largest, bases), mul(unscaled, short), const_float32(INF, 4))",
        "bases = where(far, near, bases)",
        "scales = where(far, short, scales)",
    )


class AttentionText:
    """The text of one problem.

    Attributes:
        keys: of a tile.
        width: features of values that a thread has sums of, in whole pieces of eight.
        splits: parts of the keys, and whether the text is for several, ``in_parts``.
        threads: of a block.
        together: blocks that shall share a multiprocessor.
        blocks: of the launch: rows, heads, and batches of each part.
        shared_bytes: memory that the launch gives each block.
    """

    keys: int
    width: int
    splits: SharedLength = 1
    in_parts = False
    threads: int
    together = 1
    blocks: tuple[SharedLength, SharedLength, SharedLength]
    shared_bytes: int

    def __init__(self, problem: AttentionProblem, pairs: bool) -> None:
        """``pairs``: the result begins at a multiple of two elements."""
        self.problem = problem
        self.pairs = pairs and all(common_divisor(s) % 2 == 0 for s in problem.out_strides[:3])
        self.arguments = Arguments()

    @property
    def scaled(self) -> bool:
        """Whether the largest score is the same before it is scaled: then a score is scaled as its base is taken."""
        return self.problem.mask is None and self.problem.scale > 0

    @property
    def exact(self) -> bool:
        """Whether that needs `exact_bases`: numbers of float16 have products beyond `FAR` only from 5,000 on."""
        return self.scaled and self.problem.dtype != "float16"

    def _spread(self, down: SharedLength) -> None:
        """Set `blocks` to ``down`` for each head of each batch and part of the keys, and declare how a block finds its
        ``head``, its line of them and, in `block`, its number among ``down``."""
        heads, lines = self.problem.heads, self.problem.batch * self.splits
        if all(known_less_equal(n, MOST_PLANES) for n in (heads, lines)):
            self.blocks = (down, heads, lines)
            self.block, self._line, self._located = "block_index(0)", "block_index(2)", ["head = block_index(1)"]
            return
        self.blocks = plane_grid(down, heads * lines, self.threads).blocks
        self.block, places = block_of_plane(self.arguments, down, heads * lines)
        self._line, self._located = "line", [*places, "line = idiv(plane, heads)", "head = plane - line * heads"]

    def _declare(self, part: SharedLength) -> None:
        """Declare what all kernels are launched with besides queries, keys and values."""
        problem, arguments = self.problem, self.arguments
        declare_result(problem, arguments)
        for axis, stride in zip("bhs", problem.out_strides):
            arguments.integer(f"out_{axis}", stride)
        arguments.integers(
            queries=problem.queries, keys=problem.keys, depth=problem.depth, width=problem.width,
            group=problem.group, part=part, batches=problem.batch, heads=problem.heads,
            first_seen=problem.first_seen, scale_bits=problem.scale_bits,
        )  # fmt: skip
        if problem.mask is not None:
            arguments.pointer("p_mask", "mask", problem.mask.dtype)
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
        """Emit the arguments, where a block's problem is, and the keys that it looks at."""
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
        if self.problem.mask is not None and self.problem.mask.replaces:
            buffer.line("fill = cast_float32(bits_float64(fill_bits))")
        for k, _ in enumerate(() if self.in_parts else self.problem.epilogue.operands):
            buffer.emit(f"load_splat(p_e{k}, 0, 2)")  # which `finished` finds: at the end nothing would hide the wait

    def _begin_sums(self, buffer: CodeBuffer) -> None:
        """Emit the largest score and the weights' sum of each row before the first key, and where its mask is."""
        for name, value in (("top0", "-INF"), ("top1", "-INF"), ("sum0", "0"), ("sum1", "0")):
            buffer.line(f"{name} = const_float32({value}, 0)")
        self._mask_rows(buffer)

    def _mask_rows(self, buffer: CodeBuffer) -> None:
        if self.problem.mask is not None:
            base = "imod(batch, period) * mask_b + head * mask_h"
            for r in (0, 1):
                buffer.line(f"mask{r} = offset(p_mask, {base} + imin(row{r}, queries - 1) * mask_s)")

    def _weights(self, buffer: CodeBuffer) -> None:
        """Emit what makes weights of scores, in units of log2(e), and in ``kept0`` and ``kept1`` what earlier sums are
        multiplied with."""
        if not self.scaled:
            for j in range(self.keys // 8):
                buffer.line(f"score{j} = mul(score{j}, scale)")
        if self.problem.mask is not None:
            self._mask(buffer)
        if self.problem.causal:
            limit = f"start + {self.keys} > first_row + first_seen + 1"
            with buffer.block(f"if ({limit}) | (start + {self.keys} > end):"):
                self._hide(buffer, True)
        else:
            with buffer.block(f"if start + {self.keys} > end:"):
                self._hide(buffer, False)
        self._tops(buffer)
        self._exponentials(buffer)

    def _tops(self, buffer: CodeBuffer) -> None:
        """Emit the largest scores of both rows so far, ``top0`` and ``top1``, what is subtracted of scores for these,
        ``base0`` and ``base1`` (0 of rows that see no key yet), and ``kept0`` and ``kept1``."""
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
        """Emit weights in the place of scores, and their sums of both rows, ``sum0`` and ``sum1``."""
        scaled = self.scaled
        buffer.line("bases = join4(splat(base0, 1), splat(base0, 1), splat(base1, 1), splat(base1, 1))")
        buffer.line("total = const_float32(0, 4)")
        if scaled:
            buffer.line("scales = splat(scale, 4)")
        if self.exact:
            with buffer.block(f"if (abs(base0) > {FAR}) | (abs(base1) > {FAR}):"):  # one may be NaN
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

    def _mask(self, buffer: CodeBuffer) -> None:
        """Emit the mask: where it does not keep a score it is -infinity, others are added."""
        mask = self.problem.mask
        assert mask is not None
        rows = (0,) if known_in(mask.strides[2], 0) else (0, 1)
        for j in range(self.keys // 8):
            found = {}
            for r in rows:
                for k in (0, 1):
                    key = buffer.emit(f"imin(start + {8 * j} + word * 2 + {k}, keys - 1)")
                    found[r, k] = buffer.emit(f"splat(load_scalar(mask{r}, {key} * mask_t), 1)")
            lanes = ", ".join(found[r if r in rows else 0, k] for r in (0, 1) for k in (0, 1))
            buffer.line(f"score{j} = {masked(mask, buffer, f'score{j}', f'join4({lanes})')}")

    def _hide(self, buffer: CodeBuffer, causal: bool) -> None:
        """Emit what hides keys that are behind the end or, for ``causal``, behind what a query sees."""
        for r in (0, 1):
            last = f"imin(end, row{r} + first_seen + 1)" if causal else "end"
            buffer.line(f"seen{r} = cast_int32({last} - start - word * 2)")
        buffer.line("seen = join4(splat(seen0, 1), splat(seen0, 1), splat(seen1, 1), splat(seen1, 1))")
        buffer.line("odd = bitwise_and(iota_int32(4), const_int32(1, 4))")
        for j in range(self.keys // 8):
            buffer.line(f"inside = lt(add(odd, const_int32({8 * j}, 4)), seen)")
            buffer.line(f"score{j} = where(inside, score{j}, const_float32(-INF, 4))")

    def _finish(self, buffer: CodeBuffer) -> None:
        """Emit the division by the weights' sums, and the stores; of a part of the keys, sums as they are."""
        for r in (0, 1):
            for mask in (1, 2):
                buffer.line(f"sum{r} = add(sum{r}, shuffle_xor(sum{r}, {mask}))")
        for r in (0, 1):
            with buffer.block(f"if row{r} < queries:"):
                if self.in_parts:
                    self._keep(buffer, r)
                else:
                    self._store(buffer, r)

    def _store(self, buffer: CodeBuffer, r: int) -> None:
        problem = self.problem
        empty = "" if problem.nan_rows else f"where(sum{r} == 0, const_float32(0, 0), "
        buffer.line(f"inverse = {empty}div(const_float32(1, 0), sum{r}){')' * bool(empty)}")
        buffer.line(f"to = offset(p_out, batch * out_b + head * out_h + row{r} * out_s)")
        part = ("low2", "high2")[r]
        for j in range(self.width // 8):
            if 8 * j < problem.width:
                value = finished(problem, buffer, f"mul({part}(acc{j}), inverse)", 2)
                buffer.line(f"store{'_aligned' * self.pairs}(to, {8 * j} + word * 2, {value})")

    def _keep(self, buffer: CodeBuffer, r: int) -> None:
        """Store a row's sums, and behind all of them the exponent that they are relative to and their weights' sum."""
        line = buffer.emit(f"((split * batches + batch) * heads + head) * queries + row{r}")
        part = ("low2", "high2")[r]
        for j in range(self.width // 8):
            if 8 * j < self.problem.width:
                buffer.line(f"store_aligned(p_scratch, {line} * width + {8 * j} + word * 2, {part}(acc{j}))")
        with buffer.block("if word == 0:"):
            rest = f"{'splits' if isinstance(self.splits, Dim) else self.splits} * batches * heads * queries"
            place = buffer.emit(f"{rest} * width + {line} * 2")
            buffer.line(f"store_scalar(p_scratch, {place}, top{r})")
            buffer.line(f"store_scalar(p_scratch, {place} + 1, sum{r})")
