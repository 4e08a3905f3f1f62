"""Pooling windows (MIGraphX ``pooling``) over tensors of any strides, in three forms.

Here lanes run along a kept dimension, the channels of NHWC memory: every tap is one vector load, and padding shortens
the range of taps. Small windows that overlap or are adjacent slide along the last pooled axis: the combination of the
other axes' taps at a position is computed once for all windows that contain it, and kept in registers.

For NCHW memory lanes run along the last pooled axis. The taps of the other axes are combined into a row of scratch
memory, whose ends hold the neutral element for the padding. Once the next row is written, the taps of the last axis are
combined from the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dim import (
    ceil_div,
    is_symbolic,
    known_in,
    known_less,
    known_less_equal,
    less_equal,
    maximum,
    minimum,
    permitted,
    typical,
)
from ....ops.pooling import Pooling, PoolingMode
from ...kernel import KernelSource
from ...launch import Launch
from ...problems.cluster import Tensor
from ...space import Space
from ...statements import indent, load_text, store_text, vector_loop
from .pooling_window import UNROLL, UNROLLED_TAPS, PoolingKernel, PoolingWindow, places_of, windows
from .row_tasks import RowLoop

__all__ = ["PoolingWindow", "pooling_launch", "windows"]


def pooling_launch(
    op: Pooling,
    axes: Sequence[PoolingWindow],
    x: Tensor,
    out: Tensor,
    origin: str = "",
    name: str = "pooling",
    fast_math: bool = False,
) -> Launch:
    """Return the launch that computes operand ``out`` from operand ``x``.

    Args:
        op: gives the mode; ``lp_order`` must be positive.
        axes: the windows, along the pooled axes; on all other axes ``x`` and ``out`` have the same length.
        x: the input.
        out: the output.
        fast_math: means may be products with rounded reciprocals.
    """
    p = PoolingKernel(op, axes, x, out, origin, name, fast_math)
    kernel, loop = along_rows(p) if suits_rows(p) else sliding(p) if may_slide(p) else _columns(p)
    flops = prod(out.lens) * prod(w.size for w in axes)
    return loop.launch(kernel, (), x.footprint + out.footprint, flops, claims=True)


def _columns(p: PoolingKernel) -> tuple[KernelSource, RowLoop]:
    axes = list(enumerate(p.axes))
    kept = p.kept if p.kept.rank else Space((1,), ((1,), (1,)))
    counts = [w.count for w in p.axes]
    outer = [*kept.lens[:-1], *counts]
    x_strides = [*kept.strides[0][:-1], *(w.stride * p.x.strides[w.axis] for w in p.axes)]
    out_strides = [*kept.strides[1][:-1], *(p.out.strides[w.axis] for w in p.axes)]
    weight = prod(w.size for w in p.axes)
    loop = RowLoop(p.arguments, outer, [x_strides, out_strides], kept.lens[-1], UNROLL * p.lanes, weight)
    inner = [s[-1] for s in kept.strides]
    step = [p.arguments.step(f"t{k}", s) for k, s in enumerate(inner)]
    p.arguments.integer("skipped", sum(w.before * p.x.strides[w.axis] for w in p.axes))
    first_dim = len(kept.lens) - 1
    ranges = [line for k, w in axes for line in p.tap_range(k, w, f"i{first_dim + k}")]
    p.steps(axes)
    if p.average:
        ranges.append(f"count = imax(1, {' * '.join(f'count{k}' for k, _ in axes) or '1'})")
    if p.by_reciprocal:
        ranges.append(f"share = recip(cast_{p.combine.compute}(count))")

    def body(vectors: int, left: str) -> list[str]:
        places = [f"(c + {j * p.lanes})" if j else "c" for j in range(vectors)]
        loads = [load_text("q", place, inner[0], step[0], p.lanes, left) for place in places]
        lines = [f"m{j} = {p.combine.neutral(p.lanes)}" for j in range(vectors)]
        lines += p.tap_loops(axes, p.accumulate(loads))
        for j, place in enumerate(places):
            value = p.combine.finish(f"m{j}", "count", "share" if p.by_reciprocal else "")
            lines.append(store_text("r_out", place, inner[1], step[1], value, left, p.streamed))
        return lines

    wide = UNROLL * p.lanes
    inside = [
        f"r_x = offset(p_x, {loop.offset(0)} - skipped)",
        f"r_out = offset(p_out, {loop.offset(1)})",
        *ranges,
        "c = first",
        f"while c + {wide} <= last:",
        *indent([*body(UNROLL, ""), f"c += {wide}"]),
        *vector_loop(p.lanes, lambda left: body(1, left), first="c"),
    ]
    return loop.kernel(p.kernel_name(), inside, p.origin, streamed=p.streamed), loop


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
    first, last = (f"{c} * stride{k} - before{k}" for c in ("c", f"imin(c + {p.lanes - 1}, last - 1)"))
    return [
        f"if {first} >= 0 and {last} + reach <= length{k}:",
        f"    count = splat(cast_{p.combine.compute}(imax(1, size{k} * others_before)), {p.lanes})",
        "else:",
        *indent(lines),
    ]


MOST_KEPT = 6
"""Most columns of a window that are kept: each takes a register for each vector of channels."""
KEPT_VECTORS = 16
"""Registers for kept columns: half of the 32 of AVX-512, all of the 16 of AVX2, of which some are spilled."""
FEWEST_WINDOWS = 64
"""Least windows of a row in a task: its first windows recompute columns of the task before. No figures kept."""


def may_slide(p: PoolingKernel) -> bool:
    """Return whether windows are small, and enough of them share kept columns."""
    if not p.axes:
        return False
    *others, last = p.axes
    taps = prod(w.size for w in others)
    if is_symbolic(taps) or is_symbolic(last.size):
        return False
    new = _fresh(last)
    kept = last.size - new
    few: bool = taps * new <= UNROLLED_TAPS and kept <= MOST_KEPT
    return few and not known_less(last.count * new, kept)


def _fresh(window: PoolingWindow) -> int:
    """Return the number of taps at positions where the window before has none."""
    return min(window.size, window.stride) if window.dilation == 1 else window.size


def sliding(p: PoolingKernel) -> tuple[KernelSource, RowLoop]:
    """Return the kernel and the loop over its tasks."""
    *others, last = p.axes
    axes, k = list(enumerate(others)), len(others)
    kept = p.kept if p.kept.rank else Space((1,), ((1,), (1,)))
    new = _fresh(last)
    old = last.size - new
    wide = min(UNROLL, max(1, KEPT_VECTORS // max(old, 1)))
    channels, part = p.arguments.integer("channels", kept.lens[-1]), wide * p.lanes
    inner = [s[-1] for s in kept.strides]
    # Parts of the channels are the fastest task dimension, so that successive tasks read a contiguous run of memory.
    outer = [*kept.lens[:-1], *(w.count for w in others), ceil_div(kept.lens[-1], part)]
    x_strides = [*kept.strides[0][:-1], *(w.stride * p.x.strides[w.axis] for w in others), part * inner[0]]
    out_strides = [*kept.strides[1][:-1], *(p.out.strides[w.axis] for w in others), part * inner[1]]
    weight = prod(w.size for w in p.axes) * minimum(kept.lens[-1], part)
    loop = RowLoop(p.arguments, outer, [x_strides, out_strides], last.count, 1, weight, least=FEWEST_WINDOWS)
    step = [p.arguments.step(f"t{j}", s) for j, s in enumerate(inner)]
    p.arguments.integer("skipped", sum(w.before * p.x.strides[w.axis] for w in others))
    p.arguments.integer("across", p.x.strides[last.axis])
    p.arguments.integer("across_out", p.out.strides[last.axis])
    ranges = [line for j, w in axes for line in p.tap_range(j, w, f"i{len(kept.lens) - 1 + j}")]
    p.steps(axes)
    whole = " and ".join(f"to{j} - from{j} == {w.size}" for j, w in axes)
    if p.average:
        ranges.append(f"others = {' * '.join(f'count{j}' for j, _ in axes) or '1'}")
    places = places_of(axes)
    at_last = p.tap_range(k, last, "o")

    def block(vectors: int, left: str) -> list[str]:
        """Return lines for all windows of a row and ``vectors`` vectors of channels."""
        at = [f"(c + {j * p.lanes})" if j else "c" for j in range(vectors)]

        def loads(source: str) -> list[str]:
            return [load_text(source, place, inner[0], step[0], p.lanes, left) for place in at]

        def column(tap: int, is_whole: bool) -> list[str]:
            """Return lines that set ``new{tap}_0``, ... to the combination of the other axes' taps."""
            at_tap = f"at{k} + {(old + tap) * last.dilation}"
            place = f"r_c = offset(r_x, ({at_tap}) * across)"
            named = [f"new{tap}_{j} = m{j}" for j in range(vectors)]
            if is_whole:
                terms = [" + ".join(f"{i} * step{j}" for i, (j, _) in zip(index, axes) if i) for index in places]
                taps = [f"tap{i} = offset(r_c, {term or 0})" for i, term in enumerate(terms)]
                ahead = [] if left else p.ahead(axes, vectors)
                return [
                    place,
                    *taps,
                    *ahead,
                    *p.combined([loads(f"tap{i}") for i in range(len(places))]),
                    *named,
                ]
            inside = f"if 0 <= {at_tap} and {at_tap} < length{k}:"
            looped = [place, *p.tap_loops(axes, p.accumulate(loads("q")), "r_c")]
            empty = [f"m{j} = {p.combine.neutral(p.lanes)}" for j in range(vectors)]
            return [*empty, inside, *indent(looped), *named]

        parts = [[*(f"old{i}_{j}" for i in range(old)), *(f"new{i}_{j}" for i in range(new))] for j in range(vectors)]
        stored = [p.combine.finish(f"m{j}", "count", "share" if p.by_reciprocal else "") for j in range(vectors)]
        windows = [
            *at_last,
            f"if {f'{whole} and ' if whole else ''}0 <= at{k} + {old} and at{k} + {last.reach} <= length{k}:",
            *indent([line for tap in range(new) for line in column(tap, True)]),
            "else:",
            *indent([line for tap in range(new) for line in column(tap, False)]),
            "if o >= first:",
            *indent(
                [
                    *([f"count = imax(1, others * count{k})"] if p.average else []),
                    *([f"share = recip(cast_{p.combine.compute}(count))"] if p.by_reciprocal else []),
                    *p.combined(list(zip(*parts)), merged=True),
                    "r_o = offset(r_out, o * across_out)",
                    *(store_text("r_o", at[j], inner[1], step[1], stored[j], left, p.streamed) for j in range(vectors)),
                ],
            ),
            *(f"old{i}_{j} = {parts[j][i + new]}" for i in range(old) for j in range(vectors)),
            "o += 1",
        ]
        return [
            *(f"old{i}_{j} = {p.combine.neutral(p.lanes)}" for i in range(old) for j in range(vectors)),
            f"o = first - {-(-old // new)}",
            "while o < last:",
            *indent(windows),
        ]

    inside = [
        f"r_x = offset(p_x, {loop.offset(0)} - skipped)",
        f"r_out = offset(p_out, {loop.offset(1)})",
        *ranges,
        f"present = imin({part}, {channels} - i{len(outer) - 1} * {part})",
        f"if present == {part}:",
        "    c = 0",
        *indent(block(wide, "")),
        "else:",
        *indent(vector_loop(p.lanes, lambda left: block(1, left), first="0", last="present")),
    ]
    return loop.kernel(p.kernel_name(), inside, p.origin, streamed=p.streamed), loop
