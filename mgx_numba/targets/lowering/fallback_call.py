"""The functions of fallback steps: instructions evaluated by their NumPy meaning, with compiled or evaluated
submodules; and their JSON values beside plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache, partial
from typing import Any

import numpy as np

from ...core.argument import Argument
from ...core.dim import Dim
from ...core.shape import Shape
from ...core.shape_json import shape_from_json, shape_to_json
from ...core.stored_length import StoredLength
from ...errors import UnsupportedError
from ...graph.instruction import Instruction, Literal, Outline, Parameter, Results, Return
from ...graph.module import Module
from ...graph.program import Program
from ...graph.substitution import settled, with_numbers
from ...json_types import JsonArray
from ...ops.base import Operator, operator_class
from ...ops.control import If
from ...runtime.plan_json import LengthsReader, LengthsWriter
from ..ref.interpreter import RunProgram, StepMemory, compute, evaluate_module
from .fallback_values import has_symbols, leaves, numbered, rebuild, returned
from .package_names import named
from .rules import Body


class FallbackCall:
    """The function of a fallback step that computes an instruction on arrays.

    Attributes:
        bodies: the instruction's submodules in executable form; None: submodules are evaluated by their NumPy meaning.
    """

    def __init__(
        self,
        ins: Instruction,
        layout: Sequence[object],
        captured: Sequence[Instruction],
        bodies: Mapping[Module, Body] | None,
        compile: Callable[[Program], RunProgram] | None = None,
    ) -> None:
        """Prepare the call of an instruction.

        Args:
            ins: the instruction.
            layout: for each input, then for each captured value, its position among the arrays (`flatten`).
            captured: values that the submodules take from outside.
            bodies: see the attribute.
            compile: see `StepMemory.compile`.
        """
        self._ins, self._layout, self._captured, self.bodies = ins, layout, captured, bodies
        self._memory = StepMemory(compile=compile)

    @property
    def symbolic(self) -> bool:
        """Whether the instruction has symbolic lengths, so that `at` has to be called first."""
        return has_symbols(self._ins)

    def __call__(self, arrays: list) -> list:
        ins, count, bodies = self._ins, len(self._ins.inputs), self.bodies
        values = [arrays[tree] if type(tree) is int else rebuild(tree, arrays) for tree in self._layout]
        outer = dict(zip(self._captured, values[count:]))
        with np.errstate(all="ignore"):
            if bodies is None:
                run = partial(_evaluated, outer)
                return leaves(compute(ins, values[:count], run, memory=self._memory))
            runs = cache(lambda module: bodies[module].within(outer))
            return leaves(
                compute(
                    ins,
                    values[:count],
                    lambda m, a: runs(m)(a),
                    lambda m, *how: bodies[m].repeat(outer, *how),
                    self._memory,
                )
            )

    def at(self, values: Mapping[Dim, int]) -> FallbackCall:
        """Return the call with the symbols replaced by values."""
        own = None if self.bodies is None else {module: body.at(values) for module, body in self.bodies.items()}
        ins = self._ins if isinstance(self._ins.op, If) else numbered(self._ins, values)
        return FallbackCall(ins, self._layout, self._captured, own, self._memory.compile)

    def write(self, lengths: LengthsWriter) -> dict[str, object]:
        ins, writer = self._ins, InstructionWriter(lengths)
        places = {value: k for k, value in enumerate(self._captured)}
        modules = []
        for module in ins.module_args:
            shapes = [[writer.shape(i.shape) for i in some] for some in (module.parameters(), module.results())]
            body = evaluated(module) if self.bodies is None else self.bodies[module]
            kind, content, captured = body.write(lengths)
            modules.append([module.name, *shapes, kind, content, [places[value] for value in captured]])
        kernels = [kernel for body in (self.bodies or {}).values() for kernel in body.kernels]
        return {
            "operator": writer.operator(ins.op),
            "shape": writer.shape(ins.shape),
            "inputs": [writer.shape(i.shape) for i in ins.inputs],
            "debug_symbols": ins.debug_symbols,
            "layout": self._layout,
            "captured": [writer.shape(i.shape) for i in self._captured],
            "modules": modules,
            "kernels": [lengths.writer.kernel(kernel) for kernel in dict.fromkeys(kernels)],
            "bound": self.symbolic,
        }


def _evaluated(outer: Mapping[Instruction, object], module: Module, arguments: Sequence[object]) -> list:
    return evaluate_module(module, arguments, outer)


class ReturnCall:
    """The function of a fallback step that returns a value as a result of a given shape."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._call: Callable[[list], list] = returned(shape)

    def __call__(self, arrays: list) -> list:
        return self._call(arrays)

    def at(self, values: Mapping[Dim, int]) -> ReturnCall:
        """Return the call with the symbols replaced by values."""
        return ReturnCall(with_numbers(self._shape, values))

    def write(self, lengths: LengthsWriter) -> dict[str, object]:
        return {"returned": InstructionWriter(lengths).shape(self._shape), "bound": self._shape.symbolic}


