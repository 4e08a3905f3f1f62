"""Execution of contractions of symbolic lengths: planned once, run for any lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mgx_numba.codegen.alternatives import at_lengths
from mgx_numba.codegen.cpu.contraction.symbolic_lengths import SolverShare, flattened, solve_open
from mgx_numba.codegen.cpu.toolchain.loader import load
from mgx_numba.codegen.launch import Solution
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.problems.gemm import BlockWeights
from mgx_numba.codegen.tuning.request import Candidate, Request
from mgx_numba.core.dim import Dim, Length, Scope, evaluate
from mgx_numba.core.types import numpy_dtype

from .contracting import run_plan

NO_EPILOGUE = Epilogue()
LENGTHS = (1, 2, 3, 4, 5, 17, 64, 200)


class Planned:
    """A contraction of symbolic lengths, planned once for all lengths."""

    def __init__(
        self,
        problem: Any,
        epilogue: Epilogue,
        strides: Any = (),
        threads: int = 2,
        only: str = "",
    ) -> None:
        """``only``: the solver that is to compute it."""
        from mgx_numba.codegen.cpu.contraction.solvers import CONV_SOLVERS, GEMM_SOLVERS

        strides = tuple(map(tuple, strides))
        self.request = flattened(Request(problem, epilogue, strides, threads, problem.fast_math))
        unsuited = [s.name for s in (*GEMM_SOLVERS, *CONV_SOLVERS) if only and s.name != only]
        self.parts, self.served = solve_open(self.request, _plan, unsuited=unsuited)
        load([kernel for part in self.parts for kernel in part.solution.kernels])

    @property
    def names(self) -> list[str]:
        """Names of the solvers."""
        return [part.candidate.solver.name for part in self.parts]

    def run(self, sample: Mapping[Dim, int], weights: Any, operands: Mapping[str, np.ndarray]) -> list[str]:
        """Run the launches at the lengths of ``sample``, and return the names of the solvers that had tasks."""
        assert evaluate(self.served, sample)
        taken = []
        for part in self.parts:
            solution: Solution = at_lengths(part.solution, sample)
            if all(launch.geometry.empty for launch in solution.launches):
                continue
            taken.append(part.candidate.solver.name)
            packed = self._packed(part, weights)
            run_plan(solution, {**operands, **({} if packed is None else {"w": packed})})
        return taken

    def _packed(self, part: SolverShare, weights: Any) -> np.ndarray | None:
        solver, problem = part.candidate.solver, part.request.problem
        lens = solver.packed_lens(problem)
        if not lens:
            return None if weights is None else weights
        assert all(isinstance(n, int) for n in lens)
        if isinstance(weights, BlockWeights):
            packed = solver.pack_blocks(problem, weights)
        else:
            packed = solver.pack_weights(problem, weights)
        assert packed.shape == tuple(lens)
        return packed


def _plan(request: Request, chosen: Candidate) -> Solution:
    problem, epilogue, strides, threads = request.problem, request.epilogue, request.strides, request.threads
    solution: Solution = chosen.solver.plan(problem, epilogue, strides, threads, chosen.blocking)
    return solution


def symbols(*names: str, high: int | None = None) -> tuple[Scope, list[Dim]]:
    """A scope with symbols of these names, from 1 on, and their samples."""
    scope = Scope()
    hints = iter((37, 41, 43, 47))
    made = [scope.symbol(name, 1, high, next(hints)) for name in names]
    for value in (1, 16, 128):
        scope.samples.append(dict.fromkeys(made, value))
    return scope, made


def packed(lens: tuple[Length, ...]) -> tuple[Any, ...]:
    """Row-major strides."""
    strides: list[Any] = [1]
    for length in lens[:0:-1]:
        strides.insert(0, strides[0] * length)
    return tuple(strides)


def some_weights(rng: np.random.Generator, dtype: str, lens: tuple[int, ...]) -> np.ndarray:
    """Random values that fit every packed form: of int8 the lower half, whose products fit 16 bits in pairs."""
    values = some(rng, dtype, lens)
    return values // np.int8(2) if dtype == "int8" else values


def some(rng: np.random.Generator, dtype: str, lens: tuple[int, ...]) -> np.ndarray:
    """Random values."""
    if dtype in ("int8", "uint8"):
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, lens).astype(dtype)
    return rng.standard_normal(lens).astype(np.float32).astype(numpy_dtype(dtype))
