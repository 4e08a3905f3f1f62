"""Evaluate programs by their operators' NumPy meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np

from ...core.argument import Argument
from ...core.dim import is_symbolic
from ...core.shape import Shape, common_lens
from ...core.types import Type, from_numpy
from ...dataclass import dataclass
from ...errors import MgxError, ParameterError, ShapeError
from ...graph.deferred import reader
from ...graph.folding import Constants
from ...graph.instruction import Instruction, Parameter, Return
from ...graph.module import Module
from ...graph.program import Program
from ...interrupts import whole_module
from ...ops.bodies import Repeat, RunModule
from ...ops.control import If
from ...ops.deferred import Deferred
from ...runtime.memory import expect_room
from ..base import Outgrown

PASSES = ("merge_rnn_outputs",)
"""The passes of the ``ref`` target, in order."""
Trace = Callable[[Instruction, object], None]
REMEMBERED_SHAPES = 64
"""Most shapes of results that a fallback step keeps: more than a loop of a model has lengths."""
REMEMBERED_PROGRAMS, REMEMBERED_BYTES = 8, 1 << 21
"""Most programs of a deferred node that a fallback step keeps, and most bytes of literals in one: values that change in
each run must not fill memory. A program of a few operators takes some 20 KiB; the matrices of a STFT with frames of 400
samples take 1 MiB."""
LARGEST_VALUE = 64
"""Most elements of a deferred node's input whose values, not only its lengths, may determine the node's program.
Lengths, axes and bounds are shorter."""
WORTH_COMPILING = 1 << 10
"""Least work (elements of operands and results, or operations) of a deferred node's program that is compiled, when it
runs a second time. NumPy takes 10 to 30 us for less, of which the fallback step itself takes half (Zen 4)."""

RunProgram = Callable[[Mapping[str, np.ndarray]], list]
"""Computes a program's results for arrays by parameter name."""


@dataclass
class Expansion:
    """A program of a deferred node.

    Attributes:
        program: the program. Its parameters are x0, x1, ... for the node's inputs; an input whose value the program
            does not read has no parameter.
        run: computes the program's results.
        compiles: whether the program is worth compiling when it runs again. In its first run compiling would take
            longer than NumPy does, and lengths may change in every run.
    """

    program: Program
    run: RunProgram
    compiles: bool = False


@dataclass
class StepMemory:
    """What a fallback step keeps from one run to the next.

    Attributes:
        shapes: shapes of earlier results, by the lengths of their inputs.
        places: for lengths of a deferred node's inputs, the sets of inputs (positions) whose values determined a
            program.
        programs: programs of a deferred node, by lengths, an element of ``places``, and the values of these inputs.
        compile: compiles a program of a deferred node; None: it runs by its NumPy meaning.
        compiled: number of programs that were compiled, at most `REMEMBERED_PROGRAMS`.
    """

    shapes: dict[tuple[object, ...], Shape] = field(default_factory=dict)
    places: dict[tuple[object, ...], dict[tuple[int, ...], None]] = field(default_factory=dict)
    programs: dict[tuple[object, ...], Expansion] = field(default_factory=dict)
    compile: Callable[[Program], RunProgram] | None = None
    compiled: int = 0


@np.errstate(all="ignore")
def evaluate(program: Program, parameters: Mapping[str, np.ndarray], trace: Trace | None = None) -> list:
    """Run the main module on arrays by parameter name; overflow and NaN go without a warning.

    Args:
        program: any valid program; dynamic shapes are resolved from the actual arguments.
        parameters: a value for every parameter; other names are ignored.
        trace: called with each instruction and its value, as soon as it is known.

    Returns:
        One array a result (a tuple of arrays for a tuple result).

    Raises:
        ParameterError: a parameter has no value.
        MgxError: an operator cannot evaluate its inputs; the message has the instruction.
    """
    values: dict[Instruction, object] = {}
    for ins in program.main.parameters():
        name = ins.op.parameter  # type: ignore[attr-defined]
        if name not in parameters:
            raise ParameterError(f"Parameter not found: {name}")
        values[ins] = parameters[name]
    return _run(program.main, values, trace)


def evaluate_module(
    module: Module, arguments: Sequence[object], outer: Mapping[Instruction, object] | None = None
) -> list:
    """Run a submodule on positional arguments, in the order in which its parameters are declared."""
    values: dict[Instruction, object] = dict(outer or {})
    parameters = module.parameters()
    if len(arguments) < len(parameters):
        raise ShapeError(f"module {module.name!r} takes {len(parameters)} arguments, got {len(arguments)}")
    values.update(zip(parameters, arguments))
    return _run(module, values, None)


