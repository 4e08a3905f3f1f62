"""Windows added up at their places in images (``col2im``), row by row of the images."""

from __future__ import annotations

from math import prod

from ....core.dim import ceil_div, known_in
from ....ops.col2im import Col2Im
from ...arguments import Arguments
from ...launch import Launch
from ...problems.cluster import Tensor
from ...statements import const_text, dtype_name, indent, load_text, store_text, vector_loop
from .. import host
from .row_tasks import RowLoop

SUMS = 2048
"""Most elements of a row whose sums are kept: 8 KiB of float32, so that the windows' rows fit the L1 cache, too."""
INTERLEAVED = (2, 3, 4)
"""Strides whose phases are joined by vectors."""
WIDEST_STRIDE = 64
"""Largest stride along rows: the sums of each phase take up to a vector more."""


def col2im_launch(op: Col2Im, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch of `Col2Im` for types that kernels add in their own width; operands ``x`` and ``out``.

    Each row of an image adds the windows' rows that meet it. Pixels whose distance is a multiple of the stride (one
    phase) lie side by side meanwhile, and are interleaved in the end. Two banks of sums take turns, so that no vector
    is loaded where another one, an element off, was just stored.
    """
    dtype, rank, stride = dtype_name(x.type), len(op.size), op.stride[-1]
    lanes, taps = host.lanes(dtype), prod(op.kernel)
    arguments = Arguments()
    arguments.pointer("p_x", "x", dtype)
    arguments.pointer("p_out", "out", dtype)
    rows = [(x.strides[0], x.strides[1] * taps, *(0,) * (rank - 1)), out.strides[:-1]]
    work, longest = max(1, taps // prod(op.stride)), SUMS // stride * stride
    loop = RowLoop(arguments, out.lens[:-1], rows, op.size[-1], lanes * stride, work, longest=longest)
    for axis, numbers in enumerate(zip(op.kernel, op.stride, op.padding, op.steps)):
        for name, number in zip(_names(axis), (*numbers, *divmod(op.dilation[axis], op.stride[axis]))):
            arguments.integer(name, number)
    arguments.integers(line=x.strides[1], window=x.strides[2], pixel=out.strides[-1])
    nearest, early = divmod(-op.padding[-1], stride)
    arguments.integers(nearest=nearest, early=early, depth=ceil_div(loop.chunk, stride) + lanes)
    t0, t1 = (arguments.step(f"t{k}", s) for k, s in enumerate((x.strides[2], out.strides[-1])))

    room = SUMS + WIDEST_STRIDE * (lanes + 1) + lanes

    def add(left: str) -> list[str]:
        total = f"add({load_text('w', 'c', 1, '', lanes, left)}, {load_text('q', 'c', x.strides[2], t0, lanes, left)})"
        return [store_text("w", "c", 1, "", total, left)]

    def put(left: str) -> list[str]:
        return [
            store_text(
                "r_out",
                "c",
                out.strides[-1],
                t1,
                f"add(load(sums, c - first, {lanes}), load(sums, {room} + c - first, {lanes}))",
                left,
            )
        ]

    def leave(left: str) -> list[str]:
        return [store_text("r_out", "c", out.strides[-1], t1, const_text(dtype, 0, lanes), left)]

    kernel, step, _, steps, whole, rest = _names(rank - 1)
    clear = [
        "c = 0",
        f"while c < {step} * depth:",
        *indent([f"store(sums, {place}c, {const_text(dtype, 0, lanes)})" for place in ("", f"{room} + ")]),
        f"    c += {lanes}",
    ]
    lines = [
        *([] if rank == 1 else ["if not met:", *indent([*clear, "met = True"])]),
        "ahead = nearest",  # of a window's own number is the place of its element in the phase
        "phase = early",
        f"for k in range({kernel}):",
        "    low = imax(0, base - ahead)",
        f"    high = imin({steps}, base + width - ahead)",
        f"    q = offset(r_x, (tap * {kernel} + k) * line + place * {steps} * window)",
        "    w = offset(sums, bank + phase * depth + ahead - base)",
        f"    bank = {room} - bank",
        *indent(vector_loop(lanes, add, "low", "high")),
        f"    ahead += {whole}",
        f"    phase += {rest}",
        f"    if phase >= {step}:",
        f"        phase -= {step}",
        "        ahead += 1",
    ]
    for axis in reversed(range(rank - 1)):
        names = ("tap", "place") if axis == rank - 2 else (f"tap{axis}", f"place{axis}")
        lines = _outer_axis(axis, names, known_in(op.stride[axis], 1), lines)
    fast = stride in INTERLEAVED and known_in(out.strides[-1], 1)
    joined = [
        "c = 0",
        f"while c < {step} * depth:",
        f"    store(sums, c, add(load(sums, c, {lanes}), load(sums, {room} + c, {lanes})))",
        f"    c += {lanes}",
        "c = 0",
    ]
    for width in (lanes, lanes // 2, lanes // 4):
        if width > 1:
            joined += [
                f"while {step} * (c + {width}) <= last - first:",
                f"    interleave(offset(sums, c), depth, offset(r_out, first + {stride} * c), {stride}, {width})",
                f"    c += {width}",
            ]
    total = "load_scalar(own, c)" if fast else f"add(load_scalar(own, c), load_scalar(own, {room} + c))"
    spread = [
        *(joined if fast else ["c = 0"]),
        "done = c",
        f"for phase in range({step}):",
        "    to = offset(r_out, (first + phase) * pixel)",
        "    own = offset(sums, phase * depth)",
        "    count = width",
        f"    if first + phase + (width - 1) * {step} >= last:",
        "        count -= 1",
        "    for c in range(done, count):",
        f"        store_scalar(to, c * {step} * pixel, {total})",
    ]
    added = vector_loop(lanes, put) if known_in(stride, 1) else spread
    inside = [
        f"r_x = offset(p_x, {loop.offset(0)})",
        f"r_out = offset(p_out, {loop.offset(1)})",
        "bank = 0",
        *([*clear, "tap = 0", "place = 0"] if rank == 1 else ["met = False"]),
        *lines,
        *(added if rank == 1 else ["if met:", *indent(added), "else:", *indent(vector_loop(lanes, leave))]),
    ]
    prologue = [f"sums = local_{dtype}({2 * room})"]
    before = [f"base = idiv(first, {step})", f"width = idiv(last - first + {step} - 1, {step})"]
    made = loop.kernel("col2im_kernel", inside, origin, prologue, before)
    return loop.launch(made, out.lens, x.footprint + out.footprint, prod(x.lens))


def _names(axis: int) -> tuple[str, ...]:
    """Return the arguments of an axis; the last two are the quotient and the rest of dilation and stride."""
    return tuple(f"{name}{axis}" for name in ("kernel", "stride", "pad", "steps", "whole", "rest"))


def _outer_axis(axis: int, names: tuple[str, str], dense: bool, inner: list[str]) -> list[str]:
    """Return the loop over the taps along an outer axis with which windows meet the row.

    Args:
        names: of the numbers of the taps and of the windows, over this axis and those before.
        dense: whether the stride is known to be 1.
        inner: lines for each such tap.
    """
    kernel, stride, pad, steps, whole, rest = _names(axis)
    outer = (f"tap{axis - 1} * {kernel} + ", f"place{axis - 1} * {steps} + ") if axis else ("", "")
    y, over = f"y{axis}", f"over{axis}"
    return [
        f"{y} = i{2 + axis} + {pad}",
        *([] if dense else [f"{over} = {y}", f"{y} = idiv({over}, {stride})", f"{over} -= {y} * {stride}"]),
        f"for k{axis} in range({kernel}):",
        f"    if {'' if dense else f'{over} == 0 and '}{y} >= 0 and {y} < {steps}:",
        f"        {names[0]} = {outer[0]}k{axis}",
        f"        {names[1]} = {outer[1]}{y}",
        *indent(inner, 2),
        f"    {y} -= {whole}",
        *(
            []
            if dense
            else indent([f"{over} -= {rest}", f"if {over} < 0:", f"    {over} += {stride}", f"    {y} -= 1"])
        ),
    ]
