"""Which memory a lowering may be lent."""

from __future__ import annotations

from ....graph.instruction import Instruction
from ....graph.shape import Shape

__all__ = ["keeps_inner_axis"]


def keeps_inner_axis(ins: Instruction, shape: Shape) -> bool:
    """Whether the axis along which the result's own memory is contiguous is so in ``shape`` too.

    Kernels write any strides, but a step that follows transposes faster than scattered stores do.
    """
    own = [a for a, (n, s) in enumerate(zip(ins.shape.lens, ins.shape.strides)) if n > 1 and s == 1]
    return not own or any(shape.strides[a] == 1 for a in own)
