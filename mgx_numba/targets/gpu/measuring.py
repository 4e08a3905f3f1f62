"""Measure contractions as a program runs them: on the device, in a graph, over memory of the same layout."""

from __future__ import annotations

import contextlib
import time
from math import prod

import ml_dtypes
import numpy as np

from ...codegen.gpu.contraction.gpu_contraction import COLUMNS, LINE_BYTES, ROWS, GpuContraction, packed_lens
from ...codegen.gpu.contraction.library_solvers import LIBRARIES
from ...codegen.gpu.contraction.solvers import SOLVER_SET
from ...codegen.gpu.libraries.calls import described
from ...codegen.kernel import KernelSource
from ...codegen.launch import Launch, Mark, Operand, Solution, TensorMap
from ...codegen.problems.element_types import ITEMSIZE
from ...codegen.problems.gemm import GemmProblem
from ...codegen.tuning.request import Candidate, TuningRequest, extents, prologue_extent, result_axes
from ...codegen.tuning.session import Tuning
from ...core.device_array import DeviceArray
from ...core.types import numpy_dtype
from ...errors import CompileError, DeviceError, UnsupportedError
from ...runtime.gpu.engine import Engine
from ...runtime.gpu.executor import DeviceExecutable
from ...runtime.gpu.transfers import to_device, to_host
from ...runtime.plan import MappedTensor, ParameterSpec, Plan, Pointer, Region, Step, TensorSpec

SAMPLE_SECONDS = 1e-3
"""Duration of a sample: a hundred times the error of an event's time."""
FEWEST_RUNS, MOST_RUNS = 4, 24
"""Least and largest number of runs of a sample: more make its graph slow to record, fewer include the start of the
graph in the time."""
ROTATED_BYTES = 128 << 20
"""Total size of the copies of constant weights that are read in turn: several times the L2 cache of an H100, so that
weights come from memory as in a program."""
DRAWN = 1 << 20
"""Number of random elements, which are repeated. Zeros would run faster, since they draw less power."""
CLOSE = {"float64": 1e-9, "float32": 5e-3, "bfloat16": 4e-2}
"""Maximum difference between a library's results and those of our kernels, relative to the largest result, by operand
type.

It covers the rounding of sums and results, for float32 that of TF32 products. Other types: 1e-2. Wrong computations
differ more.
"""
AT_ONCE = 128
"""Number of kernels that are compiled together: enough for the workers of 16 cores."""
COMPILING = 1 / 3
"""Share of the tuning budget for compiling kernels ahead; a kernel that is not compiled ahead is compiled when it is
measured."""
_ALIGNMENT = 256
"""Alignment of results and scratch memory in bytes, that of device allocations."""


def compile_candidates(engine: Engine, tuning: Tuning) -> None:
    """Compile the kernels that measuring needs in worker processes, for at most `COMPILING` of the budget.

    `DeviceBench.sample` compiles the rest, and reports kernels that cannot be compiled.
    """
    end = None if tuning.budget is None else time.monotonic() + COMPILING * tuning.budget
    kernels: dict[KernelSource, None] = {}
    for request, _ in tuning.pending():
        solvers = tuning.backend.solvers.candidates(request)
        for candidate in (*solvers, *tuning.backend.solvers.refinements(request, solvers[0])):
            with contextlib.suppress(UnsupportedError):
                own = (k for k in _solution(request, candidate).kernels if described(k) is None)
                kernels.update(dict.fromkeys(own))
    waiting = list(kernels)
    while waiting and (end is None or time.monotonic() < end):
        batch, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        with contextlib.suppress(CompileError):
            engine.load(batch)


