"""Plans and solutions as JSON values, with the texts of their kernels beside them.

Nothing is compiled: a kernel is its text, and what it is given are numbers and places.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.launch import Callee, Geometry, Launch, Mark, Operand, Solution, TaskRange
from mgx_numba.runtime.plan import FallbackStep, Plan, Pointer, Step, TensorView

__all__ = ["Record"]

DIGITS = 16
"""Hexadecimal digits of a hash, of which 64 bits are enough to tell some thousand kernels apart."""


class Record:
    """Plans by name, and the kernels that they launch, each once.

    Attributes:
        plans: JSON values by the name of what was planned.
        kernels: name and text of each kernel, by a hash of both.
    """

    def __init__(self) -> None:
        self.plans: dict[str, Any] = {}
        self.kernels: dict[str, list[str]] = {}

    def plan(self, plan: Plan) -> dict[str, Any]:
        """Return a plan as JSON: steps, arena, constants (by hash), parameters and outputs."""
        return {
            "steps": [self._step(step) for step in plan.steps],
            "arena_bytes": plan.arena_bytes,
            "constants": [[a.dtype.name, list(a.shape), _hash(_bits(a))] for a in plan.constants],
            "parameters": [[p.name, p.dtype, list(p.lens)] for p in plan.parameters],
            "outputs": [[o.dtype, None if o.lens is None else list(o.lens)] for o in plan.outputs],
            "parallel": plan.parallel,
        }

    def solution(self, solution: Solution) -> dict[str, Any]:
        """Return a back end's solution as JSON: launches and scratch memory."""
        return {"steps": [self._launch(launch) for launch in solution.launches], "scratch": solution.scratch}

    def _launch(self, launch: Launch) -> dict[str, Any]:
        return {
            "kernel": self._kernel(launch.kernel),
            "args": [self._word(arg) for arg in launch.args],
            "geometry": _geometry(launch.geometry),
            "work": [launch.flops, launch.bytes],
            "replaceable": list(launch.replaceable),
            "checks": list(launch.checks),
        }

    def _step(self, step: Step | FallbackStep) -> dict[str, Any]:
        shown = {"label": step.label, "outputs": [_view(view) for view in step.outputs]}
        if isinstance(step, FallbackStep):
            inputs = [_view(view) for view in step.inputs]
            return {"host": True, "inputs": inputs, "plans": [self.plan(plan) for plan in step.plans], **shown}
        return {
            "kernel": self._kernel(step.kernel),
            "args": [self._word(arg) for arg in step.args],
            "geometry": _geometry(step.geometry),
            "work": [step.flops, step.bytes],
            "checks": [list(check) for check in step.checks],
            **shown,
        }

    def _word(self, arg: int | Pointer | KernelSource | Operand | Callee | Mark) -> Any:
        if isinstance(arg, (KernelSource, Callee)):
            return {"kernel": self._kernel(arg.kernel if isinstance(arg, Callee) else arg)}
        if isinstance(arg, Pointer):
            return [arg.region.name, arg.index, arg.offset]
        if isinstance(arg, Operand):
            return [arg.name, arg.offset]
        return arg.value if isinstance(arg, Mark) else int(arg)

    def _kernel(self, kernel: KernelSource) -> str:
        content = [kernel.name, kernel.text]
        key = _hash("\0".join(content).encode())
        self.kernels[key] = content
        return key


def _geometry(geometry: Geometry) -> list[Any]:
    if isinstance(geometry, TaskRange):
        return [int(geometry.tasks), int(geometry.grain)]
    return [list(geometry.blocks), list(geometry.threads), geometry.shared_bytes]


def _view(view: TensorView) -> list[Any]:
    place = [view.pointer.region.name, view.pointer.index, view.pointer.offset]
    return [place, view.dtype, list(map(int, view.lens)), list(map(int, view.strides))]


def _bits(array: np.ndarray) -> Any:
    return repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array)


def _hash(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]
