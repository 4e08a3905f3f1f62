"""Programs in which lengths depend on data, cut where these are known: the first stage runs, then the second is a
program whose inputs have lengths."""

from __future__ import annotations

from ..dataclass import dataclass
from ..graph.instruction import Instruction
from ..graph.module import Module
from ..graph.passes import run_passes
from ..graph.program import Program
from .seam import Seam

__all__ = ["ProgramStages", "has_late_lengths", "is_worthwhile", "split"]

WORTHWHILE = frozenset(
    "dot quant_dot matmul_nbits convolution convolution_backwards quant_convolution quant_convolution_backwards"
    " deformable_convolution roialign"
    " lstm gru rnn attention".split()
)
"""Operators that are worth a plan of their own when lengths become known; without one of them, what comes after a
length that depends on data runs in host steps, which know every length."""


@dataclass(frozen=True)
class ProgramStages:
    """A program cut in two.

    Attributes:
        head: computes what has lengths before anything runs, and what tells the other lengths.
        tail: computes the rest.
        seam: what the first hands to the second, and whose the results are.
    """

    head: Program
    tail: Program
    seam: Seam


def split(program: Program) -> ProgramStages | None:
    """The stages of a program whose inputs have lengths; None if there is but one, or a second is not worth it."""
    late = _late(program.main)
    if not any(_is_worthwhile(ins) for ins in late):
        return None
    results = program.main.results()
    kept = [ins for ins in dict.fromkeys(results) if ins not in late]
    passed = list(_passed(late))
    position = {ins: k for k, ins in enumerate(program.main)}
    head = _clone(program, position, [*kept, *passed], [])
    ending = [ins for ins in dict.fromkeys(results) if ins in late]
    tail = _clone(program, position, ending, passed)
    places = tuple((r not in late, (ending if r in late else kept).index(r)) for r in results)
    return ProgramStages(head, tail, Seam(tuple(tail.parameter_shapes()), places))


def _late(main: Module) -> dict[Instruction, None]:
    """Instructions that take a tensor whose lengths depend on data, directly or not."""
    found: dict[Instruction, None] = {}
    for ins in main:
        if ins.name == "@return":
            break
        for i in ins.dependencies:
            if i in found or (i.shape.is_dynamic and i.shape.element is None and ins.name != "get_tuple_elem"):
                found[ins] = None
                break
    return found


def _is_worthwhile(ins: Instruction) -> bool:
    if ins.name in WORTHWHILE:
        return True
    return any(map(is_worthwhile, ins.module_args))


def has_late_lengths(ins: Instruction) -> bool:
    """Whether lengths inside of branches, or of what a loop repeats, are known only when it runs, and it is worth plans
    of their own for these."""
    values: dict[Instruction, None] = {}
    for body in ins.module_args:
        outer = (i for i in body.captured() if i.literal is None)
        values |= dict.fromkeys((*body.parameters(), *outer, *body.results()))
    if any(v.shape.sub_shapes or v.shape.type.hosted or not v.shape.ranked for v in values):
        return False
    return any(v.shape.is_dynamic for v in values) and any(map(is_worthwhile, ins.module_args))


def is_worthwhile(module: Module) -> bool:
    """Whether there is something in a module that is worth a plan of its own."""
    return any(_is_worthwhile(ins) for ins in module)


def _passed(late: dict[Instruction, None]) -> dict[Instruction, None]:
    """Values that the first stage hands to the second; views of them, and what is constant, the second has itself."""
    found: dict[Instruction, None] = {}
    pending = [i for ins in late for i in ins.dependencies if i not in late]
    seen = set(pending)
    while pending:
        ins = pending.pop(0)
        sees_more = ins.op.view and not ins.shape.is_dynamic and ins.name != "get_tuple_elem"
        if ins.literal is not None or (not ins.inputs and not ins.is_param):
            continue
        if not sees_more:
            found[ins] = None
            continue
        pending += [i for i in ins.inputs if i not in seen]
        seen.update(ins.inputs)
    return found


def _clone(
    program: Program, position: dict[Instruction, int], results: list[Instruction], given: list[Instruction]
) -> Program:
    """A copy that computes some values of the main module; its inputs are some others, if there are any, or its own."""
    copy = program.clone()
    main = copy.main
    twins, own = list(main), main.parameters()
    mark = "#"
    while any(main.parameter(f"{mark}{k}") is not None for k in range(len(given))):
        mark += "#"
    for k, ins in enumerate(given):
        main.replace_instruction(twins[position[ins]], main.add_parameter(f"{mark}{k}", ins.shape))
    main.replace_return([twins[position[ins]] for ins in results])
    run_passes(copy, ["dead_code_elimination"])
    for parameter in own if given else ():
        main.remove_instruction(parameter)
    return copy
