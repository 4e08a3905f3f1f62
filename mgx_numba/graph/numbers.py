"""A program as its form, the integers in it, and its literals: what differs between programs of one model for different
lengths, and what does not."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
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

__all__ = [
    "Form", "Numbered", "Numbers", "Pattern", "Template", "attribute_numbers", "chooser", "copy_with", "numbers_of",
    "plain",
]  # fmt: skip


class Form:
    """What of a program is no integer and no literal's value: operators, how they are connected, types, ranks. It is
    hashed once, and compared with itself at once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, parts: tuple[Hashable, ...]) -> None:
        self._parts = parts
        self._hash = hash(parts)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Form) or self._hash != other._hash:
            return False
        if self._parts is not other._parts:
            if self._parts != other._parts:
                return False
            self._parts = other._parts  # found at once next time
        return True

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Numbers:
    """All of a program.

    Attributes:
        form: all that is no integer and no literal's value.
        values: lengths, strides and attributes, in the order of instructions.
        literals: the constants, in that order.
        ends: how many of the values are those of an instruction and all before it.
    """

    form: Form
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
    return Numbers(Form(tuple(form)), values, literals, ends)


def copy_with(program: Program, own: Numbers, values: Sequence[int], literals: Sequence[Argument]) -> Program:
    """A copy with other integers and literals, which are in the order of ``own``, what `numbers_of` gave for the
    program; those of literals' shapes are among the integers. The integers of either may be such as note what they are
    compared with. Operators that are equal, and note nothing, are one in the copy.

    Raises:
        ShapeError: integers and literals are no program's.
    """
    copy, twins = _empty_copy(program, program.reachable_modules())
    begin, ends, constants = 0, iter(own.ends), iter(literals)
    values = list(values)
    known: dict[tuple[Hashable, tuple[int, ...]], Operator] = {}
    mapped: dict[Instruction, Instruction] = {}
    for module, target in twins.items():
        for ins in module:
            inputs = [mapped[i] for i in ins.inputs]
            end = next(ends)
            following = iter(values[begin:end])
            begin = end
            if isinstance(ins.op, Return):
                target._link(Results(inputs), None)
                continue
            op, shape = _one(_operator_with(ins.op, following), known), _shape_with(ins.shape, following)
            literal = None if ins.literal is None else next(constants)
            if literal is not ins.literal and literal is not None:  # comparing what notes it would ask
                _check_fitting(literal, shape)
            twin = Instruction(op, inputs, shape, [twins[m] for m in ins.module_args], literal)
            twin.debug_symbols, twin.normalized, twin.target_id = ins.debug_symbols, ins.normalized, ins.target_id
            mapped[ins] = target._link(twin, None)
    return copy


def _empty_copy(program: Program, modules: Sequence[Module]) -> tuple[Program, dict[Module, Module]]:
    """A program with the facts and the modules of another, without instructions; its module for each of these."""
    copy = Program()
    copy.open_dims = {name: dict(axes) for name, axes in program.open_dims.items()}
    twins: dict[Module, Module] = {program.main: copy.main}
    for module in modules:
        if module is not program.main:
            twins[module] = copy.create_module(module.name)
        twins[module]._parameters = module._parameters
    return copy, twins


def _one(op: Operator, known: dict[tuple[Hashable, tuple[int, ...]], Operator]) -> Operator:
    """The operator itself, or an equal one that is known, zeros of different signs being different."""
    values: list[int] = []
    form = _of_operator(op, values)
    if any(type(value) is not int for value in values):
        return op
    return known.setdefault((form, tuple(values)), op)


def _check_fitting(literal: Argument, shape: Shape) -> None:
    """Raises `ShapeError` for a literal of another shape."""
    if literal.shape != shape:
        raise ShapeError(f"a literal {shape} was given {literal.shape}")


