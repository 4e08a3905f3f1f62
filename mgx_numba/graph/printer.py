"""The text form of programs, as MIGraphX prints it; programs are equal if their texts are equal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..core.argument import Argument
from ..core.types import Type
from ..ops.base import format_float
from .instruction import Instruction, Outline, Parameter, Return

if TYPE_CHECKING:
    from .module import Module
    from .program import Program


def instruction_names(modules: list[Module]) -> dict[Instruction, str]:
    """Return the printed name of every instruction: ``@N`` or the parameter's name, with the module's prefix in
    submodules."""
    names: dict[Instruction, str] = {}
    for position, module in enumerate(modules):
        prefix = "" if position == 0 else f"{module.name}:"
        for count, ins in enumerate(module):
            own = ins.op.parameter if isinstance(ins.op, Parameter) else f"@{count}"
            names[ins] = prefix + own
    return names


def format_literal(value: Argument) -> str:
    """Return the elements of a literal in braces, ``{ ... }`` beyond ten."""
    if value.shape.sub_shapes:
        return ", ".join(format_literal(v) for v in value.sub)
    if value.shape.elements > 10:
        return "{ ... }"
    return "{" + ", ".join(_format_element(x, value.shape.type) for x in value.numpy().ravel()) + "}"


def _format_element(x: Any, type: Type) -> str:
    if type.is_floating:
        return format_float(float(x))
    if type is Type.string_type:
        return json.dumps(x, ensure_ascii=False)
    if not type.is_integral:
        return str(x)
    return str(int(x))


def format_instruction(ins: Instruction, names: dict[Instruction, str]) -> str:
    """Return one line of the text form."""
    if isinstance(ins.op, Parameter):
        head = f"@param:{ins.op.parameter}"
    elif ins.literal is not None:
        head = f"@literal{format_literal(ins.literal)}"
    elif isinstance(ins.op, Outline):
        head = "@outline"
    else:
        head = str(ins.op)
    text = f"{names.get(ins, '@?')} = {head}"
    if ins.inputs:
        text += f"({','.join(names.get(i, '@?') for i in ins.inputs)})"
    if ins.module_args:
        text += f", [{', '.join(m.name for m in ins.module_args)}]"
    if not isinstance(ins.op, Return):
        text += f" -> {ins.shape}"
    if ins.target_id:
        text += f", target_id={ins.target_id}"
    if ins.debug_symbols:
        text += f" # {', '.join(ins.debug_symbols)}"
    return text


def print_module(module: Module) -> str:
    """Return a module's text, a line per instruction."""
    names = instruction_names([module])
    return "".join(f"{format_instruction(ins, names)}\n" for ins in module)


def program_lines(program: Program) -> Iterator[tuple[str, Instruction | None]]:
    """Yield the lines of the text form, each with its instruction (``None`` for headings and blank lines)."""
    modules = program.reachable_modules()
    names = instruction_names(modules)
    for module in modules:
        yield f'module: "{module.name}"', None
        for ins in module:
            yield format_instruction(ins, names), ins
        yield "", None


def print_program(program: Program, notes: Mapping[str, str] | None = None) -> str:
    """Return the text of a program: main module, then submodules; ``notes`` maps lines to comments appended to them."""
    lines = (line for line, _ in program_lines(program))
    if notes:
        lines = (f"{line} # {notes[line]}" if line in notes else line for line in lines)
    return "".join(line + "\n" for line in lines)
