"""Time of each kernel call of a compiled model, with its operations and bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mgx_numba.targets.base import Observation

__all__ = ["KINDS", "StepTime", "kind_of", "step_times"]

KINDS: dict[str, str] = {
    "winograd": r"winograd",
    "contraction": r"gemm|gemv|conv|depthwise|dot",
    "attention": r"attention",
    "recurrent": r"^(lstm|gru|rnn|recurrent)_",
    "rows": r"reduce|softmax|norm|lrn|arg(max|min)",
    "data": r"gather|scatter|pool|resize|pad|transpose|interleave|copy|concat|topk|pack|slice|nonmax",
    "pointwise": r"",
}
"""Kinds of kernels by patterns of their names; the first match counts."""

WARM_RUNS = 2


@dataclass(frozen=True)
class StepTime:
    """One step of a plan. ``flops`` and ``bytes`` come from the plan; both are 0 for a step on the host."""

    model: str
    kernel: str
    kind: str
    instruction: str
    seconds: float
    flops: int
    bytes: int

    def record(self) -> dict[str, Any]:
        return asdict(self)


def kind_of(kernel: str) -> str:
    """Return the kind of a kernel by its name; ``host`` for a step that runs in Python."""
    if kernel.startswith("ref::"):
        return "host"
    name = kernel.partition("::")[2] or kernel
    return next(kind for kind, pattern in KINDS.items() if re.search(pattern, name))


def step_times(model: str, program: Any, feeds: Mapping[str, np.ndarray], iterations: int = 15) -> list[StepTime]:
    """Return the median seconds of each step of a compiled ``mgx_numba.program`` with fixed input shapes."""
    runs: list[list[Observation]] = []
    for _ in range(WARM_RUNS + iterations):
        runs.append([])
        program.compiled.observe(feeds, runs[-1].append)
    medians = np.median([[step.seconds for step in run] for run in runs[WARM_RUNS:]], axis=0)
    return [
        StepTime(
            model=model,
            kernel=step.label,
            kind=kind_of(step.label),
            instruction=step.instruction,
            seconds=float(seconds),
            flops=step.flops,
            bytes=step.bytes,
        )
        for step, seconds in zip(runs[0], medians, strict=True)
    ]
