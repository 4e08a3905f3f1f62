"""Windows added up at their places in images (``col2im``): each thread adds the elements that meet its pixel."""

from __future__ import annotations

from contextlib import ExitStack
from math import prod

from ....core.dim import known_less_equal
from ....ops.col2im import Col2Im
from ...launch import Launch
from ...printer import VectorValue
from ...problems.cluster import Tensor
from ..printer import ThreadPrinter
from .elements import ElementText
from .pooling import FEW


def col2im_launch(op: Col2Im, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch of `Col2Im`; operands ``x`` [n, c * taps, steps] and ``out`` [n, c, size...].

    Sums are taken in the order of the taps, in the type that the element type is computed in, and rounded once.
    """
    rank, taps = len(op.size), prod(op.kernel)
    linear = [x.strides[0], x.strides[1] * taps, *(0 for _ in range(rank))]
    text = ElementText([("x", x), ("out", out)], out.lens, [linear, out.strides], 1)
    buffer, integer = text.buffer, text.arguments.integer
    names = ("kernel", "stride", "dilation", "before", "steps")
    fields = (op.kernel, op.stride, op.dilation, op.padding, op.steps)
    axes = [{n: integer(f"{n}{d}", v[d]) for n, v in zip(names, fields)} for d in range(rank)]
    line, window = integer("line", x.strides[1]), integer("window", x.strides[2])
    few = known_less_equal(taps, FEW)
    text.begin()
    printer = ThreadPrinter(buffer, 1)
    buffer.line(f"total = {printer.const(0, x.type.compute).name}")
    base = text.place(0)
    for d, n in enumerate(axes):
        buffer.line(f"place{d} = {text.places[2 + d]} + {n['before']}")
    tap, step = "j0", "at0"
    for d in range(1, rank):
        tap, step = f"({tap}) * {axes[d]['kernel']} + j{d}", f"({step}) * {axes[d]['steps']} + at{d}"
    with ExitStack() as loops:
        for d, n in enumerate(axes):
            loops.enter_context(buffer.block(f"for j{d} in range({op.kernel[d] if few else n['kernel']}):"))
            buffer.line(f"ahead{d} = place{d} - j{d} * {n['dilation']}")
            buffer.line(f"at{d} = idiv(imax(ahead{d}, 0), {n['stride']})")
        meets = " & ".join(
            f"(ahead{d} >= 0) & (at{d} * {n['stride']} == ahead{d}) & (at{d} < {n['steps']})"
            for d, n in enumerate(axes)
        )
        with buffer.block(f"if {meets}:"):
            element = printer.loaded(f"load(p_x, {base} + ({tap}) * {line} + ({step}) * {window}, 1)", x.type)
            own = VectorValue(printer.stored(element, x.type.compute), x.type.compute)
            buffer.line(f"total = {printer.add(VectorValue('total', x.type.compute), own).name}")
    text.store(printer.stored(printer.cast(VectorValue("total", x.type.compute), out.type)))
    return text.launch("col2im_kernel", origin, x.footprint + out.footprint, prod(x.lens))
