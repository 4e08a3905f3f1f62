"""Copies of programs with other integers: one at a time, or by a pattern that is copied again and again."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property, partial
from itertools import chain

from ..core.argument import Argument
from ..core.shape import Shape
from ..core.types import Type
from ..dataclass import dataclass
from ..errors import ShapeError
from ..ops.base import Operator
from .instruction import Instruction, Results, Return
from .module import Module
from .numbers import Numbers, numbers_of, of_operator, operator_with, shape_with
from .program import Program
from .rewrite_log import RewriteLog
from .structure import content

__all__ = ["CopyPattern", "Numbered", "chooser", "copy_with"]


MOST_RELEASED = 2
"""Copies that a pattern keeps when they are released: two threads may ask for them at once."""


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
            op, shape = _one(operator_with(ins.op, following), known), shape_with(ins.shape, following)
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
    form = of_operator(op, values)
    if any(type(value) is not int for value in values):
        return op
    return known.setdefault((form, tuple(values)), op)


def _check_fitting(literal: Argument, shape: Shape) -> None:
    """Raises `ShapeError` for a literal of another shape."""
    if literal.shape != shape:
        raise ShapeError(f"a literal {shape} was given {literal.shape}")


class CopyPattern:
    """A program that is copied again and again with other integers, each one of a list of values.

    What many instructions have in common, an operator and a shape that follow from the same values, is made once for a
    copy, and a copy that is released is the next one. The program stays as it is. May be used from any thread.
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
        self._released: list[tuple[Program, list[Instruction]]] = []
        begin, ends = 0, iter(own.ends)
        self._structures: list[tuple[int, list[int]]] = []
        structures: dict[Hashable, int] = {}
        for module in self._modules:
            rows: list[_Row] = []
            first = len(order)
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
            key = tuple([(row.setting, row.literal >= 0, tuple([k - first for k in row.inputs])) for row in rows])
            own_literals = [row.literal for row in rows if row.literal >= 0]
            if module is not program.main:
                self._structures.append((structures.setdefault(key, len(structures)), own_literals))

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
        shapes: dict[tuple[Type, tuple[int, ...]], Shape] = {}
        settings = [setting.of(values, shapes) for setting in self._settings]
        try:
            kept = self._released.pop()
        except IndexError:
            return self._new(settings, literals)
        return self._filled(*kept, settings, literals)

    def _filled(
        self,
        program: Program,
        made: list[Instruction],
        settings: Sequence[tuple[Operator, Shape]],
        literals: Sequence[Argument],
    ) -> Program:
        """An earlier copy, which nobody uses any more, with other integers and literals."""
        for ins, row in zip(made, chain.from_iterable(self._rows)):
            if row.setting >= 0:
                ins.op, ins.shape = settings[row.setting]
                if row.literal >= 0:
                    literal = ins.literal = literals[row.literal]
                    if literal.shape is not ins.shape:
                        _check_fitting(literal, ins.shape)
        self._know_structures(program, literals)
        program.log = RewriteLog()
        program.keeper = partial(self._keep, made, [module.changes for module in program.modules])
        return program

    def _know_structures(self, program: Program, literals: Sequence[Argument]) -> None:
        """Say of the submodules which compute the same: those that follow from the same rows and equal literals."""
        for module, (number, own) in zip(program.modules[1:], self._structures):
            module.structure = module.changes, (number, *[content(literals[k]) for k in own])

    def _keep(self, made: list[Instruction], changes: list[int], program: Program) -> bool:
        """Take a copy back that nobody uses any more, for the next lengths: that is ten times as quick as making one.
        Not one of which more was changed than the order, which becomes the pattern's again."""
        if len(self._released) >= MOST_RELEASED or [module.changes for module in program.modules] != changes:
            return False
        for ins, row in zip(made, chain.from_iterable(self._rows)):
            if row.literal >= 0:
                ins.literal = None  # what follows from lengths may be large
        begin = 0
        for rows in self._rows:
            own = made[begin : begin + len(rows)]
            begin += len(rows)
            module = own[0].module if own else None
            if module is not None and list(module) != own:
                module.reorder(own)
        program.keeper = _kept
        self._released.append((program, made))
        return True

    def _new(self, settings: Sequence[tuple[Operator, Shape]], literals: Sequence[Argument]) -> Program:
        copy, twins = _empty_copy(self._program, self._modules)
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
        self._know_structures(copy, literals)
        copy.keeper = partial(self._keep, made, [module.changes for module in copy.modules])
        return copy


def _kept(program: Program) -> bool:
    """Says of a program that its keeper has it already."""
    return True


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
            return operator_with(self._op, numbers), shape_with(self._shape, numbers)
        count, rank = self._attributes, len(self._shape.lens)
        same = own[:count] == self._values[:count]
        op = self._op if same else operator_with(self._op, iter(own))
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

    @cached_property
    def numbers(self) -> Numbers:
        """Its form, integers and literals.

        Raises:
            TypeError: an attribute cannot be compared.
        """
        return self._numbers()

    @cached_property
    def program(self) -> Program:
        """The program.

        Raises:
            ShapeError: the numbers are no program's.
        """
        return self._program()


def chooser(places: Sequence[int]) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """What takes the values at these places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda values: tuple([values[place] for place in places])
