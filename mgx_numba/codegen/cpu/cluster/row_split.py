"""Rows that are reduced in parts, each by a separate task with separate results."""

from __future__ import annotations

from math import prod

from ....dataclass import dataclass
from ...arguments import Arguments
from .reduction_layout import ReduceLayout


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
