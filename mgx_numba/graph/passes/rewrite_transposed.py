"""Rewrite transposed convolutions with few output channels as a product of all taps, whose columns are added up.

Kernels of convolutions hold output channels side by side in a vector. Three channels leave most of it empty. In the
product all taps of a channel are rows, and pixels lie side by side.
"""

from __future__ import annotations

from math import prod

from ...ops.col2im import Col2Im
from ...ops.convolution import ConvolutionBackwards
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder


class RewriteTransposed(Pass):
    """``convolution_backwards(x, w)`` -> ``col2im(dot(w^T, x))`` where the target says that it is faster."""

    name = "rewrite_transposed"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        can = options.capabilities
        if can is None or can.adds_columns is None:
            return
        for ins in list(module.named(frozenset({"convolution_backwards"}))):
            if any(i.shape.is_dynamic for i in (ins, *ins.inputs)):
                continue
            if can.adds_columns(ins):
                module.replace_instruction(ins, _product_of_taps(RewriteBuilder(module, ins), ins))
                self.log.apply(self.name, ins)
            else:
                self.log.refuse(self.name, ins, "the target has a kernel that is as fast")


def _product_of_taps(b: RewriteBuilder, ins: Instruction) -> Instruction:
    (x, w), op = ins.inputs, ins.operator(ConvolutionBackwards)
    (n, channels, *steps), kernel = x.shape.lens, w.shape.lens[2:]
    pixels, rows = prod(steps), prod(w.shape.lens[1:])
    weights = b.swap_last(b.reshape(w, (1, op.group, channels // op.group, rows)))
    images = b.reshape(x, (n, op.group, channels // op.group, pixels))
    product = b.op("dot", b.broadcast(weights, (n, op.group, rows, channels // op.group)), images)
    columns = b.reshape(product, (n, op.group * rows, pixels))
    padding = tuple(begin for begin, _ in op.pads(steps, kernel))
    windows = Col2Im(ins.shape.lens[2:], kernel, op.stride, op.dilation, padding, tuple(steps))
    return b.op(windows, columns)
