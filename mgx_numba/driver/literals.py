"""Conversion of a program's literals to parameters, so that weights are passed to each run, or left out of a file."""

from __future__ import annotations

from ..core.shape import find_permutation
from ..graph.instruction import Instruction, Literal
from ..graph.program import Program


def replace_literals(program: Program) -> None:
    """Replace the literals of the main module by parameters ``literal0``, ``literal1``, ..., in order, in place.

    Single numbers remain literals, and so do literals of submodules: a submodule's parameters are not the program's.
    """
    main = program.main
    number = 0
    for ins in [ins for ins in main if isinstance(ins.op, Literal) and _is_weight(ins)]:
        while main.parameter(f"literal{number}") is not None:
            number += 1
        given = main.add_parameter(f"literal{number}", ins.shape.to_standard())
        if given.shape != ins.shape:
            given = main.insert_instruction(ins, "layout", [given], permutation=find_permutation([ins.shape]))
        main.replace_instruction(ins, given)
        main.remove_instruction(ins)


def _is_weight(ins: Instruction) -> bool:
    return ins.shape.elements > 1 and not ins.shape.sub_shapes and not ins.shape.broadcasted