def _run(module: Module, values: dict[Instruction, object], trace: Trace | None) -> list:
    remaining = {ins: len(ins.users) for ins in module}
    results = set(module.results())

    def run(inner: Module, arguments: Sequence[object]) -> list:
        return evaluate_module(inner, arguments, values)

    for ins in module:
        if isinstance(ins.op, Return):
            break
        if ins.literal is not None:
            values[ins] = _value(ins.literal)
        elif not isinstance(ins.op, Parameter):
            values[ins] = compute(ins, [values[i] for i in ins.inputs], run)
            for i in set(ins.inputs):
                if i in remaining:
                    remaining[i] -= 1
                    if not remaining[i] and i not in results and not module_captures(i):
                        values.pop(i, None)
        if trace is not None:
            trace(ins, values[ins])
    return [values[ins] for ins in module.results()]


def module_captures(ins: Instruction) -> bool:
    """Return whether a submodule, other than the instruction's own module, uses the value."""
    return any(user.module is not ins.module for user in ins.users)


def compute(
    ins: Instruction,
    args: Sequence[Any],
    run: Callable[[Module, Sequence[Any]], list],
    repeat: Repeat | None = None,
    memory: StepMemory | None = None,
) -> Any:
    """Return the value of one instruction on evaluated inputs.

    Args:
        args: values of its inputs.
        run: see `RunModule`.
        repeat: see `RunModule.repeat`.
        memory: what the fallback step of the instruction keeps.
    """
    shape = ins.shape
    try:
        if isinstance(ins.op, Deferred):
            made = _expansion(ins, args, StepMemory() if memory is None else memory)
            scalars = [isinstance(a, np.ndarray) and not a.ndim for a in args]  # of one axis in the IR
            given = {f"x{k}": a.reshape(1) if scalar else a for k, (a, scalar) in enumerate(zip(args, scalars))}
            return deferred_value(ins.op, made.program, made.run(given))
        spread = ins.op.pointwise and any(i.shape.is_dynamic for i in ins.inputs)
        if spread:
            # lengths with equal ranges may differ in a run: 1 and another length
            lens = common_lens(*(a.shape for a in args))
            args = [np.broadcast_to(a, lens) for a in args]
        branches = isinstance(ins.op, If)  # only the branch that runs determines the shape
        if not branches and (shape.is_dynamic or any(i.shape.is_dynamic for i in ins.inputs)):
            shape = _result_shape(ins, args, spread, {} if memory is None else memory.shapes)
        if ins.op.true_ranks:
            args = [a.reshape(()) if i.shape.without_axes else a for i, a in zip(ins.inputs, args)]
        known = not (shape.is_dynamic or is_symbolic(shape.bytes))  # lengths that the data decide are not known yet
        if known and not ins.op.view and not branches:
            expect_room(shape.bytes, "its result of")
        return ins.op.result_value(shape, args, RunModule(ins.module_args, run, repeat))
    except Outgrown:
        raise
    except MgxError as error:
        raise type(error)(ins.located(str(error))) from error
    except NotImplementedError as error:
        raise MgxError(ins.located(f"{ins.op} cannot be evaluated: {error}")) from error
    except Exception as error:
        raise MgxError(ins.located(f"evaluating {ins.op} on {[_shape_of(a) for a in args]}: {error}")) from error


def _result_shape(
    ins: Instruction, args: Sequence[object], spread: bool, known: dict[tuple[object, ...], Shape]
) -> Shape:
    """Return the shape of an instruction's result; ``known`` keeps it for the next inputs of the same lengths."""
    lengths = tuple((a.shape, a.dtype) if isinstance(a, np.ndarray) else None for a in args)
    found = known.get(lengths)
    if found is None:
        actual = [_actual(i.shape, a, spread) for i, a in zip(ins.inputs, args)]
        found = ins.op.result_shape(actual, ins.module_args)
        if None not in lengths:
            if len(known) >= REMEMBERED_SHAPES:
                known.clear()
            known[lengths] = found
    return found


def _expansion(ins: Instruction, args: Sequence[np.ndarray], memory: StepMemory) -> Expansion:
    """Return a program that computes a deferred node for inputs with these lengths, and these values where they matter.

    Args:
        ins: the node.
        args: values of its inputs.
        memory: keeps the program.
    """
    if not all(isinstance(a, np.ndarray) and not a.dtype.hasobject for a in args):
        return _evaluated(expanded(ins, args))
    lengths = tuple([(a.shape, a.dtype) for a in args])
    for places in list(memory.places.get(lengths, ())):
        found = memory.programs.get((lengths, places, *[args[k].tobytes() for k in places]))
        if found is not None:
            if found.compiles and memory.compile is not None and memory.compiled < REMEMBERED_PROGRAMS:
                memory.compiled += 1
                found.run, found.compiles = memory.compile(found.program), False
            return found
    reusable = _reusable(ins, args)
    if reusable is None:
        return _evaluated(expanded(ins, args))
    program, places = reusable
    if sum(i.shape.bytes for i in program.main if i.literal is not None) > REMEMBERED_BYTES:
        return _evaluated(program)
    found = _evaluated(program)
    tensors = all(not r.shape.sub_shapes and r.shape.element is None for r in program.main.results())
    found.compiles = memory.compile is not None and tensors and _work(program) >= WORTH_COMPILING
    if len(memory.programs) >= REMEMBERED_PROGRAMS:
        memory.programs.clear()
        memory.places.clear()
    memory.places.setdefault(lengths, {})[places] = None
    memory.programs[(lengths, places, *[args[k].tobytes() for k in places])] = found
    return found