class EvaluatedBody:
    """A submodule evaluated by its NumPy meaning, as a program of its own.

    Attributes:
        captured: values that the submodule takes from outside.
    """

    plan = None
    kernels = ()

    def __init__(self, program: Program, captured: Sequence[Instruction], at: Mapping[Dim, int] | None = None) -> None:
        """Wrap a program whose last parameters are ``captured``; ``at`` has values of its symbols."""
        self._program, self.captured = program, captured
        self._main = settled(program, at).main if at else program.main

    def at(self, values: Mapping[Dim, int]) -> EvaluatedBody:
        return EvaluatedBody(self._program, self.captured, values)

    def within(self, outer: Mapping[Instruction, object]) -> Callable[[Sequence[np.ndarray]], list]:
        return lambda arguments: evaluate_module(self._main, [*arguments, *(outer[value] for value in self.captured)])

    def repeat(self, *how: object) -> None:
        """See `Body.repeat`."""

    def keep_growth(self, keep: object) -> None:
        """See `Body.keep_growth`."""

    def write(self, lengths: LengthsWriter) -> tuple[str, object, Sequence[Instruction]]:
        return "program", InstructionWriter(lengths).program(self._program), self.captured


def evaluated(module: Module) -> EvaluatedBody:
    """Return a submodule as a body that is evaluated by its NumPy meaning."""
    return EvaluatedBody(*Program.of_module(module))


_OWN = {kind.name: kind for kind in (Literal, Outline, Parameter, Return)}
"""Operators that are not in the operator registry."""


class InstructionWriter:
    """Converts the operators, shapes and programs of fallback steps to JSON values; ``lengths`` converts the plan's
    lengths."""

    def __init__(self, lengths: LengthsWriter) -> None:
        self._lengths = lengths

    def shape(self, shape: Shape) -> list[object]:
        """Return a shape as JSON values."""
        return shape_to_json(shape, self._lengths)

    def value(self, value: object) -> object:
        """Return an operator's attribute as a JSON value.

        Raises:
            UnsupportedError: the attribute has a type that no file holds, or is an operator of a user.
        """
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, Enum):
            return {"enum": [*_class(type(value)), value.name]}
        if isinstance(value, (int, float)):
            return value
        if isinstance(value, Dim):
            return {"length": self._lengths(value)}
        if isinstance(value, Shape):
            return {"shape": self.shape(value)}
        if isinstance(value, (tuple, list)):
            return {type(value).__name__: [self.value(one) for one in value]}
        if isinstance(value, frozenset):
            return {"frozenset": [self.value(one) for one in sorted(value)]}
        if isinstance(value, (np.ndarray, np.generic)):
            return {"array": self._lengths.writer.array(np.asarray(value)), "scalar": isinstance(value, np.generic)}
        if isinstance(value, Operator):
            return {"operator": self.operator(value)}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {"data": [*_class(type(value)), self._fields(value)]}
        raise UnsupportedError(f"a {type(value).__name__} of an operator is in no file")

    def operator(self, op: Operator) -> list[object]:
        """Return an operator as JSON values.

        Raises:
            UnsupportedError: the operator is a user's, or has an attribute that no file holds.
        """
        if op.custom or getattr(op, "needs", None):
            raise UnsupportedError(f"the code of the custom operator {op.name} is in no file")
        return [op.name, self._fields(op)]

    def _fields(self, value: Any) -> dict[str, object]:
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return {name: self.value(getattr(value, name)) for name in fields}

    def program(self, program: Program) -> list[object]:
        """Return the modules of a program as JSON values."""
        modules = program.reachable_modules()
        places = {module: k for k, module in enumerate(modules)}
        numbers: dict[Instruction, int] = {}
        for module in modules:
            for ins in module:
                numbers[ins] = len(numbers)
        return [[m.name, [self._instruction(ins, numbers, places) for ins in m]] for m in modules]

    def _instruction(
        self, ins: Instruction, numbers: Mapping[Instruction, int], places: Mapping[Module, int]
    ) -> list[object]:
        return [
            self.operator(ins.op),
            None if isinstance(ins.op, Return) else self.shape(ins.shape),
            [numbers[i] for i in ins.inputs],
            [places[m] for m in ins.module_args],
            None if ins.literal is None else self._literal(ins.literal),
            ins.debug_symbols,
            ins.normalized,
        ]

    def _literal(self, literal: Argument) -> list[object]:
        if literal.array is None:
            return [None, [self._literal(member) for member in literal.sub]]
        return [self._lengths.writer.array(literal.array), self.shape(literal.shape)]


