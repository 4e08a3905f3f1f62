"""Print the evaluation trace, in the format of MIGraphX's ``MIGRAPHX_TRACE_EVAL``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

import numpy as np

from .base import Observation, Observer

PREVIEW = 5  # elements from each end


def traced(observe: Callable[[Observer], list[object]], level: int, out: TextIO) -> list[object]:
    """Write an entry for each step that ``observe`` reports, and return the results of ``observe``."""
    total = 0.0

    def show(seen: Observation) -> None:
        nonlocal total
        total += seen.seconds
        reason = f" (on the host: {seen.reason})" if seen.reason else ""
        write_trace(out, f"{seen.instruction} [{seen.label}]{reason}", seen.seconds, total, seen.outputs(), level)

    return observe(show)


def write_trace(out: TextIO, instruction: str, seconds: float, total: float, value: object, level: int) -> None:
    """Write one instruction's entry.

    Level 1 has the instruction and its time. Level 2 adds the classes of floating-point values, the first and last five
    elements, and statistics. Level 3 has all elements.
    """
    out.write(f"Run instruction: {instruction}\n")
    out.write(f"Time: {seconds * 1e3:.6g}ms, {total * 1e3:.6g}ms\n")
    if level < 2:
        return
    for array in value if isinstance(value, (tuple, list)) else [value]:
        out.write(describe_output(np.asarray(array), full=level > 2))


def describe_output(array: np.ndarray, full: bool = False) -> str:
    """Return the classes of numbers in an output, its elements (a preview unless ``full``) and statistics."""
    flat = array.ravel()
    wide = flat.astype(np.float64)
    shown = flat.tolist() if full or flat.size <= 2 * PREVIEW else None
    if shown is None:
        head, tail = (", ".join(f"{x:.6g}" for x in part) for part in (wide[:PREVIEW], wide[-PREVIEW:]))
        elements = f"{head}, ..., {tail}"
    else:
        elements = ", ".join(f"{x:.6g}" for x in wide)
    lines = [f"Output has {', '.join(_kinds(array)) or 'nothing'}", f"Output: {elements}"]
    if flat.size:
        with np.errstate(all="ignore"):
            lines.append(
                f"Min value: {wide.min():.6g}, Max value: {wide.max():.6g}, "
                f"Mean: {wide.mean():.6g}, StdDev: {wide.std():.6g}"
            )
    return "\n".join(lines) + "\n"


def _kinds(array: np.ndarray) -> list[str]:
    if not array.size:
        return []
    wide = array.astype(np.float64)
    zero, nan, infinite = wide == 0, np.isnan(wide), np.isinf(wide)
    kinds = []
    if (~zero & ~nan & ~infinite).any():
        kinds.append("normal")
    for name, mask in (("zero", zero), ("inf", infinite), ("nan", nan)):
        if mask.any():
            kinds.append(name)
    return kinds
