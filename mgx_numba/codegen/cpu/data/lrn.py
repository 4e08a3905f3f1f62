"""Local response normalisation across channels (``lrn``).

In NHWC memory lanes run along the channels, whose squares pass through scratch memory with zeros at both ends. In other
memory lanes run along a spatial dimension and the squares are summed over rows.
"""

from __future__ import annotations

from math import prod

from ....core.dim import less_equal, permitted, typical
from ....ops.lrn import Lrn
from ...arguments import Arguments
from ...launch import Launch
from ...problems.cluster import Tensor
from ...space import Space, collapse
from ...statements import cast_text, const_text, dtype_name, indent, load_text, store_text, vector_loop
from .. import host
from ..loops import is_streamed
from .row_tasks import RowLoop

SCRATCH = 2048
"""Most squares of a row of channels in each of two scratch rows: 8 KiB each of float32, so that both stay in the L1
cache. More channels are summed over rows."""
_USUAL_POWER = 0.75  # AlexNet's, and ONNX's default
UNROLLED = 16
"""Most channels of a sum without a loop, limited by text and compile time."""


def lrn_launch(op: Lrn, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch of ``x / (bias + alpha / size * s) ** beta`` over floats; operands ``x`` and ``out``."""
    kept = [a for a in range(len(x.lens)) if a != 1]
    space = collapse(out.lens, [x.strides, out.strides], order_by=1, axes=kept)
    arguments = Arguments()
    arguments.pointer("p_x", "x", dtype_name(x.type))
    arguments.pointer("p_out", "out", dtype_name(x.type))
    across = space.rank and typical(space.strides[0][-1]) < typical(x.strides[1])
    lanes = host.lanes(dtype_name(x.type.compute))
    fits = not across and permitted(less_equal(x.lens[1] + op.size, SCRATCH))
    along = _along_channels if fits else _along_rows
    loop, parts = along(op, arguments, space, x, out, lanes)
    kernel = loop.kernel("lrn_kernel", origin=origin, streamed=is_streamed([out]), **parts)
    flops = prod(out.lens) * (op.size + 3)
    return loop.launch(kernel, out.lens, x.footprint + out.footprint, flops, claims=True)


def _divide(op: Lrn, x: Tensor, lanes: int, estimated: bool = False) -> list[str]:
    """Return lines that set ``result``, as stored, from the element ``v`` and the sum of squares ``s``.

    Args:
        estimated: use `over_power_075`, which takes fewer cycles. Memory-bound problems are no faster with it.
    """
    compute = dtype_name(x.type.compute)
    scale, bias = const_text(compute, op.alpha / op.size, lanes), const_text(compute, op.bias, lanes)
    # Roots are faster and more accurate than a general power.
    power = {
        1.0: [],
        0.5: ["base = sqrt(base)"],
        _USUAL_POWER: ["base = sqrt(base)", "base = mul(base, sqrt(base))"],
    }.get(op.beta, [f"base = pow(base, {op.beta!r})"])
    result = cast_text("div(v, base)", compute, dtype_name(x.type))
    if estimated and op.beta == _USUAL_POWER:
        power, result = [], cast_text("over_power_075(v, base)", compute, dtype_name(x.type))
    return [f"base = fma(s, {scale}, {bias})", *power, f"result = {result}"]


KernelLines = dict[str, list[str]]


def _along_channels(
    op: Lrn, arguments: Arguments, space: Space, x: Tensor, out: Tensor, lanes: int
) -> tuple[RowLoop, KernelLines]:
    storage, compute = dtype_name(x.type), dtype_name(x.type.compute)
    loop = RowLoop(arguments, space.lens, space.strides, x.lens[1], lanes, op.size + 8, whole=True)
    steps = (x.strides[1], out.strides[1])
    t0, t1 = (arguments.step(f"t{k}", s) for k, s in enumerate(steps))
    arguments.integer("behind", (op.size - 1) // 2)
    arguments.integer("size", op.size)
    half = SCRATCH + 2 * lanes
    zero = const_text(compute, 0, lanes)

    def load(pointer: str, left: str) -> str:
        return f"v = {cast_text(load_text(pointer, 'c', steps[0], t0, lanes, left), storage, compute)}"

    def square(left: str) -> list[str]:
        return [load("r_x", left), "store(squares, behind + c, mul(v, v))"]

    def divide(left: str) -> list[str]:
        if op.size <= UNROLLED:
            total = [f"s = add(s, load(squares, c + {k}, {lanes}))" for k in range(op.size)]
        else:
            total = ["for k in range(size):", f"    s = add(s, load(squares, c + k, {lanes}))"]
        return [
            f"s = {zero}",
            *total,
            load("q_x", left),
            *_divide(op, x, lanes, estimated=True),
            store_text("q_out", "c", steps[1], t1, "result", left, is_streamed([out])),
        ]

    finish = [
        "if started:",
        *indent([f"squares = offset(scratch, (1 - turn) * {half})", *vector_loop(lanes, divide)]),
    ]
    inside = [
        f"r_x = offset(p_x, {loop.offset(0)})",
        f"squares = offset(scratch, turn * {half})",
        "c = 0",
        "while c < behind:",
        *indent([f"store(squares, c, {zero})", f"c += {lanes}"]),
        *vector_loop(lanes, square),
        "c = behind + last",
        "while c < last + size:",
        *indent([f"store(squares, c, {zero})", f"c += {lanes}"]),
        *finish,
        "q_x = r_x",
        f"q_out = offset(p_out, {loop.offset(1)})",
        "started = True",
        "turn = 1 - turn",
    ]
    parts = {
        "inside": inside,
        "prologue": [f"scratch = local_{compute}({2 * half})"],
        "before": ["turn = 0", "started = False", "q_x = p_x", "q_out = p_out"],
        "after": finish,
    }
    return loop, parts


def _along_rows(
    op: Lrn, arguments: Arguments, space: Space, x: Tensor, out: Tensor, lanes: int
) -> tuple[RowLoop, KernelLines]:
    storage, compute = dtype_name(x.type), dtype_name(x.type.compute)
    lens, strides = space.lens or (1,), [s or (0,) for s in space.strides]
    rows = [(*strides[0][:-1], x.strides[1]), (*strides[1][:-1], out.strides[1])]
    loop = RowLoop(arguments, (*lens[:-1], x.lens[1]), rows, lens[-1], lanes, op.size + 8)
    inner = (strides[0][-1], strides[1][-1])
    t0, t1 = (arguments.step(f"t{k}", s) for k, s in enumerate(inner))
    for name, value in (
        ("behind", (op.size - 1) // 2),
        ("ahead", op.size // 2),
        ("channels", x.lens[1]),
        ("step", x.strides[1]),
    ):
        arguments.integer(name, value)
    channel = f"i{len(lens) - 1}"

    def body(left: str) -> list[str]:
        v = cast_text(load_text("q", "c", inner[0], t0, lanes, left), storage, compute)
        return [
            f"s = {const_text(compute, 0, lanes)}",
            "for k in range(start, stop_at):",
            *indent(["q = offset(r_x, k * step)", f"v = {v}", "s = fma(v, v, s)"]),
            "q = r_x",
            f"v = {v}",
            *_divide(op, x, lanes),
            store_text("r_out", "c", inner[1], t1, "result", left, is_streamed([out])),
        ]

    inside = [
        f"r_x = offset(p_x, {loop.offset(0)})",
        f"r_out = offset(p_out, {loop.offset(1)})",
        f"start = imax(0, {channel} - behind) - {channel}",
        f"stop_at = imin(channels, {channel} + ahead + 1) - {channel}",
        *vector_loop(lanes, body),
    ]
    return loop, {"inside": inside}
