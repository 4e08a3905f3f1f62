"""Pooling with lanes along the channels of NHWC memory and small windows, which slide along the last pooled axis.

The combination of the other axes' taps at a position is computed once for all windows that contain it, and kept in
registers.
"""

from __future__ import annotations

from math import prod

from ....core.dim import ceil_div, is_symbolic, known_less, minimum
from ...kernel import KernelSource
from ...space import Space
from ...statements import indent, load_text, store_text, vector_loop
from .pooling_window import UNROLL, UNROLLED_TAPS, PoolingKernel, PoolingWindow, places_of
from .row_tasks import RowLoop

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
