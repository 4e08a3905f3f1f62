"""Register the rules of views: reshapes here, other views as on every target."""

from __future__ import annotations

from ....codegen.cpu import host
from ....codegen.problems.cluster import Tensor
from ....codegen.space import collapse
from ....core.dim import hint
from ....graph.instruction import Instruction
from ...lowering.buffers import View
from ...lowering.lowering import Lowering
from ...lowering.output_aliasing import RESHAPES
from ...lowering.view_operators import reshape
from .table import lowering


def copies_in_runs(read: View, written: View) -> bool:
    """Return whether a copy moves vectors: both sides are contiguous along one axis, or blocks can be transposed."""
    from ....codegen.cpu.data.row_tasks import mover  # late: few programs copy reshaped values
    from ....codegen.cpu.data.transpose import transpose_launch

    source, target = (_at_hints(view.tensor) for view in (read, written))  # either answer gives correct code
    space = collapse(target.lens, [source.strides, target.strides], order_by=1)
    if not space.rank:
        return True
    length, inner = space.lens[-1], [s[-1] for s in space.strides]
    if inner == [1, 1] or (inner == [0, 1] and length >= host.lanes(mover(source.type))):
        return True
    return transpose_launch(source, target) is not None


def _at_hints(tensor: Tensor) -> Tensor:
    """Return the tensor with example lengths in place of symbolic lengths."""
    lens, strides = (tuple([hint(n) for n in own]) for own in (tensor.lens, tensor.strides))
    return Tensor(tensor.type, lens, strides, hint(tensor.offset))


@lowering(*RESHAPES)
def lower_reshape(low: Lowering, ins: Instruction) -> None:
    """Lower a reshape (see `reshape`); a single copy is faster where it moves vectors."""
    reshape(low, ins, copies_in_runs)
