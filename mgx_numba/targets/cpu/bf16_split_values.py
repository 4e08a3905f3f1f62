"""Values split into bfloat16 parts (`codegen.cpu.part_form`), written by the kernel that computes the value.

The step of a cluster, or a step for which a rule called `offer_bf16_split`, can also write the high and low parts of
its
result. A product that reads parts requests them (`bf16_split_of`, `take_bf16_split`). When all steps exist, values
without any other reader are written in parts only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ...codegen.cpu.contraction.bf16_split_rows import LINE_ELEMENTS, parts_pitch
from ...codegen.cpu.microkernels.tile_table import matrix_tile
from ...codegen.launch import Launch
from ...codegen.problems.cluster import PointwiseProblem, ReductionProblem
from ...codegen.problems.element_types import FLOAT32
from ...core.shape import Shape
from ...core.types import Type
from ...dataclass import dataclass
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from ...runtime.plan import Region
from ..lowering.buffers import Buffer, View
from ..lowering.contraction_problem import CONVOLUTIONS, PRODUCTS
from ..lowering.lowering import Lowering
from ..lowering.steps import PendingStep

_MULTIPLYING = frozenset({*PRODUCTS, *CONVOLUTIONS, "fused_contraction"})
_VIEWS = frozenset("reshape reshape_lazy flatten squeeze unsqueeze transpose".split())


@dataclass(frozen=True)
class SplitValue:
    """The high and low parts of a value that is stored in contiguous rows of ``columns`` elements.

    Rows of a part are ``pitch`` elements apart; the low parts follow ``low`` elements after the high parts.
    """

    columns: int
    pitch: int
    low: int
    high: View
    behind: View

    def seen(self, view: View) -> View | None:
        """Return the high parts of a view of the value's buffer; None unless the view has whole rows."""
        strides = []
        for length, stride in zip(view.lens, view.strides):
            if stride == 1 and length == self.columns:
                strides.append(1)
            elif stride % self.columns == 0 or length == 1:
                strides.append(stride // self.columns * self.pitch)
            else:
                return None
        if view.offset % self.columns or 1 not in strides:
            return None
        shape = Shape(Type.bf16_type, view.lens, strides)
        return View(self.high.buffer, shape, view.offset // self.columns * self.pitch)


Remake = Callable[[SplitValue, bool], tuple[Launch, Mapping[str, View]]]
"""Returns the launch that writes parts besides the result, or only the parts, and the operands for its results."""


@dataclass
class Writer:
    """The step that writes ``view``, its original ``launch`` and operands, and the ``parts`` that it could write.

    ``taken`` is set once a reader uses the parts, ``alone`` if the step writes only the parts. ``besides`` is as in
    `offer_bf16_split`.
    """

    step: PendingStep
    view: View
    operands: Mapping[str, View]
    parts: SplitValue
    remake: Remake
    launch: Launch | None
    besides: bool
    taken: bool = False
    alone: bool = False

    def take(self, low: Lowering, alone: bool) -> bool:
        """Make the step write parts besides the result, or ``alone``; return whether it does.

        This needs a kernel, and no other result of the step may be written in parts.
        """
        if not self.taken and self.step.launch is not self.launch:
            return False
        try:
            launch, results = self.remake(self.parts, alone)
        except UnsupportedError:
            return False
        self.taken, self.alone = True, alone
        self.step.launch, self.step.label = launch, f"{low.backend.name}::{launch.kernel.name}"
        self.step.operands = {**self.operands, **results}
        return True


def offer_bf16_split(low: Lowering, step: PendingStep, view: View, columns: int, remake: Remake, besides: bool) -> None:
    """Record that a step can write its result in parts.

    Nothing is recorded unless the result is a whole arena buffer with contiguous float32 rows, and the CPU has a tile
    for parts.

    Args:
        step: a step with a launch.
        view: the result.
        columns: elements of a row.
        remake: makes the launch that writes parts.
        besides: whether writing parts besides the result takes less time than a separate pass that splits it. This is
            so for clusters, not for products' epilogues. ResNet-50 in batches of 8 took 187 ms with parts besides its
            residual sums, 182 ms with passes, 171 ms with parts alone (two cores of an Emerald Rapids).
    """
    if matrix_tile(FLOAT32) is None:
        return
    whole = view.offset == 0 and view.shape.bytes == view.buffer.bytes == 4 * math.prod(view.lens)
    if view.buffer.region is not Region.ARENA or not whole or view.type is not Type.float_type or columns < 2:
        return
    parts = _room(view, columns)
    if parts is not None:
        low.draft.writers[view.buffer] = Writer(step, view, step.operands, parts, remake, step.launch, besides)


def bf16_split_of(low: Lowering, view: View, axis: int) -> tuple[View, Writer] | None:
    """Return the view of a value's high parts, and the writer; None if the value cannot be written in parts.

    The parts exist only after `take_bf16_split`. Rows lie along the ``axis`` of the view.
    """
    if matrix_tile(FLOAT32) is None:
        return None
    if view.buffer not in low.draft.writers:
        _offer_cluster(low, view.buffer)
    writer: Writer | None = low.draft.writers.get(view.buffer)
    high = None if writer is None else writer.parts.seen(view)
    return None if writer is None or high is None or high.strides[axis] != 1 else (high, writer)


def take_bf16_split(low: Lowering, writer: Writer, reader: Instruction, others: Sequence[View]) -> bool:
    """Make the step that computes a value write its parts for a reader; return whether it does.

    ``others`` are further operands of the reader's launches.
    """
    if not writer.taken:
        buffer = writer.view.buffer
        copied = (view for step in low.draft.steps if step.instruction is reader for view in step.operands.values())
        added = any(view.buffer is buffer for view in (*others, *copied))
        alone = not added and _readers(low, writer.step.instruction, buffer) <= {reader}
        if not writer.besides and (added or not (alone or _only_multiplied(writer.step.instruction))):
            return False
        if writer.take(low, alone) and not low.draft.finalizers:
            low.draft.finalizers.append(partial(_settle, low))
    return writer.taken


def _only_multiplied(ins: Instruction) -> bool:
    """Return whether an instruction's result, or its views, are read only as left-hand sides of products."""
    for user in ins.users:
        if user.name in _MULTIPLYING and ins not in user.inputs[1:]:
            continue
        if user.name not in _VIEWS or not _only_multiplied(user):
            return False
    return True


def _readers(low: Lowering, ins: Instruction, buffer: Buffer) -> set[Instruction]:
    """Return the instructions that read the result's buffer, except views of it."""
    found = set()
    for user in ins.users:
        seen = low.values.get(user)
        if isinstance(seen, View) and seen.buffer is buffer:
            found |= _readers(low, user, buffer)
        elif seen is None or user.name != "get_tuple_elem":
            found.add(user)
    return found


def _settle(low: Lowering) -> None:
    """Make steps write only the parts of values that no step reads in full."""
    taken = [writer for writer in low.draft.writers.values() if writer.taken]
    besides = [writer for writer in taken if not writer.alone]
    own = {id(writer.step): writer.view.buffer for writer in taken}
    read: set[Buffer] = set()
    for step in low.draft.steps:
        names = () if step.launch is None else step.launch.operands
        views = [*step.inputs, *step.outputs, *(step.operands[name] for name in names)]
        read.update(view.buffer for view in views if view.buffer is not own.get(id(step)))
    for writer in besides:
        if writer.view.buffer not in read:
            writer.take(low, True)
    alone = {writer.view.buffer: writer.parts.high for writer in taken if writer.alone}
    for step in low.draft.steps:  # earlier launches of the same solution also have the result as an operand
        if any(view.buffer in alone for view in step.operands.values()):
            step.operands = {name: alone.get(view.buffer, view) for name, view in step.operands.items()}


def _room(view: View, columns: int) -> SplitValue | None:
    """Return new memory for the parts of a view; None if the view does not consist of contiguous rows."""
    pitch = parts_pitch(columns)
    low = math.prod(view.lens) // columns * pitch
    every = View(Buffer(Region.ARENA, 0, 2 * 2 * low), Shape(Type.bf16_type, (low,)))
    parts = SplitValue(columns, pitch, low, every, every)
    high = parts.seen(view)
    return None if high is None else replace(parts, high=high, behind=high.with_shape(high.shape, low))


def _offer_cluster(low: Lowering, buffer: Buffer) -> None:
    """Record that the step that wrote a buffer can write parts, if it computes a cluster."""
    for step in reversed(low.draft.steps):
        for name, view in step.operands.items():
            if name.startswith("out") and view.buffer is buffer:
                if step.launch is not None and isinstance(step.problem, (PointwiseProblem, ReductionProblem)):
                    _offer_result(low, step, step.problem, int(name.removeprefix("out")))
                return


def _offer_result(low: Lowering, step: PendingStep, problem: PointwiseProblem | ReductionProblem, number: int) -> None:
    """Record that a cluster's step can write one of its results in parts. Rows along the contiguous axis have to be
    whole cache lines."""
    view, count = step.operands[f"out{number}"], len(problem.outputs)
    along = [n for n, stride in zip(view.lens, view.strides) if stride == 1 and n > 1]
    other = isinstance(problem, ReductionProblem) and (problem.parts > 1 or problem.fold > 1)
    types = {view.type for name, view in step.operands.items() if name.startswith("out")}  # may include parts already
    if len(along) != 1 or along[0] % LINE_ELEMENTS or types != {Type.float_type} or other:
        return

    def remake(parts: SplitValue, alone: bool) -> tuple[Launch, Mapping[str, View]]:
        high = replace(problem.outputs[number], type=Type.bf16_type, strides=parts.high.strides)
        outputs, again = [*problem.outputs, high, high], [number, number]
        results = {f"out{count}": parts.high, f"out{count + 1}": parts.behind}
        if alone:
            outputs, again = [*problem.outputs, high], [number]
            outputs[number] = high
            results = {f"out{number}": parts.high, f"out{count}": parts.behind}
        own = replace(problem, outputs=tuple(outputs), again=tuple(again))
        return low.plan(own).launches[0], results

    offer_bf16_split(low, step, view, along[0], remake, besides=True)
