"""Grow regions of instructions that one kernel can compute, and move them into submodules."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence

from ...core.dim import known_equal, known_same
from ...core.shape import Shape, other_rank
from ...core.types import Type
from ...ops.base import Operator, make_op
from ..instruction import Instruction, Return
from ..module import Module
from ..program import Program

MAX_NODES = 48
"""Most instructions per cluster: registers and compile time (superlinear in LLVM) against launches. No figures kept."""

Refuses = Callable[[Instruction], "str | None"]
"""Returns the reason why an instruction may not join a region, or None."""

Note = Callable[[Instruction, str], None]
"""Receives an instruction that stays out of a region, and the reason."""


def _unnoted(ins: Instruction, reason: str) -> None:
    pass


def order_of(module: Module) -> dict[Instruction, int]:
    """Return the position of every instruction; instructions of a submodule get the position of the first instruction
    that runs it, so a use inside counts as a use by that instruction."""
    order: dict[Instruction, int] = {}
    placed: set[Module] = set()
    for position, ins in enumerate(module):
        order[ins] = position
        pending = list(ins.module_args)
        while pending:
            body = pending.pop()
            if body not in placed:
                placed.add(body)
                for inner in body:
                    order[inner] = position
                    pending.extend(inner.module_args)
    return order


def open_values(region: Iterable[Instruction]) -> list[Instruction]:
    """Return the members whose value is used outside of the region, or nowhere."""
    members = set(region)
    return [i for i in region if not i.users or any(u not in members for u in i.users)]


def grow(
    seed: Sequence[Instruction],
    order: dict[Instruction, int],
    refuses: Refuses,
    max_outputs: int = 1,
    note: Note = _unnoted,
) -> list[Instruction]:
    """Return the largest region that grows forward from ``seed`` through users that are not refused and has few
    outputs.

    Users in the same module join in program order; ``refuses`` must not depend on earlier members. A region is valid
    while at most ``max_outputs`` of its values are used outside; the last valid one is returned, in program order. With
    one output no path leaves the region and returns, so it can run as one instruction at its last member.
    """
    region = list(seed)
    members = set(region)
    outside = {ins: sum(user not in members for user in ins.users) for ins in region}
    opened = sum(count > 0 or not ins.users for ins, count in outside.items())
    candidates: list[tuple[int, int, Instruction]] = []

    def offer(ins: Instruction) -> None:
        for user in ins.users:
            if user not in members and not isinstance(user.op, Return) and user in order and user.module is ins.module:
                heapq.heappush(candidates, (order[user], id(user), user))

    for ins in region:
        offer(ins)
    best = len(region)
    while len(region) < MAX_NODES and candidates:
        joined = heapq.heappop(candidates)[-1]
        if joined in members:
            continue
        reason = refuses(joined)
        if reason is not None:
            note(joined, reason)
            continue
        region.append(joined)
        members.add(joined)
        for i in set(joined.inputs) & members:
            outside[i] -= 1
            opened -= not outside[i]
        outside[joined] = sum(user not in members for user in joined.users)
        opened += outside[joined] > 0 or not joined.users
        offer(joined)
        if opened <= max_outputs:
            best = len(region)
    for left in region[best:]:
        note(left, f"more than {max_outputs} of the region's values would be used outside of it")
    if len(region) == MAX_NODES:
        for waiting in dict.fromkeys(c[-1] for c in candidates if c[-1] not in members):
            note(waiting, f"the region has {MAX_NODES} operations already")
    return sorted(region[:best], key=order.__getitem__)


def absorb_producers(
    region: list[Instruction], order: dict[Instruction, int], refuses: Refuses, note: Note = _unnoted
) -> list[Instruction]:
    """Return the region extended, transitively, by producers that are not refused and whose users are all in the
    region."""
    members = set(region)
    pending = list(region)
    while pending and len(members) < MAX_NODES:
        for producer in pending.pop().inputs:
            if producer in members or producer not in order:
                continue
            reason = refuses(producer)
            if reason is None and all(user in members for user in producer.users):
                members.add(producer)
                pending.append(producer)
            elif not (producer.is_literal or producer.is_param):
                note(producer, reason or "its value is used outside of the region too")
    return sorted(members, key=order.__getitem__)


def is_scalar_literal(ins: Instruction) -> Instruction | None:
    """Return the one-element literal that an instruction is or broadcasts; else None."""
    while ins.op.name in ("multibroadcast", "broadcast", "scalar", "reshape", "contiguous") and ins.inputs:
        ins = ins.inputs[0]
    return ins if ins.is_literal and known_equal(ins.shape.elements, 1) and not ins.shape.sub_shapes else None


def extract(
    program: Program,
    module: Module,
    region: Sequence[Instruction],
    op: Operator,
    name: str,
    scalar: bool = False,
) -> list[Instruction]:
    """Move a region into a new submodule run by ``op``, placed at the region's last member.

    Args:
        region: members in program order; values used outside become results.
        op: the module operator.
        name: stem of the submodule's name.
        scalar: parameters and literals get scalar shapes (pointwise modules); views of plain constants vanish.

    Returns:
        for each result, the instruction that replaces it (``get_tuple_elem`` if there are several).
    """
    outputs = open_values(region)
    body = program.unique_module(f"{module.name}:{name}")
    mapped: dict[Instruction, Instruction] = {}
    members = set(region)
    arguments: list[Instruction] = []
    # a branch may read values of the module around it that become constants after its own are folded
    varies = any(i not in members and is_scalar_literal(i) is None for ins in region for i in ins.inputs)

    def parameter(ins: Instruction, inline: bool) -> Instruction:
        # a vector of one element among scalars determines the rank of the result
        vector = known_same(ins.shape.lens, (1,)) and not ins.shape.without_axes
        constant = is_scalar_literal(ins) if inline and varies and not vector else None
        number = None if constant is None or constant.literal is None else constant.literal.numpy().reshape(-1)[0]
        if number is not None and is_plain(float(number)):
            vector = not scalar and other_rank(ins.shape, Shape(ins.shape.type))
            value = body.insert_literal(_first_operation(body), number.reshape(1) if vector else number)
            if not scalar and not known_same(ins.shape.lens, value.shape.lens):
                return body.add_instruction(make_op("multibroadcast", out_lens=ins.shape.lens), [value])
            return value
        shape = Shape(ins.shape.type) if scalar else ins.shape
        arguments.append(ins)
        added = body.add_parameter(parameter_name(len(arguments) - 1), shape)
        body.move_before(added, _first_operation(body))
        return added

    for ins in region:
        inputs = []
        for i in ins.inputs:
            if i not in mapped:
                mapped[i] = parameter(i, ins.op.pointwise)
            inputs.append(mapped[i])
        mapped[ins] = body.add_instruction(ins.op, inputs, ins.module_args)
        mapped[ins].debug_symbols = ins.debug_symbols
        members.add(ins)
    body.add_return([mapped[i] for i in outputs])

    last = region[-1]
    fused = module.insert_instruction(last, op, arguments, [body])
    fused.debug_symbols = tuple(dict.fromkeys(s for ins in region for s in ins.debug_symbols))
    if len(outputs) == 1:
        results = [fused]
    else:
        results = [
            module.insert_instruction(last, make_op("get_tuple_elem", index=k), [fused]) for k in range(len(outputs))
        ]
    for old, new in zip(outputs, results):
        module.replace_instruction(old, new)
    for ins in reversed(region):
        module.remove_instruction(ins)
    return results


def _first_operation(body: Module) -> Instruction | None:
    return next((i for i in body if not i.is_param and not i.is_literal), None)


def parameter_name(index: int) -> str:
    """Return MIGraphX's automatic parameter name: ``x0`` to ``x9``, then ``x:00010``."""
    return f"x{index}" if index < 10 else f"x:{index:05d}"


def unfusable(ins: Instruction) -> str | None:
    """Return the reason why region kernels do not support an instruction's operands or result; None if they do."""
    for shape in (ins.shape, *(i.shape for i in ins.inputs)):
        if not is_fusable_type(shape):
            what = "lengths are known at run time only" if shape.is_dynamic else "kernels do not handle the type"
            return f"{what}: {shape}"
    return None


def is_fusable_type(shape: Shape) -> bool:
    """Return whether kernels support the element type: all but tuples, packed 4-bit floats and host types."""
    if shape.is_dynamic or shape.sub_shapes or shape.type.hosted:
        return False
    return shape.type not in (Type.tuple_type, Type.fp4x2_type)


def is_plain(value: float) -> bool:
    """Return whether a number has at most 8 significant bits, as 0.5 or 6, so that rules for bodies may know it.

    Others (scales, shifts) differ from layer to layer: as operands they leave the layers one kernel to share.
    `LiftConstants` makes most plain numbers operands, too, when all rules have run.
    """
    return not math.isfinite(value) or (math.frexp(value)[0] * 256).is_integer()
