"""Export of a program as Python or C++ source, as a Graphviz graph and as JSON."""

from __future__ import annotations

import html
import json
import keyword
import math
import re
from collections.abc import Iterable
from dataclasses import fields
from enum import Enum
from typing import Any

import numpy as np

from ..core.argument import Argument
from ..core.shape import DynamicDimension, Shape, row_major_strides
from ..core.types import Type
from ..errors import UnsupportedError
from ..ops.base import Operator
from .instruction import Instruction, Outline, Parameter, Return
from .module import Module
from .printer import format_literal, instruction_names
from .program import Program
from .serialize import operator_to_value

LARGE_LITERAL = 1024
"""Literals of at least this many elements become generated values in Python source, as in MIGraphX."""


def to_py(program: Program) -> str:
    """Return Python source that builds the program through the public API, in MIGraphX's style.

    Variables are ``x_N``, parameters ``p_name``, modules ``m<name>``. Literals of 1024 elements and more get
    pseudo-random values of the same shape; all others keep their values.

    Raises:
        UnsupportedError: the API cannot make a value of the program (an outline, a tuple as a literal).
    """
    return _PythonPrinter(program).source()


def to_cpp(program: Program) -> str:
    """Return C++ statements that build the program ``p`` through MIGraphX's classes; names and literals as in `to_py`.

    Raises:
        UnsupportedError: the API cannot make a value of the program (an outline, a tuple as a literal).
    """
    return _CppPrinter(program).source()


class _PythonPrinter:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._lines: list[str] = []
        self._values: dict[Instruction, str] = {}
        self._modules: dict[Module, str] = {}
        self._taken: set[str] = {"p", "migraphx"}
        self._seed = 0

    def source(self) -> str:
        self._lines += ["import mgx_numba as migraphx", "", "p = migraphx.program()"]
        self._module(self._program.main, "p.get_main_module()")
        return "\n".join(self._lines) + "\n"

    def _module(self, module: Module, origin: str) -> None:
        variable = self._modules[module] = self._variable(f"m{module.name}")
        self._lines.append(self._definition(variable, origin))
        # Literals and parameters go to the front of a module, so the last one is added first.
        for ins in reversed(module):
            if ins.is_param or ins.is_literal:
                self._assign(ins, variable, self._declaration(ins))
        for ins in module:
            if isinstance(ins.op, Return):
                self._lines.append(self._results(variable, ins.inputs))
            elif not ins.is_param and not ins.is_literal:
                for body in ins.module_args:
                    if body not in self._modules:
                        self._module(body, self._creation(body))
                self._assign(ins, variable, self._instruction(ins))

    def _assign(self, ins: Instruction, module: str, call: str) -> None:
        if isinstance(ins.op, Parameter):
            name = self._variable(f"p_{ins.op.parameter}")
        else:
            name = self._variable(f"x_{len(self._values)}")
        self._values[ins] = name
        self._lines.append(self._statement(name, module, call))

    def _definition(self, variable: str, origin: str) -> str:
        return f"{variable} = {origin}"

    def _creation(self, module: Module) -> str:
        return f"p.create_module({module.name!r})"

    def _statement(self, name: str, module: str, call: str) -> str:
        return f"{name} = {module}.{call}"

    def _results(self, module: str, values: Iterable[Instruction]) -> str:
        return f"{module}.add_return([{self._names(values)}])"

    def _declaration(self, ins: Instruction) -> str:
        if isinstance(ins.op, Parameter):
            return f"add_parameter({ins.op.parameter!r}, {_shape(ins.shape)})"
        assert ins.literal is not None
        return f"add_literal({self._literal(ins.literal)})"

    def _literal(self, literal: Argument) -> str:
        shape = _shape(literal.shape)
        if literal.shape.elements >= LARGE_LITERAL:
            self._seed += 1
            return f"migraphx.generate_argument({shape}, {self._seed - 1})"
        return f"migraphx.create_argument({shape}, [{', '.join(_number(v) for v in _values(literal))}])"

    def _instruction(self, ins: Instruction) -> str:
        if isinstance(ins.op, Outline):
            raise UnsupportedError("an @outline cannot be written as Python source")
        arguments = [_operator(ins.op), f"[{self._names(ins.inputs)}]"]
        if ins.module_args:
            arguments.append(f"[{', '.join(self._modules[m] for m in ins.module_args)}]")
        return f"add_instruction({', '.join(arguments)})"

    def _names(self, values: Iterable[Instruction]) -> str:
        return ", ".join(self._values[v] for v in values)

    def _variable(self, wanted: str) -> str:
        name = re.sub(r"\W", "_", wanted, flags=re.ASCII)
        while name in self._taken or keyword.iskeyword(name):
            name += "_"
        self._taken.add(name)
        return name


