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
from .reduction_pieces import ancestors, full_lens
from .split_reduce import whole_rows


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
    if whole_rows(walk, hint(prod(full)), capabilities):
        return "rows are not split, and are read again from caches"
    if max(full[a] for a in axes) < HeadMean.share:
        return f"no axis of the rows has {HeadMean.share} elements, of which a slice would be small"
    return ""


def _of_unknown_source(ins: Instruction, variances: dict[Instruction, Instruction]) -> str:
    """Return the reason why the reduced values cannot be computed for a slice; "" if they can."""
    body = ins.module_args[0]
    if any(_steps(body, mean.inputs[0]) is None for mean in variances.values()):
        return "what is reduced is computed from values of whole rows"
    return ""


def _steps(body: Module, value: Instruction) -> list[Instruction] | None:
    """Return the instructions that compute a value from parameters of all elements, in order and with the parameters;
    None if other instructions than pointwise operations and broadcast numbers do."""
    needed = ancestors([value], set())
    full = full_lens(body)
    for ins in needed:
        if ins.is_param:
            known = known_same(ins.shape.lens, full)
        elif ins.name == "multibroadcast":
            known = ins.inputs[0].literal is not None
        else:
            known = ins.op.pointwise or ins.literal is not None
        if not known:
            return None
    return [*(p for p in body.parameters() if p in needed), *(i for i in body if i in needed and not i.is_param)]


def _rewrite(program: Program, module: Module, ins: Instruction, variances: dict[Instruction, Instruction]) -> None:
    """Compute the shift of each mean by an instruction of its own, and variances and means from shifted moments."""
    body, inputs = ins.module_args[0], list(ins.inputs)
    full, axes = tuple(full_lens(body)), ins.op.axes  # type: ignore[attr-defined]
    given = dict(zip(body.parameters(), inputs))
    shifts: dict[Instruction, Instruction] = {}
    longest = max(axes, key=lambda a: full[a])
    few = -(-full[longest] // HeadMean.share)
    lens = tuple(few if a == longest else n for a, n in enumerate(full))
    for number, mean in enumerate(dict.fromkeys(variances.values())):
        inner = program.unique_module(f"{module.name}:fused_reduce")
        parts: list[Instruction] = []
        values: dict[Instruction, Instruction] = {}
        for step in _steps(body, mean.inputs[0]) or ():
            if step.is_param:
                part = module.insert_instruction(ins, "slice", [given[step]], axes=[longest], starts=[0], ends=[few])
                parts.append(part)
                values[step] = inner.add_parameter(f"x{len(parts) - 1}", part.shape)
            elif step.literal is not None:
                values[step] = inner.add_literal(step.literal)
            elif step.name == "multibroadcast":
                values[step] = inner.add_instruction(step.name, [values[step.inputs[0]]], out_lens=lens)
            else:
                values[step] = inner.add_instruction(step.op, [values[i] for i in step.inputs])
        result = inner.add_instruction(mean.op, [values[mean.inputs[0]]])
        inner.add_return([_small_or_zero(inner, result)])
        shift = module.insert_instruction(ins, make_op("fused_reduce", axes=axes), parts, [inner])
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
