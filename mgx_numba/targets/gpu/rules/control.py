"""Lower branches and loops to plans on the same device; their operands and results stay there. Bodies with
data-dependent lengths are compiled when these are known."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ....codegen.gpu.contraction.gpu_contraction import VECTOR_BYTES
from ....codegen.kernel import KernelSource
from ....codegen.problems.cluster import CopyProblem
from ....core.device_array import lens_of
from ....core.dim import Dim, SymbolicLengthError, known_equal, symbols_of
from ....core.shape import Shape, row_major_strides
from ....core.types import Type
from ....errors import MgxError, UnsupportedError
from ....graph.constants import uniform_value
from ....graph.instruction import Instruction
from ....graph.module import Module
from ....graph.passes import run_passes
from ....graph.program import Program
from ....graph.substitution import lengths_of, settled
from ....ops.control import If, Loop
from ....runtime.explicit_lengths import with_explicit_lengths
from ....runtime.gpu.data_dependent import DataDependentBody, DataDependentBranch, DataDependentLoop
from ....runtime.gpu.engine import Queue
from ....runtime.plan import CarriedValue, Plan, PlannedBody, PlannedBranch, Region, Repetition, Scan
from ...base import Results
from ...data_dependent_split import is_worthwhile
from ...lowering.buffers import View
from ...lowering.lowering import Lowering
from ...lowering.steps import PendingStep
from .table import lowering

__all__: list[str] = []


@lowering("if", "if_short", dynamic=True, hosted=True)
def lower_if(low: Lowering, ins: Instruction) -> None:
    """Append a step that runs one of two plans, by a condition that the host reads."""
    if _unknown(low, ins):
        bodies, taken = _data_dependent_bodies(low, ins, 1)
        _run_data_dependent(
            low, ins, DataDependentBranch([body for body, _ in bodies], taken, _branch_places(ins)), bodies
        )
        return
    condition, *inputs = low.inputs(ins)
    arguments = [_given(low, view, ins) for view in inputs]
    outputs = [low.allocate(_packed(shape)) for shape in ins.shape.sub_shapes]
    plans, given = [], []
    for module in ins.module_args:
        program, captured = Program.of_module(module)
        plan, explicit = _planned(low, program)
        plans.append(plan)
        given.append([*arguments, *(_given(low, low.values[value], ins) for value in captured), *explicit])

    def control() -> PlannedBranch:
        first, second = (_body(plan, own, outputs) for plan, own in zip(plans, given))
        return PlannedBranch(condition.plan_view(), (first, second), _branch_places(ins))

    _append(low, ins, control, [condition, *given[0], *given[1]], outputs, plans)
    low.values[ins] = outputs


@lowering("loop", dynamic=True, hosted=True)
def lower_loop(low: Lowering, ins: Instruction) -> None:
    """Append a step that repeats a plan, which reads the results of the previous iteration; the host reads the loop's
    condition."""
    op = ins.operator(Loop)
    if _unknown(low, ins):
        _lower_data_dependent_loop(low, ins, op)
        return
    trips, condition, *inputs = low.inputs(ins)
    program, captured = Program.of_module(ins.module_args[0])
    count = len(inputs) + 2
    parameters, results = program.main.parameters(), program.main.results()
    changing = [k for k in range(1, count) if results[k - 1] is not parameters[k]]
    if 1 in changing and uniform_value(results[0]) == 1:
        changing.remove(1)
    following = {k: results[k - 1] for k in changing}
    if parameters[0].users:
        following = {0: _next(program.main, parameters[0])} | following
    program.main.replace_return([*following.values(), *results[count - 1 :]])
    run_passes(program, ["dead_code_elimination"])
    plan, explicit = _planned(low, program)

    zero = low.constant(np.zeros(1, np.int64))
    given = [_given(low, view, ins) for view in (zero, condition, *inputs)]
    places = {k: (low.allocate(_packed(given[k].shape)), low.allocate(_packed(given[k].shape))) for k in following}
    scanned = ins.shape.sub_shapes[len(inputs) :]
    rows = [low.allocate(Shape(s.type, s.lens[1:]) if s.ndim > 1 else Shape(s.type)) for s in scanned]
    wholes = [_zeros(low, shape, ins) for shape in scanned]
    arguments = [places[k][0] if k in places else view for k, view in enumerate(given)]
    arguments += [*(_given(low, low.values[value], ins) for value in captured), *explicit]
    made = [*(new for _, new in places.values()), *rows]
    directions = [*op.scan_output_directions, *[0] * len(rows)]

    def control() -> Repetition:
        return Repetition(
            body=_body(plan, arguments, made),
            trips=trips.plan_view(),
            condition=given[1].plan_view(),
            carried=tuple(
                CarriedValue(given[k].plan_view(), now.plan_view(), new.plan_view()) for k, (now, new) in places.items()
            ),
            going=list(places).index(1) if 1 in places else None,
            scans=tuple(
                Scan(row.plan_view(), whole.plan_view(), bool(backwards))
                for row, whole, backwards in zip(rows, wholes, directions)
            ),
            most=op.most_iterations(bool(rows)),
            too_long=partial(_too_long, ins, bool(rows)),
            place=partial(_iteration_place, ins),
        )

    outputs = [*arguments[2:count], *wholes]
    _append(low, ins, control, [trips, *given, *arguments, *made], outputs, [plan])
    low.values[ins] = outputs


def _lower_data_dependent_loop(low: Lowering, ins: Instruction, op: Loop) -> None:
    """Append a loop whose body has a plan for each set of lengths."""
    module = ins.module_args[0]
    carried = len(ins.inputs) - 2
    results, parameters = module.results(), module.parameters()
    bodies, (taken,) = _data_dependent_bodies(low, ins, len(ins.inputs))
    after = results[0]
    while after.name == "identity":
        after = after.inputs[0]
    scans = len(results) - 1 - carried
    run = DataDependentLoop(
        bodies[0][0],
        carried,
        taken,
        after is parameters[1] or uniform_value(after) == 1,
        op.most_iterations(bool(scans)),
        partial(_too_long, ins, bool(scans)),
        partial(_iteration_place, ins),
        [
            (None if op.use_dyn_output else op.max_iterations, bool(backwards))
            for _, backwards in zip(range(scans), [*op.scan_output_directions, *[0] * scans])
        ],
    )
    _run_data_dependent(low, ins, run, bodies)


def _planned(low: Lowering, program: Program) -> tuple[Plan, list[View]]:
    """Return a body's plan, and arguments for its parameters that hold lengths."""
    plan = low.lowered(program)
    if not plan.symbols:
        return plan, []
    explicit = with_explicit_lengths(plan)
    nothing = low.constant(np.zeros(0, np.bool_))
    added = explicit.parameters[len(plan.parameters) :]
    return explicit, [nothing.with_shape(Shape(Type.bool_type, spec.lens)) for spec in added]


