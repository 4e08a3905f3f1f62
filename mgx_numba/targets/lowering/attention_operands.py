"""Lower attention on any target: memory layout of operands and results, and their element types."""

from __future__ import annotations

from collections.abc import Sequence

from ...codegen.problems.cluster import PointwiseProblem
from ...core.dim import known_equal, known_less_equal, less, select
from ...core.shape import Shape
from ...core.types import Type
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...ops.base import make_op
from .buffers import View
from .lowering import Lowering

HEADS_LAST = (0, 2, 1, 3)
"""Permutation between [batch, head, position, feature] and the [batch, position, head, feature] of projections."""


def accepts_attention(ins: Instruction, shape: Shape) -> bool:
    """Return whether attention can write memory of this shape: the features of a row must be contiguous."""
    return known_equal(shape.lens[3], 1) or known_equal(shape.strides[3], 1)


def attention_output(low: Lowering, ins: Instruction) -> View:
    """Return the view for the result: the destination lent to it, else the layout from which its users merge heads
    without a copy."""
    if ins in low.output_aliases or not any(_merges_heads(user) for user in ins.users):
        return low.output(ins)
    view = low.allocate(Shape.from_permutation(ins.shape.type, ins.shape.lens, HEADS_LAST))
    low.values[ins] = view
    return view


def _merges_heads(ins: Instruction) -> bool:
    return ins.name == "transpose" and tuple(ins.op.attributes()["permutation"]) == HEADS_LAST


def mask_strides(mask: View, scores: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a mask broadcast to ``scores``, the lengths [batch, heads, queries, keys]."""
    missing = 4 - len(mask.lens)
    found = []
    for n, s, whole in zip(mask.lens, mask.strides, scores[missing:]):
        if known_less_equal(n, 1):
            found.append(0)
        else:  # a symbolic length may be 1, and is broadcast then
            found.append(s if known_equal(n, whole) else select(less(1, n), s, 0))
    return (0,) * missing + tuple(found)


def mask_period(mask: View) -> int | None:
    """Return after how many batches the mask repeats; None if there is one mask for each batch, or one for all."""
    return None if len(mask.lens) < 4 or known_less_equal(mask.lens[0], 1) else mask.lens[0]


def as_type(low: Lowering, ins: Instruction, view: View, type: Type) -> View:
    """Return the view if it has the element type, else a converted copy, in which broadcast axes stay broadcast."""
    if view.type is type:
        return view
    stored = view.without_repeats()
    target = low.allocate(Shape(type, stored.lens))
    convert(low, ins, stored, target)
    return target.repeated(view.lens)


def convert(low: Lowering, ins: Instruction, source: View, target: View) -> None:
    """Append a copy that converts to the target's element type."""
    module = Module("convert")
    parameter = module.add_parameter("x0", Shape(source.type))
    module.add_return([module.add_instruction(make_op("convert", target_type=target.type), [parameter])])
    problem = PointwiseProblem(module, (source.tensor,), (target.tensor,), origin=low.origin(ins))
    low.compute(problem, [source], [target], ins)
