"""The inputs of a lowering, a `LoweringJob` and its `Resources`, and its output under construction, a `Draft`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ...codegen.backend import Backend, LoadKernels
from ...codegen.kernel import KernelSource
from ...core.dim import Dim, Scope
from ...dataclass import dataclass
from ...graph.program import Program
from ..options import TargetOptions
from ..ref.interpreter import RunProgram
from .buffers import Buffer, View
from .rules import RuleTable
from .shared_weights import SharedWeights
from .solutions import Solutions
from .steps import PendingJump, PendingStep

if TYPE_CHECKING:
    from ...codegen.launch import Launch
    from ...codegen.tuning.request import Candidate, Request
    from .lowering import Lowering


@dataclass(frozen=True)
class Resources:
    """Resources that a plan may use. The plans of submodules use the same resources.

    Attributes:
        rules: lowering rules of the target.
        backend: plans problems and compiles kernels.
        threads: number of threads, or other workers, that share the plan's steps.
        on_kernels: called with the kernels of each planned step; None: nothing is called.
        load: loads kernels that pack weights; None: as the back end does.
        compile_body: compiles a body whose lengths become known when it runs; None: such bodies run by their NumPy
        meaning.
        compile_node: compiles the program of a deferred node; returns a function that runs it on arrays by parameter
            name. None: such programs run by their NumPy meaning.
        finish: returns the launch for a step of the plan; None: as it was planned.
        solutions: solutions of problems planned before.
        planner: what solutions depend on besides problems, so that they are kept for other programs; None: they are
            not kept.
        join: joins steps of a plan without jumps; takes the steps, and those that copy caches. None: nothing is joined.
    """

    rules: RuleTable
    backend: Backend
    threads: int
    on_kernels: Callable[[Sequence[KernelSource]], None] | None = None
    load: LoadKernels | None = None
    compile_body: Callable[..., Any] | None = None
    compile_node: Callable[[Program], RunProgram] | None = None
    finish: Callable[[Launch], Launch] | None = None
    solutions: Solutions = field(default_factory=Solutions)
    planner: Hashable | None = None
    join: Callable[[Sequence[PendingStep], Sequence[PendingStep]], list[PendingStep]] | None = None


@dataclass(frozen=True)
class LoweringJob:
    """Purpose of a plan.

    Attributes:
        program: the optimised program.
        options: options of the compilation.
        scope: scope of the program's symbols; None for a program without symbols.
        weights: constants shared with plans for other lengths; None if there are no other plans.
        original: the program before the passes. Large literals that it does not have are freed once packed; None:
            nothing is freed.
        parent: lowering of the program that holds this program as a submodule; None otherwise.
    """

    program: Program
    options: TargetOptions
    scope: Scope | None = None
    weights: SharedWeights | None = None
    original: Program | None = None
    parent: Lowering | None = None


class Draft:
    """The parts of a plan under construction that lowering rules add, change and remove.

    Attributes:
        steps: the steps, in order.
        jumps: jumps between steps.
        requested: for each tuning request: the chosen candidate, its operands, and its range of steps.
        writers: for the target's rules: steps that wrote a buffer and could also write another form, by buffer.
        common: for the target's rules: values that the steps of several instructions read, by the rules' keys.
        finalizers: functions called when all steps exist.
        cache_copies: steps that copy a parameter to a result, and do nothing if both are the same memory.
        conditions: conditions on the lengths that the plan serves.
        freed: number of literals that were freed; if not 0, the lowered program is no longer complete.
    """

    def __init__(self) -> None:
        self.steps: list[PendingStep] = []
        self.jumps: list[PendingJump] = []
        self.requested: list[tuple[Request, Candidate, Mapping[str, View], int, int]] = []
        self.writers: dict[Buffer, Any] = {}
        self.common: dict[Hashable, View] = {}
        self.cache_copies: list[PendingStep] = []
        self.finalizers: list[Callable[[], None]] = []
        self.conditions: dict[Dim, None] = {}  # a dict: `in` on a list compares conditions, which adds guards
        self.freed = 0