class DeviceBench:
    """Memory and executables for the candidates of one problem; see `targets.tuning.CandidateBench`."""

    def __init__(self, engine: Engine, contraction: GpuContraction) -> None:
        """Prepare to measure a request.

        Raises:
            UnsupportedError: operands of this kind are not measured.
        """
        self._engine, self._contraction = engine, contraction
        request, problem = contraction.request, contraction.problem
        if isinstance(problem, GemmProblem) and problem.blocks is not None:
            raise UnsupportedError("products of weights in blocks have one kernel: there is nothing to choose")
        x, w, self._out, extras = extents(request)
        dtypes = [o.dtype for o in request.epilogue.operands]
        named = [("x", x, problem.types.a), *((f"e{k}", n, dtypes[k]) for k, n in enumerate(extras))]
        for k, own in enumerate(problem.prologue.operands if problem.prologue else ()):
            named.append((f"a{k}", prologue_extent(problem, own), own.dtype))
        w = self._kept_elements(w)
        size = w * ITEMSIZE[problem.types.b]
        self._copies = max(1, min(MOST_RUNS, ROTATED_BYTES // max(1, size))) if contraction.constant else 1
        named += [(f"w{k}", w, problem.types.b) for k in range(self._copies)]
        self._parameters = [ParameterSpec(name, dtype, (count,)) for name, count, dtype in named]
        self._inputs: list[DeviceArray] = []
        self._ready: dict[Candidate, DeviceExecutable] = {}
        self._runs: dict[Candidate, int] = {}
        self._wanted: np.ndarray | None = None

    def _kept_elements(self, count: int) -> int:
        """Return the largest number of elements that a solver stores for a right operand of ``count`` elements.

        A solver may store whole slices of each column or tap; see `Solution.halves` and `Solution.channels`.
        """
        problem = self._contraction.problem
        if not self._contraction.constant or (isinstance(problem, GemmProblem) and problem.types.b != "float32"):
            return count
        depth = problem.k if isinstance(problem, GemmProblem) else problem.group_in
        whole = LINE_BYTES // ITEMSIZE[problem.types.b]
        return -(-count // depth) * -(-depth // whole) * whole

    def sample(self, candidate: Candidate) -> float:
        """Return the mean device seconds of a run within a series; see `targets.tuning.CandidateBench`.

        Raises:
            DeviceError: there is not enough memory, the kernel fails, or a library's results differ from our kernels'.
        """
        executable = self._ready.get(candidate)
        if executable is None:
            if not self._inputs:
                self._inputs = [to_device(self._engine, _drawn(p), p.name) for p in self._parameters]
            if candidate.solver in LIBRARIES:
                self._check(candidate)
            executable = self._ready[candidate] = DeviceExecutable(self._repeated(candidate), self._engine)
            executable.seconds(self._inputs)
        return executable.seconds(self._inputs) / self._runs[candidate]

    def _check(self, candidate: Candidate) -> None:
        """Compare a library's results with those of kernels without tensor cores (`contraction.tiled`).

        Raises:
            DeviceError: the results differ by more than `CLOSE`.
        """
        if self._wanted is None:
            plain = next(c for c in SOLVER_SET.own_candidates(self._contraction) if c.solver.order == ROWS)
            self._wanted = self._results(plain, self._with_rows_of_weights())
        got, wanted = self._results(candidate, self._inputs), self._wanted
        finite = np.isfinite(wanted)
        allowed = CLOSE.get(self._contraction.problem.types.a, 1e-2) * np.abs(wanted[finite]).max(initial=0)
        alike = np.array_equal(finite, np.isfinite(got))
        if not alike or np.abs(got[finite] - wanted[finite]).max(initial=0) > allowed:
            raise DeviceError(f"{candidate} computes something else than the kernels do")

    def _with_rows_of_weights(self) -> list[DeviceArray]:
        """Return the inputs, with the first copy of a convolution's weights in the order `weights.ROWS`."""
        problem = self._contraction.problem
        if isinstance(problem, GemmProblem):
            return self._inputs
        number = next(k for k, p in enumerate(self._parameters) if p.name == "w0")
        lens = packed_lens(problem, COLUMNS)
        weights = _drawn(self._parameters[number])  # of the parameter's length, which may exceed the weights'
        columns = weights[: prod(lens)].copy().reshape(lens)
        weights[: prod(lens)] = columns.transpose(np.argsort(COLUMNS)).reshape(-1)
        turned = to_device(self._engine, weights, "weights")
        return [turned if k == number else own for k, own in enumerate(self._inputs)]

    def _results(self, candidate: Candidate, inputs: list[DeviceArray]) -> np.ndarray:
        """Return a candidate's results as float64. Memory is filled with NaNs first; gaps between rows are ignored."""
        dtype = self._contraction.request.epilogue.out_dtype(self._contraction.problem.types.out)
        none = np.full(self._out * ITEMSIZE[dtype], 0xFF, np.uint8).view(numpy_dtype(dtype))
        plan = self._plan(candidate, 1, Pointer(Region.OUTPUT))
        plan.outputs.append(TensorSpec(dtype, (self._out,)))
        (made,) = DeviceExecutable(plan, self._engine).run(inputs, [to_device(self._engine, none, "a result")])
        flat = to_host(self._engine, made)
        lens, strides = result_axes(self._contraction.problem)
        return np.lib.stride_tricks.as_strided(flat, lens, [s * flat.itemsize for s in strides]).astype(np.float64)

    def _repeated(self, candidate: Candidate) -> Plan:
        """Return a plan that computes the problem several times, with a different copy of the weights each time."""
        seconds = candidate.solver.estimate(self._contraction, candidate.blocking)
        runs = self._runs[candidate] = int(min(MOST_RUNS, max(FEWEST_RUNS, SAMPLE_SECONDS / seconds)))
        return self._plan(candidate, runs, Pointer(Region.ARENA))

    def _plan(self, candidate: Candidate, runs: int, out: Pointer) -> Plan:
        """Return a plan that computes the problem ``runs`` times, with its result at ``out``."""
        solution = _solution(self._contraction, candidate)
        request = self._contraction.request
        itemsize = ITEMSIZE[request.epilogue.out_dtype(request.problem.types.out)]
        out_bytes = -(-self._out * itemsize // _ALIGNMENT) * _ALIGNMENT
        places = {p.name: Pointer(Region.PARAMETER, k) for k, p in enumerate(self._parameters)}
        places |= {"out": out, "scratch": Pointer(Region.ARENA, 0, out_bytes)}
        steps = []
        for run in range(runs):
            own = {**places, "w": places[f"w{run % self._copies}"]}
            steps += [_step(launch, own) for launch in solution.launches]
        return Plan(
            steps=list(steps),
            arena_bytes=out_bytes + solution.scratch,
            constants=[],
            parameters=self._parameters,
            outputs=[],
        )


def _solution(contraction: TuningRequest, candidate: Candidate) -> Solution:
    solution: Solution = candidate.solver.plan(contraction, candidate.blocking)
    return solution


def _step(launch: Launch, places: dict[str, Pointer]) -> Step:
    def place(operand: Operand) -> Pointer:
        found = places[operand.name]
        return Pointer(found.region, found.index, found.offset + operand.offset)

    args: list[int | Pointer | MappedTensor] = []
    for arg in launch.args:
        if isinstance(arg, Operand):
            args.append(place(arg))
        elif isinstance(arg, TensorMap):
            args.append(MappedTensor(place(arg.operand), arg.layout))
        else:
            assert isinstance(arg, int) and not isinstance(arg, Mark)
            args.append(arg)
    return Step(launch.kernel, tuple(args), launch.geometry)


def _drawn(spec: ParameterSpec) -> np.ndarray:
    """Return random numbers of the parameter's type: floats around 0, or integers of the whole range."""
    dtype, rng = numpy_dtype(spec.dtype), np.random.default_rng(0)
    count = spec.lens[0]
    few = min(count, DRAWN)
    if dtype.kind in "iub":
        drawn = rng.integers(0, 100, few).astype(dtype)
    elif dtype == np.float32:  # a solver may read it as bfloat16 pairs (`Solution.halves`)
        drawn = rng.standard_normal((few, 2), np.float32).astype(ml_dtypes.bfloat16).view(dtype)[:, 0]
    else:
        drawn = rng.standard_normal(few, np.float32).astype(dtype)
    return np.resize(drawn, count)
