"""A program as its form, the integers in it, and its literals: what differs between programs of one model for different
lengths, and what does not."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from ..core.argument import Argument
from ..core.shape import DynamicDimension, Shape
from ..core.types import Type
from ..dataclass import dataclass
from ..ops.base import Operator
from .instruction import Instruction, Return
from .program import Program
from .rewrite_log import Refusal

__all__ = [
    "Numbers", "ProgramForm", "Template", "attribute_numbers", "numbers_of", "of_operator", "operator_with", "plain",
    "shape_with",
]  # fmt: skip


class ProgramForm:
    """What of a program is no integer and no literal's value: operators, how they are connected, types, ranks. It is
    hashed once, and compared with itself at once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, parts: tuple[Hashable, ...]) -> None:
        self._parts = parts
        self._hash = hash(parts)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, ProgramForm) or self._hash != other._hash:
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

    form: ProgramForm
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
            own = of_operator(ins.op, values), _of_shape(ins.shape, values)
            form.append((own, inputs, bodies, ins.normalized, ins.target_id))
            ends.append(len(values))
    return Numbers(ProgramForm(tuple(form)), values, literals, ends)


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
        return cls(operator_with(op, plain), shape_with(shape, plain), [number(value) for value in values])

    def of(self, values: Sequence[int]) -> tuple[Operator, Shape]:
        """Both for other values of the trace."""
        numbers = iter([values[place] for place in self._places])
        return operator_with(self._op, numbers), shape_with(self._shape, numbers)


def attribute_numbers(op: Operator) -> list[int]:
    """The integers among an operator's attributes.

    Raises:
        TypeError: an attribute cannot be compared.
    """
    values: list[int] = []
    of_operator(op, values)
    return values


def plain(refusal: Refusal) -> Refusal:
    """A refusal of a program whose integers note what is asked of them, with their values."""
    values: list[int] = []
    of_operator(refusal.op, values)
    _of_shape(refusal.shape, values)
    numbers = iter([int.__index__(value) for value in values])
    return replace(refusal, op=operator_with(refusal.op, numbers), shape=shape_with(refusal.shape, numbers))


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


def shape_with(shape: Shape, values: Iterator[int]) -> Shape:
    """A shape with the next integers in the place of its own: lengths, then strides, or the ends of ranges."""
    if shape.sub_shapes or shape.type is Type.tuple_type:
        return Shape.tuple([shape_with(s, values) for s in shape.sub_shapes])
    if shape.dyn_dims:
        ranges = [DynamicDimension(next(values), next(values), d.optimals, d.symbol) for d in shape.dyn_dims]
        return Shape.ranged(shape.type, ranges)
    if not shape.ranked:
        return shape
    rank = len(shape.lens)
    lens = [next(values) for _ in range(rank)]
    strides = [next(values) for _ in range(rank)]
    return shape if _same(lens, shape.lens) and _same(strides, shape.strides) else Shape(shape.type, lens, strides)


def of_operator(op: Operator, values: list[int]) -> Hashable:
    """What of an operator is no integer; its integers are appended to ``values``.

    Raises:
        TypeError: an attribute cannot be compared.
    """
    return (op.name, *[_of_value(getattr(op, name), values) for name in op.attribute_kinds()])


def operator_with(op: Operator, values: Iterator[int]) -> Operator:
    """An operator with the next integers in the place of its own, in their order."""
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
        return of_operator(value, values)
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
        return shape_with(value, values)
    if isinstance(value, Operator):
        return operator_with(value, values)
    if isinstance(value, DynamicDimension):
        return DynamicDimension(next(values), next(values), value.optimals, value.symbol)
    return value


def _same(new: Sequence[int], old: Sequence[int]) -> bool:
    return all(type(a) is type(b) is int and a == b for a, b in zip(new, old))