def _unknown(low: Lowering, ins: Instruction) -> str:
    """Return why operands, results or bodies of an instruction have lengths that are unknown before a run; empty if all
    are known.

    Raises:
        UnsupportedError: there are values that no device holds.
    """
    captured = [value for module in ins.module_args for value in module.captured()]
    inside = [v for module in ins.module_args for v in (*module.parameters(), *module.results())]
    if any(s.type.hosted for v in (*ins.inputs, ins, *captured, *inside) for s in v.shape.flatten()):
        raise UnsupportedError("values of the host are inside of it")
    if any(v.shape.sub_shapes for v in (*ins.inputs, *captured, *inside)):
        raise UnsupportedError("tuples are inside of it")
    if any(s.is_dynamic for s in ins.shape.sub_shapes):
        return "lengths of its result are known at run time only"
    if any(v.shape.is_dynamic for v in (*ins.inputs, *captured, *inside)):
        return "lengths inside of it are known at run time only"
    views = [low.values[value] for value in (*ins.inputs, *captured) if value.literal is None]
    if any(view.buffer.region is Region.HOST for view in views):
        return "it takes a value that a fallback step makes"
    return ""


def _branch_places(ins: Instruction) -> tuple[str, str]:
    """Return the prefixes of error messages in the branches of an ``if``."""
    first, second = (ins.located(ins.operator(If).place(module.name)) for module in ins.module_args)
    return first, second


def _iteration_place(ins: Instruction, number: int) -> str:
    """Return the prefix of error messages in an iteration of a loop."""
    return ins.located(ins.operator(Loop).place(ins.module_args[0].name, number))


def _too_long(ins: Instruction, scans: bool, trips: int) -> MgxError:
    """Return the error of a loop whose trip count exceeds its limit."""
    error = ins.operator(Loop).too_long(scans, trips)
    return type(error)(ins.located(str(error)))


_DataDependent = tuple[DataDependentBody, Sequence[KernelSource]]


def _data_dependent_bodies(low: Lowering, ins: Instruction, first: int) -> tuple[list[_DataDependent], list[list[int]]]:
    """Return the bodies with the kernels that they may need, and for each the positions of its captured values.

    Captured values follow the ``first`` arguments.

    Raises:
        UnsupportedError: the bodies do not justify plans of their own.
    """
    if low.resources.compile_body is None or not any(map(is_worthwhile, ins.module_args)):
        raise UnsupportedError(_unknown(low, ins))
    bodies, taken = [], []
    for module in ins.module_args:
        program, captured = Program.of_module(module)
        place = {value: first + k for k, value in enumerate(module.captured())}
        first += len(place)
        if lengths_of(program):
            assert low.job.scope is not None
            made: Any = OpenBody(program, low.resources.compile_body, low.job.scope.hints())
        else:
            made = low.resources.compile_body(program)
        bodies.append((DataDependentBody(made, program.parameter_shapes()), made.kernels()))
        taken.append([place[value] for value in captured])
    return bodies, taken


