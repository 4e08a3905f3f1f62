"""Pad products with an odd number of columns, whose rows cannot be stored in vectors.

Vocabularies have odd lengths (50,257 in GPT-2). Rows of 16-bit results are then stored one element at a time by threads
that hold neighbours of several rows.
"""

from __future__ import annotations

from math import prod

from ...core.dim import is_symbolic
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
            b, (x, w), columns = RewriteBuilder(module, ins), ins.inputs, ins.shape.lens[-1]
            pads = (*(0,) * (2 * w.shape.ndim - 1), -columns % COLUMNS)
            wide = b.op(ins.op, x, b.op("pad", w, pads=pads, value=0.0, mode=0))
            axis = ins.shape.ndim - 1
            module.replace_instruction(ins, b.op("slice", wide, axes=(axis,), starts=(0,), ends=(columns,)))
            self.log.apply(self.name, ins)
            remove_dead(module, [ins])


def _refused(ins: Instruction) -> str:
    """Return the reason to keep a product; "" for none."""
    *rows, columns = ins.shape.lens if not ins.shape.is_dynamic else (0,)
    if any(map(is_symbolic, (*rows, columns))) or columns < LEAST_COLUMNS or prod(rows) < LEAST_ROWS:
        return "it has open lengths, or few rows or columns"
    if columns % 2 == 0 or ins.shape.type not in STORAGE:
        return "its rows are stored in vectors"
    return "" if is_constant(ins.inputs[1]) else "its weights are computed"
