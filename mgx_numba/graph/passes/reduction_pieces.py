"""Split the body of a ``fused_reduce`` into pieces: partial first reductions, their combination, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from ...core.dim import Length, is_symbolic, known_same
from ...core.shape import Lens, Shape
from ...core.types import Type
from ...dataclass import dataclass
from ...ops.base import Operator, make_op
from ...ops.reduce import DOWN, ReduceOperator
from ..instruction import Instruction
from ..module import Module


@dataclass(frozen=True)
class Pieces:
    """The values that each piece computes.

    Attributes:
        first: reductions that depend on no others.
        combined: first reductions, and values computed from them alone; all are row values.
        given: combined values that are results of the body or needed by the rest.
        taken: inputs of the rest: parameters of the body, and given values.
        later: results of the body that the rest computes.
        needed: values that the rest computes.
        repeats: whether operands are read again after the first reductions.
    """

    first: tuple[Instruction, ...]
    combined: frozenset[Instruction]
    given: tuple[Instruction, ...]
    taken: tuple[Instruction, ...]
    later: tuple[Instruction, ...]
    needed: frozenset[Instruction]
    repeats: bool


def reductions_of(body: Module) -> list[Instruction]:
    """Return the reductions of a body, in order."""
    return [i for i in body if isinstance(i.op, ReduceOperator)]


def full_lens(body: Module) -> Lens:
    """Return the shape of the elements that a body reduces."""
    return reductions_of(body)[0].inputs[0].shape.lens


def pieces_of(body: Module) -> Pieces:
    """Return the pieces of a body with reductions."""
    depth: dict[Instruction, int] = {}
    for ins in body:
        depth[ins] = max((depth[i] for i in ins.inputs), default=0) + isinstance(ins.op, ReduceOperator)
    first = [i for i in reductions_of(body) if depth[i] == 1]
    full, reduced, results = full_lens(body), first[0].shape.lens, body.results()
    rows = {i for i in body if i in first or (i.op.pointwise and known_same(i.shape.lens, reduced) and depth[i] <= 1)}
    later = [r for r in results if r not in rows]
    needed = ancestors(later, rows)
    crossing = [i for i in body if i in rows and any(u in needed for u in i.users)]
    return Pieces(
        first=tuple(first),
        combined=frozenset(rows),
        given=tuple(dict.fromkeys([*(r for r in results if r in rows), *crossing])),
        taken=(*(p for p in body.parameters() if p in needed), *crossing),
        later=tuple(later),
        needed=frozenset(needed),
        repeats=max(depth.values()) > 1 or any(known_same(r.shape.lens, full) for r in results),
    )


def ancestors(wanted: Sequence[Instruction], known: set[Instruction]) -> set[Instruction]:
    """Return ``wanted`` and its ancestors up to ``known``, which is left out."""
    found: set[Instruction] = set()
    pending = list(wanted)
    while pending:
        ins = pending.pop()
        if ins not in found and ins not in known:
            found.add(ins)
            pending.extend(ins.inputs)
    return found


def associative(ins: Instruction) -> str:
    """Return the reduction that combines partial results."""
    return "reduce_sum" if ins.name == "reduce_mean" else ins.name


def add_partial(
    target: Module, body: Module, pieces: Pieces, reduction: Callable[[Instruction], Operator]
) -> list[Instruction]:
    """Add the first piece to an empty module; ``reduction`` returns the operator for each first reduction.

    Results have the accumulators' types. A mean whose sum can overflow has two: its sum, and the sum of elements times
    `DOWN`.

    Returns:
        the body's parameters that it takes.
    """
    needed = ancestors([r.inputs[0] for r in pieces.first], set())
    taken = [p for p in body.parameters() if p in needed]
    values = {p: target.add_parameter(_name(p), p.shape) for p in taken}
    _copy(target, [i for i in body if i in needed], values)
    sums = []
    for ins in pieces.first:
        value = _converted(target, values[ins.inputs[0]], _accumulator(ins))
        sums.append(target.add_instruction(reduction(ins), [value]))
        if _sum_can_overflow(ins):
            scaled = target.add_instruction("mul", [value, _like(target, DOWN, value)])
            sums.append(target.add_instruction(reduction(ins), [scaled]))
    target.add_return(sums)
    return taken


def _count_types(pieces: Pieces) -> list[Type]:
    """Return the distinct accumulator types of the first reductions' means."""
    return list(dict.fromkeys(_accumulator(i) for i in pieces.first if i.name == "reduce_mean"))


