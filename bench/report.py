"""Measures the bench models against the other engines and prints one table of ratios.

    python -m bench.report [--models a,b] [--threads 2] [--budget 10] [--json out.json] [--png roofline.png]

A ratio is the median time of the faster peer over ours: above one, ours is faster. Engines take turns in one process
with equal threads (see `bench.timing`); each is timed in the setting in which it was fastest while taking turns. The
error is the largest difference from ONNX Runtime's outputs relative to the largest magnitude of that output.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.cases import Case, case_names, prepare
from bench.compare import Comparison, compare
from bench.environment import describe
from bench.models import SCALES
from bench.peers import ENGINES, OURS, PEERS, Session, installed
from bench.probe import Probe, probe
from bench.roofs import Roofs, measure_roofs
from bench.steps import StepTime, step_times
from bench.table import show
from bench.timing import geometric_mean

__all__ = ["main"]

_MISSING = "-"
_BUSY = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the report; return 1 if one of our models failed."""
    options = _parse(arguments)
    engines = [e for e in installed() if e == OURS or e in options.peers]
    environment = describe()
    for peer in options.peers:
        if peer not in engines:
            _note(f"{peer} is not installed: skipped")
    if environment["load_average"] > _BUSY:
        _note(f"the machine is busy (load average {environment['load_average']:.2f}): times will be noisy")
    roofs = measure_roofs(options.threads)
    comparisons: list[Comparison] = []
    steps: list[StepTime] = []
    probes: dict[str, list[Probe]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for number, name in enumerate(options.models, 1):
            case = prepare(name, Path(folder), options.scale)

            def note_steps(session: Session, case: Case = case) -> None:
                steps.extend(step_times(case.name, session.handle, case.feeds))

            comparison = compare(case, engines, options.threads, options.budget, exact=options.exact, after=note_steps)
            comparisons.append(comparison)
            if options.processes:
                probes[name] = _probe_all(case, engines, options.threads, Path(folder) / f"cache-{number}")
            _note(f"[{number}/{len(options.models)}] {name}: {_outcome(comparison)}")
            _discard(Path(folder))
    _show(comparisons, engines, environment, options.threads)
    if probes:
        _show_processes(probes)
    record = _record(options, environment, roofs, comparisons, steps, probes)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    if options.png:
        from bench.plot import draw_roofline

        draw_roofline(options.png, steps, roofs, _subtitle(environment, options))
    return 1 if any(OURS in comparison.failures for comparison in comparisons) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from mgx_numba.runtime.cpu.threads import available_cores

    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=_names, help="cases, such as bert,light_resnet50@8 (default: all)")
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads of every engine")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of timing for each model")
    parser.add_argument("--peers", type=_names, default=list(PEERS), help=f"default: {','.join(PEERS)}")
    parser.add_argument("--scale", choices=SCALES, default="full", help="tiny: small models, to try the tool")
    parser.add_argument("--exact", action="store_true", help="compile ours with fast_math=False")
    parser.add_argument("--processes", action="store_true", help="also compile time and memory of fresh processes")
    parser.add_argument("--json", type=Path, help="write everything that was measured")
    parser.add_argument("--png", type=Path, help="draw the roofline plot")
    options = parser.parse_args(arguments)
    options.models = options.models or case_names(options.scale)
    known = set(case_names(options.scale))
    for name in options.models:
        if name not in known and name.partition("@")[0] not in known:
            parser.error(f"unknown model {name!r}: expected some of {', '.join(sorted(known))}")
    for peer in options.peers:
        if peer not in ENGINES:
            parser.error(f"unknown peer {peer!r}: expected some of {', '.join(PEERS)}")
    return options


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _outcome(comparison: Comparison) -> str:
    failures = [f"{engine} failed: {message[:200]}" for engine, message in comparison.failures.items()]
    times = [f"{engine} {timing.median * 1e3:.3f} ms" for engine, timing in comparison.timings.items()]
    if comparison.ratio is not None:
        times.append(f"ratio {comparison.ratio:.2f}")
    return ", ".join([*times, *failures])


