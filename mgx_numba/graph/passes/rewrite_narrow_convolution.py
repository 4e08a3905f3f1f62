"""Rewrite convolutions with few output channels as a product of all taps, whose columns are added up.

Kernels of convolutions hold output channels side by side in a vector. Three channels leave most of it empty. In the
product all taps of a channel are rows, and pixels lie side by side.
"""

from __future__ import annotations

from math import prod

from ...ops.col2im import Col2Im
from ...ops.convolution import ConvolutionBackwards, ConvolutionBase
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder

CONVOLUTIONS = frozenset({"convolution", "convolution_backwards"})


class RewriteNarrowConvolution(Pass):
    """``convolution_backwards(x, w)`` -> ``col2im(dot(w^T, x))`` where the target says that it is faster.

    A convolution with a stride of 1 is a transposed one with its taps in reverse order.
    """

    name = "rewrite_narrow_convolution"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        can = options.capabilities
        if can is None or can.adds_columns is None:
            return
        for ins in list(module.named(CONVOLUTIONS)):
            if any(i.shape.is_dynamic for i in (ins, *ins.inputs)):
                continue
            if can.adds_columns(ins):
                module.replace_instruction(ins, _product_of_taps(RewriteBuilder(module, ins), ins))
                self.log.apply(self.name, ins)
            else:
                self.log.refuse(self.name, ins, "the target has a kernel that is as fast")


def _product_of_taps(b: RewriteBuilder, ins: Instruction) -> Instruction:
    x, w = ins.inputs
    (n, channels, *steps), kernel = x.shape.lens, w.shape.lens[2:]
    op, taps = ins.operator(ConvolutionBase), prod(kernel)
    padding = tuple(begin for begin, _ in op.pads(steps, kernel))
    if isinstance(op, ConvolutionBackwards):
        group = op.group
        rows = taps * w.shape.lens[1]
        weights = b.swap_last(b.reshape(w, (1, group, channels // group, rows)))
    else:
        group, rows = 1, taps * w.shape.lens[0]
        reverse = b.op("reverse", w, axes=tuple(range(2, 2 + len(kernel))))
        each = b.reshape(reverse, (w.shape.lens[0], channels, taps))
        weights = b.reshape(b.swap_last(each), (1, 1, rows, channels))
        padding = tuple((k - 1) * d - p for k, d, p in zip(kernel, op.dilation, padding))
    if group == prod(steps) == 1:  # weights are the right-hand side: images of one pixel are rows of a matrix
        product = b.op("dot", b.reshape(x, (n, channels)), b.reshape(b.swap_last(weights), (channels, rows)))
    else:
        images = b.reshape(x, (n, group, channels // group, prod(steps)))
        product = b.op("dot", b.broadcast(weights, (n, group, rows, channels // group)), images)
    columns = b.reshape(product, (n, group * rows, prod(steps)))
    windows = Col2Im(ins.shape.lens[2:], kernel, op.stride, op.dilation, padding, tuple(steps))
    return b.op(windows, columns)
