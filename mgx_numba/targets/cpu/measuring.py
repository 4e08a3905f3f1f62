"""Measure contractions as a program runs them: native launches on its threads, over memory of the same layout."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median

import ml_dtypes
import numpy as np

from ...codegen.launch import Callee, Launch, Operand
from ...codegen.problems.convolution import ConvProblem
from ...codegen.problems.element_types import ITEMSIZE
from ...codegen.problems.gemm import BlockFormat, BlockWeights, GemmProblem, StoredBlocks
from ...codegen.tuning.request import Candidate, Request, extents, prologue_extent
from ...ops.block_layouts import LAYOUTS
from ...runtime.cpu.executor import Executable
from ...runtime.memory import aligned_empty
from ...runtime.plan import ParameterSpec, Plan, Pointer, Region, Step

_SAMPLE_SECONDS = 2e-3
"""Duration of a sample, whose fastest run counts: long against the clock and a wake-up, short against changes of the
clock rate."""
_MOST_RUNS = 50  # maximum number of runs of a sample
_ROTATED_BYTES = 32 << 20
"""Total size of the copies of constant weights that are read in turn, so that weights come from memory as in a
program."""
_MOST_COPIES = 16  # maximum number of copies of small weights


class Bench:
    """Memory and executables for a problem's candidates.

    Attributes:
        clock: returns the time (s); the CPU time of a thread is less disturbed by a busy machine.
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self, request: Request) -> None:
        self.request = request
        self.samples = 0
        self._x, self._w, self._out, self._extras = extents(request)
        self._weights: dict[str, list[np.ndarray]] = {}
        self._ready: dict[Candidate, Executable] = {}
        self.inputs = [_filled(self._x, request.problem.types.a)]
        for operand, size in zip(request.epilogue.operands, self._extras):
            self.inputs.append(_filled(size, operand.dtype))
        prologue = request.problem.prologue
        for own in prologue.operands if prologue else ():
            self.inputs.append(_filled(prologue_extent(request.problem, own), own.dtype))
        names = [f"e{k}" for k in range(len(self._extras))]
        self._replaced = self.inputs[1 + names.index(request.replaced)] if request.replaced else None
        self._turn = 0

    def sample(self, candidate: Candidate) -> float:
        """Return the median seconds of as many executions as fill two milliseconds.

        Raises:
            CompileError: the candidate's kernel cannot be compiled.
        """
        executable = self._ready.get(candidate)
        if executable is None:
            executable = self._ready[candidate] = self._prepare(candidate)
            self._run(executable, candidate)
        self.samples += 1
        if self._replaced is not None:
            self._replaced[...] = _value(self._replaced.dtype)  # in-place runs accumulate into it
        times = [self._run(executable, candidate)]
        while sum(times) < _SAMPLE_SECONDS and len(times) < _MOST_RUNS:
            times.append(self._run(executable, candidate))
        return median(times)

    def _run(self, executable: Executable, candidate: Candidate) -> float:
        copies = self._weights[candidate.solver.name]
        self._turn += 1
        inputs = [self.inputs[0], copies[self._turn % len(copies)], *self.inputs[1:]]
        start = self.clock()
        executable.run(inputs)
        return self.clock() - start

    def _prepare(self, candidate: Candidate) -> Executable:
        request = self.request
        if candidate.solver.name not in self._weights:
            self._weights[candidate.solver.name] = self._make_weights(candidate)
        planned = candidate.solver.plan(
            request.problem, request.epilogue, request.strides, request.threads, candidate.blocking
        )
        size = ITEMSIZE[request.epilogue.out_dtype(request.problem.types.out)]
        out_bytes = -(-self._out * size // 64) * 64
        places = {
            "x": Pointer(Region.PARAMETER, 0),
            "w": Pointer(Region.PARAMETER, 1),
            "out": Pointer(Region.ARENA, 0, 0),
            "scratch": Pointer(Region.ARENA, 0, out_bytes),
            **{f"e{k}": Pointer(Region.PARAMETER, 2 + k) for k in range(len(self._extras))},
        }
        if self.in_place(planned.launches):
            places["out"] = places[request.replaced]
        more = range(2 + len(self._extras), 1 + len(self.inputs))
        places |= {f"a{k}": Pointer(Region.PARAMETER, index) for k, index in enumerate(more)}
        steps = []
        for launch in planned.launches:
            args = tuple(
                Pointer(places[a.name].region, places[a.name].index, places[a.name].offset + a.offset)
                if isinstance(a, Operand)
                else (a.kernel if isinstance(a, Callee) else a)
                for a in launch.args
            )
            steps.append(Step(launch.kernel, args, launch.geometry))
        first = self._weights[candidate.solver.name][0]
        arrays = [self.inputs[0], first, *self.inputs[1:]]
        plan = Plan(
            steps=list(steps),
            arena_bytes=out_bytes + planned.scratch,
            constants=[],
            parameters=[ParameterSpec(f"p{k}", a.dtype.name, a.shape) for k, a in enumerate(arrays)],
            outputs=[],
            parallel=request.threads > 1,
        )
        return Executable(plan, num_threads=request.threads)

    def in_place(self, launches: Sequence[Launch]) -> bool:
        """Return whether a plan places the result of these launches in the memory of the operand that the request
        names."""
        return len(launches) == 1 and self.request.replaced in launches[0].replaceable

    def _make_weights(self, candidate: Candidate) -> list[np.ndarray]:
        problem = self.request.problem
        lens = candidate.solver.packed_lens(problem)
        if not lens:
            return [_filled(self._w, problem.types.b, _weight(problem))]
        if isinstance(problem, GemmProblem) and problem.blocks:
            first = candidate.solver.pack_blocks(problem, _block_weights(problem, problem.blocks))
        else:
            value = np.full((1,) * len(_weight_lens(problem)), _weight(problem), problem.types.b)
            value = np.broadcast_to(value, _weight_lens(problem))
            first = candidate.solver.pack_weights(problem, value)
        copies = [first]
        for _ in range(min(_MOST_COPIES, _ROTATED_BYTES // max(1, first.nbytes)) - 1):
            copies.append(aligned_empty(first.shape, first.dtype))
            copies[-1][...] = first
        return copies


def _block_weights(problem: GemmProblem, form: BlockFormat) -> BlockWeights | StoredBlocks:
    """Return block-quantised weights whose values are all ones, or zeros in a layout of GGUF."""
    if form.offsets or form.bits in (5, 6):
        stored = next(
            (name, o)
            for name, o in LAYOUTS.items()
            if (o.bits, o.size, o.has_offsets) == (form.bits, form.size, form.offsets)
        )
        depth = -(-problem.k // stored[1].stored) * stored[1].stored
        return StoredBlocks(stored[0], (np.zeros((problem.n, stored[1].row_bytes(depth)), np.uint8),))
    blocks = (problem.n, form.blocks(problem.k))
    points = np.full(blocks, form.middle, np.uint8) if form.zero_points else None
    codes = np.full((*blocks, form.size * form.bits // 8), form.middle + 1, np.uint8)
    return BlockWeights(codes, np.ones(blocks, np.float32), points)


def _weight_lens(problem: GemmProblem | ConvProblem) -> tuple[int, ...]:
    if isinstance(problem, GemmProblem):
        return (*problem.batch, problem.k, problem.n)
    return problem.weight_lens


def _weight(problem: GemmProblem | ConvProblem) -> float:
    """Return the value of all weights, for which the sums are about 0.5.

    With sums in the hundreds, epilogues like GELU would give denormals. Intel's CPUs handle denormals in microcode,
    which takes four times as long as the measured product (128x3072x768).
    """
    dtype = np.dtype(problem.types.b)
    terms = problem.k if isinstance(problem, GemmProblem) else problem.group_in * problem.taps
    if dtype.kind in "biu" or not terms:
        return _value(dtype)
    return max(2.0 ** -round(math.log2(terms)), float(ml_dtypes.finfo(dtype).smallest_normal))


def _filled(elements: int, dtype: str, value: float | None = None) -> np.ndarray:
    """Return an array filled with ``value``, by default 0.5, or 1 for integer types: no kernel then divides by zero."""
    array = aligned_empty((elements,), dtype)
    array[...] = _value(array.dtype) if value is None else value
    return array


def _value(dtype: np.dtype) -> float:
    return 1 if dtype.kind in "biu" else 0.5
