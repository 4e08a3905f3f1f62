"""Lower programs with the rules of the ``cpu`` target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...codegen.cpu.backend import BACKEND
from ...codegen.workers.background import BackgroundCompilation
from ...core.dim import Scope
from ...graph.program import Program
from ...runtime.cpu.threads import resolve_num_threads
from ...runtime.plan import Plan
from ..lowering.lowering import Lowering
from ..lowering.released_constants import ReleasedConstants
from ..lowering.shared_weights import SharedWeights
from ..options import TargetOptions
from .rules import RULES

__all__ = ["lower", "lower_and_release", "lower_symbolic"]


def lower(program: Program, options: TargetOptions) -> Plan:
    """Return the plan that runs an optimised program on this machine."""
    return _lowering(program, options).run()


def lower_symbolic(
    program: Program,
    options: TargetOptions,
    weights: SharedWeights,
    scope: Scope,
    compile_body: Callable[[Program], Any] | None = None,
    ahead: BackgroundCompilation | None = None,
) -> Plan:
    """Return the plan of a program whose lengths are expressions over a scope's symbols.

    Args:
        program: the program.
        options: options of the compilation.
        weights: constants that the plans of the same program share.
        scope: scope of the symbols.
        compile_body: see `Lowering`.
        ahead: compiles kernels as lowering finds them.
    """
    run = _lowering(program, options)
    run.on_kernels = ahead.add if ahead is not None else None
    run.scope, run.shared, run.compile_body = scope, weights, compile_body
    return run.run()


def lower_and_release(
    program: Program,
    options: TargetOptions,
    original: Program,
    weights: SharedWeights | None = None,
    compile_body: Callable[[Program], Any] | None = None,
    ahead: BackgroundCompilation | None = None,
) -> tuple[Plan, bool]:
    """Return the plan of a program; see `lower`. Large literals of ``program`` that ``original`` does not have are
    freed once packed.

    Args:
        program: the optimised program.
        options: options of the compilation.
        original: the program before the passes.
        weights: constants that the plans of the same dynamic program share.
        compile_body: see `Lowering`.
        ahead: compiles kernels as lowering finds them.

    Returns:
        The plan, and whether ``program`` still has all its literals.
    """
    run = _lowering(program, options)
    run.on_kernels = ahead.add if ahead is not None else None
    run.released = ReleasedConstants(run, original)
    run.shared, run.compile_body = weights, compile_body
    plan, whole = run.run(), not run.released.count
    run.released = None  # breaks the reference cycle
    return plan, whole


def _lowering(program: Program, options: TargetOptions) -> Lowering:
    return Lowering(program, options, RULES, BACKEND, resolve_num_threads(options.num_threads or None))
