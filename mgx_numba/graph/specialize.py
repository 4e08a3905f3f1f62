"""Specialisation of a dynamic program for given input lengths.

A program with dynamic inputs derives lengths from lengths. Given the lengths of its inputs, its copy has
fixed lengths instead of ranges and literals instead of length arithmetic. Deferred nodes become operators. Shapes that
remain dynamic depend on data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.argument import Argument
from ..core.dim import Dim, SymbolicLengthError, known_less, known_same, maximum
from ..core.shape import DynamicDimension, Shape, common_lens
from ..errors import MgxError, ShapeError, UnknownValueError
from ..ops.base import Operator, make_op
from ..ops.broadcast import Broadcast
from ..ops.control import If, Loop, SelectModule
from ..ops.deferred import Deferred, Unfitting
from .deferred import Reader, reader
from .folding import Constants
from .instruction import Instruction, Literal, Parameter, Results, Return
from .module import Module
from .program import Program

_BROADCASTS = frozenset({"broadcast", "multibroadcast", "broadcast_for_dot"})
"""Operators whose result is their first input; the other inputs give the lengths."""

FOLDED = 1 << 16
"""Most elements of results that are folded because their number depends on values: tables of positions, which models
compute from lengths."""


def is_dynamic(program: Program) -> bool:
    """Return whether an input tensor has a range as a length."""
    return any(s.is_dynamic and s.element is None for s in program.parameter_shapes().values())


def specialize(
    program: Program,
    lens: Mapping[str, Sequence[int | DynamicDimension]],
) -> Program:
    """Return a copy of a program whose inputs have these lengths, with all shapes recomputed.

    A broadcast to the lengths of another value becomes a broadcast to fixed lengths, as in a program that was static
    from the start.

    Args:
        program: the dynamic program, which is not changed.
        lens: lengths, or ranges, of the dynamic inputs by name; inputs that are not listed keep their ranges.

    Raises:
        ShapeError: the lengths do not fit the operators. The message names the lengths of a model's inputs.
        MgxError: a deferred node does not fit its inputs. The message names the lengths of a model's inputs.
    """
    try:
        copy = Specializer(lens).copy(program)
    except MgxError as error:
        if program.is_body:
            raise
        asked = ", ".join(f"{name} [{', '.join(map(str, dims))}]" for name, dims in lens.items())
        raise type(error)(f"{error}, where inputs have lengths {asked}" if asked else str(error)) from error
    return copy


class Specializer:
    """A specialised copy under construction; see `specialize`."""

    def __init__(self, lens: Mapping[str, Sequence[Any]], computed_lengths: bool = False) -> None:
        self.lens = lens
        self.program = Program()
        self.constants = Constants(self.program.allowance, computed_lengths=computed_lengths)
        self.mapped: dict[Instruction, Instruction] = {}
        self.members: dict[Instruction, list[Instruction]] = {}
        self._readers: dict[str, Reader] = {}
        self._shapes: dict[tuple[Operator, tuple[Shape, ...]], Shape] = {}

    @np.errstate(all="ignore")
    def copy(self, program: Program) -> Program:
        self.program.copy_metadata(program)
        for ins in program.main:
            if isinstance(ins.op, Parameter):
                self._parameter(ins, ins.op)
        self._instructions(program.main, self.program.main)
        return self.program

    def _parameter(self, ins: Instruction, op: Parameter) -> None:
        name, shape = op.parameter, ins.shape
        if shape.is_dynamic and name in self.lens and shape.element is None:
            dims = self.lens[name]
            shape = Shape.dynamic(shape.type, dims) if dims else Shape(shape.type)
        module = self.program.main
        self.mapped[ins] = module._link(Instruction(op, (), shape), None)
        module._parameters = max(module._parameters, op.order + 1)

    def _instructions(self, source: Module, target: Module, returns: bool = True) -> None:
        for ins in source:
            if ins in self.mapped or (isinstance(ins.op, Return) and not returns):
                continue
            try:
                self.mapped[ins] = self._late(ins, target) or self._twin(ins, target)
            except MgxError as error:
                raise type(error)(ins.located(str(error))) from error

    def _late(self, ins: Instruction, target: Module) -> Instruction | None:
        """Append an instruction as it is, if some inputs have open lengths and all have their former shapes; else None.

        A program of many stages is copied for each stage: most of its instructions belong to a later one.
        """
        if ins.module_args or isinstance(ins.op, (Deferred, Return)) or not ins.shape.is_dynamic:
            return None
        inputs = [self.mapped[i] for i in ins.inputs]
        shapes = [i.shape for i in inputs]
        if shapes != [i.shape for i in ins.inputs] or not any(s.is_dynamic for s in shapes):
            return None
        return self._add(ins, ins.op, inputs, target, shape=ins.shape)

    def _twin(self, ins: Instruction, target: Module) -> Instruction:
        if isinstance(ins.op, Return):
            return target._link(Results([self.mapped[i] for i in ins.inputs]), None)
        if ins.literal is not None or isinstance(ins.op, Parameter):
            return target._link(Instruction(ins.op, (), ins.shape, literal=ins.literal), None)
        if ins.name == "get_tuple_elem" and ins.inputs[0] in self.members:
            return self.members[ins.inputs[0]][ins.op.index]  # type: ignore[attr-defined]
        inputs = [self.mapped[i] for i in ins.inputs]
        if isinstance(ins.op, Deferred):
            return self._expanded(ins, ins.op, inputs, target)
        if not ins.module_args and not _settles(ins) and [i.shape for i in ins.inputs] == [i.shape for i in inputs]:
            return self._add(ins, ins.op, inputs, target, shape=ins.shape)
        if isinstance(ins.op, (If, SelectModule)):
            chosen = self._chosen(ins, inputs)
            if chosen is not None:
                return self._in_place(ins, chosen, inputs, target)
        if ins.module_args:
            modules = self._bodies(ins, inputs)
            op = self._counted(ins.op, inputs, modules[0]) if isinstance(ins.op, Loop) else ins.op
            made = self._add(ins, op, inputs, target, modules)
            if isinstance(op, Loop):
                self._ranked_rows(ins, made, target)
            return made
        if ins.op.pointwise:
            inputs = self._broadcast(ins, inputs, target)
        shape = self._shape(ins.op, inputs)
        known = self._known(ins, inputs, shape, target)
        return known if known is not None else self._settled(ins, inputs, shape, target)

    def _shape(self, op: Operator, inputs: Sequence[Instruction]) -> Shape:
        """Return an operator's output shape, computed once for equal operators on equal shapes, as in equal layers."""
        shapes = tuple([i.shape for i in inputs])
        if any(s.is_dynamic for s in shapes):
            return op.compute_shape(shapes)  # not cached: equal ranges may have different symbols
        found = self._shapes.get((op, shapes))
        if found is None:
            found = self._shapes[op, shapes] = op.compute_shape(shapes)
        return found

    def _add(
        self,
        ins: Instruction,
        op: Operator,
        inputs: Sequence[Instruction],
        target: Module,
        modules: Sequence[Module] = (),
        shape: Shape | None = None,
    ) -> Instruction:
        if shape is None:
            shape = op.result_shape([i.shape for i in inputs], modules) if modules else self._shape(op, inputs)
        twin = target._link(Instruction(op, inputs, shape, modules), None)
        twin.debug_symbols, twin.normalized, twin.target_id = ins.debug_symbols, ins.normalized, ins.target_id
        twin.place = ins.place
        return twin

    def _settled(self, ins: Instruction, inputs: list[Instruction], shape: Shape, target: Module) -> Instruction:
        """Append the instruction on specialised inputs, in its form for the lengths and values that are now known."""
        op = ins.op
        if any(i.shape.is_dynamic for i in inputs):
            return self._add(ins, op, inputs, target, shape=shape)
        if op.name in _BROADCASTS and len(inputs) > 1:
            if inputs[0].shape == shape:
                return inputs[0]
            if isinstance(op, Broadcast):
                spread: Operator = replace(op, out_lens=shape.lens)
            else:
                spread = make_op("multibroadcast", out_lens=shape.lens)
            return self._add(ins, spread, inputs[:1], target, shape=shape)
        values = self._values(inputs[1:]) if shape.is_dynamic else []
        if values:
            settled = op.with_values([i.shape for i in inputs], [self._given(value) for value in values])
            if settled is not None:
                return self._add(ins, settled, inputs[:1], target)
        return self._add(ins, op, inputs, target, shape=shape)

    def _known(
        self, ins: Instruction, inputs: Sequence[Instruction], shape: Shape, target: Module
    ) -> Instruction | None:
        """Return a literal for known lengths, or for a result whose number of elements depends on known values; else
        None."""
        if ins.name == "dimensions_of":
            if inputs[0].shape.is_dynamic:
                return None
            return self._lengths(ins, inputs[0].shape.lens, target)
        if not shape.is_dynamic or ins.op.view or shape.element is not None:
            return None
        if any(known_less(FOLDED, i.shape.elements) for i in inputs):
            return None
        values = self._values(inputs)
        if not values:
            return None
        return self._computed(ins, shape, values, target)

    def _lengths(self, ins: Instruction, lens: Sequence[int], target: Module) -> Instruction:
        """Return the literal of a ``dimensions_of`` instruction on a value of these lengths."""
        value = ins.op.compute(ins.shape, [np.broadcast_to(np.int8(0), lens)])
        return self._literal(ins, value, target)

    def _computed(
        self, ins: Instruction, shape: Shape, values: Sequence[np.ndarray], target: Module
    ) -> Instruction | None:
        """Return the folded result of an instruction on these values, unless it is large."""
        found = ins.op.compute(shape, values)
        if isinstance(found, tuple):
            self.members[ins] = [self._literal(ins, v, target) for v in found]
            return self.members[ins][0]
        return self._literal(ins, found, target) if found.size <= FOLDED else None

    def _values(self, inputs: Sequence[Instruction]) -> list[np.ndarray]:
        """Return the values of all inputs; an empty list if one is unknown."""
        values = []
        for i in inputs:
            value = None if i.shape.is_dynamic else self.constants.value(i)
            if value is None:
                return []
            values.append(value)
        return values

    def _given(self, value: np.ndarray) -> np.ndarray:
        """Convert a value for `Operator.with_values`."""
        return value

    def _literal(self, ins: Instruction, value: np.ndarray, target: Module) -> Instruction:
        argument = Argument.from_array(np.ascontiguousarray(value) if value.ndim else value)
        literal = target._link(Instruction(Literal(), (), argument.shape, literal=argument), None)
        literal.debug_symbols = ins.debug_symbols
        return literal

    def _broadcast(self, ins: Instruction, inputs: list[Instruction], target: Module) -> list[Instruction]:
        """Return the inputs of a pointwise operator, broadcast where equal ranges became different lengths, one of them
        1."""
        if any(i.shape.is_dynamic for i in inputs) or all(
            known_same(i.shape.lens, inputs[0].shape.lens) for i in inputs
        ):
            return inputs
        if any(i.shape.ndim != inputs[0].shape.ndim for i in inputs):
            return inputs
        try:
            common = common_lens(*(i.shape.lens for i in inputs))
        except ValueError:
            return inputs  # the operator's shape rule raises the error
        op = make_op("multibroadcast", out_lens=common)
        return [i if known_same(i.shape.lens, common) else self._add(ins, op, [i], target) for i in inputs]

    def _expanded(self, ins: Instruction, op: Deferred, inputs: list[Instruction], target: Module) -> Instruction:
        """Expand a deferred node for these inputs; keep the node if the inputs are not known well enough."""
        if op.reader not in self._readers:
            self._readers[op.reader] = reader(op.reader, self.program, self.constants)
        last = target.last
        try:
            results = self._readers[op.reader].expand(target, op, inputs)
        except UnknownValueError:
            return self._add(ins, op, inputs, target)
        except SymbolicLengthError:
            raise
        except MgxError:
            if any(i.shape.is_dynamic for i in inputs):  # the fault may be due to unknown lengths
                return self._add(ins, op, inputs, target)
            raise
        for new in _after(target, last):
            new.debug_symbols, new.place = ins.debug_symbols, ins.place
        if not op.result.sub_shapes:
            return results[0]
        self.members[ins] = results
        return results[0]

    def _chosen(self, ins: Instruction, inputs: Sequence[Instruction]) -> Module | None:
        """Return the branch of an ``if`` with a known condition, or the submodule of a ``select_module`` for these
        lengths.

        None if the choice is unknown, no submodule fits, or the result tuple is used as a whole.
        """
        if any(user.name != "get_tuple_elem" for user in ins.users):
            return None
        if isinstance(ins.op, If):
            values = self._values(inputs[:1])
            return None if not values else ins.module_args[0 if values[0].reshape(-1)[0] else 1]
        if any(i.shape.is_dynamic for i in inputs):
            return None
        given = [(i.shape.type, i.shape.lens) for i in inputs]
        fitting = (m for m in ins.module_args if [(p.shape.type, p.shape.lens) for p in m.parameters()] == given)
        return next(fitting, None)

    def _in_place(self, ins: Instruction, body: Module, inputs: Sequence[Instruction], target: Module) -> Instruction:
        """Inline a submodule in the place of the instruction that would run it."""
        if isinstance(ins.op, If):
            inputs = inputs[1:]
        for inner in body:
            self.mapped.pop(inner, None)
            self.members.pop(inner, None)
        self.mapped.update(zip(body.parameters(), inputs))
        try:
            self._instructions(body, target, returns=False)
        except MgxError as error:
            if not isinstance(ins.op, If):
                raise
            raise type(error)(f"{ins.op.place(body.name)}: {error}") from error
        self.members[ins] = [self.mapped[result] for result in body.results()]
        return self.members[ins][0]

    def _counted(self, op: Loop, inputs: Sequence[Instruction], body: Module) -> Loop:
        """Return a loop with room for exactly the iterations that it will run, if their number is known."""
        values = self._values(inputs[:2])
        if not op.use_dyn_output or not values:
            return op
        count = values[0].reshape(-1)[0]
        trips = (count if isinstance(count, Dim) else int(count)) if values[1].all() else 0
        after, before = body.results()[0], body.parameters()[1]
        while after.name == "identity":
            after = after.inputs[0]
        known = self.constants.value(after) if after is not before and not after.shape.is_dynamic else None
        if trips > op.max_iterations or not (after is before or (known is not None and known.all())):
            return op
        return replace(op, max_iterations=maximum(0, trips), use_dyn_output=False)

    def _ranked_rows(self, ins: Instruction, made: Instruction, target: Module) -> None:
        """Make vectors of scan outputs whose rows turn out to be scalars, where ``ins`` does not determine a row's
        rank.

        A loop's scan output has an axis for the single element of a scalar; parsers remove the axis if they know the
        rank.
        """
        before, after = ([r.shape for r in loop.module_args[0].results()] for loop in (ins, made))
        scalars = [k for k in range(len(ins.inputs) - 1, len(after)) if not before[k].ranked and after[k].rank == 0]
        if scalars:
            count = len(after) - 1  # tuple members: the body's results without the condition
            members = [self._add(ins, make_op("get_tuple_elem", index=k), [made], target) for k in range(count)]
            for k in scalars:
                members[k - 1] = self._add(ins, make_op("squeeze", axes=(1,)), [members[k - 1]], target)
            self.members[ins] = members

    def _bodies(self, ins: Instruction, inputs: Sequence[Instruction]) -> list[Module]:
        """Return the submodules for specialised inputs.

        A branch that does not fit the inputs fails when it is taken; the body of a loop fails in the first iteration.

        Raises:
            ShapeError: the inputs fit no branch.
        """
        if not isinstance(ins.op, (If, Loop)):
            return [self._body(ins, body, inputs) for body in ins.module_args]
        found = [self._fitting(ins, body, inputs) for body in ins.module_args]
        if isinstance(ins.op, Loop):
            (body,), (made,) = ins.module_args, found
            if isinstance(made, Module):
                return [made]
            given = self._loop_parameters(body, inputs)
            rows = [r.shape for r in body.results()[len(given) - 1 :]]
            return [self._unfitting(body, made, given, [*given[1:], *rows])]
        results = next(([r.shape for r in f.results()] for f in found if isinstance(f, Module)), None)
        if results is None:
            places = (ins.op.place(branch.name) for branch in ins.module_args)
            raise ShapeError("; ".join(f"{place}: {reason}" for place, reason in zip(places, found)))
        return [
            self._unfitting(branch, f, [p.shape for p in branch.parameters()], results) if isinstance(f, str) else f
            for branch, f in zip(ins.module_args, found)
        ]

    def _fitting(self, ins: Instruction, body: Module, inputs: Sequence[Instruction]) -> Module | str:
        """Return a submodule for specialised inputs, or the reason why the inputs do not fit it."""
        count = self.program.module_count
        try:
            return self._body(ins, body, inputs)
        except SymbolicLengthError:
            raise
        except MgxError as error:
            self.program.remove_modules_since(count)
            return str(error)

    def _unfitting(self, body: Module, reason: str, given: Sequence[Shape], results: Sequence[Shape]) -> Module:
        """Return a submodule that fails when it runs, with parameters of shapes ``given`` and results of shapes
        ``results``."""
        module = self._module(body.name)
        for parameter, shape in zip(body.parameters(), given):
            module._link(Instruction(parameter.op, (), shape), None)
        module._parameters = body._parameters
        failing = [module._link(Instruction(Unfitting(reason, shape), (), shape), None) for shape in results]
        module._link(Results(failing), None)
        return module

    def _body(self, ins: Instruction, body: Module, inputs: Sequence[Instruction]) -> Module:
        """Return a submodule for specialised inputs; a loop-carried value keeps its range unless it has one length."""
        parameters = body.parameters()
        loops = isinstance(ins.op, Loop)
        shapes = self._loop_parameters(body, inputs) if loops else [p.shape for p in parameters]
        module = self._written(body, parameters, shapes)
        if loops:
            after = [r.shape for r in module.results()[1 : len(shapes) - 1]]
            if any((a.rank, a.dims) != (b.rank, b.dims) for a, b in zip(shapes[2:], after)):
                self.program.remove_module(module)
                module = self._written(body, parameters, [p.shape for p in parameters])
        return module

    @staticmethod
    def _loop_parameters(body: Module, inputs: Sequence[Instruction]) -> list[Shape]:
        """Return the shapes of the parameters of a loop's body in the first iteration."""
        number, condition, *carried = (p.shape for p in body.parameters())
        first = (i.shape.row_major() if s.element is None else s for i, s in zip(inputs[2:], carried))
        return [number, condition, *first]

    def _module(self, name: str) -> Module:
        """Create a module of this name, or of this name with a number appended."""
        taken = self.program.module(name) is not None
        return self.program.unique_module(name) if taken else self.program.create_module(name)

    def _written(self, body: Module, parameters: Sequence[Instruction], shapes: Sequence[Shape]) -> Module:
        module = self._module(body.name)
        for inner in body:
            self.mapped.pop(inner, None)
            self.members.pop(inner, None)
        for parameter, shape in zip(parameters, shapes):
            self.mapped[parameter] = module._link(Instruction(parameter.op, (), shape), None)
        module._parameters = body._parameters
        self._instructions(body, module)
        return module


def _settles(ins: Instruction) -> bool:
    """Return whether an instruction may change its form although the shapes of its inputs are unchanged."""
    return ins.shape.is_dynamic or (ins.name in _BROADCASTS and len(ins.inputs) > 1)


def _after(module: Module, last: Instruction | None) -> list[Instruction]:
    found: list[Instruction] = []
    for ins in reversed(module):
        if ins is last:
            break
        found.append(ins)
    return found
