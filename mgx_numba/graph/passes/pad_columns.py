"""Pad products with an odd number of columns, whose rows cannot be stored in vectors.

Vocabularies have odd lengths (50,257 in GPT-2). Rows of 16-bit results are then stored one element at a time by threads
that hold neighbours of several rows.
"""

from __future__ import annotations

from math import prod

from ..constants import is_constant
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .rewriter import remove_dead
from .storage_types import STORAGE

LEAST_ROWS, LEAST_COLUMNS = 256, 1024
"""Least rows and columns. 1,024 rows of 50,257 columns and 1,024 terms take 342 us on an H200, a third of the rate of
even columns; a copy of the result takes some 60."""
COLUMNS = 8
"""Columns of a vector of 16 bytes."""


class PadColumns(Pass):
    """``dot(x, w)`` -> ``slice(dot(x, pad(w)))`` for constant weights with an odd number of columns."""

    name = "pad_columns"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in list(module.named(frozenset({"dot"}))):
            reason = _refused(ins)
            if reason:
                self.log.refuse(self.name, ins, reason)
                continue
            b, columns = RewriteBuilder(module, ins), ins.shape.lens[-1]
            wide = b.op(ins.op, ins.inputs[0], _padded(b, ins.inputs[1], -columns % COLUMNS))
            axis = ins.shape.ndim - 1
            module.replace_instruction(ins, b.op("slice", wide, axes=(axis,), starts=(0,), ends=(columns,)))
            self.log.apply(self.name, ins)
            remove_dead(module, [ins])


def _padded(b: RewriteBuilder, w: Instruction, count: int) -> Instruction:
    """Return weights with ``count`` columns of zeros more; weights that are broadcast to a batch are padded once."""
    if w.name == "multibroadcast" and len(w.inputs) == 1 and w.inputs[0].shape.lens[-1] == w.shape.lens[-1]:
        return b.broadcast(_padded(b, w.inputs[0], count), (*w.shape.lens[:-1], w.shape.lens[-1] + count))
    return b.op("pad", w, pads=(*(0,) * (2 * w.shape.ndim - 1), count), value=0.0, mode=0)


def _refused(ins: Instruction) -> str:
    """Return the reason to keep a product; "" for none."""
    if ins.shape.is_dynamic or ins.shape.symbolic:
        return "it has open lengths"
    *rows, columns = ins.shape.lens
    if columns < LEAST_COLUMNS or prod(rows) < LEAST_ROWS:
        return "it has few rows or columns"
    if columns % 2 == 0 or ins.shape.type not in STORAGE:
        return "its rows are stored in vectors"
    return "" if is_constant(ins.inputs[1]) else "its weights are computed"