def _run_data_dependent(
    low: Lowering, ins: Instruction, run: DataDependentBranch | DataDependentLoop, bodies: Sequence[_DataDependent]
) -> None:
    kernels = [kernel for _, own in bodies for kernel in own]
    low.host(ins, f"{_unknown(low, ins)}; what it runs has a plan for each", on_device=run, kernels=kernels)


def _next(main: Module, number: Instruction) -> Instruction:
    """Insert and return the number of the next iteration."""
    one = main.add_literal(np.ones(number.shape.lens, number.shape.type.numpy))
    return main.insert_instruction(main.return_instruction, "add", [number, one])


def _packed(shape: Shape) -> Shape:
    return Shape(shape.type, shape.lens)


def _given(low: Lowering, view: View, ins: Instruction) -> View:
    """Return a value in the form of a plan's parameter: row-major and aligned to vectors."""
    view = low.materialized(view, row_major_strides(view.lens), ins)
    is_aligned = known_equal(view.byte_offset % VECTOR_BYTES, 0)
    return view if is_aligned else low.copied(view, row_major_strides(view.lens), ins)


def _zeros(low: Lowering, shape: Shape, ins: Instruction) -> View:
    """Return zero-filled memory for a scan output, since iterations that do not run write nothing."""
    out = low.allocate(_packed(shape))
    zero = low.constant(np.zeros(1, shape.type.numpy)).with_shape(Shape(shape.type, shape.lens, [0] * shape.ndim))
    low.compute(CopyProblem(zero.tensor, out.tensor, low.origin(ins)), [zero], [out], ins)
    return out


def _body(plan: Plan, arguments: Sequence[View], results: Sequence[View]) -> PlannedBody:
    return PlannedBody(plan, tuple(v.plan_view() for v in arguments), tuple(v.plan_view() for v in results))


def _append(
    low: Lowering,
    ins: Instruction,
    control: Callable[[], PlannedBranch | Repetition],
    inputs: Sequence[View],
    outputs: Sequence[View],
    plans: Sequence[Plan],
) -> None:
    label = f"{low.backend.name}::{ins.name}"
    step = PendingStep(None, {}, label, ins, None, list(inputs), list(outputs), tuple(plans), control=control)
    low.draft.steps.append(step)


MOST_KNOWN = 16
"""Maximum number of sets of outer lengths for which a body keeps compiled programs."""


class OpenBody:
    """A submodule compiled for each set of values of the outer symbols, as a program with dynamic inputs."""

    def __init__(self, program: Program, compile: Callable[[Program], Any], examples: Mapping[Dim, int]) -> None:
        """Create the body; it is compiled at once for the values ``examples``, so that its kernels exist.

        Raises:
            SymbolicLengthError: a symbol is not the length of any of its inputs.
        """
        self._program, self._compile = program, compile
        self._sources: dict[Dim, tuple[str, int]] = {}
        for name, shape in program.parameter_shapes().items():
            for axis, length in enumerate(() if shape.is_dynamic else shape.lens):
                if isinstance(length, Dim) and symbols_of([length]) == [length]:
                    self._sources.setdefault(length, (name, axis))
        self._symbols = symbols_of(lengths_of(program))
        for symbol in self._symbols:
            if symbol not in self._sources:
                raise SymbolicLengthError(f"no input of a body tells the length {symbol}")
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._example = self._compiled_for(tuple([examples[symbol] for symbol in self._symbols]))

    def kernels(self) -> list[KernelSource]:
        """Return the kernels of the program that was compiled for the examples."""
        return self._example.kernels()  # type: ignore[no-any-return]

    def run_on(self, queue: Queue, inputs: Mapping[str, object]) -> Results:
        places = (self._sources[symbol] for symbol in self._symbols)
        key = tuple([lens_of(inputs[name])[axis] for name, axis in places])
        with self._lock:
            made = self._compiled_for(key)
        return made.run_on(queue, inputs)  # type: ignore[no-any-return]

    def _compiled_for(self, key: tuple[int, ...]) -> Any:
        found = self._known.pop(key, None)
        if found is None:
            found = self._compile(settled(self._program, dict(zip(self._symbols, key))))
        self._known[key] = found
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return found
