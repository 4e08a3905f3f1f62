"""Reductions of few long rows in several launches, so that all threads have work.

The reductions that need no others are made in parts; a second launch combines the parts and goes on with row values;
what is left of the cluster takes those as inputs, and may be split again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....graph.module import Module
from ...problems.cluster import Tensor
from ...reductions import REDUCTIONS
from ..machine import machine
from .means import DOWN
from .vectors import Vectors, vectors_of

__all__ = ["Division", "Piece", "division_of", "split_cluster"]

FEWEST_ROWS = 16
"""Rows from which they are tasks enough: fewer are cut into parts, whose results another launch combines."""
MOST_PARTS = 32
"""Parts of all rows together: enough for 16 threads to end about together, and few results to combine. No figures
kept."""
FOLDED = 1024
"""Columns that several steps at a time are made to: more fill more vectors, and leave more to combine. No figures
kept."""
LEAST_STEPS = 16
"""Steps of the columns that several steps at a time are made to, so that little is left to combine."""
LONG_RUN = 4096
"""The same past the caches: memory serves runs of 4096 elements better than short ones. No figures kept."""
FEW_VECTORS = 2
"""Vectors up to which columns are few: more of them fill registers by themselves."""


@dataclass(frozen=True)
class Piece:
    """Part of a cluster as a module: its parameters and results stand for these values of the cluster's module.

    A mean whose sum can overflow is given, and taken, twice: as its sum, and as the sum of elements times `DOWN`.
    """

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


def division_of(
    module: Module, axes: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor], threads: int
) -> Division | None:
    """How a cluster should be divided, if it should.

    For a cluster that reads its operands once this depends on lengths and strides only, so that results do not depend
    on the number of threads.
    """
    vectors = vectors_of(module, axes, inputs, outputs)
    walk, keep_lens = vectors.walk, vectors.walk.keep_space.lens
    elements, kept = prod(walk.full), prod(keep_lens)
    rows = kept if walk.row_mode else kept // keep_lens[-1] * -(-keep_lens[-1] // vectors.longest_chunk)
    depth, here = _depth(module), machine()
    repeated = max(depth.values()) > 1 or any(vectors.stages.full_results)
    few = rows >= threads or elements < here.repeated_elements
    if repeated and (few or not _has_full_rest(module, axes, walk.full)):
        return None
    fold = 1 if repeated or elements < here.reduced_part_elements else _fold(vectors)
    parts = 1
    if rows < FEWEST_ROWS and (fold == 1 or rows == 1):
        least = max(here.reduced_part_elements, here.reduced_share * kept * fold)
        parts = min(-(-MOST_PARTS // rows), elements // least)
    columns = 1 if walk.row_mode else keep_lens[-1]
    strides = walk.tensors[walk.lead].strides
    order = tuple(sorted(range(len(strides)), key=lambda a: -strides[a]))
    return Division(max(1, parts), fold, columns, order) if max(parts, fold) > 1 else None


def _fold(vectors: Vectors) -> int:
    """Steps of columns that fill vectors together: their number is a divisor of a column's length."""
    walk = vectors.walk
    if walk.row_mode or not walk.reduce_space.rank or not all(walk.is_full[: len(walk.inputs)]):
        return 1
    cols, length = walk.keep_space.lens[-1], walk.reduce_space.lens[-1]
    full = [k for k, is_full in enumerate(walk.is_full) if is_full]
    follow = all(row[-1] == cols for row in walk.reduce_space.strides)
    long_runs = walk.past_caches and walk.keep_space.rank == 1
    few, folded = (LONG_RUN // 4, LONG_RUN) if long_runs else (FEW_VECTORS * vectors.lanes, FOLDED)
    if not follow or any(walk.keep_space.strides[k][-1] != 1 for k in full) or cols > few:
        return 1
    return next((k for k in range(min(length // LEAST_STEPS, folded // cols), 0, -1) if length % k == 0), 1)


def _has_full_rest(module: Module, axes: Sequence[int], full: Sequence[int]) -> bool:
    """Whether something of the full lengths is left to walk over after the first reductions."""
    rest = split_cluster(module, axes, 1)[2]
    return rest is None or any(v.shape.lens == full for v in (*rest.takes, *rest.gives))


def split_cluster(module: Module, axes: Sequence[int], parts: int) -> tuple[Piece, Piece, Piece | None]:
    """The cluster in pieces: first reductions, what combines their parts, and the rest if there is any.

    The first piece's results have the types that reductions accumulate in. The second one has a new first axis, along
    which it reduces ``parts`` of those; its other operands and its results have length 1 there. The rest is a cluster
    of the same kind, or without reductions a pointwise module.
    """
    depth = _depth(module)
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


def _depth(module: Module) -> dict[Instruction, int]:
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
        if _sum_can_overflow(ins):
            scaled = result.add_instruction("mul", [value, _like(result, DOWN, value)])
            sums.append(result.add_instruction(_associative(ins), [scaled], axes=tuple(axes)))
    result.add_return(sums)
    return Piece(result, takes, tuple(_as_summed(first)))


def _combined(
    module: Module,
    reduced: tuple[int, ...],
    first: Sequence[Instruction],
    given: Sequence[Instruction],
    parts: int,
) -> Piece:
    result = Module(module.name)
    needed = _ancestors(given, set(first))
    summed = _as_summed(first)
    known = [result.add_parameter(f"part{k}", Shape(_accumulator(i), (parts, *reduced))) for k, i in enumerate(summed)]
    rows = [p for p in module.parameters() if p in needed]
    values = {p: result.add_parameter(p.op.parameter, Shape(p.shape.type, (1, *p.shape.lens))) for p in rows}  # type: ignore[attr-defined]
    count = prod(first[0].inputs[0].shape.lens) // prod(reduced)
    totals = [result.add_instruction(_associative(i), [part], axes=(0,)) for i, part in zip(summed, known)]
    for ins in first:
        value = totals.pop(0)
        if ins.name == "reduce_mean":
            value = result.add_instruction("div", [value, _like(result, count, value)])
        if _sum_can_overflow(ins):
            scaled = totals.pop(0)
            scaled = result.add_instruction("div", [scaled, _like(result, count * DOWN, scaled)])
            size = result.add_instruction("abs", [value])
            in_range = result.add_instruction("less", [size, _like(result, np.inf, size)])
            value = result.add_instruction("where", [in_range, value, scaled])
        values[ins] = _converted(result, value, ins.shape.type)
    for ins in module:
        if ins in needed and not ins.is_param:
            values[ins] = _copy(result, ins, values, (1,))
    result.add_return([values[i] for i in given])
    return Piece(result, (*summed, *rows), tuple(given))


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


def _sum_can_overflow(ins: Instruction) -> bool:
    return REDUCTIONS[ins.name].sum_can_overflow(ins.inputs[0].shape.type)


def _as_summed(reductions: Sequence[Instruction]) -> list[Instruction]:
    """Each reduction as often as the first piece has results for it."""
    return [i for i in reductions for _ in range(2 if _sum_can_overflow(i) else 1)]


def _like(module: Module, number: float, value: Instruction) -> Instruction:
    """A number in the type and lengths of a value."""
    literal = module.add_literal(np.full((1,) * value.shape.ndim, number, value.shape.type.numpy))
    return module.add_instruction("multibroadcast", [literal], out_lens=value.shape.lens)


def _converted(module: Module, value: Instruction, type: Type) -> Instruction:
    if value.shape.type is type:
        return value
    return module.add_instruction("convert", [value], target_type=type)
