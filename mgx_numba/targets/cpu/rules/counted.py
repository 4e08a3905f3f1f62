"""Results whose lengths kernels count."""

from __future__ import annotations

from ....core.counted_elements import copied_elements
from ....core.dim import Length, less_equal
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.selection import MOST_COUNTED, counted_shape
from ...lowering.buffers import View
from ...lowering.function_call import FunctionCall
from ...lowering.lowering import Lowering
from ...lowering.steps import function_step


def counted_outputs(low: Lowering, ins: Instruction, room: Length) -> tuple[View, View]:
    """Return int64 memory for up to ``room`` elements of an instruction's result, and for their number: the results of
    the form that counts (`Operator.counted`), else scratch memory."""
    if ins.shape.sub_shapes:
        out, count = low.outputs_of(ins)
        low.require(less_equal(out.lens[0], MOST_COUNTED))
        return out, count
    low.require(less_equal(room, MOST_COUNTED))
    return low.allocate(counted_shape(room).sub_shapes[0]), low.allocate(Shape(Type.int64_type, (1,)))


def take_counted(low: Lowering, ins: Instruction, lens: tuple[int, ...], found: View, count: View) -> None:
    """Append the step that takes a result of lengths ``lens``, -1 for the counted one, from memory with room for more;
    none where the length is a result itself."""
    if ins.shape.sub_shapes:
        return
    out = low.values[ins] = low.on_host(ins.shape)
    label, reason = f"{low.backend.name}::{ins.name}_elements", "how many elements there are is known after the kernel"
    low.draft.steps.append(function_step(label, ins, FunctionCall(copied_elements, lens), [found, count], out, reason))
