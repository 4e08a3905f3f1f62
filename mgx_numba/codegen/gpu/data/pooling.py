"""Pooling: maximum, mean and Lp norm of windows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from math import prod

from ....core.dim import Length, SharedLength, known_equal, known_in, known_less, known_less_equal
from ....core.types import Type
from ....dataclass import dataclass
from ....ops.pooling import Pooling, PoolingMode
from ...launch import Launch
from ...printer import VectorValue
from ...problems.cluster import Tensor
from ...reductions import REDUCTIONS
from ..cluster.flat_index import contiguous_lanes
from ..printer import ThreadPrinter, dtype_name, most_lanes
from .elements import ElementText

FEW = 16
"""Most taps that are unrolled, so that all their loads are in flight together: 64 registers for 16-byte vectors."""


@dataclass(frozen=True)
class WindowAxis:
    """The window along one spatial axis: ``size`` taps, ``dilation`` apart; a window starts every ``stride`` elements
    from ``-before``. ``after`` is the padding at the end."""

    size: SharedLength
    stride: int
    dilation: int
    before: SharedLength
    after: SharedLength

    def overlaps(self, length: Length, count: Length) -> bool:
        """Return whether each of ``count`` windows is gapless and covers an element of ``length``. A tap outside can
        then be replaced by the nearest element, which is in the window."""
        gapless = self.dilation == 1 or known_equal(self.size, 1)
        reach = (count - 1) * self.stride - self.before
        return gapless and known_less(self.before, self.size) and known_less(reach, length)


def pooling_launch(op: Pooling, windows: Sequence[WindowAxis], data: Tensor, out: Tensor, origin: str) -> Launch:
    """Return the launch that pools windows of ``x`` along axes 2 and following.

    Means count elements of the input, with ``count_include_pad`` also padding. 16-bit floats are accumulated in
    float32, integers in float64.

    Raises:
        UnsupportedError: the kernel language lacks this norm for the element type.
    """
    greatest = op.mode is PoolingMode.max
    count_padding = op.count_include_pad and op.mode is PoolingMode.average
    axes = range(2, len(out.lens))
    last = 1 if known_in(out.strides[1], 1) or known_equal(out.lens[1], 1) else axes[-1]
    order = [0, *(a for a in (1, *axes) if a != last), last]
    lens = [out.lens[a] for a in order]
    linear = [0 if a in axes else data.strides[a] for a in order]
    strides = [linear, [out.strides[a] for a in order]]
    # Of the input only what is linear in the output's indices counts, and the spatial strides, which taps are apart by.
    aligned = [((*(data.strides[a] for a in axes), *linear), data.offset), (strides[1], out.offset)]
    lanes = contiguous_lanes(most_lanes(data.type.size), lens[-1], aligned) if last == 1 else 1
    text = ElementText([("x", data), ("out", out)], lens, strides, lanes)
    arguments, buffer = text.arguments, text.buffer
    numbers, near = [], greatest and all(w.overlaps(data.lens[a], out.lens[a]) for a, w in zip(axes, windows))
    few = known_less_equal(prod(w.size for w in windows), FEW)
    for d, (a, w) in enumerate(zip(axes, windows)):
        values = (w.size, w.stride, w.dilation, w.before, w.after, data.lens[a], data.strides[a])
        names = ("size", "stride", "dilation", "before", "after", "length", "step")
        numbers.append({n: arguments.integer(f"{n}{d}", v) for n, v in zip(names, values)})
    text.begin()
    printer = ThreadPrinter(buffer, lanes)
    reduction = REDUCTIONS["reduce_max" if greatest else "reduce_sum"]
    kind = data.type if greatest or data.type.is_floating else Type.double_type
    accumulator = reduction.accumulator(kind)
    start = printer.const(reduction.neutral(kind), accumulator)
    buffer.line(f"sums = {start.name}")
    buffer.line("counted = 0")
    base = text.place(0)
    for d, n in enumerate(numbers):
        index = text.places[order.index(axes[d])]
        buffer.line(f"first{d} = {index} * {n['stride']} - {n['before']}")
    # Loads of few taps come before the checks, from the nearest element, so that all are in flight together.
    early = near or (few and all(known_less(0, data.lens[a]) for a in axes))
    terms = " + ".join(f"{'near' if early else 'at'}{d} * {n['step']}" for d, n in enumerate(numbers))
    load = f"{'load_aligned' if lanes > 1 else 'load'}(p_x, {base} + {terms}, {lanes})"
    inside = " & ".join(f"(at{d} >= 0) & (at{d} < {n['length']})" for d, n in enumerate(numbers))
    padded = " & ".join(f"(at{d} < {n['length']} + {n['after']})" for d, n in enumerate(numbers))
    with ExitStack() as loops:
        for d, n in enumerate(numbers):
            loops.enter_context(buffer.block(f"for j{d} in range({windows[d].size if few else n['size']}):"))
            buffer.line(f"at{d} = first{d} + j{d} * {n['dilation']}")
            if early:
                buffer.line(f"near{d} = imin(imax(at{d}, 0), {n['length']} - 1)")
        if count_padding:
            with buffer.block(f"if {padded}:"):
                buffer.line("counted = counted + 1")
        element = buffer.emit(load) if early else load
        with nullcontext() if near else buffer.block(f"if {inside}:"):
            value = printer.loaded(element, data.type)
            own = VectorValue(printer.stored(value, accumulator), accumulator)
            own = _power(printer, op, own) if op.mode is PoolingMode.lpnorm else own
            combined = getattr(printer, reduction.combine)(VectorValue("sums", accumulator), own)
            buffer.line(f"sums = {combined.name}")
            if not count_padding and not greatest:
                buffer.line("counted = counted + 1")
    result = VectorValue("sums", accumulator)
    if op.mode is PoolingMode.average:
        divisor = buffer.emit(f"splat(cast_{dtype_name(accumulator)}(imax(counted, 1)), {lanes})")
        result = printer.div(result, VectorValue(divisor, accumulator))
    if op.mode is PoolingMode.lpnorm:
        result = _root(printer, op, result)
    if accumulator is data.type.compute:
        result = VectorValue(result.name, data.type)
    text.store(printer.stored(printer.cast(result, out.type)))
    taps = prod(w.size for w in windows)
    return text.launch("pooling_kernel", origin, data.footprint + out.footprint, prod(out.lens) * taps)


def _power(printer: ThreadPrinter, op: Pooling, x: VectorValue) -> VectorValue:
    """Return ``abs(x) ** p``."""
    size = printer.abs(x)
    return printer.mul(size, size) if op.lp_order == 2 else printer.pow(size, printer.const(op.lp_order, x.dtype))


def _root(printer: ThreadPrinter, op: Pooling, total: VectorValue) -> VectorValue:
    """Return ``total ** (1 / p)``."""
    if op.lp_order == 1:
        return total
    return printer.sqrt(total) if op.lp_order == 2 else printer.pow(total, printer.const(1 / op.lp_order, total.dtype))
