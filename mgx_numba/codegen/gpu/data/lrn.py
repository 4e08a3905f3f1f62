"""Local response normalisation across channels."""

from __future__ import annotations

from math import prod

from ....ops.lrn import Lrn
from ...launch import Launch
from ...printer import VectorValue
from ...problems.cluster import Tensor
from ..cluster.flat_index import contiguous_lanes
from ..printer import ThreadPrinter, most_lanes
from .elements import ElementText

_ROOTS = {0.5: 1, 0.75: 2}
"""Powers as products of square roots, which are cheaper and more accurate than a general power; 0.75 is ONNX's
default."""


def lrn_launch(op: Lrn, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch of ``x / (bias + alpha / size * sum(x ** 2)) ** beta``; operands ``x`` and ``out``. 16-bit
    floats are accumulated in float32."""
    order = sorted(range(len(out.lens)), key=lambda a: (-out.strides[a], a == 1))
    lens = [out.lens[a] for a in order]
    strides = [[t.strides[a] for a in order] for t in (x, out)]
    lanes = 1
    if order[-1] != 1:
        lanes = contiguous_lanes(
            most_lanes(x.type.size), lens[-1], [(own, t.offset) for own, t in zip(strides, (x, out))]
        )
    text = ElementText([("x", x), ("out", out)], lens, strides, lanes)
    arguments, buffer = text.arguments, text.buffer
    for name, value in (("behind", (op.size - 1) // 2), ("ahead", op.size // 2)):
        arguments.integer(name, value)
    arguments.integers(channels=x.lens[1], step=x.strides[1])
    text.begin()
    printer = ThreadPrinter(buffer, lanes)
    load = "load_aligned" if lanes > 1 else "load"
    channel, base, compute = text.places[order.index(1)], text.place(0), x.type.compute
    buffer.line(f"squares = {printer.const(0, compute).name}")
    start = buffer.emit(f"imax(0 - {channel}, 0 - behind)")
    stop = buffer.emit(f"imin(channels - {channel}, ahead + 1)")
    squares = VectorValue("squares", compute)
    with buffer.block(f"for k in range({start}, {stop}):"):
        near = VectorValue(
            printer.register(printer.loaded(f"{load}(p_x, {base} + k * step, {lanes})", x.type)), compute
        )
        buffer.line(f"squares = {printer.fma(near, near, squares).name}")
    own = VectorValue(printer.register(printer.loaded(f"{load}(p_x, {base}, {lanes})", x.type)), compute)
    scale, bias = printer.const(op.alpha / op.size, compute), printer.const(op.bias, compute)
    divisor = printer.fma(squares, scale, bias)
    if op.beta in _ROOTS:
        root = divisor = printer.sqrt(divisor)
        if _ROOTS[op.beta] == 2:
            divisor = printer.mul(root, printer.sqrt(root))
    else:
        divisor = printer.pow(divisor, printer.const(op.beta, compute))
    result = printer.div(own, divisor)
    text.store(printer.stored(result, x.type))
    return text.launch("lrn_kernel", origin, x.footprint + out.footprint, prod(out.lens) * (op.size + 3))
