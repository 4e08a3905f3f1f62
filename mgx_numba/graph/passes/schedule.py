"""Scheduling: the order in which instructions run, so that few values are alive at once and used while in cache."""

from __future__ import annotations

from ...core.dim import hint
from ...dataclass import dataclass
from ...environment import environment_flag
from ..instruction import Instruction, Parameter, Return
from ..module import Module
from ..program import Program
from .base import KERNEL_OPERATORS, Options, Pass

__all__ = ["Schedule"]


class Schedule(Pass):
    """Depth first from the results: each branch is finished before the next one begins.

    Of an instruction's inputs the one whose computation needs most memory comes first (Sethi and Ullman's rule, 1970),
    so that the others' results do not wait beside it. Literals and parameters keep their places at the front.
    """

    name = "schedule"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        graph = _dependencies_of(module)
        members, taken = graph.members, graph.taken
        need = _memory_needs(taken)
        order: list[Instruction] = []
        done = set(graph.fixed)
        for root in [*module.results(), *taken]:
            stack = [root] if root in members and root not in done else []
            while stack:
                ins = stack[-1]
                waiting = () if ins in done else [i for i in taken[ins] if i not in done]
                if waiting:
                    stack += sorted(waiting, key=lambda i: (need[i], -members[i])) if len(waiting) > 1 else waiting
                    continue
                stack.pop()
                if ins not in done:
                    done.add(ins)
                    order.append(ins)
        if graph.end is not None:
            order.remove(graph.end)
            order.append(graph.end)
        if environment_flag("MIGRAPHX_TRACE_SCHEDULE"):
            for ins in order:
                if not isinstance(ins.op, Return):
                    print(f"schedule: {ins.op} -> {ins.shape}, from place {members[ins]}, needs {need[ins]} bytes")
        wanted = [*graph.fixed, *order]
        if wanted != graph.order:
            module.reorder(wanted)


@dataclass(frozen=True)
class _Dependencies:
    """What scheduling takes of a module, but for lengths.

    Attributes:
        order: its instructions.
        members: their places.
        fixed: literals and parameters.
        taken: the values of the module that each instruction takes, but for literals, which are there.
        end: the instruction that returns.
    """

    order: list[Instruction]
    members: dict[Instruction, int]
    fixed: list[Instruction]
    taken: dict[Instruction, list[Instruction]]
    end: Instruction | None


def _dependencies_of(module: Module) -> _Dependencies:
    """That of a module; of one that is filled with other lengths again and again it is known."""
    order = list(module)
    changes, known = module.scheduled
    if isinstance(known, _Dependencies) and changes == module.changes and known.order == order:
        return known
    members = {ins: position for position, ins in enumerate(order)}
    taken = {
        ins: [i for i in _dependencies(ins) if i.literal is None and i in members]
        for ins in order
        if ins.literal is None
    }
    fixed = [ins for ins in order if ins.literal is not None or isinstance(ins.op, Parameter)]
    graph = _Dependencies(order, members, fixed, taken, module.return_instruction)
    if all(ins.name in KERNEL_OPERATORS for ins in module.running()):  # what others take may change within their bodies
        module.scheduled = module.changes, graph
    return graph


def _dependencies(ins: Instruction) -> list[Instruction]:
    """As `Instruction.dependencies`: bodies of kernels have all that they use from their parameters."""
    return ins.dependencies if ins.module_args and ins.name not in KERNEL_OPERATORS else ins.inputs


def _memory_needs(taken: dict[Instruction, list[Instruction]]) -> dict[Instruction, int]:
    """Bytes that computing each value takes at the most, if inputs are computed in the best order; ``taken`` has the
    values of the module that each instruction takes, but for literals, which are there."""
    need: dict[Instruction, int] = {}
    own: dict[Instruction, int] = {}
    for ins, values in taken.items():
        own[ins] = hint(ins.shape.bytes)
        held = peak = 0
        for i in sorted(dict.fromkeys(values), key=lambda i: -need[i]) if len(values) > 1 else values:
            peak = max(peak, held + need[i])
            held += own[i]
        need[ins] = max(peak, held + own[ins])
    return need
