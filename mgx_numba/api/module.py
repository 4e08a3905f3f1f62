"""``op``, ``instruction_ref`` and ``module`` of MIGraphX's Python module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from ..core.argument import Argument
from ..core.shape import DynamicDimension
from ..errors import OperatorError
from ..graph.instruction import Instruction
from ..graph.module import Module
from ..graph.printer import format_instruction, instruction_names, print_module
from ..interrupts import whole_module
from ..ops.base import Operator, make_op
from .argument import argument
from .shape import dynamic_dimension, shape


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise OperatorError(f"the name of an operator must be a str, got {name!r}")
    return name


class op:
    """An operator: name and attributes.

    Raises:
        OperatorError: the operator or an attribute is unknown, or an attribute value has the wrong kind.
    """

    class pooling_mode(Enum):
        """Reduction that pooling applies to a window."""

        average = 0
        max = 1
        lpnorm = 2

        def __index__(self) -> int:
            return int(self.value)

    class rnn_direction(Enum):
        """Order in which a recurrent operator sees the sequence."""

        forward = 0
        reverse = 1
        bidirectional = 2

        def __index__(self) -> int:
            return int(self.value)

    def __init__(self, name: str, **attributes: object) -> None:
        self._value = make_op(_text(name), **{key: _attribute(value) for key, value in attributes.items()})

    @classmethod
    def wrap(cls, value: Operator) -> op:
        """Return the public form of an IR operator."""
        self = cls.__new__(cls)
        self._value = value
        return self

    def name(self) -> str:
        """Return MIGraphX's name of the operator."""
        return self._value.name

    def values(self) -> dict[str, Any]:
        """Return all attributes, including defaults; sequences as lists, enumerations as integers."""
        return {key: _plain(value) for key, value in self._value.attributes().items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, op) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return str(self._value)


class macro:
    """An operation that expands into several instructions (batchnorm, gemm, gelu_erf, ...)."""

    def __init__(self, name: str, **options: object) -> None:
        whole_module("mgx_numba.graph.builders")
        from ..graph.builders import macro_options

        macro_options(_text(name), options)
        self._name, self._options = name, options

    def name(self) -> str:
        """Return the name of the macro."""
        return self._name

    def options(self) -> dict[str, object]:
        """Return the options that were passed."""
        return dict(self._options)


def _attribute(value: object) -> object:
    if isinstance(value, Enum) and not isinstance(value, int):
        return value.name
    if isinstance(value, (dynamic_dimension, shape, op)):
        return value._value
    if isinstance(value, (list, tuple)):
        return [_attribute(v) for v in value]
    return value


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Enum):
        return int(value.value)
    if isinstance(value, Operator):
        return {"name": value.name, "operator": op.wrap(value).values()}
    if isinstance(value, DynamicDimension):
        return dynamic_dimension(value.min, value.max, value.optimals)
    return value


class instruction_ref:
    """A reference to an instruction of a module; references to the same instruction are equal."""

    __slots__ = ("_value",)

    def __init__(self, value: Instruction) -> None:
        if not isinstance(value, Instruction):
            raise OperatorError(f"an instruction_ref refers to an instruction, got {type(value).__name__}")
        self._value = value

    def shape(self) -> shape:
        """Return the shape of the instruction's value."""
        return shape.wrap(self._value.shape)

    def op(self) -> op:
        """Return the operator."""
        return op.wrap(self._value.op)

    def name(self) -> str:
        """Return the name of the operator."""
        return self._value.name

    def inputs(self) -> list[instruction_ref]:
        """Return the instructions whose values are this instruction's operands."""
        return [instruction_ref(i) for i in self._value.inputs]

    def outputs(self) -> list[instruction_ref]:
        """Return the instructions that use this instruction's value."""
        return [instruction_ref(i) for i in self._value.users]

    def get_literal(self) -> argument:
        """Return the value of a literal, read-only.

        Raises:
            OperatorError: the instruction is not a literal.
        """
        if self._value.literal is None:
            raise OperatorError(f"{self._value.name} is not a literal")
        value = argument.wrap(self._value.literal)
        value.setflags(write=False)
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, instruction_ref) and self._value is other._value

    def __hash__(self) -> int:
        return hash(id(self._value))

    def __repr__(self) -> str:
        owner = self._value.module
        return format_instruction(self._value, instruction_names([owner]) if owner is not None else {})


