"""Programs for given lengths, made once for lengths that note what is done with them, and then by substitution.

See `replay`, which does the same for passes. Here numbers become values of constants, and these become numbers again:
whoever asks for the value of an element that depends on lengths ends the tracing (`folding.Followed`), so that no
number stays that is true of the traced lengths alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ..core.argument import Argument
from ..core.shape import Shape
from ..dataclass import dataclass
from ..errors import MgxError, ShapeError
from ..ops.base import Operator
from .constants import CONSTANT_VIEWS, STORED, constant_array, is_constant, uniform
from .copies import CopyPattern, Numbered, copy_with
from .followed import FollowedSettling, is_traced
from .instruction import Instruction
from .known_literals import without_memory
from .numbers import Numbers, Template, numbers_of
from .program import Program
from .specialize import FOLDED, specialize
from .traced_int import Trace

__all__ = ["Lens", "Settled"]

MOST_TRACES = 64
"""Of one program: there is one where no length is 1, and others where some are, or where they are equal."""
MOST_WAITING = 8
"""Traces that are right for the lengths they were made of and wait for others to be checked on; there are no more
where each is for its own lengths alone, since constants depend on these."""
MOST_FAILURES = 6
"""Sets of lengths in succession that no trace was made for, after which none is tried."""
UNIFORM_FROM = 32
"""Elements from which a constant may become one value that is spread, which is another form: a whole vector or two."""
MOST_TAKEN = 1 << 22
"""Elements of a constant that are taken to see whether it has them: some milliseconds, where settling takes tens."""

Lens = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class _Computed:
    """One constant of a trace: an array; or integers of the trace; or an operator on other constants."""

    array: np.ndarray | None = None
    places: Sequence[int] = ()
    template: Template | None = None
    inputs: Sequence[int] = ()


class _RecordedCopy:
    """A traced copy of a program, for lengths of which some were other ones when the trace was checked: those that
    were not are as they were traced, since what is computed in C of them may have stayed."""

    def __init__(self, trace: Trace, traced: FollowedSettling, symbols: Sequence[int]) -> None:
        """
        Raises:
            TypeError: a constant depends on lengths in a way that is not traced.
        """
        program = traced.program
        self._symbols = tuple(symbols)
        self._checked: frozenset[int] = frozenset()
        self._trace = trace
        self._tape = _Tape(trace, traced)
        numbers = numbers_of(program)
        self._literals = [self._tape.literal(argument) for argument in numbers.literals]
        self._made = [k for k, literal in enumerate(self._literals) if isinstance(literal, int)]
        self._scalars = [argument.shape.without_axes for argument in numbers.literals]
        shapes = [_without_values(argument) for argument in numbers.literals]
        plain = copy_with(program, numbers, [int.__index__(v) for v in numbers.values], shapes)
        self._pattern = CopyPattern(plain, [trace.number(value) for value in numbers.values])

    def check(self, symbols: Sequence[int]) -> None:
        """Note that the copy for these lengths was right."""
        self._checked |= self._others(symbols)

    def serves(self, symbols: Sequence[int]) -> bool:
        """Whether what the trace says of these lengths has been checked."""
        return self._others(symbols) <= self._checked

    def _others(self, symbols: Sequence[int]) -> frozenset[int]:
        """Numbers of the lengths that are not as they were traced."""
        return frozenset(k for k, (a, b) in enumerate(zip(symbols, self._symbols, strict=True)) if a != b)

    def copy(self, symbols: Sequence[int]) -> Numbered | None:
        """The copy for these lengths; None if it is not the traced one with other numbers."""
        values = self._trace.evaluate(symbols)
        if values is None:
            return None
        arrays = self._tape.evaluate(values)
        if arrays is None:
            return None
        literals = [
            a if isinstance(a, Argument) else Argument.from_array(arrays[a].reshape(()) if scalar else arrays[a])
            for a, scalar in zip(self._literals, self._scalars, strict=True)
        ]
        if not self._pattern.takes(values, literals, self._made):
            return None
        return Numbered(partial(self._pattern.numbers, values, literals), partial(self._pattern.copy, values, literals))


class _Tape:
    """The constants of a traced copy that depend on lengths: those that are left are literals then, as
    `propagate_constant` makes them."""

    def __init__(self, trace: Trace, traced: FollowedSettling) -> None:
        self._trace = trace
        self._recipes = traced.recipes
        self._steps: list[_Computed] = []
        self._known: dict[Instruction, int] = {}
        self._depending: set[int] = set()
        self._made: dict[int, int] = {}
        self._fold(traced.program)

    def literal(self, argument: Argument) -> Argument | int:
        """A literal of the copy: itself, or the number of the array that it is made of."""
        return self._made.get(id(argument), argument)

    @np.errstate(all="ignore")
    def evaluate(self, values: Sequence[int]) -> list[np.ndarray] | None:
        """The arrays of all steps; None if one is large, or has another form than a literal of its lengths."""
        arrays: list[np.ndarray] = []
        for step in self._steps:
            if step.array is not None:
                arrays.append(step.array)
            elif step.template is None:
                arrays.append(np.array([values[place] for place in step.places], np.int64))
            else:
                op, shape = step.template.of(values)
                found = _value(op, shape, [arrays[k] for k in step.inputs])
                if found is None:
                    return None
                arrays.append(found)
        return arrays

    def _fold(self, program: Program) -> None:
        main = program.main
        followed = [ins for ins in main if self._follow(ins)]
        program.main.remove_unused()
        folded: dict[Instruction, None] = {}
        for ins in followed:
            base = ins.inputs[0] if ins.inputs else ins
            repeats = ins.op.view and base.literal is None and base not in folded
            if ins.module is main and ins.literal is None and ins.name not in _SPREADING and not repeats:
                folded[ins] = None
        ends = [ins for ins in folded if any(user not in folded for user in ins.users)]
        literals = [ins for ins in main if id(ins.literal) in self._recipes]
        literals = [ins for ins in literals if any(user not in folded for user in ins.users)]
        if any(self._known[ins] not in self._depending for ins in ends):
            raise TypeError("constants that depend on no lengths were left by what settles none")
        places = self._shorten([self._known[ins] for ins in (*ends, *literals)])
        arrays = self.evaluate(self._trace.values())
        if arrays is None:
            raise TypeError("a constant that depends on lengths is large, or one value")
        for ins, place in zip(ends, places):
            argument = Argument(ins.shape, arrays[place])
            self._made[id(argument)] = place
            main.replace_instruction(ins, main.add_literal(argument))
        self._made.update((id(ins.literal), place) for ins, place in zip(literals, places[len(ends) :]))
        program.main.remove_unused()

    def _shorten(self, wanted: Sequence[int]) -> list[int]:
        """Keep the steps alone that some need; the places of these."""
        needed = set(wanted)
        for number in range(len(self._steps) - 1, -1, -1):
            if number in needed:
                needed.update(self._steps[number].inputs)
        order = {number: place for place, number in enumerate(sorted(needed))}
        steps = [self._steps[number] for number in order]
        self._steps = [replace(step, inputs=[order[k] for k in step.inputs]) for step in steps]
        return [order[number] for number in wanted]

    def _follow(self, ins: Instruction) -> bool:
        """Whether an instruction is constant; it has a step then."""
        if ins.literal is not None:
            recipe = self._recipes.get(id(ins.literal))
            if recipe is None:
                if ins.literal.array is None:
                    return False
                self._step(ins, _Computed(array=ins.literal.array), False)
            elif isinstance(recipe, list):
                self._step(ins, _Computed(places=[self._trace.number(n) for n in recipe]), True)
            else:
                op, inputs = recipe
                self._step(ins, self._computed(op, ins.shape, inputs), True)
            return True
        if not ins.inputs or ins.shape.is_dynamic or ins.shape.sub_shapes or ins.name in STORED:
            return False
        if ins.name.startswith("@") or not all(i in self._known for i in ins.inputs):
            return False
        depends = is_traced(ins.op, ins.shape) or any(self._known[i] in self._depending for i in ins.inputs)
        self._step(ins, self._computed(ins.op, ins.shape, ins.inputs), depends)
        return True

    def _computed(self, op: Operator, shape: Shape, inputs: Sequence[Instruction]) -> _Computed:
        template = Template.made(op, shape, self._trace.number)
        return _Computed(template=template, inputs=[self._known[i] for i in inputs])

    def _step(self, ins: Instruction, step: _Computed, depends: bool) -> None:
        self._known[ins] = len(self._steps)
        if depends:
            self._depending.add(len(self._steps))
        self._steps.append(step)


class Settled:
    """The copies of a program with dynamic inputs for given lengths. May be used from any thread.

    Attributes:
        replayed: copies that were had by substitution.
    """

    def __init__(self, source: Program, rewriting: Callable[[Program], None]) -> None:
        """``rewriting`` is done to each copy, in place: it removes what nothing uses and folds constants."""
        self._source = source
        self._rewriting = rewriting
        ranges = source.parameter_shapes()
        self._moving = [
            (name, axis)
            for name, shape in ranges.items()
            if shape.element is None
            for axis, dim in enumerate(shape.dims)
            if not dim.is_fixed
        ]
        self._traceable = all(shape.ranked for shape in ranges.values()) and source.module_count == 1
        self._recorded: list[_RecordedCopy] = []
        self._waiting: list[_RecordedCopy] = []
        self._first: tuple[Lens, tuple[int, ...]] | None = None
        self._failures = 0
        self._lock = threading.Lock()
        self.replayed = 0

    def of(self, lens: Lens) -> Numbered:
        """The copy for these lengths of the dynamic inputs, by name.

        Raises:
            ShapeError: the lengths do not fit the operators.
            MgxError: a deferred node does not fit its inputs, or constants have no such element.
        """
        symbols = tuple([lens[name][axis] for name, axis in self._moving if name in lens])
        if not self._traceable or len(symbols) < len(self._moving):
            return Numbered.of(self.made(lens))
        with self._lock:
            known = list(self._recorded)
        for one in known:
            found = one.copy(symbols) if one.serves(symbols) else None
            if found is not None:
                with self._lock:
                    self.replayed += 1
                    self._recorded.sort(key=lambda other: other is not one)
                return found
        made = self.made(lens)
        if self._failures < MOST_FAILURES:
            self._learn(made, lens, symbols)
        return Numbered.of(made)

    def made(self, lens: Lens) -> Program:
        """As `of`, without substitution."""
        settled = specialize(self._source, lens)
        self._rewriting(settled)
        _check_constants(settled)
        return settled

    def _learn(self, made: Program, lens: Lens, symbols: tuple[int, ...]) -> None:
        """Check the traces that wait for other lengths on these; if there is none for such, trace their copy."""
        with self._lock:
            first, waiting, partly = self._first, list(self._waiting), list(self._recorded)
            self._first = first or (lens, symbols)
        if first is None:  # many a program is settled once
            return
        try:
            wanted = numbers_of(made)
        except TypeError:  # an attribute that cannot be compared
            self._failures = MOST_FAILURES
            return
        fitting = [(one, found) for one in waiting if (found := one.copy(symbols)) is not None]
        right = [one for one, found in fitting if _equal(found, wanted)]
        right += [one for one in partly if (found := one.copy(symbols)) is not None and _equal(found, wanted)]
        for one in right:
            one.check(symbols)
        recorded: _RecordedCopy | None = None
        if not fitting and not right and len(waiting) < MOST_WAITING:
            recorded = self._traced(lens)
            found = None if recorded is None else recorded.copy(symbols)
            if recorded is not None and (found is None or not _equal(found, wanted)):
                recorded = None
            earlier = None if recorded is None else recorded.copy(first[1])
            if recorded is not None and earlier is not None:
                right = [recorded] if _equal(earlier, numbers_of(self.made(first[0]))) else []
                recorded.check(first[1])
                recorded = None
        with self._lock:
            checked = [one for one, _ in fitting]
            self._waiting = [one for one in (*self._waiting, recorded) if one is not None and one not in checked]
            self._recorded = [*right, *(one for one in self._recorded if one not in right)][:MOST_TRACES]
            self._failures = 0 if right else self._failures + (recorded is None)

    def _traced(self, lens: Lens) -> _RecordedCopy | None:
        trace = Trace()
        moving = set(self._moving)
        noted = {
            name: [trace.symbol(n) if (name, axis) in moving else n for axis, n in enumerate(own)]
            for name, own in lens.items()
        }
        try:
            traced = FollowedSettling(noted)
            traced.copy(self._source)
            recorded = _RecordedCopy(trace, traced, [lens[name][axis] for name, axis in self._moving])
        except (MgxError, TypeError, ValueError, ArithmeticError):
            return None
        return None if trace.lost else recorded


_SPREADING = CONSTANT_VIEWS & {"broadcast", "multibroadcast", "scalar"}


def _value(op: Operator, shape: Shape, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """What an operator gives as a literal; None if it gives nothing, or what is large, or could be one value."""
    if shape.elements > FOLDED:
        return None
    try:
        found = np.asarray(op.compute(shape, arrays))
    except (MgxError, NotImplementedError):
        return None
    if op.name in _SPREADING:
        return found
    if not op.view and found.size >= UNIFORM_FROM and uniform(found):
        return None
    return np.ascontiguousarray(found) if found.shape == shape.lens else None


def _without_values(argument: Argument) -> Argument:
    """A literal's stand-in, whose lengths note nothing."""
    if argument.array is None:
        return without_memory(argument)
    lens, strides = ([int.__index__(n) for n in own] for own in (argument.shape.lens, argument.shape.strides))
    return without_memory(Argument(Shape(argument.shape.type, lens, strides), argument.array))


def _check_constants(program: Program) -> None:
    """Raises `ShapeError` where elements of constants are taken that they do not have, such as positions beyond the end
    of a table: every run would, and what is learned of such lengths is of no use for others."""
    for ins in program.main:
        if ins.name.startswith("gather") and all(map(is_constant, ins.inputs)) and ins.shape.elements <= MOST_TAKEN:
            try:
                ins.op.compute(ins.shape, [array for i in ins.inputs if (array := constant_array(i)) is not None])
            except MgxError as error:
                raise ShapeError(ins.located(str(error))) from error


def _equal(found: Numbered, wanted: Numbers) -> bool:
    """Whether a program has these numbers, and literals of these values."""
    own = found.numbers
    if own.form != wanted.form or own.values != wanted.values:
        return False
    return all(a is b or _same(a, b) for a, b in zip(own.literals, wanted.literals, strict=True))


def _same(a: Argument, b: Argument) -> bool:
    if a.array is None or b.array is None or a.array.dtype != b.array.dtype:
        return False
    return a.array.shape == b.array.shape and a.array.tobytes() == b.array.tobytes()
