"""Small programs and the comparison of the cpu target with ref, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.graph.passes import run_passes
from mgx_numba.graph.program import Program
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.targets.cpu.capabilities import pass_options
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref.interpreter import evaluate

FUSION = (
    "fuse_contraction", "fuse_reduce", "fuse_pointwise", "dead_code_elimination",
    "split_reduce", "one_pass_variance",
)  # fmt: skip

Build = Callable[[Module, list[Instruction]], Sequence[Instruction] | Instruction]


def program_of(inputs: Sequence[np.ndarray], build: Build) -> Program:
    """A program with parameters ``p0``, ``p1``, ... like the arrays and the results that ``build`` makes of them."""
    program = Program()
    parameters = [
        program.main.add_parameter(f"p{k}", Shape(from_numpy(a.dtype), a.shape)) for k, a in enumerate(inputs)
    ]
    results = build(program.main, parameters)
    program.main.add_return([results] if isinstance(results, Instruction) else list(results))
    return program


def compile_and_run(program: Program, inputs: Sequence[np.ndarray], passes: Sequence[str] = FUSION, **options):
    """Results of the fused and lowered program, and the program itself."""
    settings = TargetOptions(**{"fast_math": False, **options})
    optimized = program.clone()
    run_passes(optimized, list(passes), pass_options(settings), validate=True)
    executable = Executable(lower(optimized, settings), num_threads=2)
    return executable.run([np.ascontiguousarray(a) for a in inputs]), optimized


def check(inputs: Sequence[np.ndarray], build: Build, rtol: float = 1e-5, passes: Sequence[str] = FUSION, **options):
    """Compare the cpu target with ref; returns the optimised program."""
    program = program_of(inputs, build)
    wanted = evaluate(program, {f"p{k}": a for k, a in enumerate(inputs)})
    got, optimized = compile_and_run(program, inputs, passes, **options)
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted):
        assert a.shape == b.shape and a.dtype == b.dtype
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            x, y = a.astype(np.float64), b.astype(np.float64)
            finite = np.abs(y[np.isfinite(y)])
            np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * (finite.max() if finite.size else 1.0))
    return optimized


def broadcast(m: Module, x: Instruction, lens: Sequence[int]) -> Instruction:
    """``x`` seen with these lengths."""
    return m.add_instruction("multibroadcast", [x], out_lens=lens)


def softmax(m: Module, x: Instruction, axis: int, lens: Sequence[int]) -> Instruction:
    """Append the softmax of ``x``, of lengths ``lens``, as elementary operations."""
    top = m.add_instruction("reduce_max", [x], axes=[axis])
    e = m.add_instruction("exp", [m.add_instruction("sub", [x, broadcast(m, top, lens)])])
    return m.add_instruction("div", [e, broadcast(m, m.add_instruction("reduce_sum", [e], axes=[axis]), lens)])