def add_counts(module: Module, before: Instruction, pieces: Pieces) -> list[Instruction]:
    """Insert the element counts that means divide by, one per type."""
    first = pieces.first[0]
    count: Length = prod(first.inputs[0].shape.lens[a] for a in first.op.axes)  # type: ignore[attr-defined]
    ones = (1,) * first.shape.ndim
    types = _count_types(pieces)
    if not is_symbolic(count):
        return [module.add_literal(np.full(ones, count, type.numpy)) for type in types]
    number = module.insert_instruction(before, "lengths", values=(count,), lens=ones) if types else before
    return [module.insert_instruction(before, "convert", [number], target_type=type) for type in types]


def add_combined(
    target: Module, body: Module, pieces: Pieces, sums: Sequence[Shape], axes: Sequence[int]
) -> list[Instruction]:
    """Add the second piece to an empty module: reduce partial results of shapes ``sums`` along ``axes`` and compute the
    given values. Its last parameters are the counts of `add_counts`, so that no length is part of its text.

    Returns:
        the body's parameters that it takes after the sums.
    """
    needed = ancestors(pieces.given, set(pieces.first))
    parts = [target.add_parameter(f"part{k}", shape) for k, shape in enumerate(sums)]
    taken = [p for p in body.parameters() if p in needed]
    values = {p: target.add_parameter(_name(p), p.shape) for p in taken}
    lens = pieces.first[0].shape.lens
    shapes = [Shape(type, lens, [0] * len(lens)) for type in _count_types(pieces)]
    counts = {s.type: target.add_parameter(f"count{k}", s) for k, s in enumerate(shapes)}
    summed = [i for i in pieces.first for _ in range(1 + _sum_can_overflow(i))]
    totals = [target.add_instruction(associative(i), [part], axes=tuple(axes)) for i, part in zip(summed, parts)]
    for ins in pieces.first:
        value = totals.pop(0)
        if ins.name == "reduce_mean":
            value = target.add_instruction("div", [value, counts[value.shape.type]])
        if _sum_can_overflow(ins):
            scaled = totals.pop(0)
            divisor = target.add_instruction("mul", [counts[scaled.shape.type], _like(target, DOWN, scaled)])
            scaled = target.add_instruction("div", [scaled, divisor])
            size = target.add_instruction("abs", [value])
            in_range = target.add_instruction("less", [size, _like(target, np.inf, size)])
            value = target.add_instruction("where", [in_range, value, scaled])
        values[ins] = _converted(target, value, ins.shape.type)
    _copy(target, [i for i in body if i in needed], values)
    target.add_return([values[i] for i in pieces.given])
    return taken


def add_rest(target: Module, body: Module, pieces: Pieces, scalar: bool) -> None:
    """Add the last piece, which takes `Pieces.taken`, to an empty module. ``scalar``: as the body of a ``pointwise``,
    without reductions."""
    shapes = [Shape(i.shape.type) if scalar else i.shape for i in pieces.taken]
    values = {i: target.add_parameter(f"x{k}", s) for k, (i, s) in enumerate(zip(pieces.taken, shapes))}
    (_copy_scalar if scalar else _copy)(target, [i for i in body if i in pieces.needed], values)
    target.add_return([values[r] for r in pieces.later])


def _copy(target: Module, instructions: Sequence[Instruction], values: dict[Instruction, Instruction]) -> None:
    for ins in instructions:
        if ins in values:
            continue
        if ins.literal is not None:
            values[ins] = target.add_literal(ins.literal)
        else:
            values[ins] = target.add_instruction(ins.op, [values[i] for i in ins.inputs])


def _copy_scalar(target: Module, instructions: Sequence[Instruction], values: dict[Instruction, Instruction]) -> None:
    """Copy instructions as operations on one element."""
    for ins in instructions:
        if ins in values:
            continue
        if ins.literal is not None:
            values[ins] = target.add_literal(ins.literal.numpy().reshape(-1)[0])
        elif ins.name == "multibroadcast":
            values[ins] = values[ins.inputs[0]]
        else:
            values[ins] = target.add_instruction(ins.op, [values[i] for i in ins.inputs])


def _name(parameter: Instruction) -> str:
    return parameter.op.parameter  # type: ignore[attr-defined,no-any-return]


def _accumulator(ins: Instruction) -> Type:
    return ins.operator(ReduceOperator).accumulator_type(ins.inputs[0].shape.type)


def _sum_can_overflow(ins: Instruction) -> bool:
    return ins.operator(ReduceOperator).sum_can_overflow(ins.inputs[0].shape.type)


def _like(module: Module, number: float, value: Instruction) -> Instruction:
    """Insert a number with the type and shape of a value."""
    literal = module.add_literal(np.full((1,) * value.shape.ndim, number, value.shape.type.numpy))
    return module.add_instruction("multibroadcast", [literal], out_lens=value.shape.lens)


def _converted(module: Module, value: Instruction, type: Type) -> Instruction:
    return value if value.shape.type is type else module.add_instruction(make_op("convert", target_type=type), [value])
