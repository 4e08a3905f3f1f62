"""Instructions that do the same to other values, such as those of equal layers: a plan that is made in a run has the
rule of the first of them tried, and the steps of the others follow."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.launch import Launch
from ...core.shape import Shape
from ...dataclass import dataclass
from ...graph.instruction import Instruction
from ...graph.structure import structure
from ...runtime.plan import Region
from .buffers import Buffer, View
from .steps import PendingStep

if TYPE_CHECKING:
    from .lowering import Lowering

__all__ = ["Derived", "Recipe", "likeness", "made_of", "recipe"]


@dataclass(frozen=True)
class Derived:
    """What ``make`` has made of the constant that an instruction stands for; ``how`` tells it apart from what others
    make of it."""

    source: Instruction
    make: Callable[[np.ndarray], View]
    how: Hashable


@dataclass(frozen=True)
class _Located:
    """A view of the buffer of this number: those of operands and lent memory first, then new ones."""

    buffer: int
    shape: Shape
    offset: int

    def of(self, buffers: Sequence[Buffer]) -> View:
        """The view itself."""
        return View(buffers[self.buffer], self.shape, self.offset)


@dataclass(frozen=True)
class _Made:
    """What is derived from the constant that the input of this number is."""

    index: int
    make: Callable[[np.ndarray], View]
    how: Hashable


@dataclass(frozen=True)
class Recipe:
    """The steps of an instruction, to be had again for one that is alike: ``values`` are its results, ``new`` the bytes
    of the buffers that the rule has allocated."""

    steps: Sequence[tuple[Launch, str, Any, Mapping[str, _Located | _Made]]]
    values: Sequence[_Located]
    new: Sequence[int]

    def follow(self, low: Lowering, ins: Instruction) -> None:
        """Append the steps of an instruction with the likeness that this was made for, and register its value."""
        buffers = [*_buffers(low, ins), *(Buffer(Region.ARENA, 0, size) for size in self.new)]
        for launch, label, problem, places in self.steps:
            operands = {name: self._view(low, ins, place, buffers) for name, place in places.items()}
            low.steps.append(PendingStep(launch, operands, label, ins, problem=problem))
        views = [place.of(buffers) for place in self.values]
        low.values[ins] = views if ins.shape.sub_shapes else views[0]

    @staticmethod
    def _view(low: Lowering, ins: Instruction, place: _Located | _Made, buffers: Sequence[Buffer]) -> View:
        if isinstance(place, _Located):
            return place.of(buffers)
        return made_of(low, ins.inputs[place.index], place.make, place.how)


def made_of(low: Lowering, source: Instruction, make: Callable[[np.ndarray], View], how: Hashable) -> View:
    """See `Lowering.derived`; what plans for other lengths have made so is taken from them."""
    shared, seen = low.shared, low.values[source]
    key = seen.shape, seen.offset, how
    known = None if shared is None else shared.made(low.owner_of(seen), key)
    if known is not None:
        array, shape, offset = known
        return View(low.constant(array).buffer, shape, offset)
    value = low.constant_value(source)
    assert value is not None
    view = make(value)
    if shared is not None:
        shared.note_made(low.owner_of(seen), key, (low.owner_of(view), view.shape, view.offset))
    return view


def likeness(low: Lowering, ins: Instruction) -> Hashable | None:
    """What is the same of instructions whose steps differ in buffers and in constants alone; None of one that has
    operands which are no views. Operators and shapes count as equal if they are one object, as in replayed programs."""
    numbers: dict[int, int] = {}
    operands = []
    for source in ins.inputs:
        view = low.values[source]
        if not isinstance(view, View):
            return None
        operands.append(_seen(view, numbers))
    lent = tuple([None if view is None else _seen(view, numbers) for view in _lent(low, ins)])
    bodies = tuple([structure(body) for body in ins.module_args])
    seen_as = tuple([id(user.op) for user in ins.users if user.op.view])  # results may lie as these want them
    return id(ins.op), id(ins.shape), tuple(operands), lent, bodies, seen_as, low.packing_room


def recipe(
    low: Lowering, ins: Instruction, steps: Sequence[PendingStep], derived: Mapping[int, Derived]
) -> Recipe | None:
    """How to have the steps again that a rule has appended for an instruction; None if some of it is not told by
    operands and lent memory. ``derived`` are views by identity."""
    numbers = {id(buffer): k for k, buffer in enumerate(_buffers(low, ins))}
    new: list[int] = []

    def placed(view: View) -> _Located | None:
        number = numbers.get(id(view.buffer))
        if number is None:
            if view.buffer.region is not Region.ARENA:
                return None
            number = numbers[id(view.buffer)] = len(numbers)
            new.append(view.buffer.bytes)
        return _Located(number, view.shape, view.offset)

    found = []
    for step in steps:
        if step.launch is None:
            return None
        places: dict[str, _Located | _Made] = {}
        for name, view in step.operands.items():
            made = derived.get(id(view))
            place = placed(view) if made is None else _made(ins, made)
            if place is None:
                return None
            places[name] = place
        found.append((step.launch, step.label, step.problem, places))
    value: Any = low.values[ins]
    values = [placed(view) for view in (value if ins.shape.sub_shapes else [value])]
    if None in values:
        return None
    return Recipe(found, [place for place in values if place is not None], new)


def _made(ins: Instruction, derived: Derived) -> _Made | None:
    if derived.source not in ins.inputs:
        return None
    return _Made(ins.inputs.index(derived.source), derived.make, derived.how)


def _lent(low: Lowering, ins: Instruction) -> list[View | None]:
    """Memory that is lent to the results of an instruction."""
    if not ins.shape.sub_shapes:
        return [low.destinations.get(ins)]
    elements = {user.op.index: user for user in ins.users if user.name == "get_tuple_elem"}  # type: ignore[attr-defined]
    return [low.destinations.get(elements[k]) if k in elements else None for k in range(len(ins.shape.sub_shapes))]


def _buffers(low: Lowering, ins: Instruction) -> list[Buffer]:
    """Those of operands and of lent memory, each once."""
    views = [*(low.values[source] for source in ins.inputs), *_lent(low, ins)]
    return list({id(view.buffer): view.buffer for view in views if view is not None}.values())


def _seen(view: View, numbers: dict[int, int]) -> Hashable:
    buffer = view.buffer
    return view.shape, view.offset, buffer.region, numbers.setdefault(id(buffer), len(numbers))
