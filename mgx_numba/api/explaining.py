"""Implementation of ``program.explain``: how an instruction or a node of the model was compiled, and why; with advice
on making a slow step faster, derived only from the step reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from ..codegen.launch import Geometry, OneCall, TaskRange
from ..codegen.tuning.request import format_configuration
from ..dataclass import dataclass
from ..errors import OptionError
from ..graph.instruction import Instruction, Parameter, Return
from ..graph.passes.base import KERNEL_OPERATORS
from ..graph.printer import format_instruction, instruction_names
from ..graph.program import Program
from ..graph.rewrite_log import RewriteLog
from ..nearest import did_you_mean
from ..runtime.plan import PlannedStep, Step
from ..targets.base import Observation, Stage, stages_of, units_of
from ..targets.registry import target

if TYPE_CHECKING:
    from ..codegen.tuning.request import Estimate
    from ..codegen.tuning.session import Choice
    from ..runtime.limits import Limits
    from ..targets.base import Compiled
    from .compiled_form import CompiledForm
    from .portable import FileForm


ARITHMETIC, MEMORY = "the multiply-add units", "memory"
"""Names of the two resources that can bound a step (roofline model)."""

CLOSE = 1.3
"""Ratio to the best estimate below which the cost model's ranking is not trusted. In bench.choices its choices are 0.8%
slower than the best on average, and single choices up to about 30%."""
NEAR_LIMIT = 0.8
"""Fraction of a hardware limit from which a step counts as near that limit. Well written kernels reach 0.75 to 1, by
the readme's table."""
BRIEF_SECONDS = 5e-6
"""Time below which launching and ending a step, which take some microseconds, dominate the step's time."""
_OPEN_LENGTHS = "known at run time only"
_FAST_MATH = "fast_math"


def advice(steps: Sequence[StepReport], choice: Choice | None, estimates: Sequence[Estimate]) -> list[str]:
    """Return suggestions for an instruction's steps; an empty list if nothing is known to help."""
    return [*_of_host(steps), *_of_choice(choice, estimates), *_of_limits(steps)]


def _of_host(steps: Sequence[StepReport]) -> Iterator[str]:
    for step in steps:
        if _OPEN_LENGTHS in step.reason:
            yield "give the lengths that are open (map_input_dims, --input-dim): kernels need those of their operands"
        elif step.reason:
            yield "NumPy computes it, on one thread: the reason says what a kernel would need"


def _of_choice(choice: Choice | None, estimates: Sequence[Estimate]) -> Iterator[str]:
    if choice is None:
        return
    able = [e for e in estimates if e.seconds is not None]
    best = min((e.seconds for e in able if e.seconds is not None), default=0.0)
    close = [e.solver for e in able if e.seconds is not None and e.seconds < CLOSE * best]
    if choice.record is None and len(close) > 1:
        yield f"measure: estimates of {', '.join(close)} lie close together (exhaustive_tune, or the driver's tune)"
    elif choice.record is not None and choice.miss:
        yield "measure on this machine: the record is of another (exhaustive_tune=True, or the driver's tune)"
    barred = [e.solver for e in estimates if _FAST_MATH in e.refusal]
    if barred:
        yield f"fast_math=True would allow {', '.join(barred)}, which change rounding"


def _of_limits(steps: Sequence[StepReport]) -> Iterator[str]:
    timed = [s for s in steps if s.fraction is not None]
    if not timed:
        return
    longest = max(timed, key=lambda s: s.seconds or 0.0)
    assert longest.fraction is not None
    if (longest.seconds or 0.0) < BRIEF_SECONDS:
        yield "a step of some microseconds is mostly its start and end: larger batches have more work for each"
        return
    if not NEAR_LIMIT <= longest.fraction <= 1:
        return
    if longest.limit == MEMORY:
        yield "it is near what memory can do: fewer bytes help (quantize_fp16 or quantize_int8 of weights, more fusion)"
    else:
        yield "it is near what the multiply-add units can do: integers help (quantize_int8), or less work"


