"""Extraction of parts of a program: its first instructions, or a range of instructions."""

from __future__ import annotations

from dataclasses import replace

from ..errors import OptionError
from ..graph.instruction import Instruction, Parameter, Return
from ..graph.program import Program


def computing_instructions(program: Program) -> list[int]:
    """Return the positions, in the main module, of the instructions that compute a value."""
    members = enumerate(program.main)
    return [k for k, ins in members if not ins.name.startswith("@") and ins.name != "undefined"]


def keep_until(program: Program, position: int) -> Program:
    """Return a copy that ends with the instruction at ``position`` and returns its value; parameters are kept."""
    copy = program.clone()
    members = list(copy.main)
    kept = members[position]
    for ins in reversed(members[position + 1 :]):
        if not ins.is_param:
            copy.main.remove_instruction(ins)
    copy.main.add_return([kept])
    copy.origin = replace(copy.origin, output_names=())
    copy.main.remove_unused()
    copy.remove_unused_modules()
    return copy


def trim(program: Program, count: int, size: int = 0) -> Program:
    """Return a copy without the last ``count`` instructions; with ``size``, only ``size`` before the cut are kept.

    Operands computed by removed instructions become parameters; literals remain literals.

    Raises:
        OptionError: no instruction would be left.
    """
    members = list(program.main)
    if count < 0 or size < 0 or count >= len(members):
        raise OptionError(f"--trim {count} --trim-size {size} leaves nothing of {len(members)} instructions")
    last = len(members) - 1 - count
    if isinstance(members[last].op, (Parameter, Return)):
        return program.clone()
    result = keep_until(program, last)
    if size:
        kept = [i for i in result.main if not isinstance(i.op, (Parameter, Return)) and i.literal is None][-size:]
        _cut_before(result, set(kept))
    return result


def _cut_before(program: Program, kept: set[Instruction]) -> None:
    main = program.main
    number = 0
    for ins in list(main):
        if ins in kept or ins.is_param or ins.is_literal or isinstance(ins.op, Return):
            continue
        if any(user in kept for user in ins.users):
            while main.parameter(f"x{number}") is not None:
                number += 1
            main.replace_instruction(ins, main.add_parameter(f"x{number}", ins.shape))
    program.main.remove_unused()
    program.remove_unused_modules()
