"""A program as its form, the integers in it, and its literals: what differs between programs of one model for different
lengths, and what does not."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from ..core.argument import Argument
from ..core.shape import DynamicDimension, Shape
from ..core.types import Type
from ..errors import ShapeError
from ..ops.base import Operator
from .instruction import Instruction, Results, Return
from .module import Module
from .program import Program
from .rewrite_log import Refusal

__all__ = ["Numbers", "Template", "attribute_numbers", "copy_with", "numbers_of", "plain"]


@dataclass(frozen=True)
class Numbers:
    """All of a program.

    Attributes:
        form: operators, how they are connected, types, ranks: all that is no integer and no literal's value.
        values: lengths, strides and attributes, in the order of instructions.
        literals: the constants, in that order.
        ends: how many of the values are those of an instruction and all before it.
    """

    form: Hashable
    values: list[int]
    literals: list[Argument]
    ends: list[int]


def numbers_of(program: Program) -> Numbers:
    """The form, the integers and the literals of a program.

    Raises:
        TypeError: an attribute cannot be compared.
    """
    values: list[int] = []
    literals: list[Argument] = []
    form: list[Hashable] = []
    ends: list[int] = []
    modules = program.reachable_modules()
    numbers = {id(module): k for k, module in enumerate(modules)}
    places: dict[Instruction, int] = {}
    for module in modules:
        for ins in module:
            places[ins] = len(places)
    for module in modules:
        form.append((module.name, module._parameters))
        for ins in module:
            inputs = tuple([places[i] for i in ins.inputs])
            if isinstance(ins.op, Return):
                form.append(inputs)
                ends.append(len(values))
                continue
            if ins.literal is not None:
                literals.append(ins.literal)
            bodies = tuple([numbers[id(m)] for m in ins.module_args])
            own = _of_operator(ins.op, values), _of_shape(ins.shape, values)
            form.append((own, inputs, bodies, ins.normalized, ins.target_id))
            ends.append(len(values))
    return Numbers(tuple(form), values, literals, ends)


def copy_with(
    program: Program, own: Numbers, values: Sequence[int], literals: Sequence[Argument], plain: bool = True
) -> Program:
    """A copy with other integers and literals, which are in the order of ``own``, what `numbers_of` gave for the
    program; those of literals' shapes are among the integers. Without ``plain`` the integers of either may be such
    as note what they are compared with, and the copy has all that are given.

    Raises:
        ShapeError: integers and literals are no program's.
    """
    copy = Program()
    copy.open_dims = {name: dict(axes) for name, axes in program.open_dims.items()}
    modules = program.reachable_modules()
    twins: dict[int, Module] = {id(program.main): copy.main}
    for module in modules[1:]:
        twins[id(module)] = copy.create_module(module.name)
    settings = _Settings()
    begin, ends, constants = 0, iter(own.ends), iter(literals)
    values = list(values)
    mapped: dict[Instruction, Instruction] = {}
    for module in modules:
        target = twins[id(module)]
        for ins in module:
            inputs = [mapped[i] for i in ins.inputs]
            end = next(ends)
            following = values[begin:end]
            kept = plain and following == own.values[begin:end]
            begin = end
            if isinstance(ins.op, Return):
                target._link(Results(inputs), None)
                continue
            literal = None if ins.literal is None else next(constants)
            op, shape = (ins.op, ins.shape) if kept else settings.of(ins, following, plain)
            if literal is not ins.literal and (literal is None or literal.shape != shape):
                raise ShapeError(f"a literal {shape} was given {'no value' if literal is None else literal.shape}")
            twin = Instruction(op, inputs, shape, [twins[id(m)] for m in ins.module_args], literal)
            twin.debug_symbols, twin.normalized, twin.target_id = ins.debug_symbols, ins.normalized, ins.target_id
            mapped[ins] = target._link(twin, None)
        target._parameters = module._parameters
    return copy


class Template:
    """An operator and its result's shape, whose integers are values of a trace."""

    def __init__(self, op: Operator, shape: Shape, places: Sequence[int]) -> None:
        self._op, self._shape, self._places = op, shape, places

    @classmethod
    def made(cls, op: Operator, shape: Shape, number: Callable[[int], int]) -> Template:
        """Of an operator and a shape whose integers may note what is asked of them; ``number`` gives their places."""
        values = attribute_numbers(op)
        _of_shape(shape, values)
        plain = iter([int.__index__(value) for value in values])
        return cls(_operator_with(op, plain), _shape_with(shape, plain), [number(value) for value in values])

    def of(self, values: Sequence[int]) -> tuple[Operator, Shape]:
        """Both for other values of the trace."""
        numbers = iter([values[place] for place in self._places])
        return _operator_with(self._op, numbers), _shape_with(self._shape, numbers)


def attribute_numbers(op: Operator) -> list[int]:
    """The integers among an operator's attributes.

    Raises:
        TypeError: an attribute cannot be compared.
    """
    values: list[int] = []
    _of_operator(op, values)
    return values


def plain(refusal: Refusal) -> Refusal:
    """A refusal of a program whose integers note what is asked of them, with their values."""
    values: list[int] = []
    _of_operator(refusal.op, values)
    _of_shape(refusal.shape, values)
    numbers = iter([int.__index__(value) for value in values])
    return replace(refusal, op=_operator_with(refusal.op, numbers), shape=_shape_with(refusal.shape, numbers))


