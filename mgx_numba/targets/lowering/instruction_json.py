"""Operators, shapes and programs of fallback steps as JSON values, beside a plan in its file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
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
from ...json_types import JsonArray
from ...ops.base import Operator, operator_class
from ...runtime.plan_json import LengthsReader, LengthsWriter
from .package_names import named

_UNREGISTERED = {kind.name: kind for kind in (Literal, Outline, Parameter, Return)}
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
            return {type(value).__name__: [self.value(item) for item in value]}
        if isinstance(value, frozenset):
            return {"frozenset": [self.value(item) for item in sorted(value)]}
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
        "tuple": lambda self, entry: tuple([self.value(item) for item in entry]),
        "list": lambda self, entry: [self.value(item) for item in entry],
        "frozenset": lambda self, entry: frozenset([self.value(item) for item in entry]),
        "operator": lambda self, entry: self.operator(entry),
        "data": lambda self, entry: named(*entry[:2])(**self._fields(entry[2])),
    }

    def operator(self, written: JsonArray) -> Operator:
        """Return the operator that `InstructionWriter.operator` wrote."""
        name, values = written
        made: Operator = (_UNREGISTERED.get(name) or operator_class(name))(**self._fields(values))
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


def _class(kind: type) -> tuple[str, str]:
    """Return the module and name of a class.

    Raises:
        UnsupportedError: the class is not of this package, or not at the top level of a module.
    """
    module, name = kind.__module__, kind.__qualname__
    if not module.startswith("mgx_numba.") or "." in name:
        raise UnsupportedError(f"values of {module}.{name} are in no file")
    return module, name