class InstructionReader:
    """Reads the JSON values of an `InstructionWriter`; ``lengths`` reads the plan's lengths."""

    def __init__(self, lengths: LengthsReader) -> None:
        self._lengths = lengths

    def length(self, written: Any) -> Any:
        """Return a length in the form that shape rules compute with."""
        found = self._lengths(written)
        return found.expression if isinstance(found, StoredLength) else found

    def shape(self, written: JsonArray) -> Shape:
        """Return the shape that `InstructionWriter.shape` wrote."""
        return shape_from_json(written, self.length)

    def value(self, written: object) -> Any:
        """Return the attribute that `InstructionWriter.value` wrote."""
        if not isinstance(written, dict):
            return written
        ((kind, entry),) = [(k, v) for k, v in written.items() if k != "scalar"]
        if kind == "array":
            array = self._lengths.reader.arrays[entry]
            return array.reshape(-1)[0] if written["scalar"] else array
        return self._kinds[kind](self, entry)

    _kinds: Mapping[str, Callable[[InstructionReader, Any], Any]] = {
        "enum": lambda self, entry: named(*entry[:2])[entry[2]],
        "length": lambda self, entry: self.length(entry),
        "shape": lambda self, entry: self.shape(entry),
        "tuple": lambda self, entry: tuple([self.value(one) for one in entry]),
        "list": lambda self, entry: [self.value(one) for one in entry],
        "frozenset": lambda self, entry: frozenset([self.value(one) for one in entry]),
        "operator": lambda self, entry: self.operator(entry),
        "data": lambda self, entry: named(*entry[:2])(**self._fields(entry[2])),
    }

    def operator(self, written: JsonArray) -> Operator:
        """Return the operator that `InstructionWriter.operator` wrote."""
        name, values = written
        made: Operator = (_OWN.get(name) or operator_class(name))(**self._fields(values))
        return made

    def _fields(self, written: Mapping[str, object]) -> dict[str, object]:
        return {name: self.value(value) for name, value in written.items()}

    def program(self, written: JsonArray) -> Program:
        """Return the program that `InstructionWriter.program` wrote."""
        program = Program()
        modules = [program.main, *(program.create_module(name) for name, _ in written[1:])]
        made: list[Instruction] = []
        for module, (_, instructions) in zip(modules, written, strict=True):
            for op, shape, inputs, places, literal, debug_symbols, normalized in instructions:
                own = [made[number] for number in inputs]
                if shape is None:
                    ins: Instruction = Results(own)
                else:
                    value = None if literal is None else self._literal(literal)
                    bodies = [modules[place] for place in places]
                    ins = Instruction(self.operator(op), own, self.shape(shape), bodies, value)
                ins.debug_symbols, ins.normalized = tuple(debug_symbols), normalized
                made.append(module._link(ins, None))
            module._parameters = len(module.parameters())
        program.is_body = True
        return program

    def _literal(self, written: JsonArray) -> Argument:
        number, entry = written
        if number is None:
            return Argument.from_tuple([self._literal(member) for member in entry])
        array = self._lengths.reader.arrays[number]
        return Argument(self.shape(entry), array)


def signature(name: str, parameters: Sequence[Shape], results: Sequence[Shape]) -> Module:
    """Return a module with the given parameter and result shapes whose results have no computation."""
    module = Module(name)
    for k, shape in enumerate(parameters):
        module.add_parameter(f"p{k}", shape)
    module.add_return([module._link(Instruction(Outline(), (), shape), None) for shape in results])
    return module


def _class(kind: type) -> tuple[str, str]:
    """Return the module and name of a class.

    Raises:
        UnsupportedError: the class is not of this package, or not at the top level of a module.
    """
    module, name = kind.__module__, kind.__qualname__
    if not module.startswith("mgx_numba.") or "." in name:
        raise UnsupportedError(f"values of {module}.{name} are in no file")
    return module, name