class _CppPrinter(_PythonPrinter):
    def source(self) -> str:
        self._lines += ["migraphx::program p;"]
        self._module(self._program.main, "p.get_main_module()")
        return "\n".join(self._lines) + "\n"

    def _definition(self, variable: str, origin: str) -> str:
        return f"migraphx::module_ref {variable} = {origin};"

    def _creation(self, module: Module) -> str:
        return f"p.create_module({_cpp_string(module.name)})"

    def _statement(self, name: str, module: str, call: str) -> str:
        return f"auto {name} = {module}->{call};"

    def _results(self, module: str, values: Iterable[Instruction]) -> str:
        return f"{module}->add_return({{{self._names(values)}}});"

    def _declaration(self, ins: Instruction) -> str:
        if isinstance(ins.op, Parameter):
            return f"add_parameter({_cpp_string(ins.op.parameter)}, {_cpp_shape(ins.shape)})"
        assert ins.literal is not None
        return f"add_literal({self._literal(ins.literal)})"

    def _literal(self, literal: Argument) -> str:
        shape = _cpp_shape(literal.shape)
        if not 0 < literal.shape.elements < LARGE_LITERAL:
            self._seed += 1
            return f"migraphx::generate_literal({shape}, {self._seed - 1})"
        return f"migraphx::literal{{{shape}, {{{', '.join(_cpp_numbers(_values(literal)))}}}}}"

    def _instruction(self, ins: Instruction) -> str:
        if isinstance(ins.op, Outline):
            raise UnsupportedError("an @outline cannot be written as C++ source")
        op = _cpp_operator(ins.op)
        if ins.module_args:
            modules = ", ".join(self._modules[m] for m in ins.module_args)
            return f"add_instruction({op}, {{{self._names(ins.inputs)}}}, {{{modules}}})"
        return f"add_instruction({', '.join([op, *(self._values[v] for v in ins.inputs)])})"


def _cpp_operator(op: Operator) -> str:
    name, attributes = _cpp_string(op.name), operator_to_value(op)
    if not attributes:
        return f"migraphx::make_op({name})"
    try:
        return f"migraphx::make_json_op({name}, {_cpp_string(json.dumps(attributes, allow_nan=False))})"
    except ValueError:  # JSON has no infinity
        pairs = ", ".join(f"{{{_cpp_string(key)}, {_cpp_value(value)}}}" for key, value in attributes.items())
        return f"migraphx::make_op({name}, {{{pairs}}})"


def _cpp_value(value: object) -> str:
    if isinstance(value, dict):
        raise UnsupportedError("an infinite or NaN attribute beside one with members cannot be written as C++ source")
    if isinstance(value, list):
        return f"{{{', '.join(map(_cpp_value, value))}}}"
    return _cpp_string(value) if isinstance(value, str) else _cpp_numbers([value])[0]


def _cpp_string(text: str) -> str:
    """Return a C++ string literal in UTF-8."""
    escaped = re.sub(r'["\\]', r"\\\g<0>", text)
    return '"' + re.sub(r"[\x00-\x1f\x7f?]", lambda found: f"\\{ord(found[0]):03o}", escaped) + '"'


def _cpp_numbers(values: list[Any]) -> list[str]:
    """Return C++ literals of a single type: an initializer list of several types does not compile."""
    if any(isinstance(v, float) for v in values):
        return [_cpp_double(v) for v in values]
    low, high = min(values), max(values)
    if low > -(1 << 31) and high < 1 << 31:
        return [str(v).lower() for v in values]
    suffix = "ll" if high < 1 << 63 else "ull"
    return ["-9223372036854775807ll - 1" if v == -(1 << 63) else f"{v}{suffix}" for v in values]


def _cpp_double(value: float) -> str:
    if math.isfinite(value):
        return str(value)
    limits = "std::numeric_limits<double>::"
    return f"{limits}quiet_NaN()" if math.isnan(value) else f"{'-' if value < 0 else ''}{limits}infinity()"


def _cpp_shape(shape: Shape) -> str:
    if shape.type is Type.tuple_type or shape.type.hosted:
        raise UnsupportedError(f"a value of {shape.type.name} cannot be written as C++ source: {shape}")
    parts = [f"migraphx::shape::{shape.type.name}"]
    if shape.dyn_dims:
        dims = []
        for d in shape.dyn_dims:
            optimals = f", {{{', '.join(map(str, sorted(d.optimals)))}}}" if d.optimals else ""
            dims.append(f"migraphx::shape::dynamic_dimension{{{d.min}, {d.max}{optimals}}}")
        parts.append(f"{{{', '.join(dims)}}}")
    elif shape.lens:
        parts.append(f"{{{', '.join(map(str, shape.lens))}}}")
        if shape.strides != row_major_strides(shape.lens):
            parts.append(f"{{{', '.join(map(str, shape.strides))}}}")
    return f"migraphx::shape{{{', '.join(parts)}}}"


