"""Sweep over PyTorch models: ``torch.compile`` with our backend against inductor and eager mode.

``python -m bench.torch_sweep`` runs each model in a process of its own: first our backend alone with an empty cache
folder, then all engines in turn with what the first run has kept. It prints a table, and geometric means over the
models that all engines run. ``--only PATTERN`` selects models by a regular expression over their names
(``timm/resnet18``), ``--limit N`` the first N of these, ``--list`` prints the names. ``--check`` only compares results.

Models run on the CPU in float32 unless ``--device cuda`` or ``--half`` is given; a call includes the wait for the
device.
``--only ^networks/`` selects the networks of `bench.gpu_inductor`.

``--json FILE`` keeps each row when it is measured. A later run with the same file and the same settings measures only
models without a row, and prints the whole table. With ``--minutes M`` no model is begun that would end, by the time
that rows took on average, after M minutes.

Results must agree with eager mode within 1e-4 of the largest magnitude of each result, with ``--half`` 2e-2; for a
larger difference in float32 a note gives both errors against float64. Columns: the largest such difference;
operators that ran in eager mode; milliseconds of a call; how many times faster ours is;
seconds of the first call, ours with an empty and with a full cache folder and inductor's with an empty one. Times are
wall-clock times and need a quiet machine. It needs torch, timm, torchvision, transformers and diffusers.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.timing import geometric_mean, interleave

__all__ = ["main"]

TOLERANCE = 1e-4
"""Largest difference from eager mode, relative to the largest magnitude of a result."""
HALF_TOLERANCE = 2e-2
"""The same in float16, in which eager mode rounds after each operator."""
LIMIT_SECONDS = 900
"""Seconds after which a model's process is ended."""
ROOT = Path(__file__).resolve().parents[1]
HEAD = ("model", "state", "error", "eager ms", "inductor", "ours", "/inductor", "/eager", "cold s", "warm s", "ind. s")
WIDTHS = (34, 9, 8, 9, 9, 9, 9, 7, 7, 7, 7)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep; return the number of models that fail or differ from eager mode."""
    parser = argparse.ArgumentParser(prog="python -m bench.torch_sweep", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="^(?!networks/)", help="regular expression over names of models")
    parser.add_argument("--limit", type=int, help="number of models")
    parser.add_argument("--list", action="store_true", help="print the names of the models")
    parser.add_argument("--check", action="store_true", help="compare results with eager mode, measure nothing")
    parser.add_argument(
        "--threads", type=int, default=0, help="threads of every engine; 0 for what the process may use"
    )
    parser.add_argument("--mode", default="default", help="inductor's mode, as of torch.compile")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="device of models and inputs")
    parser.add_argument("--half", action="store_true", help="float16 instead of float32")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds of timing for each model")
    parser.add_argument("--json", type=Path, help="file of all figures, whose rows are kept")
    parser.add_argument("--minutes", type=float, default=math.inf, help="minutes of this run; needs --json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--engines", default="eager,ours,inductor", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        print(json.dumps(_measured(options)))
        return 0
    from bench.torch_zoo import names

    chosen = [name for name in names() if re.search(options.only, name)][: options.limit]
    if options.list:
        print("\n".join(chosen))
        return 0
    if math.isfinite(options.minutes) and options.json is None:
        parser.error("--minutes needs --json FILE, where the next run finds the rows of this one")
    settings = {key: getattr(options, key) for key in ("check", "threads", "mode", "device", "half", "budget")}
    kept = _kept(options.json, settings)
    print(_line(HEAD), flush=True)
    rows, begin = [], time.perf_counter()
    for number, name in enumerate(chosen):
        if name not in kept:
            if time.perf_counter() - begin + _seconds(kept) > 60 * options.minutes:
                continue
            if sys.stderr.isatty():
                print(f"\r{number + 1}/{len(chosen)} {name:40}", end="\r", file=sys.stderr, flush=True)
            start = time.perf_counter()
            kept[name] = _row(name, options)
            kept[name].update(seconds=time.perf_counter() - start, settings=settings)
            if options.json:
                written = options.json.with_suffix(".part")
                written.write_text(json.dumps(list(kept.values()), indent=1))
                written.replace(options.json)
        rows.append(kept[name])
        print(_shown(rows[-1]), flush=True)
    _summarise(rows)
    left = len(chosen) - len(rows)
    if left:
        print(f"{left} models are left, about {left * _seconds(kept) / 60:.0f} minutes")
    return sum(not row["right"] for row in rows)


def _kept(path: Path | None, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of earlier runs by model.

    Raises:
        SystemExit: they were measured with other settings.
    """
    if path is None or not path.exists():
        return {}
    rows = json.loads(path.read_text())
    for row in rows:
        if row["settings"] != settings:
            raise SystemExit(f"{path}: {row['name']} was measured with {row['settings']}, not {settings}")
    return {row["name"]: row for row in rows}


