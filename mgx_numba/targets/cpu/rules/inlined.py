"""Lower loops and branches to steps of the enclosing plan.

The bodies become kernels; jumps between steps choose which steps run, and how often (`runtime.plan.Jump`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ....codegen.cpu.data.loop_flags import branch_ends, branch_starts, loop_goes_on, loop_starts, row_is_kept
from ....codegen.launch import INDEX, Launch
from ....core.dim import Dim, Length, known_equal, known_less_equal, known_same, maximum
from ....core.shape import Shape
from ....core.types import Type
from ....errors import UnsupportedError
from ....graph.constants import uniform_value
from ....graph.instruction import Instruction
from ....ops.control import LONGEST, If, Loop
from ....ops.lengths import Lengths
from ....runtime.plan import Region
from ...lowering.buffers import View
from ...lowering.lowering import Lowering
from ...lowering.steps import PendingJump, PendingStep


def inline(low: Lowering, ins: Instruction) -> bool:
    """Lower an ``if`` or a ``loop`` to steps of the plan; return False, and leave no step, where that is not
    possible."""
    if not isinstance(ins.op, (If, Loop)) or not _suited(low, ins):
        return False
    steps, requested, jumps = [*low.draft.steps], len(low.draft.requested), len(low.draft.jumps)
    try:
        if isinstance(ins.op, If):
            _branches(low, ins, ins.op)
        else:
            _loop(low, ins, ins.op)
    except UnsupportedError:
        low.draft.steps[:] = steps  # lowering may have removed steps
        del low.draft.requested[requested:], low.draft.jumps[jumps:]
        low.values.pop(ins, None)
        return False
    return True


def _suited(low: Lowering, ins: Instruction) -> bool:
    """Return whether all operands, results and captured values have known lengths and lie in memory that kernels can
    read."""
    captured = [value for module in ins.module_args for value in module.captured()]
    inside = [v for module in ins.module_args for v in (*module.parameters(), *module.results())]
    if any(v.shape.sub_shapes for v in (*ins.inputs, *captured, *inside)):
        return False
    shapes = [s for v in (*ins.inputs, ins, *captured, *inside) for s in v.shape.flatten()]
    if any(s.is_dynamic or s.type.hosted or s.type.coded or not s.ranked for s in shapes):
        return False
    values = [low.values[value] for value in (*ins.inputs, *captured) if value in low.values]
    return all(isinstance(v, View) and v.buffer.region is not Region.HOST for v in values)


def _append(low: Lowering, ins: Instruction, launch: Launch, operands: Mapping[str, View]) -> PendingStep:
    """Append and return a step; operands that the launch does not name stay alive until then."""
    low.launch(launch, operands, ins, f"{low.backend.name}::{ins.name}")
    return low.draft.steps[-1]


def _number(low: Lowering) -> View:
    return low.allocate(Shape(Type.int64_type, (1,)))


def _branches(low: Lowering, ins: Instruction, op: If) -> None:
    condition, *given = low.inputs(ins)
    results = low.outputs_of(ins)
    flag = {"flag": _number(low)}
    start = _append(low, ins, branch_starts(), flag | {"condition": condition})
    before = start
    for k, module in enumerate(ins.module_args):
        made = low.lower_inside(module, given, results)
        for value, result in zip(made, results, strict=True):
            _put(low, ins, value, result)
        end = _append(low, ins, branch_ends(first=k == 0), flag)
        place = (ins.located(op.place(module.name)),)
        low.draft.jumps.append(PendingJump(start, before, end, where=k == 1, place=place))
        before = end


def _put(low: Lowering, ins: Instruction, value: View, target: View) -> None:
    """Copy a value to ``target``, unless it is already there."""
    if value.buffer is target.buffer:
        same = known_equal(value.offset, target.offset) and known_same(value.strides, target.strides)
        if same and known_same(value.lens, target.lens):
            return
    low.copy(value.with_shape(_of_lens(value, target.lens)), target, ins)


def _of_lens(value: View, lens: Sequence[Length]) -> Shape:
    """Return the shape of a value with ``lens``; a scalar may have lost or gained an axis."""
    if len(value.lens) == len(lens):
        return value.shape
    if known_equal(value.shape.elements, 1):
        return Shape(value.type, lens)  # type: ignore[arg-type]
    raise UnsupportedError("a result changes its rank")


def _loop(low: Lowering, ins: Instruction, op: Loop) -> None:
    (module,) = ins.module_args
    count, condition, *initial = low.inputs(ins)
    trips = _trips(ins)
    after, *results = module.results()
    constant = _stays(after, module.parameters()[1]) and uniform_value(ins.inputs[1]) == 1
    scans = results[len(initial) :]
    if scans and not (constant and trips is not None and known_equal(trips, op.max_iterations)):
        raise UnsupportedError("how long a result is follows from the data")
    most = None
    if not scans and not (trips is not None and known_less_equal(trips, maximum(LONGEST, op.max_iterations))):
        if isinstance(op.max_iterations, Dim):
            raise UnsupportedError("the most iterations follow from lengths")
        most = op.most_iterations(scans=False)
    shapes = [p.shape.to_standard() for p in module.parameters()]
    kept = [low.allocate(shape) for shape in shapes]  # iteration number, condition, carried values
    for value, target in zip((condition, *initial), kept[1:], strict=True):
        low.copy(value.with_shape(_of_lens(value, target.lens)), target, ins)
    wholes = [low.allocate(shape.to_standard()) for shape in ins.shape.sub_shapes[len(initial) :]]
    control = {"flag": _number(low), "number": kept[0], "condition": kept[1]}
    if trips is None:
        control["trips"] = count
    alive = {f"kept{k}": view for k, view in enumerate((*kept, *wholes))}
    start = _append(low, ins, loop_starts(trips), control | alive)
    made = low.lower_inside(module, kept, ())
    for value, whole, backwards in zip(
        made[1 + len(initial) :], wholes, (*op.scan_output_directions, *[0] * len(wholes))
    ):
        row = low.materialized(value, Shape(value.type, value.lens).strides, ins)
        last = op.max_iterations - 1 if backwards else None
        _append(
            low,
            ins,
            row_is_kept(row.shape.elements * row.type.size, last),
            {"row": row, "whole": whole, "number": kept[0]},
        )
    _hand_on(low, ins, made[: 1 + len(initial)], kept[1:])
    too_long = "" if most is None else ins.located(str(op.too_long(False, INDEX)))
    end = _append(low, ins, loop_goes_on(trips, most, too_long), control | alive)
    text = ins.located(op.place(module.name, 0))
    head, _, tail = text.partition(" iteration 0 ")
    place = (f"{head} iteration ", f" {tail}")
    low.draft.jumps += [PendingJump(end, start, end, False, place), PendingJump(end, end, start, True)]
    low.values[ins] = [*kept[2:], *wholes]


def _trips(ins: Instruction) -> Length | None:
    """Return the trip count of a loop; None if a run computes it."""
    count = ins.inputs[0]
    if isinstance(count.op, Lengths) and len(count.op.values) == 1:
        return count.op.values[0]
    if count.literal is not None and count.literal.array is not None and count.literal.array.size == 1:
        return int(np.asarray(count.literal.array).reshape(-1)[0])
    return None


def _stays(condition: Instruction, own: Instruction) -> bool:
    """Return whether a loop's condition stays true once it is true in the first iteration."""
    while condition.name == "identity":
        condition = condition.inputs[0]
    return condition is own or uniform_value(condition) == 1


def _hand_on(low: Lowering, ins: Instruction, made: Sequence[View], kept: Sequence[View]) -> None:
    """Copy the loop-carried values of an iteration to the memory where the next iteration reads them."""
    places: dict[object, int] = {id(target.buffer): k for k, target in enumerate(kept)}
    sources = []
    for k, value in enumerate(made):
        own = places.get(id(value.buffer), k)
        if own != k:  # the value lies in the memory of another carried value
            beside = low.allocate(Shape(value.type, value.lens))
            low.copy(value, beside, ins)
            value = beside
        sources.append(value)
    for value, target in zip(sources, kept, strict=True):
        _put(low, ins, value, target)