def _discard(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()


def _probe_all(case: Case, engines: Sequence[str], threads: int, cache: Path) -> list[Probe]:
    """Probe ours with an empty object store, ours with a filled store, and the peers."""
    peers = [engine for engine in engines if engine != OURS]
    found = []
    for engine in [OURS, OURS, *peers]:
        try:
            found.append(probe(engine, case.path, case.feeds_path, threads, cache))
        except RuntimeError as problem:
            _note(str(problem))
    return found


def _show(comparisons: Sequence[Comparison], engines: Sequence[str], environment: dict[str, Any], threads: int) -> None:
    rows = [_row(comparison, engines) for comparison in comparisons]
    means = []
    for suffix, batched in (("", False), (", batched", True)):
        values = _ratios(comparisons, batched)
        if values:
            means.append(
                [
                    f"geometric mean of {len(values)}{suffix}",
                    *[""] * len(engines),
                    f"{geometric_mean(values):.2f}",
                    "",
                    "",
                ]
            )
    cpu = environment["cpu"]
    count = f"{threads} thread{'s' if threads > 1 else ''}"
    title = f"{cpu['model']}, {count}, float32, commit {_short(environment)}, median ms"
    header = ["model", *engines, "ratio", "p10 to p90", "error"]
    show(title, header, [*rows, *means])


def _row(comparison: Comparison, engines: Sequence[str]) -> list[str]:
    record = comparison.record()
    cells = [comparison.name]
    for engine in engines:
        timing = comparison.timings.get(engine)
        cells.append(
            f"{timing.median * 1e3:.3f}" if timing else "failed" if engine in comparison.failures else _MISSING
        )
    spread = record["ratio_p10_p90"]
    cells.append(_MISSING if comparison.ratio is None else f"{comparison.ratio:.2f}")
    cells.append(_MISSING if spread is None else f"{spread[0]:.2f} to {spread[1]:.2f}")
    cells.append(_MISSING if comparison.error is None else f"{comparison.error:.1e}")
    return cells


def _ratios(comparisons: Sequence[Comparison], batched: bool) -> list[float]:
    return [c.ratio for c in comparisons if c.ratio is not None and ("@" in c.name) == batched]


def _show_processes(probes: dict[str, list[Probe]]) -> None:
    header = ["model", "engine", "compile or load s", "start to first result s", "peak MB"]
    rows = []
    for name, found in probes.items():
        stores = iter(("empty store", "filled store"))
        for one in found:
            label = f"{one.engine}, {next(stores)}" if one.engine == OURS else one.engine
            load = one.phases.get("compile", one.phases.get("load", math.nan))
            rows.append([name, label, f"{load:.2f}", f"{one.total_seconds:.2f}", f"{one.peak_bytes / 1e6:.0f}"])
    show("Fresh processes", header, rows)


def _short(environment: dict[str, Any]) -> str:
    """Return the abbreviated commit, with a plus for uncommitted changes."""
    return (environment["commit"][:10] or "unknown") + ("+" if environment["uncommitted_changes"] else "")


def _subtitle(environment: dict[str, Any], options: argparse.Namespace) -> str:
    cpu = environment["cpu"]
    return (
        f"{cpu['model']} ({cpu['llvm_name']}, {cpu['vector_bits']}-bit vectors), {len(options.models)} models, "
        f"commit {_short(environment)}\n"
        "A dot is a kernel call, larger the larger its share of its model's time. Those above the slope work in cache."
    )


def _record(
    options: argparse.Namespace,
    environment: dict[str, Any],
    roofs: Roofs,
    comparisons: Sequence[Comparison],
    steps: Sequence[StepTime],
    probes: dict[str, list[Probe]],
) -> dict[str, Any]:
    values = _ratios(comparisons, False)
    return {
        "environment": environment,
        "threads": options.threads,
        "budget_seconds": options.budget,
        "scale": options.scale,
        "fast_math": not options.exact,
        "roofs": {"flops": roofs.flops, "copies": roofs.copies},
        "geometric_mean": geometric_mean(values) if values else None,
        "models": [comparison.record() for comparison in comparisons],
        "processes": {name: [vars(one) for one in found] for name, found in probes.items()},
        "steps": [step.record() for step in steps],
    }


if __name__ == "__main__":
    sys.exit(main())
