"""IR validator: invariants, checked after every pass in tests and on request."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import MgxError, ValidationError
from .instruction import Instruction, Literal, Parameter, Return
from .module import Module
from .printer import format_instruction, instruction_names
from .program import Program


def validate(program: Program) -> None:
    """Check every module of a program.

    Invariants:

    - inputs precede their users, in the same module or in an enclosing module;
    - uses are recorded in both directions;
    - shapes equal the operators' computed shapes;
    - parameter names are unique;
    - ``@return`` is last.

    Raises:
        ValidationError: the first broken invariant, with the instruction's text.
    """
    modules = program.reachable_modules()
    names = instruction_names(modules)
    _validate_module(program.main, set(), names, {})


def validate_module(module: Module) -> None:
    """Check one module and its submodules as `validate` does; captured values are assumed to be valid.

    Raises:
        ValidationError: the first broken invariant, with the instruction's text.
    """
    _validate_module(module, set(module.captured()), instruction_names([module, *module.submodules()]), {})


def _validate_module(
    module: Module, visible: set[Instruction], names: dict[Instruction, str], done: dict[Module, list[Instruction]]
) -> None:
    """Check a module.

    Args:
        visible: values of enclosing modules that precede it.
        done: captured values of modules that have been checked.
    """
    parameters: set[str] = set()
    members = list(module)
    own: set[Instruction] = set()
    captured: dict[Instruction, None] = {}

    def fail(ins: Instruction, message: str) -> ValidationError:
        return ValidationError(f"module {module.name!r}: {format_instruction(ins, names)}: {message}")

    for ins in members:
        if ins.module is not module:
            raise fail(ins, "belongs to another module")
        for i in ins.inputs:
            if i not in visible:
                raise fail(ins, f"input {names.get(i, repr(i))} does not stand before it")
            if ins not in i.users:
                raise fail(ins, f"is not among the users of its input {names.get(i, repr(i))}")
        _check_uses(ins, fail)
        if isinstance(ins.op, Return) and ins is not members[-1]:
            raise fail(ins, "@return is not last")
        if isinstance(ins.op, Parameter):
            if ins.op.parameter in parameters:
                raise fail(ins, "parameter name is taken")
            parameters.add(ins.op.parameter)
        else:
            _check_shape(ins, fail)
        taken = dict.fromkeys(ins.inputs)
        for inner in ins.module_args:
            if ins not in inner._runners:
                raise fail(ins, f"is not among those that run module {inner.name!r}")
            if inner not in done:
                _validate_module(inner, visible, names, done)
            for i in done[inner]:
                if i not in visible:
                    name = names.get(i, repr(i))
                    raise fail(ins, f"module {inner.name!r} uses {name}, which does not stand before it")
            taken.update(dict.fromkeys(done[inner]))
        captured.update(dict.fromkeys(i for i in taken if i not in own))
        visible.add(ins)
        own.add(ins)
    visible -= own
    done[module] = list(captured)


def _check_uses(ins: Instruction, fail: Callable[[Instruction, str], ValidationError]) -> None:
    """Check that an instruction's inputs and users refer to each other at the same positions."""
    if sum(len(i.users[ins]) for i in dict.fromkeys(ins.inputs)) != len(ins.inputs):
        raise fail(ins, "its inputs do not know all positions at which it takes them")
    for user, places in ins.users.items():
        if user.module is None or any(user.inputs[place : place + 1] != [ins] for place in places):
            raise fail(ins, f"has a stale user {user!r}")


def _check_shape(ins: Instruction, fail: Callable[[Instruction, str], ValidationError]) -> None:
    """Check that a literal has its value's shape, and that any other instruction has the shape its operator
    computes."""
    if isinstance(ins.op, Literal):
        if ins.literal is None or ins.literal.shape != ins.shape:
            raise fail(ins, "literal's value and shape differ")
    elif not isinstance(ins.op, Return):
        try:
            shape = ins.op.result_shape([i.shape for i in ins.inputs], ins.module_args)
        except MgxError as error:
            raise fail(ins, f"shape rule refuses it: {error}") from error
        if shape != ins.shape:
            raise fail(ins, f"shape rule gives {shape}")
