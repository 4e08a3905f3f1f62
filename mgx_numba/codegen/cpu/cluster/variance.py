"""Mean and variance in one pass over a row: moments about a value near its mean that is known before the pass.

That value is the mean of the first ``m`` of the row's ``n`` elements. It differs from the mean by at most
``sqrt(n / m)`` standard deviations, so rounding errors of the variance are at most ``1 + n / m`` times those of two
passes, and as large as those if the first elements are like the others. See Chan, Golub, LeVeque, "Algorithms for
computing the sample variance", 1983.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....graph.module import Module
from ....ops.base import Operator
from ....ops.dims import packed_like
from ..loops import indent

__all__ = ["LEAST_SHARE", "HeadMean", "head_lines", "head_vectors", "with_one_pass_variances"]

LEAST_VECTORS = 4
"""Vectors that the head has at least: fewer give a mean that may be far from that of the row."""
LEAST_SHARE = 32
"""The head is at least this part of a row, so that rounding errors have a bound; its elements follow one another."""
EXACT_TYPES = (Type.float_type, Type.double_type)


@dataclass(frozen=True)
class HeadMean(Operator):
    """Mean of the first elements of each row, known before it is read; 0 if some element less it may be infinite."""

    name: ClassVar[str] = "head_mean"
    axes: tuple[int, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape], modules: Sequence[Module] = ()) -> Shape:
        lens = inputs[0].lens
        return packed_like(inputs[0], [1 if a in self.axes else n for a, n in enumerate(lens)])


def head_vectors(lanes: int, cols: int, count: int) -> int:
    """Vectors of the head of a row of ``count`` elements, of which ``cols`` follow one another."""
    return min(cols // lanes, max(LEAST_VECTORS, -(-count // (LEAST_SHARE * lanes))))


def head_lines(name: str, dtype: str, lanes: int, element: Sequence[str], value: str) -> list[str]:
    """Lines that set ``name`` to the mean of ``heads`` vectors: each the ``value`` of ``element`` at ``c``."""
    info = np.finfo(dtype)
    below = float(info.max) * float(info.eps) / 8  # taken from the largest number, it leaves that
    return [
        f"{name} = const_{dtype}(0, {lanes})",
        "for head in range(heads):",
        *indent([f"c = head * {lanes}", *element, f"{name} = add({name}, {value})"], 1),
        f"{name}_0 = div(reduce_add({name}), cast_{dtype}(heads * {lanes}))",
        f"{name}_1 = where(lt(abs({name}_0), {below!r}), {name}_0, const_{dtype}(0, 0))",
    ]


def with_one_pass_variances(module: Module) -> Module:
    """The cluster with every variance about a mean of the same values from one pass; the same if there is none.

    A variance is ``mean(d * d)`` with ``d = x - mean(x)``, where ``x`` depends on no reduction.
    """
    found = [(ins, mean) for ins in module if (mean := _mean_of_variance(ins)) is not None]
    if not found:
        return module
    result = Module(module.name)
    arguments = {p: result.add_parameter(p.op.parameter, p.shape) for p in module.parameters()}  # type: ignore[attr-defined]
    values = dict(arguments)
    variances = dict(found)
    moments: dict[Instruction, tuple[Instruction, Instruction]] = {}
    for ins in module:
        if ins.is_param or ins.name == "@return":
            continue
        if ins.is_literal:
            values[ins] = result.add_literal(ins.literal)  # type: ignore[arg-type]
        elif ins in variances.values():
            x = values[ins.inputs[0]]
            head = result.add_instruction(HeadMean(ins.op.axes), [x])  # type: ignore[attr-defined]
            near = result.add_instruction("multibroadcast", [head], out_lens=x.shape.lens)
            away = result.add_instruction("sub", [x, near])
            first = result.add_instruction(ins.op, [away])
            second = result.add_instruction(ins.op, [result.add_instruction("mul", [away, away])])
            values[ins] = result.add_instruction("add", [head, first])
            moments[ins] = first, second
        elif ins in variances:
            values[ins] = _central(result, *moments[variances[ins]])
        else:
            values[ins] = result.add_instruction(ins.op, [values[i] for i in ins.inputs])
    result.add_return([values[r] for r in module.results()])
    _remove_unused(result)
    return result


def _central(module: Module, first: Instruction, second: Instruction) -> Instruction:
    """Variance from two moments: infinite where only squares are, NaN where the first moment is not finite."""
    largest = np.full([1] * first.shape.ndim, np.finfo(first.shape.type.numpy).max, first.shape.type.numpy)
    bound = module.add_instruction("multibroadcast", [module.add_literal(largest)], out_lens=first.shape.lens)
    square = module.add_instruction("min", [module.add_instruction("mul", [first, first]), bound])
    positive = module.add_instruction("relu", [module.add_instruction("sub", [second, square])])
    return module.add_instruction("add", [positive, module.add_instruction("sub", [first, first])])


def _mean_of_variance(ins: Instruction) -> Instruction | None:
    """The mean about which an instruction is the variance."""
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
    """Whether a value depends on a reduction."""
    pending, seen = [ins], {ins}
    while pending:
        current = pending.pop()
        if current.op.reduction:
            return True
        fresh = [i for i in current.inputs if i not in seen]
        seen.update(fresh)
        pending += fresh
    return False


def _remove_unused(module: Module) -> None:
    for ins in reversed(list(module)):
        if not (ins.users or ins.is_param or ins.name == "@return"):
            module.remove_instruction(ins)
