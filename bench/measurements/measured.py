"""Run the benchmark behind each table in a process, and return the table's figures."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.environment import ROOT
from bench.measurements.tables import Table
from bench.timing import geometric_mean

__all__ = ["MEASURES", "Measure"]

Measure = Callable[[Path, bool], Table]
"""Measures a table: takes a folder for files, and whether to measure only a small part, to try the tool."""

_PEERS = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
_NONE = "-"


def _run(module: str, arguments: Sequence[str], out: Path) -> tuple[str, Any]:
    """Run a benchmark that writes JSON; return its command and what it wrote.

    Raises:
        SystemExit: it failed.
    """
    command = ["python", "-m", f"bench.{module}", *arguments]
    done = subprocess.run([sys.executable, *command[1:], "--json", str(out)], cwd=ROOT, check=False)
    if not out.exists():
        sys.exit(f"{shlex.join(command)} ended with {done.returncode} and wrote nothing")
    if out.is_dir():
        return shlex.join(command), [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    return shlex.join(command), json.loads(out.read_text())


def _figures(ratios: list[float]) -> dict[str, float]:
    return {"mean": geometric_mean(ratios), "least": min(ratios), "count": len(ratios)} if ratios else {}


def float32(folder: Path, small: bool) -> Table:
    """Measure models in float32 beside the peers, with two threads and with one."""
    trial = ["--models", "mlp,lstm", "--scale", "tiny"] if small else []
    records, command = [], ""
    for threads, budget in ((1, 0.9), (2, 1.2)):
        options = [*trial, "--threads", str(threads), "--budget", str(0.05 if small else budget)]
        command, record = _run("report", options, folder / f"report-{threads}.json")
        records.append({model["name"]: model for model in record["models"]})
    one, two = records
    return float32_table(two, one, command)


def float32_table(two: Mapping[str, Any], one: Mapping[str, Any], command: str) -> Table:
    """Return the table of two runs of `bench.report`: its records by model, with two threads and with one."""
    rows = []
    for name, model in two.items():
        times = [model["engines"].get(engine) for engine in ("mgx_numba", *_PEERS)]
        cells = [name, *(f"{found['median_ms']:.3f}" if found else _NONE for found in times)]
        ratios = (model["ratio"], one.get(name, {}).get("ratio"))
        cells += [_NONE if found is None else f"{found:.2f}" for found in ratios]
        error = model["max_relative_error"]
        rows.append([*cells, _NONE if error is None else f"{error:.1e}"])
    figures: dict[str, float] = {}
    for title, batched in (("", False), (", batched", True)):
        means = [_figures(_ratios(run, batched)) for run in (two, one)]
        if means[0]:
            shown = [f"{found['mean']:.2f}" if found else _NONE for found in means]
            rows.append([f"geometric mean of {means[0]['count']}{title}", "", "", "", *shown, ""])
        if not batched:
            figures = {**means[0], **{f"one_{name}": value for name, value in means[1].items()}}
    header = ["model", "ours, ms", "ONNX Runtime, ms", "OpenVINO, ms", "ratio", "ratio, one thread", "error"]
    return Table(header, rows, command=command, numeric=True, figures=figures)


def _ratios(models: Mapping[str, Any], batched: bool) -> list[float]:
    return [one["ratio"] for one in models.values() if one["ratio"] and ("@" in one["name"]) == batched]


def start(folder: Path, small: bool) -> Table:
    """Measure processes from their start to the first result, by both ways in, with filled and empty cache folders."""
    trial = ["mlp", "--scale", "tiny", "--rounds", "1"] if small else ["--rounds", "3"]
    options = [*trial, "--threads", "2", "--ways", "parse,session"]
    command, record = _run("start", options, folder / "start.json")
    return start_table(record["processes"], command)


def start_table(processes: Sequence[Mapping[str, Any]], command: str) -> Table:
    """Return the table of `bench.start`: sums of medians over the models, and ratios to each peer."""
    import statistics

    seconds: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for one in processes:
        column = (one["engine"], one["way"], one["cache"])
        seconds.setdefault(column, {}).setdefault(one["model"], []).append(one["seconds"])
    medians = {column: {m: statistics.median(s) for m, s in models.items()} for column, models in seconds.items()}
    whole = sorted(set.intersection(*(set(models) for models in medians.values())))
    peers = [column for column in medians if column[1] == ""]
    rows: list[list[str]] = []
    figures: dict[str, float] = {}
    for column, models in medians.items():
        title = " ".join(column[1:]).strip() or _PEERS.get(column[0], column[0])
        cells = [title, f"{sum(models[name] for name in whole):.2f}"]
        for peer in peers:
            found = _figures([medians[peer][name] / models[name] for name in whole])
            cells += [f"{found['mean']:.2f}", f"{found['least']:.2f}"] if column not in peers else ["", ""]
            if column not in peers:
                key = f"{column[1]}_{column[2]}_{peer[0]}"
                figures |= {f"{key}_{name}": value for name, value in found.items()}
        rows.append(cells)
    header = [f"way, cache folder ({len(whole)} models)", "sum, s"]
    for peer in peers:
        header += [f"times as fast as {_PEERS.get(peer[0], peer[0])}, mean", "least"]
    return Table(header, rows, command=command, numeric=True, figures=figures)


def precisions(folder: Path, small: bool) -> Table:
    """Measure models in bfloat16 and 8 bits and compare with the peers."""
    trial = ["--models", "mlp", "--budget", "0.2", "--inputs", "1"] if small else []
    command, records = _run("precisions", [*trial, "--threads", "2"], folder / "precisions")
    return precisions_table(records, command)


def precisions_table(records: Sequence[Mapping[str, Any]], command: str) -> Table:
    """Return the table of `bench.precisions`: a row for each run of a model."""
    rows = []
    ratios: dict[str, list[float]] = {}
    for record in records:
        engines = record["engines"]
        for name, found in engines.items():
            engine, _, kind = name.partition(" ")
            others = [t["median_ms"] for n, t in engines.items() if n.endswith(f" {kind}") and not n.startswith("mgx_")]
            ratio = min(others) / found["median_ms"] if engine == "mgx_numba" and others else None
            if ratio is not None:
                ratios.setdefault(kind, []).append(ratio)
            shown = [f"{found['median_ms']:.3f}", f"{found['error']:.1e}", "" if ratio is None else f"{ratio:.2f}"]
            rows.append([f"{record['model']}, {kind}, {_PEERS.get(engine, 'ours')}", *shown])
    figures = {f"{kind}_{name}": value for kind, found in ratios.items() for name, value in _figures(found).items()}
    header = ["model, kind, engine", "ms", "error", "times as fast as the faster peer"]
    return Table(header, rows, command=command, numeric=True, figures=figures)


NINE = (
    "^(timm/(resnet18|mobilenetv3_large_100|vit_tiny_patch16_224|efficientnet_b0)"
    "|transformers/(bert|gpt2|llama|t5|vit))$"
)
"""The models of PyTorch in the documents: of each family one."""


def torch(folder: Path, small: bool) -> Table:
    """Measure PyTorch models and compare with eager mode and inductor."""
    trial = ["--only", "^transformers/bert$", "--budget", "0.2"] if small else ["--only", NINE]
    command, records = _run("torch_sweep", [*trial, "--threads", "2"], folder / "torch.json")
    return torch_table(records, command)


def torch_table(records: Sequence[Mapping[str, Any]], command: str) -> Table:
    """Return the table of `bench.torch_sweep`."""
    rows, ratios = [], []
    for row in records:
        if "failure" in row:
            rows.append([row["name"], *[_NONE] * 3, row["failure"], ""])
            continue
        times, first = row["milliseconds"], row["first"]
        ratio = times["inductor"] / times["ours"] if "inductor" in times else None
        ratios += [] if ratio is None else [ratio]
        cells = [f"{times[e]:.2f}" if e in times else _NONE for e in ("eager", "inductor", "ours")]
        seconds = (row.get("cold"), first.get("ours"), first.get("inductor"))
        cells.append(_NONE if ratio is None else f"{ratio:.2f}")
        cells.append(", ".join(_NONE if s is None else f"{s:.1f}" for s in seconds))
        rows.append([row["name"], *cells])
    header = ["model", "eager, ms", "inductor, ms", "ours, ms", "times as fast as inductor"]
    header.append("seconds: cold, second process, inductor")
    return Table(header, rows, command=command, numeric=True, figures=_figures(ratios))


def gpu_networks(folder: Path, small: bool) -> Table:
    """Measure networks on a GPU and compare with PyTorch's inductor."""
    trial = ["--models", "resnet50", "--kinds", "fp16"] if small else []
    command, records = _run("gpu_inductor", trial, folder / "networks.json")
    return gpu_networks_table(records, command)


def gpu_networks_table(records: Sequence[Mapping[str, Any]], command: str) -> Table:
    """Return the table of `bench.gpu_inductor`: ms of ours, and times as fast as inductor, by network and precision."""
    kinds = list(dict.fromkeys(row["kind"] for row in records))
    cells = {(row["name"], row["kind"]): row for row in records}
    rows = []
    for name in dict.fromkeys(row["name"] for row in records):
        found = [cells.get((name, kind)) for kind in kinds]
        rows.append([name, *(f"{r['ms']:.2f}; {r['inductor_ms'] / r['ms']:.2f}" if r else _NONE for r in found)])
    figures = {
        f"{kind}_{name}": value
        for kind in kinds
        for name, value in _figures([r["inductor_ms"] / r["ms"] for r in records if r["kind"] == kind]).items()
    }
    return Table(["network", *kinds], rows, command=command, figures=figures)


MEASURES: Mapping[str, tuple[str, Measure]] = {
    "float32": ("cpu", float32),
    "start": ("cpu", start),
    "precisions": ("cpu", precisions),
    "torch": ("cpu", torch),
    "gpu_networks": ("gpu", gpu_networks),
}
"""Target and measuring function of each table that one command of this repository measures."""
