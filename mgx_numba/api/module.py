"""``op``, ``instruction_ref`` and ``module``, as MIGraphX's Python module has them."""

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

__all__ = ["instruction_ref", "macro", "module", "op"]


class op:
    """An operator: name and attributes.

    Raises:
        OperatorError: unknown operator or attribute, or a value of the wrong kind.
    """

    class pooling_mode(Enum):
        """How pooling reduces a window."""

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

    def __init__(self, name: str, **attributes: Any) -> None:
        self._value = make_op(name, **{key: _attribute(value) for key, value in attributes.items()})

    @classmethod
    def wrap(cls, value: Operator) -> op:
        """The public form of an IR operator."""
        self = cls.__new__(cls)
        self._value = value
        return self

    def name(self) -> str:
        """MIGraphX's name of the operator."""
        return self._value.name

    def values(self) -> dict[str, Any]:
        """All attributes, defaults included; sequences as lists, enumerations as integers."""
        return {key: _plain(value) for key, value in self._value.attributes().items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, op) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return str(self._value)


class macro:
    """An operation that expands into several instructions (batchnorm, gemm, gelu_erf, ...)."""

    def __init__(self, name: str, **options: Any) -> None:
        whole_module("mgx_numba.ops.builders")
        from ..ops.builders import macro_options

        macro_options(name, options)
        self._name, self._options = name, options

    def name(self) -> str:
        """Name of the macro."""
        return self._name

    def options(self) -> dict[str, Any]:
        """Options as given."""
        return dict(self._options)


def _attribute(value: Any) -> Any:
    if isinstance(value, Enum) and not isinstance(value, int):
        return value.name
    if isinstance(value, (dynamic_dimension, shape, op)):
        return value._value
    if isinstance(value, (list, tuple)):
        return [_attribute(v) for v in value]
    return value


def _plain(value: Any) -> Any:
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
    """A reference to an instruction of a module; equal references refer to the same one."""

    __slots__ = ("_value",)

    def __init__(self, value: Instruction) -> None:
        if not isinstance(value, Instruction):
            raise OperatorError(f"an instruction_ref refers to an instruction, got {type(value).__name__}")
        self._value = value

    def shape(self) -> shape:
        """Shape of the value."""
        return shape.wrap(self._value.shape)

    def op(self) -> op:
        """The operator."""
        return op.wrap(self._value.op)

    def name(self) -> str:
        """Name of the operator."""
        return self._value.name

    def inputs(self) -> list[instruction_ref]:
        """Instructions whose values it takes."""
        return [instruction_ref(i) for i in self._value.inputs]

    def outputs(self) -> list[instruction_ref]:
        """Instructions that take its value."""
        return [instruction_ref(i) for i in self._value.users]

    def get_literal(self) -> argument:
        """Value of a literal, read-only.

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
    """A list of instructions; got from a program, never made alone."""

    __slots__ = ("_value",)

    def __init__(self, value: Module) -> None:
        if not isinstance(value, Module):
            raise OperatorError("modules come from program.get_main_module() or program.create_module()")
        self._value = value

    def add_instruction(
        self, op: op, args: Sequence[instruction_ref] = (), mod_args: Sequence[module] = ()
    ) -> instruction_ref:
        """Append an operation.

        Raises:
            OperatorError: no ``op``, or ``args`` and ``mod_args`` are no lists of references and modules.
            ShapeError: the operator does not take values of these numbers, types or lengths.
        """
        if not isinstance(op, _op):
            raise OperatorError(f"add_instruction: op must be an op, got {op!r}")
        return instruction_ref(self._value.add_instruction(op._value, _values(args), _modules(mod_args, self._value)))

    def add_literal(self, data: Any) -> instruction_ref:
        """Put a constant (argument, array, buffer, number), which is copied, at the front of the module.

        Raises:
            ShapeError: it is none of these, or of an element type that there is not.
        """
        value = data.unwrap() if isinstance(data, argument) else Argument.from_array(data)
        return instruction_ref(self._value.add_literal(value.copy()))

    def add_parameter(self, name: str, shape: shape) -> instruction_ref:
        """Declare an input at the front of the module.

        Raises:
            OperatorError: ``name`` is no string, or ``shape`` no `shape`.
            ShapeError: the module has a parameter of this name.
        """
        if not isinstance(name, str) or not isinstance(shape, _shape):
            raise OperatorError(f"add_parameter needs a name and a shape, got {name!r} and {shape!r}")
        return instruction_ref(self._value.add_parameter(name, shape._value))

    def add_return(self, args: Sequence[instruction_ref]) -> instruction_ref:
        """End the module with these results.

        Raises:
            OperatorError: ``args`` is no list of references.
            ValidationError: the module has an end; `replace_return` gives it another.
        """
        return instruction_ref(self._value.add_return(_values(args)))

    def replace_return(self, args: Sequence[instruction_ref]) -> instruction_ref:
        """End the module with these results, whether it had an end or not.

        Raises:
            OperatorError: ``args`` is no list of references.
        """
        return instruction_ref(self._value.replace_return(_values(args)))

    def add_macro(
        self, macro: macro, args: Sequence[instruction_ref] = (), mod_args: Sequence[module] = ()
    ) -> list[instruction_ref]:
        """Append the instructions that a macro stands for; returns those that give its results.

        Raises:
            OperatorError: no ``macro``, one that is not known, or options that it has not.
            ShapeError: it does not take values of these numbers, types or lengths.
        """
        return self._macro(self._value.return_instruction, macro, args, mod_args)

    def insert_macro(
        self, ins: instruction_ref, macro: macro, args: Sequence[instruction_ref] = (), mod_args: Sequence[module] = ()
    ) -> list[instruction_ref]:
        """Insert the instructions that a macro stands for before ``ins``, else as `add_macro`."""
        return self._macro(_values([ins])[0], macro, args, mod_args)

    def _macro(
        self, before: Instruction | None, macro: macro, args: Sequence[instruction_ref], mod_args: Sequence[module]
    ) -> list[instruction_ref]:
        whole_module("mgx_numba.ops.builders")
        from ..ops.builders import add_macro

        if not isinstance(macro, _macro):
            raise OperatorError(f"a macro is needed, got {macro!r}")
        results = add_macro(
            self._value, before, macro._name, _values(args), _modules(mod_args, self._value), macro._options
        )
        return [instruction_ref(r) for r in results]

    def print(self) -> None:
        """Print the text form."""
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
    """The instructions that a sequence of references stands for."""
    if isinstance(args, instruction_ref) or not all(isinstance(a, instruction_ref) for a in args):
        raise OperatorError(f"args must be a list of instruction_ref, got {args!r}")
    return [a._value for a in args]


def _modules(mod_args: Any, runner: Module) -> list[Module]:
    """The modules that are to be run by an instruction of ``runner``."""
    if isinstance(mod_args, module) or not all(isinstance(m, module) for m in mod_args):
        raise OperatorError(f"mod_args must be a list of modules, got {mod_args!r}")
    modules = [m._value for m in mod_args]
    for inner in modules:
        if inner is runner or runner in inner.submodules():
            raise OperatorError(f"module {runner.name!r} cannot run module {inner.name!r}: it would run itself")
    return modules
