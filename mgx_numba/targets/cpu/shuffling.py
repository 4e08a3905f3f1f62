"""Let a grouped convolution read the input of a channel shuffle, in place of the shuffle's copy."""

from __future__ import annotations

from dataclasses import replace

from ...codegen.cpu.contraction.conv import ConvDirect
from ...codegen.problems.convolution import ConvProblem
from ...core.shape import Shape
from ...graph.instruction import Instruction
from ...graph.passes.sink_shuffle import shuffled_groups
from ...runtime.plan import Region
from ..lowering.buffers import View
from ..lowering.lowering import Lowering


def before_shuffle(
    low: Lowering, ins: Instruction, problem: ConvProblem, x: View
) -> tuple[ConvProblem, View, int] | None:
    """Return the problem that reads the input of a channel shuffle, that input, and the number of the shuffle's copy
    step.

    None unless the convolution is the copy's only reader, and no contraction follows the copy.
    """
    if not low.draft.steps:
        return None
    source = next((i for i in ins.inputs if low.values.get(i) is x), None)
    groups = shuffled_groups(source, "reshape_lazy") if source is not None else 0
    if source is None or not groups or source.inputs[0].name != "layout":
        return None
    copy = source.inputs[0]
    since = low.draft.requested[-1][-1] if low.draft.requested else 0
    places = [k for k, step in enumerate(low.draft.steps) if k >= since and step.instruction is copy]
    if [*source.users] != [ins] or [*copy.users] != [source] or len(places) != 1:
        return None
    buffer, split = x.buffer, low.values[copy.inputs[0].inputs[0]]
    writer = low.draft.writers.get(buffer)
    if buffer.region is not Region.ARENA or buffer.bytes != x.shape.bytes or (writer is not None and writer.taken):
        return None
    image, group, channel, *pixels = split.strides
    if channel != 1 or group != split.lens[2] or split.type is not x.type:
        return None
    view = split.with_shape(Shape(x.type, x.lens, (image, 1, *pixels)))
    own = replace(problem, x_strides=(image, *pixels), shuffled=groups)
    return None if ConvDirect().refusal(own) else (own, view, places[0])


def drop_shuffle(low: Lowering, x: View, number: int) -> None:
    """Remove the step with this number, which copies to ``x``."""
    del low.draft.steps[number]
    low.draft.writers.pop(x.buffer, None)
