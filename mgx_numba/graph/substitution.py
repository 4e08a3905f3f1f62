"""Substitution of numbers for symbolic lengths in shapes, operators, instructions and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ..core.dim import Dim, evaluate
from ..core.shape import Shape
from .instruction import Return
from .program import Program


def settled(program: Program, values: Mapping[Dim, int]) -> Program:
    """Return a copy of a program with values in place of the symbols of its lengths."""
    copy = program.clone()
    put_numbers(copy, values)
    return copy


def put_numbers(program: Program, values: Mapping[Dim, int]) -> None:
    """Replace the symbols of a program's lengths by values, in place."""
    known: dict[Dim, int] = {}
    for module in program.modules:
        for ins in module:
            if ins.op.symbolic:
                ins.op = with_numbers(ins.op, values, known)
            ins.shape = with_numbers(ins.shape, values, known)


def lengths_of(program: Program) -> list[Dim]:
    """Return the symbolic lengths in the operators and shapes of a program, each once."""
    found: dict[Dim, None] = {}

    def look(value: object) -> None:
        if isinstance(value, Dim):
            found[value] = None
        elif isinstance(value, Shape):
            for shape in value.flatten() if value.symbolic or value.is_dynamic else ():
                look([d for d in shape.dyn_dims if isinstance(d.min, Dim)])
                if shape.symbolic:
                    look((shape.lens, shape.strides))
        elif isinstance(value, (tuple, list)):
            for one in value:
                look(one)
        elif is_dataclass(value) and not isinstance(value, type):
            look([getattr(value, f.name) for f in fields(value)])

    for module in program.modules:
        for ins in module:
            if ins.op.symbolic:
                look(ins.op)
            if not isinstance(ins.op, Return):  # its shape is made of those of its inputs
                look(ins.shape)
    return list(found)


def holds_symbols(value: object) -> bool:
    """Return whether a length, a shape, an operator, or a sequence of these holds symbolic lengths."""
    if isinstance(value, (tuple, list)):
        return any(map(holds_symbols, value))
    if isinstance(value, Shape):
        return any(s.symbolic or any(isinstance(d.min, Dim) for d in s.dyn_dims) for s in value.flatten())
    if is_dataclass(value) and not isinstance(value, type):
        return any(holds_symbols(getattr(value, f.name)) for f in fields(value))
    return isinstance(value, Dim)


def with_numbers(value: Any, values: Mapping[Dim, int], known: dict[Dim, int] | None = None) -> Any:
    """Return a length, shape, operator, or sequence of them with numbers in place of symbols.

    Args:
        value: returned unchanged if it holds no symbols.
        values: values of all symbols.
        known: cache of evaluated expressions, which is extended.
    """
    if isinstance(value, Shape) and not (value.symbolic or value.is_dynamic or value.sub_shapes):
        return value
    if not holds_symbols(value):
        return value
    known = {} if known is None else known
    if isinstance(value, Dim):
        return evaluate(value, values, known)
    if isinstance(value, Shape):
        return _shape_with_numbers(value, values, known)
    if isinstance(value, (tuple, list)):
        return type(value)([with_numbers(v, values, known) for v in value])
    return replace(value, **{f.name: with_numbers(getattr(value, f.name), values, known) for f in fields(value)})


def _shape_with_numbers(shape: Shape, values: Mapping[Dim, int], known: dict[Dim, int]) -> Shape:
    if shape.sub_shapes:
        return Shape.tuple([with_numbers(s, values, known) for s in shape.sub_shapes])
    if shape.is_dynamic:
        return Shape.dynamic(shape.type, [with_numbers(d, values, known) for d in shape.dyn_dims])
    lens, strides = ([evaluate(n, values, known) for n in lengths] for lengths in (shape.lens, shape.strides))
    return Shape.view(shape.type, lens, strides)
