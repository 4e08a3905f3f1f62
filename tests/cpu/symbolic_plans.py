"""Programs lowered once for symbolic lengths, run at given lengths and compared with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mgx_numba.codegen.cpu.backend import BACKEND
from mgx_numba.core.dim import Dim, Scope, evaluate
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.graph.passes import run_passes
from mgx_numba.graph.program import Program
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.runtime.explicit_lengths import explicit_lengths, with_explicit_lengths
from mgx_numba.runtime.plan import Step
from mgx_numba.targets.cpu.capabilities import pass_options
from mgx_numba.targets.cpu.rules import RULES
from mgx_numba.targets.lowering.job import LoweringJob, Resources
from mgx_numba.targets.lowering.lowering import Lowering
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref import interpreter

__all__ = ["SymbolicCase"]

Lens = Mapping[str, Any]
"""Lengths by name: symbols, or integers."""
Build = Callable[[Module, list[Instruction], Lens], Sequence[Instruction] | Instruction]
Shapes = Callable[[Lens], Sequence[Shape]]


class SymbolicCase:
    """A program over symbols, with its plan.

    Attributes:
        plan: of all lengths, as far as its condition says.
        guards: what lowering asked of the program's lengths.
    """

    def __init__(
        self,
        scope: Scope,
        symbols: Mapping[str, Dim],
        shapes: Shapes,
        build: Build,
        passes: Sequence[str] = (),
        threads: int = 2,
        **options: Any,
    ) -> None:
        """Lower the program that ``build`` makes of parameters with ``shapes``."""
        self.symbols = symbols
        self._shapes, self._build, self._threads = shapes, build, threads
        settings = TargetOptions(**{"fast_math": False, **options})
        program = self._program(symbols)
        run_passes(program, list(passes), pass_options(settings))
        scope.guards.clear()  # shape rules and passes have tests of their own
        self.plan = Lowering(LoweringJob(program, settings, scope), Resources(RULES, BACKEND, threads)).run()
        self.guards = [str(guard) for guard in scope.guards.values()]
        self.kernels = [step.kernel.name for step in self.plan.steps if isinstance(step, Step)]

    def _program(self, lens: Lens) -> Program:
        program = Program()
        parameters = [program.main.add_parameter(f"p{k}", s) for k, s in enumerate(self._shapes(lens))]
        results = self._build(program.main, parameters, lens)
        program.main.add_return([results] if isinstance(results, Instruction) else list(results))
        return program

    def serves(self, **lens: int) -> bool:
        """Whether the plan serves these lengths."""
        return evaluate(self.plan.condition, {self.symbols[name]: n for name, n in lens.items()}) == 1

    def check(self, rtol: float = 1e-5, make: Callable[[int, Shape], np.ndarray] | None = None, **lens: int) -> None:
        """Compare a run at lengths with NumPy; ``make`` gives the parameter of a number and a shape."""
        values = {self.symbols[name]: n for name, n in lens.items()}
        assert self.serves(**lens), f"{self.plan.condition} at {lens}"
        rng = np.random.default_rng(7)
        inputs = [
            _random(rng, shape) if make is None or (own := make(k, shape)) is None else own
            for k, shape in enumerate(self._shapes(lens))
        ]
        wanted = interpreter.evaluate(self._program(lens), {f"p{k}": a for k, a in enumerate(inputs)})
        told = with_explicit_lengths(self.plan)
        got = Executable(told, num_threads=self._threads).run([*inputs, *explicit_lengths(told, values).values()])
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted):
            assert a.shape == b.shape and a.dtype == b.dtype
            if a.dtype.kind in "biu":
                np.testing.assert_array_equal(a, b, err_msg=str(lens))
            else:
                np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=str(lens))


def _random(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    if shape.type is Type.bool_type:
        return rng.random(shape.lens) > 0.3
    return rng.standard_normal(shape.lens).astype(shape.type.numpy)