class Pattern:
    """A program that is copied again and again with other integers, each one of a list of values.

    What many instructions have in common, an operator and a shape that follow from the same values, is made once for a
    copy. The program stays as it is.
    """

    def __init__(self, program: Program, places: Sequence[int] | None = None) -> None:
        """``places`` has, for each integer of `numbers_of`, which of the values it is; by default they are these
        integers themselves.

        Raises:
            TypeError: an attribute cannot be compared.
        """
        own = numbers_of(program)
        self._program, self._own = program, own
        self._places = range(len(own.values)) if places is None else places
        self._chosen = chooser(self._places)
        self._modules = program.reachable_modules()
        self._settings: list[_Setting] = []
        self._rows: list[list[_Row]] = []
        settings: dict[Hashable, int] = {}
        order: dict[Instruction, int] = {}
        self._literals: list[int] = []
        begin, ends = 0, iter(own.ends)
        for module in self._modules:
            rows: list[_Row] = []
            for ins in module:
                inputs = [order[i] for i in ins.inputs]
                order[ins] = len(order)
                end = next(ends)
                setting = literal = -1
                if not isinstance(ins.op, Return):
                    new = _Setting(ins.op, ins.shape, tuple(self._places[begin:end]), own.values[begin:end])
                    setting = settings.setdefault(new.key, len(settings))
                    if setting == len(self._settings):
                        self._settings.append(new)
                if ins.literal is not None:
                    literal = len(self._literals)
                    self._literals.append(setting)
                begin = end
                rows.append(_Row(ins, setting, literal, inputs))
            self._rows.append(rows)

    def numbers(self, values: Sequence[int], literals: list[Argument]) -> Numbers:
        """Those of the copy with these values and literals."""
        return Numbers(self._own.form, list(self._chosen(values)), literals, self._own.ends)

    def takes(self, values: Sequence[int], literals: Sequence[Argument], places: Iterable[int]) -> bool:
        """Whether literals, those at some places of all, have the shapes that follow from values."""
        return all(literals[k].shape == self._settings[self._literals[k]].of(values, {})[1] for k in places)

    def copy(self, values: Sequence[int], literals: Sequence[Argument]) -> Program:
        """The copy with these values; the shapes of literals follow from them.

        Raises:
            ShapeError: integers and literals are no program's.
        """
        copy, twins = _empty_copy(self._program, self._modules)
        shapes: dict[tuple[Type, tuple[int, ...]], Shape] = {}
        settings = [setting.of(values, shapes) for setting in self._settings]
        made: list[Instruction] = []
        for rows, target in zip(self._rows, twins.values()):
            for row in rows:
                inputs = [made[k] for k in row.inputs]
                if row.setting < 0:
                    made.append(target._link(Results(inputs), None))
                    continue
                ins = row.ins
                op, shape = settings[row.setting]
                literal = None if row.literal < 0 else literals[row.literal]
                if literal is not None and literal.shape is not shape:
                    _check_fitting(literal, shape)
                bodies = [twins[m] for m in ins.module_args] if ins.module_args else ()
                twin = Instruction(op, inputs, shape, bodies, literal)
                twin.debug_symbols, twin.normalized, twin.target_id = ins.debug_symbols, ins.normalized, ins.target_id
                made.append(target._link(twin, None))
        return copy


@dataclass(frozen=True)
class _Row:
    """An instruction of a pattern: the numbers of its `_Setting` and its literal, -1 if it has none, and its inputs by
    their places in the order of all."""

    ins: Instruction
    setting: int
    literal: int
    inputs: list[int]


class _Setting:
    """An operator and a shape whose integers are some of a list of values."""

    def __init__(self, op: Operator, shape: Shape, places: tuple[int, ...], own: list[int]) -> None:
        """``own`` are the integers that they have now."""
        self._op, self._shape, self._chosen, self._values = op, shape, chooser(places), tuple(own)
        rank = len(shape.lens)
        self._plain = bool(rank) and not shape.sub_shapes and not shape.dyn_dims
        self._attributes = len(places) - 2 * rank
        self.key = (id(op), shape.type if self._plain else id(shape), rank, places)

    def of(self, values: Sequence[int], shapes: dict[tuple[Type, tuple[int, ...]], Shape]) -> tuple[Operator, Shape]:
        """Both for other values; equal ``shapes`` are made once."""
        own = self._chosen(values)
        if own == self._values:
            return self._op, self._shape
        if not self._plain:
            numbers = iter(own)
            return _operator_with(self._op, numbers), _shape_with(self._shape, numbers)
        count, rank = self._attributes, len(self._shape.lens)
        same = own[:count] == self._values[:count]
        op = self._op if same else _operator_with(self._op, iter(own))
        key = self._shape.type, own[count:]
        known = shapes.get(key)
        if known is None:
            known = shapes[key] = Shape(key[0], key[1][:rank], key[1][rank:])
        return op, known


class Numbered:
    """A program that need not be there: its numbers tell what it is, and it is put together when somebody asks."""

    def __init__(self, numbers: Callable[[], Numbers], program: Callable[[], Program]) -> None:
        self._numbers, self._program = numbers, program

    @classmethod
    def of(cls, program: Program) -> Numbered:
        """One that is there."""
        return cls(lambda: numbers_of(program), lambda: program)

    @functools.cached_property
    def numbers(self) -> Numbers:
        """Its form, integers and literals.

        Raises:
            TypeError: an attribute cannot be compared.
        """
        return self._numbers()

    @functools.cached_property
    def program(self) -> Program:
        """The program.

        Raises:
            ShapeError: the numbers are no program's.
        """
        return self._program()


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


def chooser(places: Sequence[int]) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """What takes the values at these places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda values: tuple([values[place] for place in places])


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
