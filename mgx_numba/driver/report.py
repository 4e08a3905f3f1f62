"""Performance report in the form of MIGraphX's ``perf_report``, with each kernel's rates and the machine's limits."""

from __future__ import annotations

from collections.abc import Iterable

from ..dataclass import dataclass
from ..graph.instruction import Return
from ..graph.printer import program_lines
from ..runtime.limits import Limits
from .batches import Batch
from .measure import Measurement, StepTime, average, percentile

ABOVE_LIMIT = (
    "GFLOP/s above the limit: operations count as the plain algorithm needs them; Winograd's and Strassen's methods "
    "need fewer.\n",
    "GB/s above the limit: the limit is that of memory; what fits into the caches moves faster.\n",
)
"""Explanations of rates above their limits, for operations and for bytes."""


def write_report(measured: Measurement, batch: Batch, detailed: bool = False) -> None:
    """Print the report; times are in milliseconds, and a run makes ``batch`` inferences."""
    total_steps = sum(step.average for step in measured.steps)
    _write_instructions(measured, total_steps)
    print("\nSummary:")
    for group in _grouped(measured.steps, detailed):
        share, each = _percent(group.seconds, total_steps), group.seconds / group.count
        print(f"{group.name}: {_ms(group.seconds)} / {group.count} = {_ms(each)}, {share}")
    if measured.limits is not None:
        _write_rates(_grouped(measured.steps, detailed), measured.limits)
    _write_totals(measured, batch, total_steps)


@dataclass
class _Group:
    name: str
    count: int = 0
    seconds: float = 0.0
    flops: int = 0
    bytes: int = 0
    unit: str = ""


def _grouped(steps: Iterable[StepTime], detailed: bool) -> list[_Group]:
    """Group steps by kernel (and size, if ``detailed``), the group of the longest time first."""
    groups: dict[str, _Group] = {}
    for step in steps:
        name = f"{step.label}({step.sizes})" if detailed else step.label
        group = groups.setdefault(name, _Group(name, unit=step.unit))
        group.count += 1
        group.seconds += step.average
        group.flops += step.flops
        group.bytes += step.bytes
    return sorted(groups.values(), key=lambda g: -g.seconds)


def _write_instructions(measured: Measurement, total: float) -> None:
    """Print the program's lines, stage by stage, with the time of their steps, and the reasons for fallback steps."""
    for number, stage in enumerate(measured.stages):
        if len(measured.stages) > 1:
            print(f"stage {number + 1} of {len(measured.stages)}:")
        spent: dict[str, float] = {}
        reasons: dict[str, str] = {}
        for step in measured.steps:
            if step.stage == number:
                spent[step.instruction] = spent.get(step.instruction, 0.0) + step.average
                if step.reason:
                    reasons[step.instruction] = f", on the host: {step.reason}"
        for line, ins in program_lines(stage.program):
            if ins is None or isinstance(ins.op, Return) or ins.module is not stage.program.main:
                print(line)
            else:
                seconds = spent.get(line, 0.0)
                print(f"{line}: {_ms(seconds)}, {_percent(seconds, total)}{reasons.get(line, '')}")


def _write_rates(groups: list[_Group], limits: Limits) -> None:
    """Print the rates of kernels in relation to the machine's limits.

    Operations are counted for the direct algorithm; bytes are the least that must move. A rate above its limit gets an
    explanation. Kernels that use units with limits of their own are compared with these limits.
    """
    passed = [False, False]
    print(
        f"\nRates (limits {limits.where}: {limits.gflops:.4g} GFLOP/s {limits.arithmetic}, "
        f"{limits.gbytes:.4g} GB/s copied):"
    )
    for unit, rate in limits.units.items():
        print(f"  {unit}: {rate:.4g} GFLOP/s")
    width = max(len(g.name) for g in groups) if groups else 0
    own = max((len(g.unit) for g in groups), default=0)
    unit = f"  {'unit':{own}}" if own else ""
    print(f"{'':{width}}  {'ms':>10}  {'GFLOP/s':>9}  {'of limit':>8}  {'GB/s':>9}  {'of limit':>8}{unit}")
    for group in groups:
        columns = [f"{group.seconds * 1e3:10.4g}"]
        for k, (amount, limit) in enumerate(((group.flops, limits.rate(group.unit)), (group.bytes, limits.gbytes))):
            rate = amount / group.seconds / 1e9 if group.seconds else 0.0
            passed[k] |= rate > limit
            columns += [f"{rate:9.4g}", f"{100 * rate / limit:7.1f}%"] if amount else [f"{'-':>9}", f"{'-':>8}"]
        print("  ".join([f"{group.name:{width}}", *columns, *([group.unit] if group.unit else [])]))
    print("".join(note for note, happened in zip(ABOVE_LIMIT, passed) if happened), end="")


def _write_totals(measured: Measurement, batch: Batch, total_steps: float) -> None:
    total = measured.total
    typical = average(total)
    ordered = sorted(total)
    mean, median = sum(total) / len(total), ordered[len(total) // 2]
    print(f"\nBatch size: {batch.size}" + (f" ({batch.origin})" if batch.origin else ""))
    print(f"Rate: {batch.size / typical:.6g} inferences/sec")
    print(
        f"Total time: {_ms(typical)} (Min: {_ms(ordered[0])}, Max: {_ms(ordered[-1])}, "
        f"Mean: {_ms(mean)}, Median: {_ms(median)})"
    )
    values = ", ".join(_ms(percentile(total, p)) for p in (90, 95, 99))
    print(f"Percentiles (90%, 95%, 99%): ({values})")
    print(f"Total instructions time: {_ms(total_steps)}")
    idle, rest = average(measured.idle), typical - total_steps
    print(f"Overhead time: {_ms(idle)}, {_ms(rest)}")
    if rest < 0:
        print("(below zero: instructions that are timed one by one take longer than in a run)")
    print(f"Overhead: {round(100 * idle / typical)}%, {round(100 * rest / typical)}%")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.6g}ms"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 0:.6g}%"
