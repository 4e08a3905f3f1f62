"""The functions of fallback steps: instructions evaluated by their NumPy meaning, with compiled or evaluated
submodules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import numpy as np

from ...core.dim import Dim
from ...core.shape import Shape
from ...graph.instruction import Instruction, Outline
from ...graph.module import Module
from ...graph.program import Program
from ...graph.substitution import settled, with_numbers
from ...ops.control import If
from ...runtime.plan_json import LengthsWriter
from ..ref.interpreter import RunProgram, StepMemory, compute, evaluate_module
from .fallback_values import has_symbols, leaves, rebuild, result_converter, without_symbols
from .instruction_json import InstructionWriter
from .rules import Body


class FallbackCall:
    """The function of a fallback step that computes an instruction on arrays.

    Attributes:
        bodies: the instruction's submodules in executable form; None: submodules are evaluated by their NumPy meaning.
    """

    def __init__(
        self,
        ins: Instruction,
        layout: Sequence[object],
        captured: Sequence[Instruction],
        bodies: Mapping[Module, Body] | None,
        compile: Callable[[Program], RunProgram] | None = None,
    ) -> None:
        """Prepare the call of an instruction.

        Args:
            layout: for each input, then for each captured value, its position among the arrays (`flatten`).
            captured: values that the submodules take from outside.
            bodies: see the attribute.
            compile: see `StepMemory.compile`.
        """
        self._ins, self._layout, self._captured, self.bodies = ins, layout, captured, bodies
        self._memory = StepMemory(compile=compile)

    @property
    def symbolic(self) -> bool:
        """Whether the instruction has symbolic lengths, so that `at` has to be called first."""
        return has_symbols(self._ins)

    def __call__(self, arrays: list) -> list:
        ins, count, bodies = self._ins, len(self._ins.inputs), self.bodies
        values = [arrays[tree] if type(tree) is int else rebuild(tree, arrays) for tree in self._layout]
        outer = dict(zip(self._captured, values[count:]))
        with np.errstate(all="ignore"):
            if bodies is None:
                run = partial(_evaluated, outer)
                return leaves(compute(ins, values[:count], run, memory=self._memory))
            runs = cache(lambda module: bodies[module].within(outer))
            return leaves(
                compute(
                    ins,
                    values[:count],
                    lambda m, a: runs(m)(a),
                    lambda m, *how: bodies[m].repeat(outer, *how),
                    self._memory,
                )
            )

    def at(self, values: Mapping[Dim, int]) -> FallbackCall:
        """Return the call with the symbols replaced by values."""
        own = None if self.bodies is None else {module: body.at(values) for module, body in self.bodies.items()}
        ins = self._ins if isinstance(self._ins.op, If) else without_symbols(self._ins, values)
        return FallbackCall(ins, self._layout, self._captured, own, self._memory.compile)

    def write(self, lengths: LengthsWriter) -> dict[str, object]:
        ins, writer = self._ins, InstructionWriter(lengths)
        places = {value: k for k, value in enumerate(self._captured)}
        modules = []
        for module in ins.module_args:
            shapes = [[writer.shape(i.shape) for i in some] for some in (module.parameters(), module.results())]
            body = evaluated(module) if self.bodies is None else self.bodies[module]
            kind, content, captured = body.write(lengths)
            modules.append([module.name, *shapes, kind, content, [places[value] for value in captured]])
        kernels = [kernel for body in (self.bodies or {}).values() for kernel in body.kernels]
        return {
            "operator": writer.operator(ins.op),
            "shape": writer.shape(ins.shape),
            "inputs": [writer.shape(i.shape) for i in ins.inputs],
            "debug_symbols": ins.debug_symbols,
            "layout": self._layout,
            "captured": [writer.shape(i.shape) for i in self._captured],
            "modules": modules,
            "kernels": [lengths.writer.kernel(kernel) for kernel in dict.fromkeys(kernels)],
            "bound": self.symbolic,
        }


def _evaluated(outer: Mapping[Instruction, object], module: Module, arguments: Sequence[object]) -> list:
    return evaluate_module(module, arguments, outer)


class ReturnCall:
    """The function of a fallback step that returns a value as a result of a given shape."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._call: Callable[[list], list] = result_converter(shape)

    def __call__(self, arrays: list) -> list:
        return self._call(arrays)

    def at(self, values: Mapping[Dim, int]) -> ReturnCall:
        """Return the call with the symbols replaced by values."""
        return ReturnCall(with_numbers(self._shape, values))

    def write(self, lengths: LengthsWriter) -> dict[str, object]:
        return {"returned": InstructionWriter(lengths).shape(self._shape), "bound": self._shape.symbolic}


class EvaluatedBody:
    """A submodule evaluated by its NumPy meaning, as a program of its own.

    Attributes:
        captured: values that the submodule takes from outside.
    """

    plan = None
    kernels = ()

    def __init__(self, program: Program, captured: Sequence[Instruction], at: Mapping[Dim, int] | None = None) -> None:
        """Wrap a program whose last parameters are ``captured``; ``at`` has values of its symbols."""
        self._program, self.captured = program, captured
        self._main = settled(program, at).main if at else program.main

    def at(self, values: Mapping[Dim, int]) -> EvaluatedBody:
        return EvaluatedBody(self._program, self.captured, values)

    def within(self, outer: Mapping[Instruction, object]) -> Callable[[Sequence[np.ndarray]], list]:
        return lambda arguments: evaluate_module(self._main, [*arguments, *(outer[value] for value in self.captured)])

    def repeat(self, *how: object) -> None:
        """See `Body.repeat`."""

    def keep_growth(self, keep: object) -> None:
        """See `Body.keep_growth`."""

    def write(self, lengths: LengthsWriter) -> tuple[str, object, Sequence[Instruction]]:
        return "program", InstructionWriter(lengths).program(self._program), self.captured


def evaluated(module: Module) -> EvaluatedBody:
    """Return a submodule as a body that is evaluated by its NumPy meaning."""
    return EvaluatedBody(*Program.of_module(module))


def signature(name: str, parameters: Sequence[Shape], results: Sequence[Shape]) -> Module:
    """Return a module with the given parameter and result shapes whose results have no computation."""
    module = Module(name)
    for k, shape in enumerate(parameters):
        module.add_parameter(f"p{k}", shape)
    module.add_return([module._link(Instruction(Outline(), (), shape), None) for shape in results])
    return module
