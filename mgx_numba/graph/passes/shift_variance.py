"""Compute variances of rows that are split over many workers from sums that are taken in one pass.

The sums are of differences from a shift: the mean of a slice of the row, which a small instruction computes before. If
the slice has ``m`` of ``n`` elements, the shift differs from the mean by at most ``sqrt(n / m)`` standard deviations.
So the variance's rounding errors are at most ``1 + n / m`` times those of two passes, and equal if the elements are
typical. See Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983. Group norms over large images
gain, which otherwise read the image three times: for the mean, for the variance, and to write the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from ...core.dim import hint, known_same
from ...core.types import Type, finfo
from ...ops.base import make_op
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .reduction_pieces import ancestors, full_lens
from .rewriter import remove_dead
from .split_reduce import whole_rows

EXACT_TYPES = (Type.float_type, Type.double_type)
"""Supported types; narrower values are rounded between the operations of two passes, but would not be in one pass."""
SHARE = 32
"""The shift is the mean of one of so many parts of a row's elements."""


class ShiftVariance(Pass):
    """Rewrite variances in bodies of ``fused_reduce`` that `SplitReduce` would split twice."""

    name = "shift_variance"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in [i for i in module if i.name == "fused_reduce"]:
            found = _variances_of(ins.module_args[0])
            if not found:
                continue
            reason = _refused(ins, options) or _of_unknown_source(ins, found)
            if reason:
                self.log.refuse(self.name, ins, reason)
                continue
            self.log.apply(self.name, ins)
            _rewrite(program, module, ins, found)


def _variances_of(body: Module) -> dict[Instruction, Instruction]:
    """Return the variances of a body, with their means."""
    return {ins: mean for ins in body if (mean := _mean_of_variance(ins)) is not None}


def _mean_of_variance(ins: Instruction) -> Instruction | None:
    """Return the mean about which an instruction is the variance."""
    if ins.name != "reduce_mean" or ins.inputs[0].name != "mul" or ins.shape.type not in EXACT_TYPES:
        return None
    difference, same = ins.inputs[0].inputs
    if difference is not same or difference.name != "sub":
        return None
    x, spread = difference.inputs
    mean = spread.inputs[0] if spread.name == "multibroadcast" else spread
    independent = mean.name == "reduce_mean" and mean.op == ins.op and mean.inputs[0] is x and not _reduces(x)
    return mean if independent else None


def _reduces(ins: Instruction) -> bool:
    """Return whether a value depends on a reduction."""
    pending, seen = [ins], {ins}
    while pending:
        current = pending.pop()
        if current.op.reduction:
            return True
        fresh = [i for i in current.inputs if i not in seen]
        seen.update(fresh)
        pending += fresh
    return False


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
    if max(full[a] for a in axes) < SHARE:
        return f"no axis of the rows has {SHARE} elements, of which a slice would be small"
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
    few = -(-full[longest] // SHARE)
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
    _rewrite_variances(body, variances, shifts)
    made = module.insert_instruction(ins, ins.op, inputs, [body])
    made.debug_symbols = ins.debug_symbols
    module.replace_instruction(ins, made)
    module.remove_instruction(ins)


def _largest_shift(type: np.dtype) -> float:
    """Return the bound on shifts of a type: subtracting it from the largest number does not change that."""
    info = finfo(type)
    return float(info.max) * float(info.eps) / 8


def _small_or_zero(body: Module, mean: Instruction) -> Instruction:
    """Return a mean, or 0 if subtracting it from an element could overflow, or it is NaN."""
    type, lens = mean.shape.type.numpy, mean.shape.lens

    def constant(value: float) -> Instruction:
        literal = body.add_literal(np.full([1] * len(lens), value, type))
        return body.add_instruction("multibroadcast", [literal], out_lens=lens)

    small = body.add_instruction("less", [body.add_instruction("abs", [mean]), constant(_largest_shift(type))])
    return body.add_instruction("where", [small, mean, constant(0)])


def _rewrite_variances(
    body: Module, variances: dict[Instruction, Instruction], shifts: Mapping[Instruction, Instruction]
) -> None:
    """Compute variances (see `_variances_of`) and their means from moments about the shift of each mean."""
    moments: dict[Instruction, tuple[Instruction, Instruction]] = {}
    for mean in dict.fromkeys(variances.values()):
        x, shift = mean.inputs[0], shifts[mean]
        near = body.insert_instruction(mean, "multibroadcast", [shift], out_lens=x.shape.lens)
        away = body.insert_instruction(mean, "sub", [x, near])
        first = body.insert_instruction(mean, mean.op, [away])
        second = body.insert_instruction(mean, mean.op, [body.insert_instruction(mean, "mul", [away, away])])
        body.replace_instruction(mean, body.insert_instruction(mean, "add", [shift, first]))
        moments[mean] = first, second
    for ins, mean in variances.items():
        body.replace_instruction(ins, _central(body, ins, *moments[mean]))
    remove_dead(body, [*variances, *moments])


def _central(body: Module, before: Instruction, first: Instruction, second: Instruction) -> Instruction:
    """Return the variance from two moments: infinite if only the squares are, NaN if the first moment is not finite."""
    largest = np.full([1] * first.shape.ndim, np.finfo(first.shape.type.numpy).max, first.shape.type.numpy)
    bound = body.insert_instruction(before, "multibroadcast", [body.add_literal(largest)], out_lens=first.shape.lens)
    product = body.insert_instruction(before, "mul", [first, first])
    square = body.insert_instruction(before, "min", [product, bound])
    positive = body.insert_instruction(before, "relu", [body.insert_instruction(before, "sub", [second, square])])
    defined = body.insert_instruction(before, "sub", [first, first])
    return body.insert_instruction(before, "add", [positive, defined])
