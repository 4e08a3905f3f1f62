"""Rewrite transposed convolutions with few output channels as a product of all taps, whose columns are added up.

Kernels of convolutions hold output channels side by side in a vector. Three channels leave most of it empty. In the
product all taps of a channel are rows, and pixels lie side by side.
"""

from __future__ import annotations

from math import prod

from ...ops.convolution import ConvolutionBackwards
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from ..windows import add_windows, windows_apart
from .base import Options, Pass
from .build import RewriteBuilder


class RewriteTransposed(Pass):
    """``convolution_backwards(x, w)`` -> ``add_windows(dot(w^T, x))`` where the target says that it is faster."""

    name = "rewrite_transposed"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        can = options.capabilities
        if can is None or can.adds_columns is None:
            return
        for ins in list(module.named(frozenset({"convolution_backwards"}))):
            if any(i.shape.is_dynamic for i in (ins, *ins.inputs)):
                continue
            if any(i.shape.symbolic for i in (ins, *ins.inputs)) and not windows_apart(*_windows(ins)):
                self.log.refuse(self.name, ins, "columns are added at places that are known when compiling")
            elif not can.adds_columns(ins):
                self.log.refuse(self.name, ins, "the target has a kernel that is as fast")
            else:
                module.replace_instruction(ins, _product_of_taps(RewriteBuilder(module, ins), ins))
                self.log.apply(self.name, ins)


def _windows(ins: Instruction) -> tuple[tuple[int, ...], ...]:
    """Return the arguments of `add_windows` from ``size`` on."""
    op, steps, kernel = ins.operator(ConvolutionBackwards), ins.inputs[0].shape.lens[2:], ins.inputs[1].shape.lens[2:]
    begins = tuple(begin for begin, _ in op.pads(steps, kernel))
    return ins.shape.lens[2:], kernel, op.stride, op.dilation, begins, steps


def _product_of_taps(b: RewriteBuilder, ins: Instruction) -> Instruction:
    x, w = ins.inputs
    groups = ins.operator(ConvolutionBackwards).group
    (n, channels), pixels, rows = x.shape.lens[:2], prod(x.shape.lens[2:]), prod(w.shape.lens[1:])
    weights = b.swap_last(b.reshape(w, (1, groups, channels // groups, rows)))
    images = b.reshape(x, (n, groups, channels // groups, pixels))
    product = b.op("dot", b.broadcast(weights, (n, groups, rows, channels // groups)), images)
    return add_windows(b, b.reshape(product, (n, groups * rows, pixels)), *_windows(ins))