_SHOWN = 8  # most names that a message lists


_ABOVE = {MEMORY: "what it moves is in the caches", ARITHMETIC: "its method needs fewer operations than are counted"}
"""Explanation, by limit, of a fraction above 1."""


@dataclass(frozen=True)
class StepReport:
    """One step of a run.

    Attributes:
        label: description of the step, as in `Observation.label`.
        symbol: name of the kernel in the object store; empty for fallback steps.
        work: division of the work among tasks or thread blocks, in words.
        flops, bytes: operations, and the least number of bytes that must move; 0 if unknown.
        reason: why the step runs on the host; empty for kernels.
        seconds: median time; None if not measured.
        limit: the resource, arithmetic or memory, whose lower bound on the time is larger; empty if unknown.
        fraction: fraction of ``limit`` that was reached; None if not measured or unknown.
    """

    label: str
    symbol: str
    work: str
    flops: int
    bytes: int
    reason: str
    seconds: float | None = None
    limit: str = ""
    fraction: float | None = None

    def __str__(self) -> str:
        words = [self.label, *([self.work] if self.work else [])]
        if self.flops or self.bytes:
            words.append(f"{self.flops} operations, {self.bytes} bytes")
        if self.seconds is not None:
            words.append(f"{self.seconds * 1e3:.4g} ms")
        if self.fraction is not None:
            why = "" if self.fraction <= 1 else f" ({_ABOVE[self.limit]})"
            words.append(f"{self.fraction:.0%} of what {self.limit} can do{why}")
        return "; ".join(words) + (f"; on the host: {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class Explanation:
    """How one instruction of the compiled program runs, and why.

    Attributes:
        instruction: printed form of the instruction.
        nodes: nodes of the model that the instruction came from, if the program has their names.
        members: operations fused into the instruction, one to a line.
        steps: steps that compute the instruction.
        neighbours: instructions that produce its inputs and consume its result.
        refusals: rewrites that passes and lowering refused here, with reasons (why it was not fused with a neighbour).
        choice: the solver of a matrix product or a convolution, and its reason; None for other instructions.
        estimates: the cost model's estimates for all solvers.
        advice: suggestions for making it faster.
    """

    instruction: str
    nodes: tuple[str, ...]
    members: tuple[str, ...]
    steps: tuple[StepReport, ...]
    neighbours: tuple[str, ...]
    refusals: tuple[str, ...]
    choice: Choice | None
    estimates: tuple[Estimate, ...]
    advice: tuple[str, ...]

    def __str__(self) -> str:
        parts = [self.instruction]
        chosen = []
        if self.choice is not None:
            values = format_configuration(self.choice.configuration)
            chosen = [f"{self.choice.solver}{values}, by {self.choice.origin}"]
            chosen += [self.choice.miss] if self.choice.miss else []
        for title, lines in (
            ("nodes of the model", self.nodes),
            ("fused in it", self.members),
            ("runs as", self.steps or ["nothing: it is a view, or is computed where it is used"]),
            ("beside", self.neighbours),
            ("refused", self.refusals),
            ("solver", chosen),
            ("the cost model says", self.estimates),
            ("what could be done", self.advice),
        ):
            if lines:
                parts += [f"  {title}:", *(f"    {line}" for line in lines)]
        return "\n".join(parts)


def explanations(
    form: CompiledForm,
    file: FileForm,
    portable: Program,
    name: str,
    checked: Callable[[], dict[str, Any]] | None,
    iterations: int = 0,
) -> list[Explanation]:
    """Return an explanation of every instruction that ``name`` matches; see `program.explain`.

    Args:
        form: the compiled form.
        file: options of the compilation.
        portable: the portable form.
        checked: returns the checked inputs of a run; None if there are none.
    """
    if not isinstance(name, str) or not isinstance(iterations, int) or iterations < 0:
        raise OptionError(f"explain needs a name and iterations from 0 on, got {name!r}, {iterations!r}")
    compiled, shapes = form.compiled, form.parameters
    needed = [key for key, s in shapes.items() if s.is_dynamic or iterations]
    if checked is None and needed:
        why = "iterations are measured" if iterations else "their lengths are open"
        raise OptionError(f"explain needs params for {', '.join(needed)}: {why}")
    if checked is None:
        inputs = {key: np.zeros(s.lens, s.type.numpy) for key, s in shapes.items()}
    else:
        inputs = checked()
    stages = stages_of(compiled, inputs)
    if len(stages) > 1 and checked is None:
        raise OptionError("explain needs params: lengths inside of the program depend on the values of its inputs")
    names, tuning = _Names(stages), form.tuning
    texts = {ins: names.place(ins) for ins in _matching(name, portable, names)}
    threads = file.options.num_threads if file.options is not None else 0
    limits = target(form.target.name()).limits(threads, units_of(stages)) if iterations else None
    reports = _reports(compiled, stages, inputs, limits, iterations)
    if not reports.keys().isdisjoint(texts.values()):  # leave out views if a match runs a step
        texts = {ins: place for ins, place in texts.items() if place in reports}
    log = compiled.rewrite_log()
    found = []
    for ins, (number, text) in texts.items():
        steps = reports.get((number, text), [])
        known = tuning.choice_of(text) if tuning is not None else None
        choice, estimates = known if known is not None else (None, [])
        found.append(
            Explanation(
                instruction=text if number == 0 else f"{text}, in stage {number + 1}",
                nodes=ins.debug_symbols,
                members=tuple(format_instruction(i, dict(names)) for i in _body(ins)),
                steps=tuple(steps),
                neighbours=tuple(_neighbours(ins, names)),
                refusals=tuple(_refusals(log, ins)),
                choice=choice,
                estimates=tuple(estimates),
                advice=tuple(advice(steps, choice, estimates)),
            )
        )
    return found


class _Names(dict[Instruction, str]):
    """Printed name of every instruction of all stages, and the stage number of each instruction of a main module."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__()
        self._numbers: dict[Instruction, int] = {}
        for number, stage in enumerate(stages):
            self.update(instruction_names(stage.program.reachable_modules()))
            self._numbers.update(dict.fromkeys(stage.program.main, number))

    def computed(self) -> list[Instruction]:
        """Return the instructions of the main modules except parameters, literals and returns."""
        return [i for i in self._numbers if not isinstance(i.op, (Parameter, Return)) and i.literal is None]

    def place(self, ins: Instruction) -> tuple[int, str]:
        """Return the stage number and the printed form of an instruction of a main module."""
        return self._numbers[ins], format_instruction(ins, self)


def _matching(name: str, portable: Program, names: _Names) -> list[Instruction]:
    main = names.computed()
    tests: tuple[Callable[[Instruction], bool], ...] = (
        lambda ins: name in ins.debug_symbols,
        lambda ins: name in (names[ins], format_instruction(ins, names)),
        lambda ins: ins.name == name or any(i.name == name for i in _body(ins)),
    )
    for test in tests:
        found = [ins for ins in main if test(ins)]
        if found:
            return found
    gone = [ins for ins in portable.main if name in ins.debug_symbols or ins.name == name]
    if gone:
        raise OptionError(f"explain: nothing of {name!r} is left in the compiled program: it was folded or removed")
    symbols = dict.fromkeys(s for ins in main for s in ins.debug_symbols)
    known = [
        *symbols,
        *(names[ins] for ins in main),
        *dict.fromkeys(i.name for ins in main for i in (ins, *_body(ins))),
    ]
    hint = did_you_mean(name, known)
    listed = list(symbols) or [names[ins] for ins in main]
    shown = ", ".join(listed[:_SHOWN]) + (", ..." if len(listed) > _SHOWN else "")
    kind = "nodes" if symbols else "instructions"
    raise OptionError(f"explain: no node, instruction or operator is called {name!r}{hint} ({kind}: {shown or 'none'})")


def _body(ins: Instruction) -> list[Instruction]:
    """Return the operations that an instruction's fused kernel computes."""
    if ins.name not in KERNEL_OPERATORS:
        return []
    return [i for module in ins.module_args for i in module if not i.name.startswith("@")]


def _neighbours(ins: Instruction, names: Mapping[Instruction, str]) -> list[str]:
    makers = [i for i in dict.fromkeys(ins.inputs) if i.literal is None]
    lines = [f"takes {format_instruction(i, dict(names))}" for i in makers]
    return lines + [f"is taken by {format_instruction(i, dict(names))}" for i in ins.users]


def _refusals(log: RewriteLog, ins: Instruction) -> list[str]:
    """Return the refusals at an instruction or its fused operations, and fusion refusals at its neighbours."""
    own = [ins, *_body(ins)]
    near = [other for i in (*ins.inputs, *ins.users) if i.literal is None for other in (i, *_body(i))]
    found: dict[str, None] = {}
    for refusal in log.refusals():
        places = [*own, *near] if refusal.rule.startswith("fuse_") else own
        if any(_is_of(refusal.nodes, i, ins) and refusal.op == i.op and refusal.shape == i.shape for i in places):
            found[str(refusal)] = None
    return list(found)


def _is_of(nodes: Sequence[str], place: Instruction, ins: Instruction) -> bool:
    """Return whether a refusal at ``nodes`` may belong to ``place``; True where node names are unknown."""
    known = place.debug_symbols or ins.debug_symbols
    return not nodes or not known or not set(nodes).isdisjoint(known)


def _reports(
    compiled: Compiled,
    stages: Sequence[Stage],
    inputs: Mapping[str, np.ndarray],
    limits: Limits | None,
    iterations: int,
) -> dict[tuple[int, str], list[StepReport]]:
    """Return the reports of the steps that compute each instruction, by stage number and printed form.

    A program that runs without a plan is run once to observe its steps.
    """
    planned = [(k, step) for k, stage in enumerate(stages) if stage.plan is not None for step in stage.plan.steps]
    samples: list[list[Observation]] = []
    for _ in range(iterations if planned else max(1, iterations)):
        seen: list[Observation] = []
        compiled.observe(inputs, seen.append)
        samples.append(seen)
    seconds = [median(one.seconds for one in same) for same in zip(*samples)] if iterations else []
    steps: Sequence[tuple[int, PlannedStep | Observation]] = planned or [(0, one) for one in samples[0]]
    found: dict[tuple[int, str], list[StepReport]] = {}
    for number, (stage, step) in enumerate(steps):
        report = _report(step, seconds[number] if seconds else None, limits)
        found.setdefault((stage, step.instruction), []).append(report)
    return found


def _report(step: PlannedStep | Observation, seconds: float | None, limits: Limits | None) -> StepReport:
    if not isinstance(step, Step):
        return StepReport(step.label, "", "", 0, 0, step.reason, seconds)
    limit, fraction = "", None
    if limits is not None and seconds and (step.flops or step.bytes):
        by_arithmetic, by_memory = step.flops / (limits.rate(step.unit) * 1e9), step.bytes / (limits.gbytes * 1e9)
        limit = MEMORY if by_memory > by_arithmetic else ARITHMETIC
        fraction = max(by_arithmetic, by_memory) / seconds
    work = _work(step.geometry)
    return StepReport(step.label, step.kernel.symbol, work, step.flops, step.bytes, "", seconds, limit, fraction)


def _work(geometry: Geometry) -> str:
    if isinstance(geometry, TaskRange):
        return f"{geometry.tasks} tasks, {geometry.grain} at a time"
    if isinstance(geometry, OneCall):
        return "a library's call"
    return f"{'x'.join(map(str, geometry.blocks))} blocks of {'x'.join(map(str, geometry.threads))} threads"
