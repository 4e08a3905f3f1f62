"""The names in a reduction kernel's text: its arguments, accumulators and stack buffers."""

from __future__ import annotations

from collections.abc import Mapping

from ....core.dim import known_in
from ....dataclass import dataclass
from ....graph.instruction import Instruction
from ...arguments import Arguments
from ...statements import dtype_name
from ..loops import Odometer
from .heads import head_vectors
from .reduction_layout import ReduceLayout
from .row_split import RowSplit, row_split_of


@dataclass(frozen=True)
class Names:
    """The names of operands, strides and values in a kernel's text.

    ``p_<operand>`` is the start of an operand, ``r_<operand>`` its row, ``q_<operand>`` the place where the loop along
    the lanes reads it.

    Attributes:
        operands: ``x0``, ``x1``, ..., ``out0``, ``out1``, ....
        odometer: the dimensions that rows are numbered by.
        parts: the loops of the reduction, whose indices are ``j0``, ``j1``, ....
        steps: for each operand, the argument that is its stride along the lanes, unless that is 0 or 1.
        loop_strides: for each operand, the loops along which it moves, with the arguments that are its strides.
        accumulators, heads, caches: variables of each reduction, each mean known before the row, and each kept value.
    """

    operands: tuple[str, ...]
    odometer: Odometer
    parts: RowSplit
    steps: tuple[str, ...]
    loop_strides: tuple[tuple[tuple[int, str], ...], ...]
    accumulators: Mapping[Instruction, str]
    heads: Mapping[Instruction, str]
    caches: Mapping[Instruction, str]

    def next_row(self, k: int) -> str:
        """Return the argument with an operand's distance to the next row, or "" if it has none."""
        strides = self.odometer.strides[k]
        return strides[-1] if strides else ""

    def loop_offset(self, k: int, index: Mapping[int, str] | None = None) -> str:
        """Return the offset of an operand from its row inside the loops; ``index`` may replace a loop's index
        expression."""
        index = index or {}
        return " + ".join(f"{index.get(d, f'j{d}')} * {stride}" for d, stride in self.loop_strides[k])


def names_of(layout: ReduceLayout, arguments: Arguments) -> Names:
    """Return the names of a kernel, and declare its ``arguments``."""
    walk, stages = layout.walk, layout.stages
    operands = (*(f"x{k}" for k in range(len(walk.inputs))), *(f"out{k}" for k in range(len(walk.outputs))))
    for name, tensor in zip(operands, walk.tensors):
        arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
    for name in ("cols", "chunk", "chunks", "rows", "batch", "count"):
        arguments.integer(name, getattr(layout, name))
    if stages.heads:
        share = min(head.op.share for head in stages.heads)  # type: ignore[attr-defined]
        arguments.integer("heads", head_vectors(layout.lanes, layout.cols, layout.count, share))
    parts = row_split_of(layout, arguments, tuple(arguments.integer(f"m{d}", n) for d, n in enumerate(layout.loops)))
    odometer = Odometer(arguments, layout.outer, layout.row_strides)
    steps, loop_strides = [], []
    for k, stride in enumerate(layout.inner):
        steps.append(arguments.step(f"t{k}", stride))
        along = enumerate(layout.loop_strides[k])
        loop_strides.append(tuple((d, arguments.integer(f"a{k}_{d}", s)) for d, s in along if not known_in(s, 0)))
    return Names(
        operands=operands,
        odometer=odometer,
        parts=parts,
        steps=tuple(steps),
        loop_strides=tuple(loop_strides),
        accumulators={ins: f"acc{k}" for k, ins in enumerate(stages.reductions)},
        heads={ins: f"head{k}" for k, ins in enumerate(stages.heads)},
        caches={ins: f"cache{k}" for k, ins in enumerate(layout.cached)},
    )
