"""The names in a reduction kernel's text: its arguments, accumulators and stack buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ....core.dim import Length, ceil_div, known_in, maximum, minimum
from ....dataclass import dataclass
from ....graph.instruction import Instruction
from ....ops.reduce_parts import largest_head
from ...arguments import Arguments
from ...statements import dtype_name, indent
from ..loops import Odometer
from .reduction_layout import ReduceLayout

LEAST_VECTORS = 4
"""Least vectors of the head: fewer give a mean that may be far from the row's mean."""


def head_vectors(lanes: int, cols: Length, count: Length, share: int) -> Length:
    """Return the vectors of the head of a row: one in ``share`` of ``count`` elements, of which ``cols`` are
    contiguous."""
    return minimum(cols // lanes, maximum(LEAST_VECTORS, ceil_div(count, share * lanes)))


def head_lines(name: str, dtype: str, lanes: int, element: Sequence[str], value: str) -> list[str]:
    """Return lines that set ``name`` to the mean of ``heads`` vectors, where ``element`` computes each ``value`` at
    ``c``."""
    return [
        f"{name} = const_{dtype}(0, {lanes})",
        "for head in range(heads):",
        *indent([f"c = head * {lanes}", *element, f"{name} = add({name}, {value})"]),
        f"{name}_0 = div(reduce_add({name}), cast_{dtype}(heads * {lanes}))",
        f"{name}_1 = where(lt(abs({name}_0), {largest_head(dtype)!r}), {name}_0, const_{dtype}(0, 0))",
    ]


@dataclass(frozen=True)
class RowSplit:
    """The loops of a reduction, one of which covers only a part if there are several parts.

    Attributes:
        bounds: begin and end of each loop; in row mode the loop along the lanes is the last.
        lines: lines that set the bounds of the part, and ``block`` to the remaining task number.
        offsets: for each operand, the expression added to its offset for the part.
    """

    bounds: tuple[tuple[str, str], ...]
    lines: tuple[str, ...]
    offsets: tuple[str, ...]


def row_split_of(layout: ReduceLayout, arguments: Arguments, loops: tuple[str, ...]) -> RowSplit:
    """Return the parts of a layout, and declare their ``arguments``; ``loops`` are the arguments with the loops'
    lengths."""
    walk, parts = layout.walk, layout.parts
    bounds = [("0", length) for length in loops] + [("0", "cols")] * walk.row_mode
    offsets = [""] * len(walk.tensors)
    if parts == 1:
        return RowSplit(tuple(bounds), (), tuple(offsets))
    d = layout.cut
    arguments.integer("share", layout.share)
    arguments.integer("parts", parts)
    lines = (
        "part = imod(block, parts)",
        "block = idiv(block, parts)",
        "low = part * share",
        f"high = imin({bounds[d][1]}, low + share)",
    )
    bounds[d] = ("low", "high")
    for k in range(len(walk.inputs), len(walk.tensors)):
        offsets[k] = f" + part * {arguments.integer(f'b{k}', layout.fold * prod(walk.tensors[k].lens))}"
    return RowSplit(tuple(bounds), lines, tuple(offsets))


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
