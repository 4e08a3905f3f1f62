"""The ``cpu`` target: its passes, and compilation into an executable of this machine."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

from ...graph.passes import Options, run_passes
from ...graph.program import Program
from ...runtime.executor import Executable
from .lowering import lower
from .options import CpuOptions

__all__ = ["PASSES", "compile_cpu", "optimize"]

PASSES: tuple[str, ...] = (
    "normalize_ops",
    "eliminate_identity",
    "dead_code_elimination",
    "inline_module",
    "rewrite_quantization",
    "rewrite_resize",
    "eliminate_pad",
    "rewrite_pooling",
    "rewrite_gelu",
    "rewrite_softmax",
    "optimize_module",
    "rewrite_gelu",
    "rewrite_layernorm",
    "fuse_attention",
    "rewrite_rnn",
    "optimize_module",
    "rewrite_reduce",
    "layout_convolution",
    "eliminate_common_subexpression",
    "dead_code_elimination",
    "fuse_contraction",
    "fuse_reduce",
    "fuse_pointwise",
    "eliminate_contiguous",
    "dead_code_elimination",
)


def optimize(
    program: Program,
    options: CpuOptions,
    trace: Callable[[str, Program], None] | None = None,
    timings: MutableMapping[str, float] | None = None,
    validate: bool = False,
) -> Program:
    """A copy of ``program`` after the target's passes."""
    optimized = program.clone()
    run_passes(
        optimized,
        PASSES,
        Options(fast_math=options.fast_math),
        disabled=options.disabled_passes,
        trace=trace,
        timings=timings,
        validate=validate,
    )
    optimized.remove_unused_modules()
    return optimized


def compile_cpu(
    program: Program, options: CpuOptions, progress: Callable[[int, int, str], None] | None = None
) -> tuple[Program, Executable]:
    """The optimised program and what runs it.

    Raises:
        CompileError: a pass, a lowering or code generation failed; ``program`` is unchanged.
    """
    optimized = optimize(program, options)
    plan = lower(optimized, options)
    return optimized, Executable(plan, num_threads=options.num_threads or None, progress=progress)
