"""Modules: ordered instruction lists that end in ``@return``; passes rewrite one module at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ..core.argument import Argument
from ..core.shape import Shape, other_rank
from ..errors import ShapeError, ValidationError
from ..ops.base import Operator, make_op
from .allowance import Allowance
from .instruction import Instruction, Literal, Parameter, Results, Return


class Module:
    """A list of instructions in execution order.

    Every mutation keeps the use graph consistent in both directions and recomputes all dependent shapes, including
    those of instructions that run the module.
    Literals and parameters are put at the front, as MIGraphX does (its text form depends on it).
    """

    def __init__(self, name: str, allowance: Allowance | None = None) -> None:
        """Create an empty module; ``allowance`` is the program's, or a new one for a module outside a program."""
        self.name = name
        self.allowance = allowance or Allowance(lambda: [self])
        self._head: Instruction | None = None
        self._tail: Instruction | None = None
        self._count = 0
        self._parameters = 0
        self._by_name: dict[str, Instruction] = {}
        self._runners: dict[Instruction, None] = {}
        self._running: dict[Instruction, None] = {}
        self.changes = 0
        """How often instructions were added, removed or connected otherwise; a new order is no change."""
        self.scheduled: tuple[int, object] = -1, None
        """Number of changes, and `passes.schedule`'s result after them."""
        self.optimized: tuple[int, object] = -1, None
        """Number of changes after which `passes.optimize_module` found nothing, and its options."""

    def __iter__(self) -> Iterator[Instruction]:
        ins = self._head
        while ins is not None:
            following = ins._next
            yield ins
            ins = following if ins.module is self and ins._next is following else (ins._next or following)

    def named(self, names: Container[str]) -> list[Instruction]:
        """Return the instructions whose operators have one of these names, in order."""
        found, ins = [], self._head
        while ins is not None:
            if ins.op.name in names:
                found.append(ins)
            ins = ins._next
        return found

    def has(self, names: Container[str]) -> bool:
        """Return whether the module has an instruction with one of these operator names."""
        ins = self._head
        while ins is not None:
            if ins.op.name in names:
                return True
            ins = ins._next
        return False

    def __reversed__(self) -> Iterator[Instruction]:
        ins = self._tail
        while ins is not None:
            previous = ins._prev
            yield ins
            ins = previous

    def __len__(self) -> int:
        return self._count

    @property
    def first(self) -> Instruction | None:
        """First instruction, ``None`` when empty."""
        return self._head

    @property
    def last(self) -> Instruction | None:
        """Last instruction, ``None`` when empty."""
        return self._tail

    @property
    def is_run(self) -> bool:
        """Whether an instruction has the module as a body."""
        return bool(self._runners)

    @property
    def return_instruction(self) -> Instruction | None:
        """The ``@return`` instruction, or ``None``."""
        return self._tail if self._tail is not None and isinstance(self._tail.op, Return) else None

    def results(self) -> list[Instruction]:
        """Instructions whose values the module returns (the last one when there is no ``@return``)."""
        if self._tail is None:
            return []
        return list(self._tail.inputs) if isinstance(self._tail.op, Return) else [self._tail]

    def parameters(self) -> list[Instruction]:
        """Parameters in order of declaration."""
        return sorted(self._by_name.values(), key=lambda i: i.op.order)  # type: ignore[attr-defined]

    def parameter(self, name: str) -> Instruction | None:
        """Return the parameter of this name, or ``None``."""
        return self._by_name.get(name)

    def add_instruction(
        self,
        op: Operator | str,
        inputs: Sequence[Instruction] = (),
        modules: Sequence[Module] = (),
        **attributes: object,
    ) -> Instruction:
        """Append an operation (before ``@return``), compute its shape and return it."""
        return self.insert_instruction(self.return_instruction, op, inputs, modules, **attributes)

    def insert_instruction(
        self,
        before: Instruction | None,
        op: Operator | str,
        inputs: Sequence[Instruction] = (),
        modules: Sequence[Module] = (),
        **attributes: object,
    ) -> Instruction:
        """Insert an operation before another instruction (at the end for ``None``) and return it."""
        if isinstance(op, str):
            op = make_op(op, **attributes)
        shape = op.result_shape([i.shape for i in inputs], modules)
        return self._link(Instruction(op, inputs, shape, modules), before)

    def add_literal(self, value: Argument | np.ndarray | Sequence | float | int) -> Instruction:
        """Insert a constant at the front of the module."""
        return self.insert_literal(self._head, value)

    def insert_literal(self, before: Instruction | None, value: object) -> Instruction:
        """Insert a constant before another instruction."""
        argument = value if isinstance(value, Argument) else Argument.from_array(value)
        return self._link(Instruction(Literal(), (), argument.shape, literal=argument), before)

    def add_parameter(self, name: str, shape: Shape) -> Instruction:
        """Declare an input at the front of the module.

        Raises:
            ShapeError: the module has a parameter of this name.
        """
        if self.parameter(name) is not None:
            raise ShapeError(f"module {self.name!r} already has a parameter {name!r}")
        op = Parameter(parameter=name, order=self._parameters)
        self._parameters += 1
        return self._link(Instruction(op, (), shape), self._head)

    def add_return(self, results: Sequence[Instruction]) -> Instruction:
        """End the module with these results."""
        if self.return_instruction is not None:
            raise ValidationError(f"module {self.name!r} already has a @return")
        return self._link(Results(results), None)

    def replace_return(self, results: Sequence[Instruction]) -> Instruction:
        """Replace the module's results; shapes of instructions that run the module are not recomputed."""
        if self.return_instruction is None:
            return self.add_return(results)
        self._set_inputs(self.return_instruction, list(results))
        return self.return_instruction

    def replace_instruction(
        self,
        ins: Instruction,
        replacement: Instruction | Operator,
        inputs: Sequence[Instruction] | None = None,
    ) -> Instruction:
        """Replace an instruction and redirect all its users, or change its operator in place.

        Returns:
            The instruction that now gives the value: the replacement, or a view of it if only one of the two has an
                axis. A replaced instruction stays, unused, for dead-code elimination.
        """
        if isinstance(replacement, Operator):
            self.changes += 1
            ins.op = replacement
            ins.literal = None
            if inputs is not None:
                self._set_inputs(ins, list(inputs))
            self._reshape(ins)
            return ins
        if replacement is ins:
            return ins
        at_front = replacement.literal is not None or replacement.is_param
        replacement = self._of_rank(replacement, ins.shape, ins if at_front else replacement._next)
        users = [user for user in ins.users if user is not replacement]
        for user in users:
            places = ins.users.pop(user)
            for place in places:
                user.inputs[place] = replacement
            replacement.users[user] = (*replacement.users.get(user, ()), *places)
        if replacement.shape != ins.shape:
            self._reshape(*users)
        return replacement

    def set_input(self, ins: Instruction, index: int, value: Instruction) -> None:
        """Replace one input of an instruction and recompute its shape."""
        self.set_inputs(ins, {index: value})

    def set_inputs(self, ins: Instruction, values: Mapping[int, Instruction]) -> None:
        """Replace inputs of an instruction, by position, and recompute its shape."""
        for index, value in values.items():
            old = ins.inputs[index]
            value = self._of_rank(value, old.shape, ins)
            others = tuple([place for place in old.users[ins] if place != index])
            if others:
                old.users[ins] = others
            else:
                del old.users[ins]
            ins.inputs[index] = value
            value.users[ins] = (*value.users.get(ins, ()), index)
        self._reshape(ins)

    def _of_rank(self, value: Instruction, shape: Shape, before: Instruction | None) -> Instruction:
        """Return ``value`` with the rank of ``shape``, by a view inserted before ``before`` where the ranks differ.

        Only the ranks 0 and 1 of a single element are converted: their shapes differ by a stride alone.
        """
        if not other_rank(value.shape, shape):
            return value
        op = make_op("squeeze", axes=(0,)) if shape.without_axes else make_op("reshape", dims=(1,))
        view = (self if before is None else before.module or self).insert_instruction(before, op, [value])
        view.debug_symbols = value.debug_symbols
        return view

    def remove_instruction(self, ins: Instruction) -> None:
        """Remove an instruction without users from the module.

        Raises:
            ValidationError: the instruction has users.
        """
        if ins.users:
            raise ValidationError(f"cannot remove {ins!r}: it has {len(ins.users)} users")
        self._set_inputs(ins, [])
        self._set_bodies(ins, ())
        self._unlink(ins)

    def remove_unused(self) -> None:
        """Remove all instructions without users, except parameters and ``@return``."""
        for ins in reversed(list(self)):
            if not ins.users and not isinstance(ins.op, (Parameter, Return)):
                self.remove_instruction(ins)

    def move_before(self, ins: Instruction, before: Instruction | None) -> None:
        """Move an instruction to another place; inputs must already stand earlier."""
        if ins is before or (before is not None and ins._next is before):
            return
        self._unlink(ins)
        self._splice(ins, before)

    def adopt(self, ins: Instruction, before: Instruction | None) -> None:
        """Move an instruction of another module here, before another instruction; its inputs must be visible here."""
        if ins.module is not None:
            ins.module._unlink(ins)
        self._splice(ins, before)

    def rewire(self, ins: Instruction, inputs: Sequence[Instruction]) -> None:
        """Replace all inputs of an instruction without recomputing shapes; call ``recompute_shapes`` afterwards."""
        self._set_inputs(ins, list(inputs))

    def recompute_shapes(self) -> None:
        """Recompute all shapes in program order, submodules with the instructions that run them."""
        done: set[Module] = set()
        self._recompute_shapes(done)

    def _recompute_shapes(self, done: set[Module]) -> None:
        done.add(self)
        for ins in self:
            for body in ins.module_args:
                if body not in done:
                    body._recompute_shapes(done)
            if ins.literal is None and not isinstance(ins.op, (Parameter, Return)):
                ins.shape = ins.op.result_shape([i.shape for i in ins.inputs], ins.module_args)

    def sort(self) -> None:
        """Order instructions so that inputs come first (stable for already sorted modules).

        Raises:
            ValidationError: the instructions form a cycle.
        """
        order: list[Instruction] = []
        state: dict[Instruction, int] = {}
        members = list(self)
        for root in members:
            stack = [(root, False)]
            while stack:
                ins, done = stack.pop()
                if done:
                    state[ins] = 2
                    order.append(ins)
                    continue
                if state.get(ins):
                    if state[ins] == 1:
                        raise ValidationError(f"module {self.name!r} has a cycle through {ins!r}")
                    continue
                state[ins] = 1
                stack.append((ins, True))
                for i in reversed(ins.dependencies):
                    if i.module is self and state.get(i) != 2:
                        if state.get(i) == 1:
                            raise ValidationError(f"module {self.name!r} has a cycle through {i!r}")
                        stack.append((i, False))
        order.sort(key=lambda i: isinstance(i.op, Return))
        self.reorder(order)

    def reorder(self, order: Sequence[Instruction]) -> None:
        """Reorder the module's instructions; ``order`` must hold each of them once, inputs first.

        Raises:
            ValidationError: instructions are missing, foreign or given twice.
        """
        members = list(self)
        if len(order) != len(members) or set(order) != set(members):
            raise ValidationError(f"module {self.name!r}: the new order does not have the same instructions")
        previous = self._head = None
        for ins in order:
            ins._prev, ins._next = previous, None
            if previous is None:
                self._head = ins
            else:
                previous._next = ins
            previous = ins
        self._tail = previous
        self._running = {ins: None for ins in order if ins.module_args}

    def captured(self) -> list[Instruction]:
        """Return the values of enclosing modules that this module and its submodules use, each once."""
        found: dict[Instruction, None] = {}
        if not self._running:
            for ins in self:
                for i in ins.inputs:
                    if i.module is not self:
                        found[i] = None
            return list(found)
        inside = dict.fromkeys([self, *self.submodules()])
        for module in inside:
            for ins in module:
                for i in ins.inputs:
                    if i.module not in inside:
                        found[i] = None
        return list(found)

    def submodules(self) -> list[Module]:
        """Return all modules that instructions run, directly or not, each once, in order of first use."""
        found: dict[Module, None] = {}
        pending = [self._bodies()]
        while pending:
            module = next(pending[-1], None)
            if module is None:
                pending.pop()
            elif module not in found:
                found[module] = None
                pending.append(module._bodies())
        return list(found)

    def running(self) -> Iterable[Instruction]:
        """Return the instructions that run submodules, in any order."""
        return self._running

    def _bodies(self) -> Iterator[Module]:
        return (module for ins in self for module in ins.module_args) if self._running else iter(())

    def _set_inputs(self, ins: Instruction, inputs: list[Instruction]) -> None:
        self.changes += 1
        for old in ins.inputs:
            old.users.pop(ins, None)
        ins.inputs = inputs
        for place, new in enumerate(inputs):
            new.users[ins] = (*new.users.get(ins, ()), place)

    @staticmethod
    def _set_bodies(ins: Instruction, modules: Sequence[Module]) -> None:
        for old in ins.module_args:
            old._runners.pop(ins, None)
        ins.module_args = tuple(modules)
        for new in modules:
            new._runners[ins] = None
        if ins.module is not None:
            ins.module.changes += 1
            ins.module._note_running(ins)

    @staticmethod
    def _reshape(*changed: Instruction) -> None:
        """Recompute the shapes of instructions and of all dependent instructions, also in other modules."""
        pending = deque(changed)
        waiting = set(changed)
        while pending:
            current = pending.popleft()
            waiting.discard(current)
            following = list(current.users)
            if not isinstance(current.op, Return):
                shape = current.op.result_shape([i.shape for i in current.inputs], current.module_args)
                if shape == current.shape:
                    continue
                current.shape = shape
            if current.module is not None and current is current.module._tail:
                following += current.module._runners
            for other in following:
                if other not in waiting:
                    waiting.add(other)
                    pending.append(other)

    def _note_running(self, ins: Instruction) -> None:
        """Update the record of instructions that run submodules."""
        if ins.module_args:
            self._running[ins] = None
        else:
            self._running.pop(ins, None)

    def _link(self, ins: Instruction, before: Instruction | None) -> Instruction:
        for place, i in enumerate(ins.inputs):
            i.users[ins] = (*i.users.get(ins, ()), place)
        for module in ins.module_args:
            module._runners[ins] = None
        self._splice(ins, before)
        return ins

    def _splice(self, ins: Instruction, before: Instruction | None) -> None:
        previous = self._tail if before is None else before._prev
        ins._prev, ins._next, ins.module = previous, before, self
        self._note_running(ins)
        if isinstance(ins.op, Parameter):
            self._by_name.setdefault(ins.op.parameter, ins)
        if previous is None:
            self._head = ins
        else:
            previous._next = ins
        if before is None:
            self._tail = ins
        else:
            before._prev = ins
        self._count += 1
        self.changes += 1

    def _unlink(self, ins: Instruction) -> None:
        if ins._prev is None:
            self._head = ins._next
        else:
            ins._prev._next = ins._next
        if ins._next is None:
            self._tail = ins._prev
        else:
            ins._next._prev = ins._prev
        ins.module = None
        self._count -= 1
        self.changes += 1
        self._running.pop(ins, None)
        if isinstance(ins.op, Parameter) and self._by_name.get(ins.op.parameter) is ins:
            del self._by_name[ins.op.parameter]

    def __str__(self) -> str:
        from .printer import print_module

        return print_module(self)
