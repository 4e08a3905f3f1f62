"""Compute variances of rows that are split over many workers from sums that are taken in one pass.

The sums are of differences from a shift: the mean of a slice of the row, which a small instruction computes before. See
`one_pass_variance` for the bound on rounding errors. Group norms over large images gain, which otherwise read the image
three times: for the mean, for the variance, and to write the result.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...core.dim import hint, known_same
from ...ops.base import make_op
from ...ops.reduce_parts import HeadMean, largest_head
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .one_pass_variance import rewrite_variances, variances_of
from .reduction_pieces import full_lens


class ShiftVariance(Pass):
    """Rewrite variances in bodies of ``fused_reduce`` that `SplitReduce` would split twice."""

    name = "shift_variance"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in [i for i in module if i.name == "fused_reduce"]:
            found = variances_of(ins.module_args[0])
            if not found:
                continue
            reason = _refused(ins, options) or _of_unknown_source(ins, found)
            if reason:
                self.log.refuse(self.name, ins, reason)
                continue
            self.log.apply(self.name, ins)
            _rewrite(program, module, ins, found)


def _refused(ins: Instruction, options: Options) -> str:
    """Return the reason to keep two passes; "" for none."""
    if not options.fast_math:
        return "moments about another value than the mean are rounded otherwise, and fast_math is off"
    capabilities = options.capabilities
    if capabilities is None:
        return "what the target can do is not known"
    if ins.shape.sub_shapes and any(user.name != "get_tuple_elem" for user in ins.users):
        return "its results are used as a tuple"
    body, shapes = ins.module_args[0], [i.shape for i in ins.inputs]
    full, axes = full_lens(body), ins.op.axes  # type: ignore[attr-defined]
    walk = capabilities.walk(body, axes, shapes, [r.shape for r in body.results()])
    if any(s.symbolic for s in shapes):
        return "which slice of a row is small depends on lengths"
    if walk.tasks >= capabilities.threads or hint(prod(full)) < capabilities.repeated_elements:
        return "rows are not split, and are read again from caches"
    if max(full[a] for a in axes) < HeadMean.share:
        return f"no axis of the rows has {HeadMean.share} elements, of which a slice would be small"
    return ""


def _of_unknown_source(ins: Instruction, variances: dict[Instruction, Instruction]) -> str:
    """Return the reason why the reduced values cannot be computed for a slice; "" if they can."""
    full = full_lens(ins.module_args[0])
    if any(_chain(mean.inputs[0], full) is None for mean in variances.values()):
        return "what is reduced is computed from several values"
    return ""


def _chain(value: Instruction, full: tuple[int, ...]) -> list[Instruction] | None:
    """Return the pointwise instructions of one operand that lead from a parameter of all elements to a value, the
    parameter first; None if others do."""
    found = [value]
    while found[0].inputs:
        if not found[0].op.pointwise or len(found[0].inputs) != 1:
            return None
        found.insert(0, found[0].inputs[0])
    is_parameter = found[0].name == "@param" and known_same(found[0].shape.lens, full)
    return found if is_parameter else None


def _rewrite(program: Program, module: Module, ins: Instruction, variances: dict[Instruction, Instruction]) -> None:
    """Compute the shift of each mean by an instruction of its own, and variances and means from shifted moments."""
    body, inputs = ins.module_args[0], list(ins.inputs)
    full, axes = tuple(full_lens(body)), ins.op.axes  # type: ignore[attr-defined]
    given = dict(zip(body.parameters(), inputs))
    shifts: dict[Instruction, Instruction] = {}
    longest = max(axes, key=lambda a: full[a])
    for number, mean in enumerate(dict.fromkeys(variances.values())):
        source, *steps = _chain(mean.inputs[0], full) or [mean]
        few = -(-full[longest] // HeadMean.share)
        part = module.insert_instruction(ins, "slice", [given[source]], axes=[longest], starts=[0], ends=[few])
        inner = program.unique_module(f"{module.name}:fused_reduce")
        value = inner.add_parameter("x0", part.shape)
        for step in steps:
            value = inner.add_instruction(step.op, [value])
        inner.add_return([_small_or_zero(inner, inner.add_instruction(mean.op, [value]))])
        shift = module.insert_instruction(ins, make_op("fused_reduce", axes=axes), [part], [inner])
        inputs.append(shift)
        shifts[mean] = body.add_parameter(f"shift{number}", shift.shape)
    rewrite_variances(body, variances, shifts)
    made = module.insert_instruction(ins, ins.op, inputs, [body])
    made.debug_symbols = ins.debug_symbols
    module.replace_instruction(ins, made)
    module.remove_instruction(ins)


def _small_or_zero(body: Module, mean: Instruction) -> Instruction:
    """Return a mean, or 0 if subtracting it from an element could overflow, or it is NaN."""
    type, lens = mean.shape.type.numpy, mean.shape.lens

    def constant(value: float) -> Instruction:
        literal = body.add_literal(np.full([1] * len(lens), value, type))
        return body.add_instruction("multibroadcast", [literal], out_lens=lens)

    small = body.add_instruction("less", [body.add_instruction("abs", [mean]), constant(largest_head(type))])
    return body.add_instruction("where", [small, mean, constant(0)])
