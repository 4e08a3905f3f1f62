"""Lower programs with the rules of the ``cpu`` target."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...codegen.cpu.backend import BACKEND
from ...codegen.cpu.machine import machine
from ...codegen.cpu.toolchain.loader import load
from ...codegen.workers.background import BackgroundCompilation
from ...graph.program import Program
from ...runtime.cpu.threads import resolve_num_threads
from ...runtime.plan import Plan
from ..lowering.job import LoweringJob, Resources
from ..lowering.lowering import Lowering
from ..options import TargetOptions
from .compiled import compile_node
from .rules import RULES


def lower(program: Program, options: TargetOptions) -> Plan:
    """Return the plan that runs an optimised program on this machine."""
    return lowering(LoweringJob(program, options)).run()


def lowering(
    job: LoweringJob,
    compile_body: Callable[..., Any] | None = None,
    ahead: BackgroundCompilation | None = None,
) -> Lowering:
    """Return the lowering of a program for this machine.

    Args:
        job: what the plan is for.
        compile_body: see `Resources`.
        ahead: compiles kernels as lowering finds them.
    """
    threads = resolve_num_threads(job.options.num_threads or None)
    on_kernels, of_packing = (None, None) if ahead is None else (ahead.add, partial(load, ahead=ahead))
    planner = BACKEND.name, machine()
    node, tuning = None, job.options.tuning
    if compile_body is not None and not (tuning is not None and tuning.exhaustive):  # nothing is measured in a run
        node = partial(compile_node, lambda program: compile_body(program, None))
    return Lowering(
        job, Resources(RULES, BACKEND, threads, on_kernels, of_packing, compile_body, node, planner=planner)
    )