class module:
    """A list of instructions, obtained from a program."""

    __slots__ = ("_value",)

    def __init__(self, value: Module) -> None:
        if not isinstance(value, Module):
            raise OperatorError("modules come from program.get_main_module() or program.create_module()")
        self._value = value

    def add_instruction(
        self, op: op, args: Sequence[instruction_ref] = (), mod_args: Sequence[module] = ()
    ) -> instruction_ref:
        """Append an instruction.

        Raises:
            OperatorError: ``op`` is not an `op`, or ``args`` or ``mod_args`` is not a list of references or modules.
            ShapeError: the operator does not accept the number, types or lengths of the operands.
        """
        if not isinstance(op, _op):
            raise OperatorError(f"add_instruction: op must be an op, got {op!r}")
        return instruction_ref(self._value.add_instruction(op._value, _values(args), _modules(mod_args, self._value)))

    def add_literal(self, data: object) -> instruction_ref:
        """Insert a copy of a constant (argument, array, buffer, number) at the front of the module.

        Raises:
            ShapeError: ``data`` has another type, or an unsupported element type.
        """
        value = data.unwrap() if isinstance(data, argument) else Argument.from_array(data)
        return instruction_ref(self._value.add_literal(value.copy()))

    def add_parameter(self, name: str, shape: shape) -> instruction_ref:
        """Declare an input at the front of the module.

        Raises:
            OperatorError: ``name`` is not a string, or ``shape`` not a `shape`.
            ShapeError: the module has a parameter of this name.
        """
        if not isinstance(name, str) or not isinstance(shape, _shape):
            raise OperatorError(f"add_parameter needs a name and a shape, got {name!r} and {shape!r}")
        return instruction_ref(self._value.add_parameter(name, shape._value))

    def add_return(self, args: Sequence[instruction_ref]) -> instruction_ref:
        """Append a return instruction with these results.

        Raises:
            OperatorError: ``args`` is not a list of references.
            ValidationError: the module has a return instruction; use `replace_return`.
        """
        return instruction_ref(self._value.add_return(_values(args)))

    def replace_return(self, args: Sequence[instruction_ref]) -> instruction_ref:
        """Set the module's return instruction to these results, whether or not it had a return instruction.

        Raises:
            OperatorError: ``args`` is not a list of references.
        """
        return instruction_ref(self._value.replace_return(_values(args)))

    def add_macro(
        self, macro: macro, args: Sequence[instruction_ref] = (), mod_args: Sequence[module] = ()
    ) -> list[instruction_ref]:
        """Append the expansion of a macro; return the instructions that compute its results.

        Raises:
            OperatorError: ``macro`` is not a `macro`, or its name or an option is unknown.
            ShapeError: the macro does not accept the number, types or lengths of the operands.
        """
        return self._macro(self._value.return_instruction, macro, args, mod_args)

    def insert_macro(
        self, ins: instruction_ref, macro: macro, args: Sequence[instruction_ref] = (), mod_args: Sequence[module] = ()
    ) -> list[instruction_ref]:
        """Insert the expansion of a macro before ``ins``; otherwise as `add_macro`."""
        return self._macro(_values([ins])[0], macro, args, mod_args)

    def _macro(
        self, before: Instruction | None, macro: macro, args: Sequence[instruction_ref], mod_args: Sequence[module]
    ) -> list[instruction_ref]:
        whole_module("mgx_numba.graph.builders")
        from ..graph.builders import add_macro

        if not isinstance(macro, _macro):
            raise OperatorError(f"a macro is needed, got {macro!r}")
        results = add_macro(
            self._value, before, macro._name, _values(args), _modules(mod_args, self._value), macro._options
        )
        return [instruction_ref(r) for r in results]

    def print(self) -> None:
        """Print the module's text form."""
        print(self, end="")

    def __iter__(self) -> Iterator[instruction_ref]:
        return (instruction_ref(i) for i in self._value)

    def __len__(self) -> int:
        return len(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, module) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(id(self._value))

    def __repr__(self) -> str:
        return print_module(self._value)


_op, _macro, _shape = op, macro, shape  # where parameters of those names hide them


def _values(args: Any) -> list[Instruction]:
    """Return the instructions that a sequence of references refers to."""
    if isinstance(args, instruction_ref) or not all(isinstance(a, instruction_ref) for a in args):
        raise OperatorError(f"args must be a list of instruction_ref, got {args!r}")
    return [a._value for a in args]


def _modules(mod_args: Sequence[module], runner: Module) -> list[Module]:
    """Return the IR modules that an instruction of ``runner`` will run."""
    if isinstance(mod_args, module) or not all(isinstance(m, module) for m in mod_args):
        raise OperatorError(f"mod_args must be a list of modules, got {mod_args!r}")
    modules = [m._value for m in mod_args]
    for inner in modules:
        if inner is runner or runner in inner.submodules():
            raise OperatorError(f"module {runner.name!r} cannot run module {inner.name!r}: it would run itself")
    return modules
