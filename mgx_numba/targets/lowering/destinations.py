"""Which memory a lowering may be lent."""

from __future__ import annotations

from ...core.shape import Shape, invert_permutation
from ...graph.instruction import Instruction
from ...ops.dims import view_strides
from ...ops.pad import Pad, PadMode
from .buffers import View

__all__ = ["RESHAPES", "inside_of", "keeps_inner_axis", "read_with_gaps", "seen_before"]

WALKS = ("concat", "pad", "pointwise", "pooling")
"""What reads strided memory as fast as any, besides single pointwise operations."""
RESHAPES = ("reshape", "flatten", "squeeze", "unsqueeze", "reshape_lazy")


def inside_of(ins: Instruction, whole: View) -> View | None:
    """Where the input of a padding that adds one value lies in the memory of its result; ``None`` for other ones."""
    if not isinstance(ins.op, Pad) or ins.op.mode is not PadMode.constant or min(ins.op.pads, default=0) < 0:
        return None
    source = ins.inputs[0].shape
    shape = Shape(source.type, source.lens, whole.strides)
    return whole.with_shape(shape, sum(n * s for n, s in zip(ins.op.pads, whole.strides)))


def read_with_gaps(ins: Instruction, reader: Instruction) -> bool:
    """Whether all that reads a result besides one ``reader`` takes any strides, not one pixel after the other alone;
    submodules do not."""
    others = [user for user in ins.users if user is not reader]
    return all(user.module is ins.module and (user.op.pointwise or user.name in WALKS) for user in others)


def keeps_inner_axis(ins: Instruction, shape: Shape) -> bool:
    """Whether the axis along which the result's own memory is contiguous is so in ``shape`` too.

    Kernels write any strides, but a step that follows transposes faster than scattered stores do.
    """
    own = [a for a, (n, s) in enumerate(zip(ins.shape.lens, ins.shape.strides)) if n > 1 and s == 1]
    return not own or any(shape.strides[a] == 1 for a in own)


def seen_before(ins: Instruction, shape: Shape) -> Shape | None:
    """How the input of a transpose or a reshape lies in memory if the result lies there in ``shape``.

    ``None`` for other operators, and if no strides do that.
    """
    if len(ins.inputs) != 1 or ins.inputs[0].shape.is_dynamic or ins.shape.is_dynamic:
        return None
    lens = ins.inputs[0].shape.lens
    if ins.name == "transpose":
        order = invert_permutation(ins.op.attributes()["permutation"])
        return Shape(shape.type, lens, [shape.strides[axis] for axis in order])
    strides = view_strides(shape, lens) if ins.name in RESHAPES else None
    return None if strides is None else Shape(shape.type, lens, strides)
