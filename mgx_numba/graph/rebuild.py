"""Reconstruction of a program from its saved modules, with validation of every part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..core.argument import Argument
from ..errors import FormatError, MgxError
from ..interrupts import whole_module
from .instruction import Instruction, Literal, Outline, Parameter, Results, Return
from .module import Module
from .program import Program
from .serialize import argument_from_value, operator_from_value, shape_from_value, strings

MAX_NESTING = 64  # far above real control flow, and below Python's recursion limit

Nodes = Callable[[], Iterator[Any]]


def rebuild_program(modules: Mapping[str, Nodes]) -> Program:
    """Build the program of these modules.

    Args:
        modules: per module name, a function that returns the module's nodes (value trees) in order.

    Raises:
        FormatError: a part is missing, of the wrong kind, or contradictory; the message names the module, the node, its
            operator and the field.
    """
    if "main" not in modules:
        raise FormatError("modules: there is no module 'main'")
    return _Rebuild(modules).run()


class _Rebuild:
    def __init__(self, modules: Mapping[str, Nodes]) -> None:
        whole_module("mgx_numba.ops")  # registers the operators
        self._nodes = modules
        self._program = Program()
        self._values: dict[str, Instruction] = {}
        self._done: dict[str, set[Instruction]] = {}
        self._open: list[Module] = []
        self._admitted: set[tuple[Module, str]] = set()
        self._parameters: dict[str, tuple[set[str], set[int]]] = {}

    def run(self) -> Program:
        for name in self._nodes:
            if name != "main":
                self._program.create_module(name)
        self._build("main")
        for name in self._nodes:
            if name not in self._done:
                self._open = [self._program.main]
                self._build(name)
        return self._program

    def _build(self, name: str) -> None:
        """Build the module of this name; the modules in ``_open`` enclose it."""
        module = self._program.module(name)
        if module is None:
            raise FormatError(f"there is no module {name!r}")
        if len(self._open) >= MAX_NESTING:
            raise FormatError(f"modules are nested more than {MAX_NESTING} levels deep")
        self._open.append(module)
        captured: set[Instruction] = set()
        for position, node in enumerate(self._nodes[name]()):
            what = node.get("name") if isinstance(node, dict) else None
            try:
                if module.return_instruction is not None:
                    raise FormatError("it follows the module's @return")
                self._add(module, node, captured)
            except (MgxError, ValueError) as error:
                place = f"module {name!r}, node {position} ({what if isinstance(what, str) else '?'})"
                raise FormatError(f"{place}: {error}") from None
            except (ArithmeticError, LookupError, TypeError, AttributeError, NotImplementedError) as error:
                # Damaged files may give shape rules attributes that no parser gives.
                place = f"module {name!r}, node {position} ({what})"
                raise FormatError(f"{place}: {type(error).__name__}: {error}") from error
        module._parameters = 1 + max(self._parameters.get(name, (set(), {-1}))[1])
        self._open.pop()
        self._done[name] = captured

    def _add(self, module: Module, node: object, captured: set[Instruction]) -> None:
        if not isinstance(node, dict):
            raise FormatError("a node must be a map")
        output, name = node.get("output"), node.get("name")
        if not isinstance(output, str) or not isinstance(name, str):
            raise FormatError("'output' and 'name' must be strings")
        if output in self._values:
            raise FormatError(f"output {output!r} is taken")
        inputs = [self._input(module, i, captured) for i in strings(node.get("inputs", []), "inputs")]
        run = strings(node.get("module_inputs", []), "module_inputs")
        bodies = [self._body(module, body, captured) for body in run]
        ins = self._instruction(module, name, node, inputs, bodies)
        ins.normalized = bool(node.get("normalized", False))
        ins.debug_symbols = tuple(strings(node.get("debug_symbols", []), "debug_symbols"))
        target = node.get("target_id", 0)
        if not isinstance(target, int) or target < 0:
            raise FormatError(f"target_id is {target!r}, expected an integer that is not negative")
        ins.target_id = int(target)
        self._values[output] = module._link(ins, None)

    def _input(self, module: Module, name: str, captured: set[Instruction]) -> Instruction:
        found = self._values.get(name)
        if found is None:
            raise FormatError(f"input {name!r} is not the output of an earlier node")
        self._capture(module, found, captured)
        return found

    def _capture(self, module: Module, value: Instruction, captured: set[Instruction]) -> None:
        if value.module is module:
            return
        if value.module not in self._open:
            raise FormatError("it uses a value of a module that does not enclose this one")
        captured.add(value)

    def _body(self, module: Module, name: str, captured: set[Instruction]) -> Module:
        body = self._program.module(name)
        if body is None or body is self._program.main:
            raise FormatError(f"module_inputs names {name!r}, which is no submodule")
        if body in self._open:
            raise FormatError(f"module {name!r} runs itself")
        if name not in self._done:
            self._build(name)
        if (module, name) not in self._admitted:
            self._admitted.add((module, name))
            for value in self._done[name]:
                self._capture(module, value, captured)
        return body

    def _instruction(
        self, module: Module, name: str, node: dict[str, object], inputs: list[Instruction], bodies: list[Module]
    ) -> Instruction:
        attributes = node.get("operator", {})
        if name == Return.name:
            return Results(inputs)
        if name in (Literal.name, Parameter.name, Outline.name):
            if inputs or bodies:
                raise FormatError(f"{name} has inputs")
            if name == Literal.name:
                literal: Argument = argument_from_value(node.get("literal"))
                return Instruction(Literal(), (), literal.shape, literal=literal)
            declared = Outline() if name == Outline.name else self._parameter(module, attributes)
            return Instruction(declared, (), shape_from_value(node.get("shape")))
        op = operator_from_value(name, attributes)
        shape = shape_from_value(node.get("shape"))
        computed = op.result_shape([i.shape for i in inputs], bodies)
        if shape != computed:
            raise FormatError(f"its shape is {{{shape}}} in the file and {{{computed}}} by the operator's rule")
        return Instruction(op, inputs, computed, bodies)

    def _parameter(self, module: Module, attributes: object) -> Parameter:
        names, orders = self._parameters.setdefault(module.name, (set(), set()))
        fields = attributes if isinstance(attributes, dict) else {}
        name, order = fields.get("parameter"), fields.get("order", 0)
        if not isinstance(name, str) or not isinstance(order, int) or isinstance(order, bool) or order < 0:
            raise FormatError("operator: 'parameter' must be a string, 'order' an integer from 0 on")
        if name in names or order in orders:
            raise FormatError(f"operator: parameter {name!r} or its order {order} is taken")
        names.add(name)
        orders.add(order)
        return Parameter(parameter=name, order=order)
