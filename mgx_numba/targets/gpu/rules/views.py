"""Lower reshapes, layouts and concatenations; other views are lowered as on every target."""

from __future__ import annotations

from ....codegen.gpu.contraction.gpu_contraction import VECTOR_BYTES
from ....codegen.gpu.data.copies import COPIES_KERNEL, MOST_COPIES, copies_launch
from ....codegen.launch import Launch
from ....core.dim import known_equal
from ....graph.instruction import Instruction
from ...lowering.buffers import View
from ...lowering.common import lower_concat, lower_contiguous, pieces_to_copy
from ...lowering.contraction_problem import CONVOLUTIONS
from ...lowering.lowering import Lowering
from ...lowering.output_aliasing import RESHAPES
from ...lowering.view_operators import reshape
from .table import lowering

READERS = (*CONVOLUTIONS, "fused_contraction")
"""Operators that read images of few channels from a copy with aligned channel vectors
(`codegen.gpu.contraction.im2row`)."""


@lowering(*RESHAPES)
def lower_reshape(low: Lowering, ins: Instruction) -> None:
    """Lower a reshape (see `reshape`); a single copy is always faster than two launches."""
    reshape(low, ins, lambda source, target: True)


@lowering("layout")
def lower_layout(low: Lowering, ins: Instruction) -> None:
    """Register the image itself if its convolution makes a copy with more channels anyway; else append a copy."""
    users = list(ins.users)
    whole = ins.shape.lens[1] * ins.shape.type.size >= VECTOR_BYTES if ins.shape.ndim > 1 else True
    if len(users) == 1 and users[0].name in READERS and users[0].inputs[0] is ins and not whole:
        low.values[ins] = low.input(ins, 0)
    else:
        lower_contiguous(low, ins)


@lowering("concat")
def lower_concatenation(low: Lowering, ins: Instruction) -> None:
    """Append one launch for all copies.

    It also takes the copies of a directly preceding, independent concatenation: a decoder's keys and values grow at
    once.
    """
    if ins.shape.type.hosted:
        lower_concat(low, ins)
        return
    pieces = [(value, part) for value, part in pieces_to_copy(low, ins) if not known_equal(part.shape.elements, 0)]
    while pieces:
        now, pieces = pieces[:MOST_COPIES], pieces[MOST_COPIES:]
        if len(now) == 1:
            low.copy(*now[0], ins)
            return
        before = _copies_before(low, now)
        if before and len(_launched(low, before, ins)) > 1:  # the step is one of several alternatives
            before = []
        launches = _launched(low, [*before, *now], ins) if before else ()
        if launches:
            low.draft.steps.pop()
        else:
            before, launches = [], _launched(low, now, ins)
        pairs = [*before, *now]
        operands = {f"x{k}": value for k, (value, _) in enumerate(pairs)}
        for launch in launches:
            low.launch(launch, operands | {f"out{k}": part for k, (_, part) in enumerate(pairs)}, ins)


def _launched(low: Lowering, pairs: list[tuple[View, View]], ins: Instruction) -> tuple[Launch, ...]:
    tensors = [(value.tensor, part.tensor) for value, part in pairs]
    return low.solve(copies_launch, tensors, low.origin(ins)).launches


def _copies_before(low: Lowering, now: list[tuple[View, View]]) -> list[tuple[View, View]]:
    """Return the copies of the preceding step, if the launch has room for them and no copy depends on their order."""
    last = low.draft.steps[-1] if low.draft.steps else None
    if last is None or last.launch is None or last.launch.kernel.name != COPIES_KERNEL:
        return []
    count = len(last.operands) // 2
    before = [(last.operands[f"x{k}"], last.operands[f"out{k}"]) for k in range(count)]
    written = {id(part.buffer) for _, part in now}
    known = {id(view.buffer) for pair in before for view in pair}
    read_again = {id(value.buffer) for value, _ in now} & {id(part.buffer) for _, part in before}
    return [] if count + len(now) > MOST_COPIES or written & known or read_again else before
