"""Steps of a program that is compiled for a GPU by the time that each takes alone, beside their roofs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mgx_numba.targets.gpu.program import GpuProgram

__all__ = ["PEAKS", "SHOWN", "step_times", "table"]

PEAKS = {
    "int8": 1979e12, "fp8": 1979e12, "fp16": 989e12, "medium": 494e12, "high": 989e12 / 3, "highest": 67e12,
}  # fmt: skip
"""Operations a second of an H100 or H200 (data sheet, without sparsity), by element type or precision of float32."""
ROOFS = {"exact": "highest", "float32": "high", "default": "high", "bf16": "fp16"}
"""Which of `PEAKS` kernels of other kinds of networks are held to."""
SHOWN = 14
"""Groups of kernels that are printed."""


def step_times(compiled: GpuProgram, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each step takes on the device, alone and again and again, without what lies between two launches: label,
    seconds, flops, bytes, what it computes, and why it runs on the host, which is empty for a kernel."""
    plan = compiled.stages(inputs)[0].plan
    assert plan is not None
    return [
        {
            "label": step.label,
            "seconds": seconds,
            "flops": step.flops,
            "bytes": step.bytes,
            "what": step.instruction,
            "reason": step.reason,
        }
        for step, seconds in zip(plan.steps, compiled.step_seconds(inputs), strict=True)
    ]


def table(steps: list[dict[str, Any]], kind: str, rate: float, shown: int = SHOWN) -> list[str]:
    """Lines of so many groups of steps of one name and work, those that take most of the time first, each beside its
    roof: the least time that its bytes take at the copy's ``rate``, and its operations at the peak of the kind."""
    groups: dict[tuple[str, int, int], list[float]] = {}
    for step in steps:
        groups.setdefault((step["label"], step["flops"], step["bytes"]), []).append(step["seconds"])
    total = sum(step["seconds"] for step in steps)
    peak = PEAKS[ROOFS.get(kind, kind)]
    lines = []
    for (label, flops, moved), times in sorted(groups.items(), key=lambda g: -sum(g[1]))[:shown]:
        mean = float(np.mean(times))
        roof = max(flops / peak, moved / rate) / mean
        lines.append(
            f"    {len(times):3} x {1e6 * mean:8.1f} us {100 * sum(times) / total:5.1f}% {100 * roof:4.0f}% of the roof"
            f" {flops / 1e6:9.1f} MF {moved / 1e6:8.2f} MB  {label}"
        )
    return lines
