"""What the page shows, as a value tree of JSON."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..._version import __version__
from ...api.program import program
from ...codegen.tuning.request import format_configuration
from ...graph.instruction import Instruction, Return
from ...graph.passes.base import KERNEL_OPERATORS
from ...graph.printer import format_instruction, instruction_names, program_lines
from ...graph.program import Program
from ...runtime.plan import Plan, Step
from ...targets.base import Planned
from ...targets.registry import target
from ..measure import Measurement, StepTime
from ..rebatch import Batch

__all__ = ["FORMAT", "page_data"]

FORMAT = 1
"""Of the value tree: a page is compared with another of the same."""

_KINDS = {
    "contraction": "dot convolution convolution_backwards quant_dot quant_convolution deformable_convolution".split(),
    "attention": ["attention"],
    "recurrent": "lstm gru rnn".split(),
    "rows": "fused_reduce split_fused_reduce softmax logsoftmax argmax argmin topk".split(),
    "pointwise": ["pointwise"],
}
"""Operators by what their kernels are like; all others move data."""


def page_data(
    model: program, measured: Measurement, batch: Batch, inputs: Mapping[str, np.ndarray], title: str
) -> dict[str, Any]:
    """All of one measured program: times in seconds, sizes in bytes."""
    compiled, chosen = model._compiled, model._target
    assert compiled is not None and chosen is not None
    plan = compiled.plan(model._checked(inputs)) if isinstance(compiled, Planned) else None
    kernels = {kernel: number for number, kernel in enumerate(compiled.kernels())}
    if plan is not None and len(plan.steps) == len(measured.steps):
        ran = [kernels.get(step.kernel, -1) if isinstance(step, Step) else -1 for step in plan.steps]
    else:  # a program in stages: several plans
        by_name = {f"{kernel.backend}::{kernel.name}": number for kernel, number in kernels.items()}
        ran, plan = [by_name.get(step.label, -1) for step in measured.steps], None
    graph = _Graph(measured.program, measured.steps)
    for choice in model.tuning_choices():
        solver = f"{choice.solver}{format_configuration(choice.configuration)}, chosen by {choice.origin}"
        for line in choice.instructions:
            if line in graph.places:
                graph.instructions[graph.places[line]]["solver"] = solver
    options = dataclasses.asdict(model._options) if model._options is not None else {}
    return {
        "format": FORMAT,
        "title": title,
        "version": __version__,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "target": chosen.name(),
        "machine": dict(target(chosen.name()).machine() or {}),
        "options": {k: v for k, v in options.items() if isinstance(v, (bool, int, float, str)) and v != ""},
        "batch": {"size": batch.size, "origin": batch.origin},
        "limits": None if measured.limits is None else dataclasses.asdict(measured.limits),
        "total": measured.total,
        "idle": measured.idle,
        "steps": [_step(step, kernel, graph) for step, kernel in zip(measured.steps, ran)],
        "kernels": [{"name": k.name, "symbol": k.symbol, "text": k.text} for k in kernels],
        "instructions": graph.instructions,
        "inputs": graph.parameters,
        "nodes": _nodes(model._portable),
        "memory": None if plan is None else _memory(plan),
    }


def _memory(plan: Plan) -> dict[str, Any]:
    constants = sum(array.nbytes for array in plan.constants)
    return {"arena": plan.arena_bytes, "constants": constants, "uses": [dataclasses.asdict(u) for u in plan.uses]}


def _step(step: StepTime, kernel: int, graph: _Graph) -> dict[str, Any]:
    return {
        "instruction": graph.places.get(step.instruction, -1),
        "label": step.label,
        "kernel": kernel,
        "seconds": step.average,
        "flops": step.flops,
        "bytes": step.bytes,
        "sizes": step.sizes,
        "reason": step.reason,
    }


class _Graph:
    """The instructions that steps serve, and from which of them, or of the parameters, their inputs come.

    Views and literals are passed through. ``places`` has the position of each printed instruction.
    """

    def __init__(self, shown: Program, steps: list[StepTime]) -> None:
        served = {step.instruction for step in steps}
        names = instruction_names(shown.reachable_modules())
        lines = {ins: line for line, ins in program_lines(shown) if ins is not None and ins.module is shown.main}
        kept = [ins for ins, line in lines.items() if line in served and not isinstance(ins.op, Return)]
        self.places = {lines[ins]: k for k, ins in enumerate(kept)}
        self.parameters = [{"name": names[p], "shape": str(p.shape)} for p in shown.main.parameters()]
        self._sources = {ins: k for k, ins in enumerate(kept)}
        self._sources |= {p: -1 - k for k, p in enumerate(shown.main.parameters())}
        self._known: dict[Instruction, list[int]] = {}
        self.instructions = [self._instruction(ins, lines[ins], names) for ins in kept]

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
        """The kept instructions, or parameters, that a value is of: -1 is the first parameter."""
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
    """Nodes of the model by name, in order, each with the operators that it was read as."""
    operators: dict[str, list[str]] = {}
    for ins in portable.main:
        for symbol in ins.debug_symbols if ins.literal is None else ():
            operators.setdefault(symbol, []).append(ins.name)
    return [{"name": name, "operators": ", ".join(dict.fromkeys(found))} for name, found in operators.items()]
