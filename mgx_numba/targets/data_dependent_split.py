"""Cut programs in which lengths depend on data into two stages.

The first stage computes the tensors whose lengths are known before the run. The second stage is a program of its own,
whose inputs' lengths are known once the first has run.
"""

from __future__ import annotations

from ..dataclass import dataclass
from ..graph.instruction import Instruction
from ..graph.module import Module
from ..graph.passes import run_passes
from ..graph.program import Program
from ..ops.sampling import RandomSeed
from .split_point import SplitPoint

WORTHWHILE = frozenset(
    "dot quant_dot matmul_nbits convolution convolution_backwards quant_convolution quant_convolution_backwards"
    " deformable_convolution roialign"
    " lstm gru rnn attention".split()
)
"""Operators that justify a second stage, with a plan of its own. Without such an operator, or `FEWEST_LIGHT` others,
instructions after a data-dependent length run in fallback steps, which handle any length."""
LIGHT = frozenset("gather gather_elements gathernd softmax logsoftmax concat layernorm argmax argmin topk".split())
"""Operators, beside those on elements and reductions, of which several justify a second stage."""
FEWEST_LIGHT = 4
"""A fallback step takes 50 to 90 us, a second stage about 100 us in all (Zen 3, 1,000 elements). The kernels of a stage
also have to be compiled, which a few steps do not pay for."""


@dataclass(frozen=True)
class ProgramSplit:
    """A program cut in two.

    Attributes:
        head: computes all tensors with lengths known before a run, and those that determine the other lengths.
        tail: computes the rest.
        split_point: the values passed from head to tail, and the origin of each result.
    """

    head: Program
    tail: Program
    split_point: SplitPoint


def split(program: Program) -> ProgramSplit | None:
    """Return the two stages of a program; None if no length depends on data, or if a second stage is not worthwhile."""
    late = _late(program.main)
    if not any(map(_is_worthwhile, late)) and sum(map(_is_light, late)) < FEWEST_LIGHT:
        return None
    results = program.main.results()
    kept = [ins for ins in dict.fromkeys(results) if ins not in late]
    passed = list(_passed(late))
    position = {ins: k for k, ins in enumerate(program.main)}
    head = _clone(program, position, [*kept, *passed], [])
    ending = [ins for ins in dict.fromkeys(results) if ins in late]
    tail = _clone(program, position, ending, passed)
    places = tuple((r not in late, (ending if r in late else kept).index(r)) for r in results)
    return ProgramSplit(head, tail, SplitPoint(tuple(tail.parameter_shapes()), places))


def _late(main: Module) -> dict[Instruction, None]:
    """Return the instructions that depend, directly or not, on a tensor with data-dependent lengths."""
    found: dict[Instruction, None] = {}
    if not any(ins.shape.is_dynamic for ins in main):
        return found
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


def _is_light(ins: Instruction) -> bool:
    is_tensor = ins.shape.element is None and not ins.shape.type.hosted
    return is_tensor and (ins.op.pointwise or ins.name in LIGHT or ins.name.startswith("reduce_"))


def has_data_dependent_lengths(ins: Instruction) -> bool:
    """Return whether the branches or loop body of an instruction have data-dependent lengths and justify plans of their
    own."""
    values: dict[Instruction, None] = {}
    for body in ins.module_args:
        outer = (i for i in body.captured() if i.literal is None)
        values |= dict.fromkeys((*body.parameters(), *outer, *body.results()))
    if any(v.shape.sub_shapes or v.shape.type.hosted or not v.shape.ranked for v in values):
        return False
    return any(v.shape.is_dynamic for v in values) and any(map(is_worthwhile, ins.module_args))


def is_worthwhile(module: Module) -> bool:
    """Return whether a module holds an operator that justifies a plan of its own."""
    return any(_is_worthwhile(ins) for ins in module)


def _passed(late: dict[Instruction, None]) -> dict[Instruction, None]:
    """Return the values that the first stage passes to the second. The second stage computes views of them itself, and
    holds its own constants, computed ones included."""
    found: dict[Instruction, None] = {}
    constants: dict[Instruction, bool] = {}
    pending = [i for ins in late for i in ins.dependencies if i not in late]
    seen = set(pending)
    while pending:
        ins = pending.pop(0)
        sees_more = ins.op.view and not ins.shape.is_dynamic and ins.name != "get_tuple_elem"
        if _is_constant(ins, constants):
            continue
        if not sees_more:
            found[ins] = None
            continue
        pending += [i for i in ins.inputs if i not in seen]
        seen.update(ins.inputs)
    return found


def _is_constant(ins: Instruction, known: dict[Instruction, bool]) -> bool:
    """Return whether a value is computed from literals alone; ``known`` keeps the answers.

    A random seed is not constant: two stages would draw different ones.
    """
    if ins not in known:
        varies = ins.is_param or bool(ins.module_args) or isinstance(ins.op, RandomSeed)
        known[ins] = not varies and all(_is_constant(i, known) for i in ins.inputs)
    return known[ins]


def _clone(
    program: Program, position: dict[Instruction, int], results: list[Instruction], given: list[Instruction]
) -> Program:
    """Return a copy of the program that computes ``results`` of the main module.

    Args:
        program: the whole program.
        position: number of each instruction in the main module.
        results: instructions that become the copy's results.
        given: instructions that become the copy's inputs; empty: the copy has the program's own inputs.
    """
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
