"""Steps of a program compiled for a GPU, by the time of each alone, against their roofs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mgx_numba.targets.gpu.program import GpuProgram

__all__ = ["PEAKS", "SHOWN", "step_times", "table"]

PEAKS = {
    "int8": 1979e12, "fp8": 1979e12, "fp16": 989e12, "medium": 494e12, "high": 989e12 / 3, "highest": 67e12,
}  # fmt: skip
"""Operations per second of an H100 or H200 (data sheet, without sparsity), by element type or precision of float32."""
ROOFS = {"exact": "highest", "float32": "high", "default": "high", "bf16": "fp16"}
"""Key of `PEAKS` for other kinds of networks."""
SHOWN = 14
"""Number of printed groups of kernels."""


def step_times(compiled: GpuProgram, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the time of each step on the device, repeated alone, without the gaps between launches.

    Each entry has label, seconds, flops, bytes, the computation, and why it runs on the host (empty for a kernel).
    """
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
    """Return lines for the ``shown`` slowest groups of steps of equal name and work, each with its roof.

    The roof is the larger of two times: its bytes at the copy's ``rate``, and its operations at the peak of the kind.
    """
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
