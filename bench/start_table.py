"""The table of `bench.start` in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.peers import OURS

if TYPE_CHECKING:
    from bench.start import Column, Cost, Start

__all__ = ["markdown"]


def markdown(
    found: Sequence[Start], of: Sequence[Column], machine: Mapping[str, Any], threads: int, rounds: int
) -> str:
    """Return a table with a row for each model, sums over the models that all columns ran, and ratios to each peer."""
    cpu, versions = machine["cpu"], machine["versions"]
    peers = [column for column in of if column.engine != OURS]
    packages = [name for name in ("numba", "numpy", *(peer.engine for peer in peers)) if name in versions]
    used = ", ".join(f"{name} {versions[name]}" for name in packages)
    lines = [
        f"{cpu['model']}, {cpu['cores']} cores, load {machine['load_average']:.1f}; "
        f"Python {machine['python']}, {used}; "
        f"commit {machine['commit'][:10] or 'unknown'}{' with changes' if machine['uncommitted_changes'] else ''}, "
        f"{machine['date']}.",
        "",
        f"Processes of {threads} threads, medians of {rounds} rounds: seconds to the first result / CPU seconds of the "
        "whole process / largest resident memory in MB.",
        "",
        _row(["model", *map(str, of)]),
        _row(["---", *("---:" for _ in of)]),
    ]
    for start in found:
        cells = [_cell(start.median(c)) if c in start.costs else "failed" for c in of]
        lines.append(_row([start.name, *cells]))
    whole = [start for start in found if all(c in start.costs for c in of)]
    if whole:
        lines.append(_row([f"sum of {len(whole)}", *(_cell(_sum([start.median(c) for start in whole])) for c in of)]))
    for peer in peers:
        for what, cost in (("seconds", _seconds), ("CPU seconds", _cpu_seconds), ("memory", _megabytes)):
            ratios = [_ratios(found, column, peer, cost) for column in of]
            cells = [f"{statistics.fmean(r):.2f}, {max(r):.2f}" if r else "" for r in ratios]
            lines.append(_row([f"{what} to {peer.engine}'s: mean, most", *cells]))
    lines += [
        f"\n{start.name}, {column}: {why.strip().splitlines()[-1]}"
        for start in found
        for column, why in start.failures.items()
    ]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cost: Cost) -> str:
    return f"{cost.seconds:.2f} / {cost.cpu_seconds:.2f} / {cost.megabytes:.0f}"


def _sum(costs: Sequence[Cost]) -> Cost:
    kind = type(costs[0])
    return kind(*(sum(map(cost, costs)) for cost in (_seconds, _cpu_seconds, _megabytes)))


def _ratios(found: Sequence[Start], column: Column, peer: Column, cost: Callable[[Cost], float]) -> list[float]:
    """Return the ratio of a column's cost to the peer's for each model that both ran."""
    both = [(start.median(column), start.median(peer)) for start in found if {column, peer} <= set(start.costs)]
    return [cost(own) / cost(theirs) for own, theirs in both if cost(theirs)]


def _seconds(cost: Cost) -> float:
    return cost.seconds


def _cpu_seconds(cost: Cost) -> float:
    return cost.cpu_seconds


def _megabytes(cost: Cost) -> float:
    return cost.megabytes