def _evaluated(program: Program) -> Expansion:
    """Return a program that runs by its NumPy meaning."""
    return Expansion(program, partial(evaluate, program))


def _work(program: Program) -> int:
    """Return the elements or operations that a program computes; views cost nothing."""
    computed = [i for i in program.main if i.inputs and not i.op.view and not isinstance(i.op, Return)]
    given = [[x.shape for x in i.inputs] for i in computed]
    elements = [max(part.elements for s in (i.shape, *own) for part in s.flatten()) for i, own in zip(computed, given)]
    return sum(max(n, i.op.flops(i.shape, own)) for n, i, own in zip(elements, computed, given))


def _reusable(ins: Instruction, args: Sequence[np.ndarray]) -> tuple[Program, tuple[int, ...]] | None:
    """Return the program of a deferred node whose inputs are parameters, and the inputs (positions) whose values
    determined it; None if some operators need values that only a run of this program would have."""
    program = Program()
    inputs = [
        program.main.add_parameter(f"x{k}", Shape(i.shape.type, () if i.shape.without_axes else a.shape))
        for k, (i, a) in enumerate(zip(ins.inputs, args, strict=True))
    ]
    values = {x: a.reshape(x.shape.lens) for x, a in zip(inputs, args, strict=True) if a.size <= LARGEST_VALUE}
    constants = Constants(program.allowance, values)
    try:
        _expand(program, ins, inputs, constants)
    except MgxError:  # a wrong input, too: it is reported when all values are known
        return None
    if any(i.shape.is_dynamic or isinstance(i.op, Deferred) for i in program.main):
        return None
    return program, tuple([k for k, x in enumerate(inputs) if x in constants.used])


def expanded(ins: Instruction, args: Sequence[np.ndarray]) -> Program:
    """Return the program of a deferred node whose inputs are literals with the values ``args``."""
    program = Program()
    inputs = [
        _known(program.main, value.reshape(()) if i.shape.without_axes else value, i.shape)
        for i, value in zip(ins.inputs, args, strict=True)
    ]
    _expand(program, ins, inputs, Constants(program.allowance))
    return program


def _expand(program: Program, ins: Instruction, inputs: Sequence[Instruction], constants: Constants) -> None:
    """Complete the program of a deferred node: append the node's operators and results, and run passes."""
    assert isinstance(ins.op, Deferred)
    program.main.add_return(reader(ins.op.reader, program, constants).expand(program.main, ins.op, inputs))
    whole_module("mgx_numba.graph.passes")
    from ...graph.passes import run_passes  # late: few programs have deferred nodes

    run_passes(program, PASSES)


def deferred_value(op: Deferred, program: Program, results: Sequence[object]) -> object:
    """Return the value of a deferred node from the results of its `expanded` program."""
    shapes = op.result.flatten()
    values = [_ranked(v, r.shape, s) for v, r, s in zip(results, program.main.results(), shapes, strict=True)]
    return tuple(values) if op.result.sub_shapes else values[0]


def _known(module: Module, value: np.ndarray, shape: Shape) -> Instruction:
    """Return a literal with the value; for a sequence, an instruction that builds it from literals."""
    if shape.element is None:
        return module.add_literal(value)
    members = [_known(module, member, shape.element) for member in value]
    kind = "sequence_construct" if shape.type is Type.sequence_type else "optional_construct"
    return module.add_instruction(kind, members, element=shape.element)


def _ranked(value: Any, shape: Shape, declared: Shape) -> object:
    """Return a value with its true rank; a scalar whose declared shape has no rank becomes 0-dimensional."""
    return value.reshape(()) if not declared.ranked and shape.without_axes else value


def named(ins: Instruction) -> str:
    """Return the prefix of an instruction's evaluation errors: its source nodes, if known, and its operator."""
    return ins.located(ins.name)


def _actual(shape: Shape, value: Any, spread: bool) -> Shape:
    """Return the shape of an input with this value; ``spread``: the value was broadcast."""
    if spread:
        return Shape(shape.type, value.shape)
    return _shape_of(value) if shape.is_dynamic and shape.element is None else shape


def _shape_of(value: Any) -> Shape:
    if isinstance(value, (tuple, list)):
        return Shape.tuple(_shape_of(v) for v in value)
    return Shape(from_numpy(value.dtype), value.shape)


def _value(literal: Argument) -> Any:
    return tuple(_value(v) for v in literal.sub) if literal.array is None else literal.array
