"""Content of the HTML page, as a tree of JSON values."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from ..._version import __version__
from ...api.program import program
from ...codegen.tuning.request import format_configuration
from ...graph.instruction import Instruction, Return
from ...graph.passes.base import KERNEL_OPERATORS
from ...graph.printer import format_instruction, instruction_names, program_lines
from ...graph.program import Program
from ...runtime.plan import Plan, Step, Use
from ...targets.base import Stage
from ...targets.registry import target
from ..batches import Batch
from ..measure import Measurement, StepTime

FORMAT = 1
"""Version of the JSON format; pages can be compared if their versions are equal."""

_KINDS = {
    "contraction": (
        "dot convolution convolution_backwards quant_dot quant_convolution quant_convolution_backwards"
        " deformable_convolution"
    ).split(),
    "attention": ["attention"],
    "recurrent": "lstm gru rnn".split(),
    "rows": "fused_reduce split_fused_reduce softmax logsoftmax argmax argmin topk".split(),
    "pointwise": ["pointwise"],
}
"""Operators by kind of kernel; all other operators move data."""


def page_data(model: program, measured: Measurement, batch: Batch, title: str) -> dict[str, object]:
    """Return the page's content for a measured program: times in seconds, sizes in bytes.

    ``machine`` is empty and ``limits`` None if the target does not know them, for instance of a substituted engine.
    """
    compiled, chosen = model.compiled, model.compile_target
    assert compiled is not None and chosen is not None
    plans = [stage.plan for stage in measured.stages if stage.plan is not None]
    kernels = {kernel: number for number, kernel in enumerate(compiled.kernels())}
    ran = [kernels.get(step.kernel, -1) if isinstance(step, Step) else -1 for plan in plans for step in plan.steps]
    if not plans:
        ran = [-1] * len(measured.steps)
    graph = _Graph(measured.stages, measured.steps)
    for choice in model.tuning_choices():
        solver = f"{choice.solver}{format_configuration(choice.configuration)}, chosen by {choice.origin}"
        for (_, line), place in graph.places.items():
            if line in choice.instructions:
                graph.instructions[place]["solver"] = solver
    options = dataclasses.asdict(model.compile_options) if model.compile_options is not None else {}
    machine = target(chosen.name()).machine(options.get("device_id", 0))
    return {
        "format": FORMAT,
        "title": title,
        "version": __version__,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "target": chosen.name(),
        "machine": dict(machine or {}),
        "options": {k: v for k, v in options.items() if isinstance(v, (bool, int, float, str)) and v != ""},
        "batch": {"size": batch.size, "origin": batch.origin},
        "limits": None if measured.limits is None else dataclasses.asdict(measured.limits),
        "total": measured.total,
        "idle": measured.idle,
        "steps": [_step(step, kernel, graph) for step, kernel in zip(measured.steps, ran, strict=True)],
        "kernels": [{"name": k.name, "symbol": k.symbol, "text": k.text} for k in kernels],
        "instructions": graph.instructions,
        "inputs": graph.parameters,
        "nodes": _nodes(model.portable),
        "memory": _memory(plans) if plans else None,
    }


def _memory(plans: Sequence[Plan]) -> dict[str, object]:
    """Return sizes and uses of the stages' arenas, laid out one after the other, since all are allocated at once."""
    arena, step = 0, 0
    uses: list[Use] = []
    for plan in plans:
        uses += [Use(u.offset + arena, u.bytes, u.first + step, u.last + step) for u in plan.uses]
        arena += plan.arena_bytes
        step += len(plan.steps)
    constants = sum(array.nbytes for plan in plans for array in plan.constants)
    return {"arena": arena, "constants": constants, "uses": [dataclasses.asdict(use) for use in uses]}


def _step(step: StepTime, kernel: int, graph: _Graph) -> dict[str, object]:
    return {
        "instruction": graph.places.get((step.stage, step.instruction), -1),
        "label": step.label,
        "kernel": kernel,
        "seconds": step.average,
        "flops": step.flops,
        "bytes": step.bytes,
        "unit": step.unit,
        "sizes": step.sizes,
        "reason": step.reason,
    }


class _Graph:
    """The data flow graph of the instructions that steps compute, and of the parameters.

    Edges skip views and literals, and connect values that one stage passes to the next. ``places`` maps stage number
    and printed form to the position of an instruction.
    """

    def __init__(self, stages: Sequence[Stage], steps: list[StepTime]) -> None:
        self.places: dict[tuple[int, str], int] = {}
        self.parameters: list[dict[str, str]] = []
        self.instructions: list[dict[str, object]] = []
        self._sources: dict[Instruction, int] = {}
        self._known: dict[Instruction, list[int]] = {}
        inputs: dict[str, int] = {}  # which stages may share
        for number, stage in enumerate(stages):
            served = {step.instruction for step in steps if step.stage == number}
            main, names = stage.program.main, instruction_names(stage.program.reachable_modules())
            for parameter in main.parameters():
                if names[parameter] in stage.passed:
                    result = stages[number - 1].program.main.results()[stage.passed[names[parameter]]]
                    self._known[parameter] = self._source(result)
                else:
                    name = names[parameter]
                    self._sources[parameter] = inputs.setdefault(name, -1 - len(self.parameters))
                    if len(inputs) > len(self.parameters):
                        self.parameters.append({"name": name, "shape": str(parameter.shape)})
            for line, ins in program_lines(stage.program):
                if ins is not None and ins.module is main and line in served and not isinstance(ins.op, Return):
                    shown = self._instruction(ins, line, names)
                    if number:
                        shown["name"] += f" of stage {number + 1}"
                    self._sources[ins] = self.places[number, line] = len(self.instructions)
                    self.instructions.append(shown)

    def _instruction(self, ins: Instruction, line: str, names: dict[Instruction, str]) -> dict[str, Any]:
        fused = ins.name in KERNEL_OPERATORS
        body = [i for m in ins.module_args for i in m if not i.name.startswith("@")] if fused else []
        return {
            "text": line,
            "name": names[ins],
            "operators": [i.name for i in body] or [ins.name],
            "members": [format_instruction(i, names) for i in body],
            "nodes": list(ins.debug_symbols),
            "shape": str(ins.shape),
            "kind": _kind(ins, body),
            "inputs": list(dict.fromkeys(s for i in ins.dependencies for s in self._source(i))),
        }

    def _source(self, ins: Instruction) -> list[int]:
        """Return the graph's instructions or parameters (-1 is the first, -2 the second) that a value is made from."""
        if ins in self._sources:
            return [self._sources[ins]]
        if ins not in self._known:
            self._known[ins] = []
            self._known[ins] = list(dict.fromkeys(s for i in ins.dependencies for s in self._source(i)))
        return self._known[ins]


def _kind(ins: Instruction, body: list[Instruction]) -> str:
    names = {ins.name, *(i.name for i in body)}
    known = next((kind for kind, members in _KINDS.items() if not names.isdisjoint(members)), None)
    return known or ("pointwise" if ins.op.pointwise else "data")


def _nodes(portable: Program) -> list[dict[str, str]]:
    """Return the nodes of the model by name, in order, each with the operators that it was parsed into."""
    operators: dict[str, list[str]] = {}
    for ins in portable.main:
        for symbol in ins.debug_symbols if ins.literal is None else ():
            operators.setdefault(symbol, []).append(ins.name)
    return [{"name": name, "operators": ", ".join(dict.fromkeys(found))} for name, found in operators.items()]