def _values(literal: Argument) -> list[Any]:
    values = literal.numpy().ravel()
    with np.errstate(invalid="ignore"):  # signalling NaNs
        if literal.shape.type.is_floating:
            return values.astype(np.float64).tolist()
        return (values.astype(np.int8) if literal.shape.type.is_narrow else values).tolist()


def _number(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _shape(shape: Shape) -> str:
    if shape.type is Type.tuple_type or shape.type.holds_objects:
        raise UnsupportedError(f"a value of {shape.type.name} cannot be written as Python source: {shape}")
    if shape.dyn_dims:
        dims = ", ".join(_dimension(d) for d in shape.dyn_dims)
        return f"migraphx.shape(type={shape.type.name!r}, dyn_dims=[{dims}])"
    text = f"migraphx.shape(type={shape.type.name!r}, lens={list(shape.lens)}"
    plain = shape.strides == row_major_strides(shape.lens)
    return text + (")" if plain else f", strides={list(shape.strides)})")


def _dimension(dimension: DynamicDimension) -> str:
    optimals = f", {sorted(dimension.optimals)}" if dimension.optimals else ""
    return f"migraphx.shape.dynamic_dimension({dimension.min}, {dimension.max}{optimals})"


def _operator(op: Operator) -> str:
    """Return a ``migraphx.op`` call with the attributes that differ from their defaults."""
    changed = [f.name for f in fields(op) if getattr(op, f.name) != f.default]
    attributes = "".join(f", {name}={_attribute(getattr(op, name))}" for name in changed)
    return f"migraphx.op({op.name!r}{attributes})"


def _attribute(value: object) -> str:
    if isinstance(value, Type):
        return repr(value.name)
    if isinstance(value, Enum):
        return str(int(value.value))
    if isinstance(value, Shape):
        return _shape(value)
    if isinstance(value, DynamicDimension):
        return _dimension(value)
    if isinstance(value, Operator):
        return _operator(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_attribute, value))}]"
    return _number(value)


def to_dot(program: Program, brief: bool = False) -> str:
    """Return the program as a directed graph in Graphviz's language; submodules are clusters.

    Nodes are instructions with their attributes, edges carry shapes. ``brief`` leaves out attributes, shapes and
    literals.
    """
    modules = program.reachable_modules()
    names = instruction_names(modules)
    lines = ["digraph {", "  rankdir=TB;", "  node [shape=plain, fontname=Helvetica];"]
    for number, module in enumerate(modules):
        indent = "  " if number == 0 else "    "
        if number:
            lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(module.name)};"]
        for ins in module:
            if not (brief and ins.is_literal):
                lines.append(f"{indent}{_quoted(names[ins])} [label=<{_label(ins, names, brief)}>];")
        if number:
            lines.append("  }")
    lines += _edges(modules, names, brief)
    return "\n".join([*lines, "}"]) + "\n"


def _edges(modules: list[Module], names: dict[Instruction, str], brief: bool) -> list[str]:
    lines = []
    for module in modules:
        for ins in module:
            for value in ins.inputs:
                if not (brief and value.is_literal):
                    label = "" if brief else f" [label={_quoted(str(value.shape))}]"
                    lines.append(f"  {_quoted(names[value])} -> {_quoted(names[ins])}{label};")
            for body in ins.module_args:
                ends = (f"{_quoted(names[result])} -> {_quoted(names[ins])}" for result in body.results())
                lines += [f"  {end} [style=dashed];" for end in ends]
    return lines


_COLORS = {"@param": "lightblue", "@literal": "lightgray", "@return": "lightblue"}
_KERNEL_COLORS = {"dot": "orange", "convolution": "gold", "pointwise": "palegreen", "fused_reduce": "plum"}


def _label(ins: Instruction, names: dict[Instruction, str], brief: bool) -> str:
    color = _COLORS.get(ins.name, _KERNEL_COLORS.get(ins.name, "white"))
    head = f"@param:{ins.op.parameter}" if isinstance(ins.op, Parameter) else ins.name
    rows = [f"<b>{html.escape(head)}</b>"]
    if not brief:
        if ins.literal is not None:
            rows.append(html.escape(format_literal(ins.literal)))
        elif not ins.is_param:
            rows += [html.escape(a) for a in _attribute_lines(ins.op)]
        rows += [html.escape(f"module: {m.name}") for m in ins.module_args]
        if not isinstance(ins.op, Return):
            rows.append(html.escape(str(ins.shape)))
    cells = "".join(f"<tr><td>{row}</td></tr>" for row in rows)
    return f'<table border="0" cellborder="0" bgcolor="{color}">{cells}</table>'


def _attribute_lines(op: Operator) -> list[str]:
    text = str(op)
    return [text[len(op.name) :].strip("[]")] if op.attributes() else []


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
