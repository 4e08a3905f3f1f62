"""Run the passes and the lowering of the ``gpu`` target."""

from __future__ import annotations

from collections.abc import Callable

from ...codegen.gpu.backend import BACKEND
from ...codegen.gpu.open_grids import with_limits
from ...graph.passes import run_passes
from ...graph.program import Program
from ..lowering.job import LoweringJob, Resources
from ..lowering.lowering import Lowering
from ..options import TargetOptions
from ..passes import GPU_PASSES
from .capabilities import pass_options
from .joined_launches import joined
from .rules import RULES

WORKERS = 1
"""Number of shares for memory colouring: the whole device works on one step at a time."""


def optimize(program: Program, options: TargetOptions) -> None:
    """Run a program through the passes, in place."""
    run_passes(program, GPU_PASSES, pass_options(options), disabled=options.disabled_passes)
    program.remove_unused_modules()


def optimized(program: Program, options: TargetOptions) -> Program:
    """Return a copy of the program after the passes."""
    program = program.clone()
    optimize(program, options)
    return program


def lowering(job: LoweringJob, compile_body: Callable[[Program], object] | None = None) -> Lowering:
    """Return the lowering of an optimised program; ``compile_body`` as in `Resources`."""
    resources = Resources(RULES, BACKEND, WORKERS, compile_body=compile_body, join=joined, finish=with_limits)
    return Lowering(job, resources)
