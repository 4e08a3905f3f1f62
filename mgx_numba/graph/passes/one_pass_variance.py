"""Compute mean and variance in one pass, with moments about a shift known before the pass.

The shift is the mean of the first ``m`` of a row's ``n`` elements. It differs from the mean by at most ``sqrt(n / m)``
standard deviations, so the variance's rounding errors are at most ``1 + n / m`` times those of two passes, and equal if
the first elements are typical. See Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import prod

import numpy as np

from ...core.dim import hint
from ...core.types import Type
from ...ops.reduce_parts import HeadMean
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from ..structure import structure
from .base import Options, Pass
from .reduction_pieces import full_lens
from .rewriter import remove_dead

EXACT_TYPES = (Type.float_type, Type.double_type)
"""Supported types; narrower values are rounded between the operations of two passes, but would not be in one pass."""


class OnePassVariance(Pass):
    """Rewrite variances about the mean of the same values in bodies of ``fused_reduce``.

    A variance is ``mean(d * d)`` with ``d = x - mean(x)``, where ``x`` depends on no reduction. Gains for rows that are
    so long that a second pass reads them from DRAM; vectorised columns need the first elements of several rows.
    """

    name = "one_pass_variance"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        known: dict[Hashable, str | None] = {}
        for ins in module.named(("fused_reduce",)):
            found = variances_of(ins.module_args[0])
            if not found:
                continue
            like = structure(ins.module_args[0]), ins.op, tuple([i.shape for i in ins.inputs])
            if like not in known:  # equal layers are refused for one reason
                known[like] = _refused(ins, options)
            reason = known[like]
            if reason is not None:
                self.log.refuse(self.name, ins, reason)
                continue
            self.log.apply(self.name, ins)
            rewrite_variances(ins.module_args[0], found, {})


def _refused(ins: Instruction, options: Options) -> str | None:
    """Return the reason to keep two passes, or None."""
    if not options.fast_math:
        return "moments about another value than the mean are rounded otherwise, and fast_math is off"
    if options.capabilities is None:
        return "what the target can do is not known"
    body, shapes = ins.module_args[0], [i.shape for i in ins.inputs]
    axes, full = ins.op.axes, full_lens(body)  # type: ignore[attr-defined]
    walk = options.capabilities.walk(body, axes, shapes, [r.shape for r in body.results()])
    if not walk.from_memory:
        return "rows are read again from caches"
    shortest = max(options.capabilities.one_pass_run, hint(prod(full[a] for a in axes)) // HeadMean.share)
    if walk.row_run < shortest:
        return f"{walk.row_run} elements of a row lie side by side, fewer than {shortest}"
    return None


def variances_of(body: Module) -> dict[Instruction, Instruction]:
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


def rewrite_variances(
    body: Module, variances: dict[Instruction, Instruction], shifts: Mapping[Instruction, Instruction]
) -> None:
    """Compute variances and their means from shifted moments.

    Args:
        variances: see `variances_of`.
        shifts: value of the body near each mean; the mean of a row's head where it is missing.
    """
    moments: dict[Instruction, tuple[Instruction, Instruction]] = {}
    for mean in dict.fromkeys(variances.values()):
        x, head = mean.inputs[0], shifts.get(mean)
        if head is None:
            head = body.insert_instruction(mean, HeadMean(axes=mean.op.axes), [x])  # type: ignore[attr-defined]
        near = body.insert_instruction(mean, "multibroadcast", [head], out_lens=x.shape.lens)
        away = body.insert_instruction(mean, "sub", [x, near])
        first = body.insert_instruction(mean, mean.op, [away])
        second = body.insert_instruction(mean, mean.op, [body.insert_instruction(mean, "mul", [away, away])])
        body.replace_instruction(mean, body.insert_instruction(mean, "add", [head, first]))
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
