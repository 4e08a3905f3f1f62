"""Pooling with lanes along the last pooled axis, for NCHW memory.

The taps of the other axes are combined into a row of scratch memory, whose ends hold the neutral element for the
padding. Once the next row is written, the taps of the last axis are combined from the first.
"""

from __future__ import annotations

from math import prod

from ....core.dim import known_in, known_less, known_less_equal, less_equal, maximum, permitted, typical
from ....ops.pooling import PoolingMode
from ...kernel import KernelSource
from ...statements import indent, load_text, store_text, vector_loop
from .pooling_window import UNROLLED_TAPS, PoolingKernel, PoolingWindow
from .row_tasks import RowLoop

ROW_BUFFER = 2048
"""Elements in each of two scratch rows: 8 KiB each of float32, so that both stay in the L1 cache."""
LOADED_EVERY = 4
"""Largest stride at which a strided vector is assembled from whole vectors: with larger strides that takes more loads
than gathers."""


def suits_rows(p: PoolingKernel) -> bool:
    """Return whether lanes run along the last pooled axis."""
    return bool(p.axes) and _along_last(p) and permitted(less_equal(p.axes[-1].reach, ROW_BUFFER))


def _along_last(p: PoolingKernel) -> bool:
    """Return whether the last pooled axis is the innermost in memory, or the innermost is a kept axis with few
    elements."""
    if not p.kept.rank:
        return True
    step = p.x.strides[p.axes[-1].axis]
    along_kept = [s[-1] for s in p.kept.strides]
    side_by_side = all(known_in(s, 1) for s in along_kept)
    if side_by_side and not (known_in(step, 1) and known_less(p.kept.lens[-1], p.lanes // 2)):
        return False
    return typical(step) <= max(typical(along_kept[0]), 1)


def along_rows(p: PoolingKernel) -> tuple[KernelSource, RowLoop]:
    """Return the kernel and the loop over its tasks."""
    *others, last = p.axes
    axes, lanes = list(enumerate(others)), p.lanes
    k = len(others)
    outer = [*p.kept.lens, *(w.count for w in others)]
    x_strides = [*p.kept.strides[0], *(w.stride * p.x.strides[w.axis] for w in others)]
    out_strides = [*p.kept.strides[1], *(p.out.strides[w.axis] for w in others)]
    weight = prod(w.size for w in p.axes)
    longest = maximum(1, (ROW_BUFFER - last.reach) // last.stride + 1)
    loop = RowLoop(p.arguments, outer, [x_strides, out_strides], last.count, lanes, weight, longest)
    inner = (p.x.strides[last.axis], p.out.strides[last.axis])
    step = [p.arguments.step(f"t{j}", s) for j, s in enumerate(inner)]
    p.arguments.integer("skipped", sum(w.before * p.x.strides[w.axis] for w in others))
    ranges = [line for j, w in axes for line in p.tap_range(j, w, f"i{p.kept.rank + j}")]
    p.steps(axes)
    if p.average:
        ranges.append(f"others = {' * '.join(f'count{j}' for j, _ in axes) or '1'}")
    for what, value in (
        ("size", last.size),
        ("stride", last.stride),
        ("before", last.before),
        ("length", last.length),
        ("dilation", last.dilation),
    ):
        p.arguments.integer(f"{what}{k}", value)
    p.arguments.integer("padded", last.length + last.after)
    reach = p.arguments.integer("reach", last.reach)
    neutral = p.combine.neutral(lanes)

    taps = prod(w.size for w in others)

    def combine_rows(left: str, whole: bool) -> list[str]:
        def load(source: str) -> str:
            return load_text(source, "c", inner[0], step[0], lanes, left)

        if whole:
            lines = p.ahead(axes, 1) if known_in(inner[0], 1) and not left else []
            lines += p.combined([[load(f"tap{tap}")] for tap in range(taps)])
        else:
            lines = [f"m0 = {neutral}", *p.tap_loops(axes, p.accumulate([load("q")]))]
        return [*lines, "store(scratch, c, m0)"]

    def rows(whole: bool) -> list[str]:
        return vector_loop(lanes, lambda left: combine_rows(left, whole), first="low", last="high")

    def combine_tap(tap: int | str, left: str) -> list[str]:
        at = f"(c - first) * stride{k} + {tap} * dilation{k}"
        if last.stride == 1:
            load = f"load(scratch, {at}, {lanes})"
        elif last.stride <= LOADED_EVERY:
            load = f"load_every(scratch, {at}, {last.stride}, {lanes})"
        elif left:
            load = f"load_strided_tail(scratch, {at}, stride{k}, {left}, 0, {lanes})"
        else:
            load = f"load_strided(scratch, {at}, stride{k}, {lanes})"
        total = "max(v0, m0)" if p.op.mode is PoolingMode.max else "add(m0, v0)"
        return [f"v0 = {load}", f"m0 = {total}"]

    def combine_taps(left: str) -> list[str]:
        value = p.combine.finish("m0", "count")
        if known_less_equal(last.size, UNROLLED_TAPS):
            lines = [line for tap in range(last.size) for line in combine_tap(tap, left)]
        else:
            lines = [f"for tap in range(size{k}):", *indent(combine_tap("tap", left))]
        return [
            f"m0 = {neutral}",
            *lines,
            *(_vector_count(p, k, last) if p.average else []),
            store_text("r_out", "c", inner[1], step[1], value, left, p.streamed),
        ]

    half = ROW_BUFFER + (LOADED_EVERY + 1) * lanes
    finish = [
        "if started:",
        *indent([f"scratch = offset(rows_of_two, (1 - turn) * {half})", *vector_loop(lanes, combine_taps)]),
    ]
    inside = [
        f"scratch = offset(rows_of_two, turn * {half})",
        *ranges,
        f"at = first * stride{k} - before{k}",
        f"need = (last - first - 1) * stride{k} + {reach}",
        "low = imin(need, imax(0, -at))",
        f"high = imax(low, imin(need, length{k} - at))",
        f"r_x = offset(p_x, {loop.offset(0)} - skipped + at * {step[0] or inner[0]})",
        "c = 0",
        "while c < low:",
        *indent([f"store(scratch, c, {neutral})", f"c += {lanes}"]),
        *p.if_whole(axes, rows),
        "c = high",
        "while c < need:",
        *indent([f"store(scratch, c, {neutral})", f"c += {lanes}"]),
        # A row is read back only after the next is written: loads that straddle recent stores stall.
        *finish,
        f"r_out = offset(p_out, {loop.offset(1)})",
        *(["others_before = others"] if p.average else []),
        "started = True",
        "turn = 1 - turn",
    ]
    kernel = loop.kernel(
        p.kernel_name(),
        inside,
        p.origin,
        prologue=[f"rows_of_two = local_{p.combine.compute}({2 * half})"],
        before=["turn = 0", "started = False", "r_out = p_out", *(["others_before = 1"] if p.average else [])],
        after=finish,
        streamed=p.streamed,
    )
    return kernel, loop


def _vector_count(p: PoolingKernel, k: int, window: PoolingWindow) -> list[str]:
    """Return lines that set ``count`` to the numbers of elements in the means of a vector of windows."""
    end = "padded" if p.op.count_include_pad else f"length{k}"
    lines = [f"place = add(mul(add(iota_int32({p.lanes}), c), stride{k}), -before{k})"]
    if window.dilation == 1:
        lines.append(f"along = min(size{k}, max(0, sub({end}, place)))")
        if not p.op.count_include_pad:
            lines.append("along = max(0, sub(along, max(0, neg(place))))")
    else:  # a division of vectors of integers takes longer than to test each tap
        exists = f"lt(place, splat(cast_int32({end}), {p.lanes}))"
        if not p.op.count_include_pad:
            exists = f"logical_and({exists}, ge(place, const_int32(0, {p.lanes})))"
        each = [f"along = add(along, cast_int32({exists}))", f"place = add(place, dilation{k})"]
        lines += [f"along = const_int32(0, {p.lanes})", f"for tap in range(size{k}):", *indent(each)]
    lines.append(f"count = max(1, cast_{p.combine.compute}(mul(along, others_before)))")
    first, last = (f"{c} * stride{k} - before{k}" for c in ("c", f"(c + {p.lanes - 1})"))
    return [
        f"if {first} >= 0 and {last} + reach <= length{k}:",
        f"    count = splat(cast_{p.combine.compute}(imax(1, size{k} * others_before)), {p.lanes})",
        "else:",
        *indent(lines),
    ]