class _Settings:
    """Operators and shapes with other integers, each made once: equal layers have equal ones."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[Type, tuple[int, ...]], Shape] = {}
        self._operators: dict[tuple[int, tuple[int, ...]], Operator] = {}
        self._plain: dict[tuple[Hashable, tuple[int, ...]], Operator] = {}

    def of(self, ins: Instruction, values: list[int], plain: bool) -> tuple[Operator, Shape]:
        """An instruction's operator and shape with these integers; ``plain`` if they note nothing."""
        shape = ins.shape
        rank = len(shape.lens)
        if not plain or not rank or shape.sub_shapes or shape.dyn_dims:
            numbers = iter(values)
            op = _operator_with(ins.op, numbers)
            return op if plain else self._one(op), _shape_with(shape, numbers)
        op = ins.op if len(values) == 2 * rank else self._operator(ins.op, tuple(values[: -2 * rank]))
        key = shape.type, tuple(values[-2 * rank :])
        known = self._shapes.get(key)
        if known is None:
            known = self._shapes[key] = Shape(shape.type, key[1][:rank], key[1][rank:])
        return op, known

    def _operator(self, op: Operator, values: tuple[int, ...]) -> Operator:
        """An operator of the program that is copied with other integers; equal layers have one there, by `_one`."""
        key = id(op), values
        known = self._operators.get(key)
        if known is None:
            known = self._operators[key] = _operator_with(op, iter(values))
        return known

    def _one(self, op: Operator) -> Operator:
        """The operator itself, or an equal one of before, zeros of different signs being different."""
        values: list[int] = []
        form = _of_operator(op, values)
        if any(type(value) is not int for value in values):
            return op
        return self._plain.setdefault((form, tuple(values)), op)


def _of_shape(shape: Shape, values: list[int]) -> Hashable:
    if shape.sub_shapes or shape.type is Type.tuple_type:
        return tuple([_of_shape(s, values) for s in shape.sub_shapes])
    if shape.dyn_dims:
        values += [n for d in shape.dyn_dims for n in (d.min, d.max)]
        return shape.type, "ranges", tuple([d.optimals for d in shape.dyn_dims])
    if not shape.ranked:
        return shape.type, "unranked"
    values += shape.lens
    values += shape.strides
    return shape.type, len(shape.lens)


def _shape_with(shape: Shape, values: Iterator[int]) -> Shape:
    if shape.sub_shapes or shape.type is Type.tuple_type:
        return Shape.tuple([_shape_with(s, values) for s in shape.sub_shapes])
    if shape.dyn_dims:
        ranges = [DynamicDimension(next(values), next(values), d.optimals, d.symbol) for d in shape.dyn_dims]
        return Shape.ranged(shape.type, ranges)
    if not shape.ranked:
        return shape
    rank = len(shape.lens)
    lens = [next(values) for _ in range(rank)]
    strides = [next(values) for _ in range(rank)]
    return shape if _same(lens, shape.lens) and _same(strides, shape.strides) else Shape(shape.type, lens, strides)


def _of_operator(op: Operator, values: list[int]) -> Hashable:
    return (op.name, *[_of_value(getattr(op, name), values) for name in op.attribute_kinds()])


def _operator_with(op: Operator, values: Iterator[int]) -> Operator:
    changes = {}
    for name in op.attribute_kinds():
        old = getattr(op, name)
        new = _value_with(old, values)
        if new is not old:
            changes[name] = new
    return op.with_attributes(**changes) if changes else op


def _of_value(value: Any, values: list[int]) -> Hashable:
    if isinstance(value, int) and not isinstance(value, (bool, Enum)):
        values.append(value)
        return None
    if isinstance(value, float):
        return value.hex()  # tells zeros apart, and NaN is equal to itself
    if isinstance(value, (tuple, list)):
        if all(isinstance(v, int) and not isinstance(v, (bool, Enum)) for v in value):
            values += value
            return len(value)
        return tuple([_of_value(v, values) for v in value])
    if isinstance(value, Shape):
        return _of_shape(value, values)
    if isinstance(value, Operator):
        return _of_operator(value, values)
    if isinstance(value, DynamicDimension):
        values += (value.min, value.max)
        return value.optimals
    hash(value)
    return (type(value), value)


def _value_with(value: Any, values: Iterator[int]) -> Any:
    if isinstance(value, int) and not isinstance(value, (bool, Enum)):
        found = next(values)
        return value if type(found) is type(value) is int and found == value else found
    if isinstance(value, (tuple, list)):
        new = [_value_with(v, values) for v in value]
        return value if all(a is b for a, b in zip(new, value)) else type(value)(new)
    if isinstance(value, Shape):
        return _shape_with(value, values)
    if isinstance(value, Operator):
        return _operator_with(value, values)
    if isinstance(value, DynamicDimension):
        return DynamicDimension(next(values), next(values), value.optimals, value.symbol)
    return value


def _same(new: Sequence[int], old: Sequence[int]) -> bool:
    return all(type(a) is type(b) is int and a == b for a, b in zip(new, old))
