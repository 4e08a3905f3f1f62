"""Schedule instructions to keep few values alive and use them while they are cached."""

from __future__ import annotations

from ...core.dim import hint
from ...dataclass import dataclass
from ...environment import environment_flag
from ..instruction import Instruction, Parameter, Return
from ..module import Module
from ..program import Program
from .base import KERNEL_OPERATORS, Options, Pass


class Schedule(Pass):
    """Order depth first from the results: each branch is finished before the next begins.

    Of an instruction's inputs, the one whose computation needs most memory comes first (Sethi and Ullman, 1970), so
    that results of the others do not wait. Literals and parameters stay in front.
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
    """Dependencies of a module, independent of lengths.

    Attributes:
        order: its instructions.
        members: their indices.
        fixed: literals and parameters.
        taken: the operands of each instruction in this module, without literals.
        end: the return instruction.
    """

    order: list[Instruction]
    members: dict[Instruction, int]
    fixed: list[Instruction]
    taken: dict[Instruction, list[Instruction]]
    end: Instruction | None


def _dependencies_of(module: Module) -> _Dependencies:
    """Return the dependencies of a module, cached until it changes."""
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
    """Return `Instruction.dependencies`; kernel bodies use only their parameters."""
    return ins.dependencies if ins.module_args and ins.name not in KERNEL_OPERATORS else ins.inputs


def _memory_needs(taken: dict[Instruction, list[Instruction]]) -> dict[Instruction, int]:
    """Return the peak memory (bytes) of computing each value with its inputs in the best order; ``taken`` as in
    `_Dependencies`."""
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
