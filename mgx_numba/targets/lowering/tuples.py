"""Flatten results that are tuples: plans have only arrays, so a program is compiled with the tuples' members as its
results."""

from __future__ import annotations

from ...graph.instruction import Instruction
from ...graph.program import Program
from ..base import Tree


def without_tuples(program: Program) -> tuple[Program, list[Tree] | None]:
    """Return the program with each tuple result replaced by its members, and the trees that group the members again.

    Returns:
        The program itself and ``None`` when no result is a tuple; else a copy and a tree for each result.
    """
    if not any(shape.sub_shapes for shape in program.output_shapes()):
        return program, None
    program = program.clone()
    leaves: list[Instruction] = []
    trees = [_split(ins, leaves) for ins in program.main.results()]
    program.main.replace_return(leaves)
    return program, trees


def _split(ins: Instruction, leaves: list[Instruction]) -> Tree:
    if not ins.shape.sub_shapes:
        leaves.append(ins)
        return len(leaves) - 1
    assert ins.module is not None
    members = [ins.module.add_instruction("get_tuple_elem", [ins], index=k) for k in range(len(ins.shape.sub_shapes))]
    return [_split(member, leaves) for member in members]
