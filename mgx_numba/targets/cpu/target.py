"""The ``cpu`` target: its passes, and compilation into an executable of this machine."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from ...codegen.kernel import KernelSource
from ...graph.passes import Options, run_passes
from ...graph.program import Program
from ...graph.specialize import is_dynamic, specialize
from ...runtime.executor import EXECUTOR_KERNELS, Executable
from ...runtime.plan import HostStep, Step, TensorView
from ..base import Observation, Observer
from ..tracing import write_trace
from .lowering import lower
from .options import CpuOptions
from .results import Tree, grouped, without_tuples

if TYPE_CHECKING:
    from ...codegen.tuning.session import Tuning

__all__ = ["PASSES", "CpuProgram", "optimize"]

MOST_PLANS = 32
"""Plans that a program with dynamic inputs keeps; the oldest goes when another set of lengths comes."""

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
    "rewrite_rnn",
    "merge_rnn_outputs",
    "optimize_module",
    "fuse_attention",
    "rewrite_reduce",
    "layout_convolution",
    "eliminate_common_subexpression",
    "dead_code_elimination",
    "fuse_contraction",
    "fuse_reduce",
    "fuse_pointwise",
    "eliminate_contiguous",
    "dead_code_elimination",
    "schedule",
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


class CpuProgram:
    """A program compiled for the CPU; one with dynamic inputs gets a plan for each set of lengths it meets."""

    def __init__(self, program: Program, options: CpuOptions, progress: Callable[[int, int, str], None] | None) -> None:
        self._options = options
        self._source: Program | None = None
        self._specialized: dict[tuple[tuple[int, ...], ...], CpuProgram] = {}
        self._lock = threading.Lock()
        self.executable: Executable | None = None
        self._idle: Executable | None = None
        self._trees: list[Tree] | None = None
        if is_dynamic(program):
            self._source = self.program = program.clone()
            if options.tuning is not None:
                options.tuning.decline("a program with dynamic inputs is not measured; fix its lengths to tune it")
            return
        program, self._trees = without_tuples(program)
        self.program = optimize(program, options)
        plan = lower(self.program, options)
        if options.tuning is not None:
            if options.tuning.exhaustive and _tune(options.tuning):
                plan = lower(self.program, options)
            options.tuning.tell()
        self.executable = Executable(plan, options.num_threads or None, progress, options.store)

    def _for(self, inputs: Mapping[str, np.ndarray]) -> CpuProgram:
        """The program for these inputs' lengths."""
        if self._source is None:
            return self
        key = tuple(inputs[name].shape for name in self._source.parameter_shapes())
        found = self._specialized.get(key)
        if found is None:
            lens = {name: array.shape for name, array in inputs.items()}
            found = CpuProgram(specialize(self._source, lens), self._options, None)
            with self._lock:
                while len(self._specialized) >= MOST_PLANS:
                    self._specialized.pop(next(iter(self._specialized)))
                self._specialized[key] = found
        return found

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """Results for checked inputs by name."""
        target = self._for(inputs)
        assert target.executable is not None
        return grouped(target._trees, target.executable.run(target.arrays(inputs)))

    def arrays(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Inputs in the plan's order, C-contiguous."""
        assert self.executable is not None
        return [np.ascontiguousarray(inputs[p.name]) for p in self.executable.plan.parameters]

    def resolve(self, inputs: Mapping[str, np.ndarray]) -> Program:
        """The optimised program for the lengths of these inputs."""
        return self._for(inputs).program

    def observe(self, inputs: Mapping[str, np.ndarray], observer: Observer) -> list[Any]:
        """As ``run``, one step at a time, telling the observer of each."""
        target = self._for(inputs)
        assert target.executable is not None

        def note(index: int, step: Step | HostStep, seconds: float, view: Callable[[TensorView], np.ndarray]) -> None:
            flops, moved = (step.flops, step.bytes) if isinstance(step, Step) else (0, 0)

            def outputs() -> list[np.ndarray]:
                return [view(v) for v in step.outputs]

            observer(Observation(step.instruction, step.label, seconds, outputs, flops, moved))

        return grouped(target._trees, target.executable.run_traced(target.arrays(inputs), note))

    def idle(self, inputs: Mapping[str, np.ndarray]) -> None:
        """A run of the same inputs and outputs without its steps."""
        target = self._for(inputs)
        assert target.executable is not None
        if target._idle is None:
            plan = dataclasses.replace(target.executable.plan, steps=[], arena_bytes=0, constants=[])
            outputs = [o for o in plan.outputs if o.lens is not None]
            empty = dataclasses.replace(plan, outputs=outputs)
            target._idle = Executable(empty, num_threads=self._options.num_threads or None)
        target._idle.run(target.arrays(inputs))

    def trace(self, inputs: Mapping[str, np.ndarray], level: int, out: TextIO) -> list[Any]:
        """As ``run``, one step at a time, printing each as MIGraphX's ``MIGRAPHX_TRACE_EVAL`` does."""
        target = self._for(inputs)
        assert target.executable is not None
        total = 0.0

        def show(index: int, step: Step | HostStep, seconds: float, view: Callable[[TensorView], np.ndarray]) -> None:
            nonlocal total
            total += seconds
            outputs = [view(v) for v in step.outputs]
            write_trace(out, f"{step.instruction} [{step.label}]", seconds, total, outputs, level)

        return grouped(target._trees, target.executable.run_traced(target.arrays(inputs), show))

    def kernels(self) -> list[KernelSource]:
        """The distinct kernels, in order of first use; the origin of each has all instructions that run it."""
        origins: dict[KernelSource, dict[str, None]] = {}
        for program in (self, *list(self._specialized.values())):
            for step in program.executable.plan.steps if program.executable is not None else ():
                if isinstance(step, Step):
                    origin = step.kernel.origin or step.instruction
                    for kernel in (step.kernel, *(a for a in step.args if isinstance(a, KernelSource))):
                        origins.setdefault(kernel, {})[kernel.origin or origin] = None
        return [dataclasses.replace(kernel, origin="\n".join(texts)) for kernel, texts in origins.items()]

    def machine_code(self) -> dict[str, Any]:
        """The objects of all kernels that the program has by now, as `EmbeddedStore` reads them; what no store holds
        is compiled."""
        from ...codegen.embedding import embed  # late: few programs are saved with their code

        return embed([*self.kernels(), *EXECUTOR_KERNELS], self._options.store)


def _tune(tuning: Tuning) -> int:
    from .tuning import tune  # late: a compilation that measures nothing needs none of it

    return tune(tuning)
