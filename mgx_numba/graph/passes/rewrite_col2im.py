"""Rewrite ``col2im`` where nothing is added, or where the target has no kernel for it."""

from __future__ import annotations

from math import prod

import numpy as np

from ...core.integers import plain_ints
from ...core.shape import row_major_strides
from ...ops.col2im import Col2Im
from ..folding import LARGEST
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder


class RewriteCol2Im(Pass):
    """``col2im(x)`` -> a transpose of ``x`` where windows lie side by side; otherwise, without a kernel, a scatter."""

    name = "rewrite_col2im"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        can = options.capabilities
        for ins in list(module.named(frozenset({Col2Im.name}))):
            op, b = ins.operator(Col2Im), RewriteBuilder(module, ins)
            if op.apart:
                result = _rearranged(b, ins, op)
            elif can is not None and can.adds_windows:
                continue
            elif ins.inputs[0].shape.symbolic or prod(op.kernel) * prod(op.steps) > LARGEST:
                self.log.refuse(self.name, ins, "a table of places is too large, or has open lengths")
                continue
            else:
                result = _scattered(b, ins, op)
            module.replace_instruction(ins, result)
            self.log.apply(self.name, ins)


def _rearranged(b: RewriteBuilder, ins: Instruction, op: Col2Im) -> Instruction:
    rank, lens = len(op.size), ins.shape.lens
    apart = b.reshape(ins.inputs[0], (*lens[:2], *op.kernel, *op.steps))
    order = (0, 1, *(axis for k in range(rank) for axis in (2 + rank + k, 2 + k)))
    return b.reshape(b.transpose(apart, order), lens)


def _scattered(b: RewriteBuilder, ins: Instruction, op: Col2Im) -> Instruction:
    places, rows = window_places(op).reshape(1, -1), prod(ins.shape.lens[:2])
    zeros = b.broadcast(b.like(0, ins), (rows, prod(op.size)))
    index = b.broadcast(b.literal(places), (rows, places.size))
    updates = b.reshape(ins.inputs[0], (rows, places.size))
    added = b.op("scatter_add", zeros, index, updates, axis=1, skip_out_of_bounds=True)
    return b.reshape(added, ins.shape.lens)


def window_places(op: Col2Im) -> np.ndarray:
    """Return the flat place in the image of each element [kernel..., steps...]; ``prod(size)`` for the padding."""
    size, steps = plain_ints(op.size), plain_ints(op.steps)
    count = len(size)
    flat, inside = np.zeros((1,) * (2 * count), np.int64), np.ones((1,) * (2 * count), bool)
    for k, weight in enumerate(row_major_strides(size)):
        window, first = np.arange(op.kernel[k])[:, None] * op.dilation[k], np.arange(steps[k]) * op.stride[k]
        place = window + first - op.padding[k]
        shape = [1] * (2 * count)
        shape[k], shape[count + k] = place.shape
        inside = inside & ((place >= 0) & (place < size[k])).reshape(shape)
        flat = flat + (place * weight).reshape(shape)
    return np.where(inside, flat, prod(size))