def _seconds(rows: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the average time (s) of measuring a row; 0 if there is none."""
    return sum(row["seconds"] for row in rows.values()) / max(1, len(rows))


def _row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a model: of a process with an empty cache folder, then of one with a full one."""
    with tempfile.TemporaryDirectory(prefix="torch_sweep_") as folder:
        own = [f"{key}={value}" for key, value in (("MGX_CACHE_DIR", "mgx"), ("TORCHINDUCTOR_CACHE_DIR", "inductor"))]
        environment = {**os.environ, **{k: f"{folder}/{v}" for k, v in (pair.split("=") for pair in own)}}
        if options.check:
            return {"name": name, **_process(name, options, os.environ, "eager,ours")}
        cold = _process(name, options, environment, "eager,ours")
        warm = _process(name, options, environment, options.engines)
        return {"name": name, **warm, "cold": cold.get("first", {}).get("ours")}


def _process(name: str, options: argparse.Namespace, environment: Any, engines: str) -> dict[str, Any]:
    """Return the figures that a process prints; if it fails, ``failure`` is the last line of its errors."""
    command = [
        sys.executable,
        "-m",
        "bench.torch_sweep",
        "--worker",
        name,
        "--engines",
        engines,
        "--mode",
        options.mode,
    ]
    command += ["--device", options.device, *(["--half"] if options.half else [])]
    command += ["--threads", str(options.threads), "--budget", "0" if engines == "eager,ours" else str(options.budget)]
    own = {**environment, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=own, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"right": False, "failure": f"more than {LIMIT_SECONDS} s"}
    try:
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found
    except (IndexError, ValueError):
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        return {"right": False, "failure": lines[-1][:200] if lines else f"exit status {done.returncode}"}


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    """Measure one model in this process and return the figures."""
    import torch

    from bench.torch_zoo import build
    from mgx_numba.torch import mgx_numba as backend

    torch._dynamo.config.allow_rnn = True  # Dynamo leaves recurrent layers to eager mode otherwise
    if options.threads:
        torch.set_num_threads(options.threads)
    left: list[str] = []
    _listen(left)
    module, given = build(options.worker)
    dtype = torch.float16 if options.half else torch.float32
    module = module.to(options.device, dtype)
    given = {key: _moved(value, options.device, dtype) for key, value in given.items()}
    places = [given[key] for key in sorted(k for k in given if k.isdigit())]
    named = {key: value for key, value in given.items() if not key.isdigit()}
    kinds: dict[str, Any] = {
        "eager": lambda: module,
        "ours": lambda: torch.compile(
            module, backend=backend, options={"num_threads": options.threads} if options.threads else None
        ),
        "inductor": lambda: torch.compile(module, mode=options.mode),
    }
    calls: dict[str, Callable[[], Any]] = {}
    first: dict[str, float] = {}
    results: dict[str, Any] = {}
    with torch.no_grad():
        for engine in options.engines.split(","):
            calls[engine] = _waiting(partial(kinds[engine](), *places, **named), options.device)
            begin = time.perf_counter()
            results[engine] = calls[engine]()
            first[engine] = time.perf_counter() - begin
        error = _error(results["eager"], calls["ours"]())
        timings = interleave(calls, options.budget) if options.budget else {}
    tolerance = HALF_TOLERANCE if options.half else TOLERANCE
    right, notes = error <= tolerance, []
    if not right and not options.half:
        rounding, own = _errors_of_float64(module, places, named, results["eager"], results["ours"])
        notes.append(f"against float64: eager mode {rounding:.0e}, ours {own:.0e}")
    found: dict[str, Any] = {
        "error": error,
        "right": right,
        "left": left,
        "notes": notes,
        "first": first,
    }
    return {**found, "milliseconds": {engine: timing.median * 1e3 for engine, timing in timings.items()}}


def _errors_of_float64(
    module: Any, places: Sequence[Any], named: Mapping[str, Any], *results: Any
) -> tuple[float, ...]:
    """Return the errors of results against the module in float64; infinite if it does not run so."""
    import torch
    from torch.utils._pytree import tree_map

    def widened(x: Any) -> Any:
        return _moved(x, x.device, torch.float64) if isinstance(x, torch.Tensor) else x

    wide = [tree_map(widened, given) for given in (places, named)]
    try:
        with torch.no_grad():
            exact = copy.deepcopy(module).double()(*wide[0], **wide[1])
    except RuntimeError:
        return (0.0, *[float("inf")] * (len(results) - 1))
    return tuple(_error(exact, tree_map(widened, result)) for result in results)


def _moved(value: Any, device: str, dtype: Any) -> Any:
    """Return an input on a device; floating-point numbers in ``dtype``."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device, dtype) if value.is_floating_point() else value.to(device)


def _waiting(call: Callable[[], Any], device: str) -> Callable[[], Any]:
    """Return a function that calls and waits until the device has finished."""
    if device == "cpu":
        return call
    import torch

    def waiting() -> Any:
        result = call()
        torch.cuda.synchronize()
        return result

    return waiting


def _listen(lines: list[str]) -> None:
    """Collect the lines in which our backend says what runs in eager mode."""
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                lines.append(record.getMessage())

    log = logging.getLogger("mgx_numba.torch")
    log.addHandler(Handler())
    log.propagate = False


def _error(expected: Any, found: Any) -> float:
    """Return the largest difference of the tensors in two results, each relative to the largest expected magnitude."""
    import torch
    from torch.utils._pytree import tree_leaves

    pairs = list(zip(_leaves(expected, tree_leaves), _leaves(found, tree_leaves), strict=True))
    worst = 0.0
    for one, other in pairs:
        if one.shape != other.shape or one.dtype != other.dtype or not torch.equal(one.isnan(), other.isnan()):
            return float("inf")
        scale = one.double().abs().nan_to_num(0, 0, 0).max().item() if one.numel() else 0.0
        gap = (one.double() - other.double()).abs()
        gap = gap[~(one == other) & ~one.isnan()]
        worst = max(worst, gap.max().item() / max(scale, 1e-30) if gap.numel() else 0.0)
    return worst


def _leaves(value: Any, leaves: Callable[[Any], list[Any]]) -> list[Any]:
    import torch

    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def _shown(row: dict[str, Any]) -> str:
    if "failure" in row:
        return _line((row["name"], "failed", row["failure"]))
    times, first = row["milliseconds"], row["first"]
    state = "wrong" if not row["right"] else "parts" if row["left"] else "whole"
    cells = [row["name"], state, f"{row['error']:.0e}"]
    cells += [f"{times[e]:.2f}" if e in times else "" for e in ("eager", "inductor", "ours")]
    cells += [f"{times[e] / times['ours']:.2f}" if e in times else "" for e in ("inductor", "eager")]
    seconds = (row.get("cold"), first.get("ours"), first.get("inductor"))
    cells += [f"{s:.1f}" if s is not None else "" for s in seconds]
    return "\n  ".join((_line(cells), *row["left"], *row["notes"]))


def _line(cells: Sequence[str]) -> str:
    return " ".join(
        cell.ljust(w) if not k else cell.rjust(w) for k, (cell, w) in enumerate(zip(cells, WIDTHS))
    ).rstrip()


def _summarise(rows: Sequence[dict[str, Any]]) -> None:
    right = [row for row in rows if row["right"]]
    print(f"{len(right)} of {len(rows)} models right, {sum(not row['left'] for row in right)} entirely compiled")
    for engine in ("inductor", "eager"):
        ratios = [
            row["milliseconds"][engine] / row["milliseconds"]["ours"] for row in right if engine in row["milliseconds"]
        ]
        if ratios:
            print(f"over {engine}: {geometric_mean(ratios):.2f} in the geometric mean, at least {min(ratios):.2f}")
    for name, seconds in (("cold", lambda row: row.get("cold")), ("warm", lambda row: row["first"].get("ours"))):
        pairs = [(row["first"].get("inductor"), seconds(row)) for row in right]
        ratios = [other / own for other, own in pairs if other and own]
        if ratios:
            print(f"time to compile, {name}: {1 / geometric_mean(ratios):.2f} of inductor's")


if __name__ == "__main__":
    sys.exit(main())
