"""Steps before their buffers have addresses, and their conversion to steps of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from ...codegen.kernel import KernelSource
from ...codegen.launch import Callee, Launch, Mark, Operand, TensorMap
from ...codegen.problems.cluster import CopyProblem, PointwiseProblem, ReductionProblem
from ...core.dim import Dim
from ...dataclass import dataclass
from ...graph.instruction import Instruction
from ...runtime.plan import (
    ControlStep,
    DeviceFunction,
    FallbackStep,
    Jump,
    MappedTensor,
    Plan,
    PlannedBranch,
    PlannedStep,
    Pointer,
    Region,
    Repetition,
    Step,
    TensorView,
)
from .buffers import View
from .function_call import FunctionCall


@dataclass
class PendingStep:
    """A step whose buffers have no addresses yet."""

    launch: Launch | None
    operands: dict[str, View]
    label: str
    instruction: Instruction
    host: Callable[[list], list] | None = None
    inputs: list[View] = field(default_factory=list)
    outputs: list[View] = field(default_factory=list)
    plans: tuple[Plan, ...] = ()
    reason: str = ""
    """For a fallback step: the rule that refused a kernel, and why."""
    kernels: tuple[KernelSource, ...] = ()
    on_device: DeviceFunction | None = None
    control: Callable[[], PlannedBranch | Repetition] | None = None
    """For a step that runs plans: returns its branch or loop, once its buffers have addresses."""
    problem: PointwiseProblem | ReductionProblem | CopyProblem | None = None
    """For a step that computes a cluster, or copies: its problem."""
    bind: Callable[[Mapping[Dim, int]], Callable[[list], list]] | None = None
    """For a fallback step with symbolic lengths: returns its function for values of the symbols."""
    write: Callable[[Any], Any] | None = None
    """For a fallback step: see `FallbackStep`."""
    checked_by: tuple[Instruction, ...] = ()
    """The instruction of each of the launch's checks; empty: the step's."""

    @property
    def checks(self) -> tuple[tuple[str, str], ...]:
        """Return who checks, for messages, and what, for each of the launch's checks."""
        checks = () if self.launch is None else self.launch.checks
        by = self.checked_by or (self.instruction,) * len(checks)
        return tuple((ins.located(ins.name), what) for ins, what in zip(by, checks))


def function_step(
    label: str,
    ins: Instruction,
    call: FunctionCall,
    inputs: Sequence[View],
    output: View,
    reason: str,
) -> PendingStep:
    """Return a fallback step that calls a function."""
    step = PendingStep(None, {}, label, ins, call, list(inputs), [output], reason=reason)
    step.write = call.write
    return step


def name_results(step: PendingStep, ins: Instruction, value: Any) -> None:
    """Make the results of an instruction the outputs of its last step, for traces, if no operand is called output."""
    if step.instruction is not ins or step.launch is None or any(map(is_output, step.operands)):
        return
    views = value if isinstance(value, (list, tuple)) else [value]
    if all(isinstance(v, View) and v.buffer.region is not Region.HOST and not v.shape.is_dynamic for v in views):
        step.outputs = list(views)


def is_output(operand: str) -> bool:
    """Return whether a launch writes an operand, by its name."""
    return operand.startswith("out")


@dataclass
class PendingJump:
    """A `Jump` between steps: after step ``behind`` the run continues after step ``onto``."""

    by: PendingStep
    behind: PendingStep
    onto: PendingStep
    where: bool
    place: tuple[str, ...] = ()


def resolved_jumps(jumps: Sequence[PendingJump], steps: Sequence[PendingStep]) -> tuple[Jump, ...]:
    """Return the plan's jumps, with steps replaced by their numbers."""
    number = {id(step): k for k, step in enumerate(steps)}
    return tuple(
        Jump(number[id(j.by)], number[id(j.behind)] + 1, number[id(j.onto)] + 1, j.where, j.place) for j in jumps
    )


def resolved(step: PendingStep, number: int, text: Callable[[Instruction], str]) -> PlannedStep:
    """Return the plan's step for a step whose buffers have addresses.

    Args:
        number: number of the step in its plan, from 1: kernels report it with faults.
        text: returns an instruction's printed text.
    """
    if step.control is not None:
        return ControlStep(
            control=step.control(),
            inputs=tuple(v.plan_view() for v in step.inputs),
            outputs=tuple(v.plan_view() for v in step.outputs),
            label=step.label,
            instruction=text(step.instruction),
            plans=step.plans,
        )
    if step.launch is None:
        assert step.host is not None
        return FallbackStep(
            function=step.host,
            inputs=tuple(_plan_view(v) for v in step.inputs),
            outputs=tuple(_plan_view(v) for v in step.outputs),
            label=step.label,
            instruction=text(step.instruction),
            plans=step.plans,
            reason=step.reason,
            kernels=step.kernels,
            on_device=step.on_device,
            bind=step.bind,
            write=step.write,
        )
    launch = step.launch
    args: list[Any] = list(launch.args)
    operands = step.operands
    for slot, arg in launch.unplaced:
        if isinstance(arg, Operand):
            args[slot] = operands[arg.name].pointer(arg.offset)
        elif isinstance(arg, TensorMap):
            args[slot] = MappedTensor(operands[arg.operand.name].pointer(arg.operand.offset), arg.layout)
        elif isinstance(arg, Callee):
            args[slot] = arg.kernel
        elif isinstance(arg, Mark):
            args[slot] = Pointer(Region.FAULT) if arg is Mark.FAULT else number
        elif not isinstance(arg, Dim):
            args[slot] = int(arg)
    return Step(
        kernel=launch.kernel,
        args=tuple(args),
        geometry=launch.geometry,
        label=step.label,
        instruction=text(step.instruction),
        flops=launch.flops,
        bytes=launch.bytes,
        outputs=tuple(
            [v.plan_view() for n, v in operands.items() if is_output(n)] or [v.plan_view() for v in step.outputs]
        ),
        checks=step.checks,
    )


def referenced(steps: Sequence[PendingStep]) -> set[int]:
    """Return the numbers of the constants that steps refer to."""
    used: set[int] = set()
    for step in steps:
        views = [*step.inputs, *step.outputs]
        if step.launch is not None:
            views += [step.operands[name] for name in step.launch.operands]
        used.update([view.buffer.index for view in views if view.buffer.region is Region.CONSTANT])
    return used


def _plan_view(view: View) -> TensorView:
    if view.buffer.region is Region.HOST or view.shape.is_dynamic:
        return TensorView(view.pointer(), view.type.dtype_name, (), ())
    return view.plan_view()
