"""Plans of programs with symbolic lengths, evaluated for lengths of a run and run by the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from mgx_numba.core.dim import Dim, Scope, evaluate
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.passes import run_passes
from mgx_numba.graph.program import Program
from mgx_numba.graph.symbolic import symbolic_program
from mgx_numba.runtime.gpu.engines import engine
from mgx_numba.runtime.gpu.executor import DeviceExecutable
from mgx_numba.runtime.plan import Plan
from mgx_numba.targets.base import grouped
from mgx_numba.targets.gpu.capabilities import pass_options
from mgx_numba.targets.gpu.lower import lowering
from mgx_numba.targets.lowering.job import LoweringJob
from mgx_numba.targets.lowering.shared_weights import SharedWeights
from mgx_numba.targets.lowering.tuples import without_tuples
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.passes import GPU_PASSES

from ..cpu.agreement import assert_agrees, reference
from ..interpreter.engine import interpreted

__all__ = ["SymbolicPlan", "open_shape", "random_inputs"]


class SymbolicPlan:
    """One plan of a program with dynamic inputs.

    Attributes:
        plan: the plan, with expressions.
        guards: texts of the guards that the program's lowering depends on.
    """

    def __init__(self, program: Program, **options: Any) -> None:
        self.source = program
        self.options = given = TargetOptions(**{"fast_math": False, **options})
        self.scope = scope = Scope()
        made, self.trees = without_tuples(symbolic_program(program, scope))
        run_passes(made, GPU_PASSES, pass_options(given), disabled=given.disabled_passes)
        made.remove_unused_modules()
        self.plan: Plan = lowering(LoweringJob(made, given, scope, SharedWeights(program))).run()
        self.program = made
        scope.close()
        self.guards = [f"{g.condition} is {g.answer} ({g.place})" for g in scope.guards.values()]

    @property
    def labels(self) -> list[str]:
        """Return the labels of the steps."""
        return [step.label for step in self.plan.steps]

    def values(self, inputs: Mapping[str, np.ndarray]) -> dict[Dim, int]:
        """The symbols' values for inputs."""
        lens = [(n, own) for p in self.plan.parameters for n, own in zip(p.lens, inputs[p.name].shape)]
        return {n: own for n, own in lens if any(n is symbol for symbol in self.plan.symbols)}

    def serves(self, inputs: Mapping[str, np.ndarray]) -> bool:
        """Whether the plan is right for inputs."""
        return bool(evaluate(self.plan.condition, self.values(inputs)))

    @cached_property
    def executable(self) -> DeviceExecutable:
        """Return an executable of the plan on the interpreter."""
        with interpreted():
            return DeviceExecutable(self.plan, engine())

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """The results by the interpreter."""
        assert self.serves(inputs)
        results = self.executable.run([np.ascontiguousarray(inputs[p.name]) for p in self.plan.parameters])
        return grouped(self.trees, results)

    def check(self, *lengths: Sequence[int]) -> None:
        """Compare results with ref's for random inputs of ``lengths``, given in order of the dimensions' names."""
        for own in lengths:
            inputs = random_inputs(self.source, own)
            assert_agrees(self.run(inputs), reference(self.source, inputs))


def random_inputs(program: Program, lengths: Sequence[int]) -> dict[str, np.ndarray]:
    """Return inputs whose dimensions have these lengths, in the order of their names as `open_shape` gives them."""
    rng = np.random.default_rng(sum(lengths))
    inputs = {}
    for name, shape in program.parameter_shapes().items():
        dims = shape.dyn_dims if shape.is_dynamic else [DynamicDimension(n, n) for n in shape.lens]
        lens = [lengths["bstu".index(d.symbol)] if d.symbol else d.min for d in dims]
        values = rng.standard_normal(lens) if shape.type.is_floating else rng.integers(0, 4, lens)
        inputs[name] = values.astype(shape.type.numpy)
    return inputs


def open_shape(type: Type, *lens: int | str, most: int = 4096) -> Shape:
    """Return a shape of plain lengths, and of dimensions called ``b``, ``s``, ``t`` or ``u``."""
    dims = [DynamicDimension(n, n) if isinstance(n, int) else DynamicDimension(1, most, symbol=n) for n in lens]
    return Shape.dynamic(type, dims)
