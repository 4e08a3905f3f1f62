"""Whether copies are worth making."""

from __future__ import annotations

from ....codegen.cpu import host
from ....codegen.cpu.data.rows import mover
from ....codegen.cpu.data.transpose import transpose_launch
from ....codegen.space import collapse
from ...lowering.buffers import View

__all__ = ["copies_in_runs"]


def copies_in_runs(source: View, target: View) -> bool:
    """Whether a copy moves vectors: both sides are contiguous along one axis, or blocks can be transposed."""
    space = collapse(target.lens, [source.strides, target.strides], order_by=1)
    if not space.rank:
        return True
    length, inner = space.lens[-1], [s[-1] for s in space.strides]
    if inner == [1, 1] or (inner == [0, 1] and length >= host.lanes(mover(source.type))):
        return True
    return transpose_launch(source.tensor, target.tensor) is not None
