"""Reduction clusters in pieces, so that a row can be reduced in parts.

The reductions that need no others are made in parts; a second launch combines the parts and goes on with row values;
what is left of the cluster takes those as inputs, and may be split again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..core.shape import Shape
from ..core.types import Type
from ..graph.instruction import Instruction
from ..graph.module import Module
from .reductions import REDUCTIONS

__all__ = ["Division", "Piece", "reduction_depth", "split_cluster"]


@dataclass(frozen=True)
class Piece:
    """Part of a cluster as a module: its parameters and results stand for these values of the cluster's module."""

    module: Module
    takes: tuple[Instruction, ...]
    gives: tuple[Instruction, ...]


@dataclass(frozen=True)
class Division:
    """How the first reductions of a cluster are divided.

    Rows are cut into ``parts``, each of which has results of its own. ``fold`` steps of a column at a time are reduced
    as columns of their own, where few ``columns`` follow one another in memory. All results follow one another, each
    with its axes in ``order``, the slowest first.
    """

    parts: int
    fold: int
    columns: int
    order: tuple[int, ...]


def split_cluster(module: Module, axes: Sequence[int], parts: int) -> tuple[Piece, Piece, Piece | None]:
    """The cluster in pieces: first reductions, what combines their parts, and the rest if there is any.

    The first piece's results have the types that reductions accumulate in. The second one has a new first axis, along
    which it reduces ``parts`` of those; its other operands and its results have length 1 there. The rest is a cluster
    of the same kind, or without reductions a pointwise module.
    """
    depth = reduction_depth(module)
    first = [i for i in module if i.name in REDUCTIONS and depth[i] == 1]
    reduced = first[0].shape.lens
    combined = {i for i in module if i in first or (i.op.pointwise and i.shape.lens == reduced and depth[i] <= 1)}
    results = module.results()
    later = [r for r in results if r not in combined]
    needed = _ancestors(later, combined)
    crossing = [i for i in module if i in combined and any(u in needed for u in i.users)]
    given = list(dict.fromkeys([*(r for r in results if r in combined), *crossing]))
    pieces = _partial(module, axes, first), _combined(module, reduced, first, given, parts)
    return *pieces, _rest(module, needed, crossing, later) if later else None


def reduction_depth(module: Module) -> dict[Instruction, int]:
    """Reductions on the longest way to each value."""
    depth: dict[Instruction, int] = {}
    for ins in module:
        depth[ins] = max((depth[i] for i in ins.inputs), default=0) + (ins.name in REDUCTIONS)
    return depth


def _ancestors(wanted: Sequence[Instruction], known: set[Instruction]) -> set[Instruction]:
    """What is needed for some values when others are known; those are not among it."""
    found: set[Instruction] = set()
    pending = list(wanted)
    while pending:
        ins = pending.pop()
        if ins not in found and ins not in known:
            found.add(ins)
            pending.extend(ins.inputs)
    return found


def _partial(module: Module, axes: Sequence[int], first: Sequence[Instruction]) -> Piece:
    result = Module(module.name)
    needed = _ancestors([r.inputs[0] for r in first], set())
    values = {p: result.add_parameter(p.op.parameter, p.shape) for p in module.parameters() if p in needed}  # type: ignore[attr-defined]
    takes = tuple(values)
    for ins in module:
        if ins in needed and not ins.is_param:
            values[ins] = _copy(result, ins, values)
    sums = []
    for ins in first:
        value = _converted(result, values[ins.inputs[0]], _accumulator(ins))
        sums.append(result.add_instruction(_associative(ins), [value], axes=tuple(axes)))
    result.add_return(sums)
    return Piece(result, takes, tuple(first))


def _combined(
    module: Module,
    reduced: tuple[int, ...],
    first: Sequence[Instruction],
    given: Sequence[Instruction],
    parts: int,
) -> Piece:
    result = Module(module.name)
    needed = _ancestors(given, set(first))
    known = {
        i: result.add_parameter(f"part{k}", Shape(_accumulator(i), (parts, *reduced))) for k, i in enumerate(first)
    }
    rows = [p for p in module.parameters() if p in needed]
    values = {p: result.add_parameter(p.op.parameter, Shape(p.shape.type, (1, *p.shape.lens))) for p in rows}  # type: ignore[attr-defined]
    count = prod(first[0].inputs[0].shape.lens) // prod(reduced)
    for ins in first:
        value = result.add_instruction(_associative(ins), [known[ins]], axes=(0,))
        if ins.name == "reduce_mean":
            number = result.add_literal(np.full((1,) * value.shape.ndim, count, value.shape.type.numpy))
            spread = result.add_instruction("multibroadcast", [number], out_lens=value.shape.lens)
            value = result.add_instruction("div", [value, spread])
        values[ins] = _converted(result, value, ins.shape.type)
    for ins in module:
        if ins in needed and not ins.is_param:
            values[ins] = _copy(result, ins, values, (1,))
    result.add_return([values[i] for i in given])
    return Piece(result, (*first, *rows), tuple(given))


def _rest(
    module: Module, needed: set[Instruction], crossing: Sequence[Instruction], later: Sequence[Instruction]
) -> Piece:
    result = Module(module.name)
    scalar = not any(i.name in REDUCTIONS for i in needed)
    takes = [*(p for p in module.parameters() if p in needed), *crossing]
    values = {i: result.add_parameter(f"x{k}", Shape(i.shape.type) if scalar else i.shape) for k, i in enumerate(takes)}
    for ins in module:
        if ins not in needed or ins in values:
            continue
        if not scalar:
            values[ins] = _copy(result, ins, values)
        elif ins.literal is not None:
            values[ins] = result.add_literal(ins.literal.numpy().reshape(-1)[0])
        elif ins.name == "multibroadcast":
            values[ins] = values[ins.inputs[0]]
        else:
            values[ins] = result.add_instruction(ins.op, [values[i] for i in ins.inputs])
    result.add_return([values[r] for r in later])
    return Piece(result, tuple(takes), tuple(later))


def _copy(
    result: Module, ins: Instruction, values: dict[Instruction, Instruction], more: tuple[int, ...] = ()
) -> Instruction:
    """An instruction in another module, with ``more`` axes before its own."""
    if ins.literal is not None:
        return result.add_literal(ins.literal.numpy().reshape(*more, *ins.shape.lens) if more else ins.literal)
    inputs = [values[i] for i in ins.inputs]
    if ins.name == "multibroadcast":
        return result.add_instruction("multibroadcast", inputs, out_lens=(*more, *ins.shape.lens))
    return result.add_instruction(ins.op, inputs)


def _accumulator(ins: Instruction) -> Type:
    return REDUCTIONS[ins.name].accumulator(ins.inputs[0].shape.type)


def _associative(ins: Instruction) -> str:
    """The reduction whose results of parts combine by the same reduction."""
    return "reduce_sum" if ins.name == "reduce_mean" else ins.name


def _converted(module: Module, value: Instruction, type: Type) -> Instruction:
    if value.shape.type is type:
        return value
    return module.add_instruction("convert", [value], target_type=type)
