"""Quality of the cost model's choices: every contraction of the bench models, with every candidate that tuning tries.

    python -m bench.choices [--models a,b] [--quantize bf16] [--threads 2] [--json FILE]
    python -m bench.choices --target gpu [--quantize fp16] [--libraries] --models resnet50,bert
    python -m bench.choices --solvers [--budget 150] [--exact] --json bench/data/choices/znver5.json
    python -m bench.choices --read FILE [--ship mgx_numba/codegen/tuning/shipped]

The regret of a set of problems is the total time of the chosen candidates over that of the best candidates, less one.
Each problem counts as often as the models have it. Candidates take turns, and a candidate's time is a median. The
minimum of many noisy medians is biased low, so the chosen and the best candidate are measured once more against each
other, and these times count. With ``--libraries`` cuBLASLt and cuDNN are candidates, too, and the output states how
often they win; such records must not be shipped.

With ``--solvers`` each solver is measured with its own blocking only, in turns, and a candidate's time is its minimum
(CPU time on one thread), which busy machines disturb least: the data from which `bench.fit_choices` fits the cost
model. The file then has the machine's record, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.cases import case_names, prepare
from bench.environment import describe
from bench.table import show
from mgx_numba import quantize_bf16, quantize_fp16
from mgx_numba.api.program import program as public_program
from mgx_numba.codegen.backend import Backend, backend
from mgx_numba.codegen.cpu.host import EMULATED_TILES
from mgx_numba.codegen.gpu.contraction.library_solvers import LIBRARIES
from mgx_numba.codegen.tuning.files import best, read_records, write_records
from mgx_numba.codegen.tuning.record import TuningRecord
from mgx_numba.codegen.tuning.request import Candidate, Request, TuningRequest
from mgx_numba.errors import MgxError, OptionError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.program import Program
from mgx_numba.runtime.cpu.rates import measure_machine
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.registry import compile_for
from mgx_numba.targets.tuning import CandidateBench

__all__ = ["main", "measure", "regret"]

_QUANTIZED: dict[str, Callable[..., Any]] = {"fp16": quantize_fp16, "bf16": quantize_bf16}
_ROUNDS = 9
_FINAL_ROUNDS = 9
_SHOWN = 20
_CLEAR = 1.04
"""Ratio to the best candidate's time from which a choice is worth a shipped record."""
_DATE = "%Y-%m-%dT%H:%M:%SZ"


class Recorder:
    """A stand-in for tuning that takes the cost model's choices and records the requests with their numbers of uses."""

    exhaustive = False
    budget = None

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.requests: Counter[TuningRequest] = Counter()
        self.replaced: dict[Request, str] = {}

    def choose(self, request: TuningRequest) -> Candidate:
        self.requests[request] += 1
        return self.backend.solvers.choose(request)

    def pending(self) -> list[tuple[TuningRequest, int]]:
        """Return all problems with their numbers of uses in the model."""
        return list(self.requests.items())

    def in_place(self, request: Request, operand: str) -> None:
        """Record that the model's plan puts the result into the memory of ``operand``."""
        self.replaced[request] = operand

    def note_instruction(self, request: TuningRequest, instruction: str, taken: Candidate) -> None:
        """Ignore the instruction of a request."""

    def tell(self) -> None:
        """Give no warnings."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or read measurements, and print the regret."""
    options = _parse(arguments)
    if options.read:
        record = json.loads(options.read.read_text())
    else:
        own = backend(options.target)
        record = {"environment": describe(), "threads": options.threads, "family": own.family()}
        if options.solvers:
            record["record"] = json.loads(measure_machine().to_json())
            record["features"] = sorted(own.fingerprint().features)
        record["problems"] = measure(
            options.models or case_names(), options.threads, "full", options.target, options.quantize,
            options.libraries, options.solvers, options.budget, not options.exact,
        )  # fmt: skip
    if options.json:
        options.json.write_text(_text(record))
    if options.ship:
        _ship(record, options.ship)
    _show(record)
    return 0


def measure(
    models: Sequence[str],
    threads: int,
    scale: str = "full",
    target: str = "cpu",
    quantize: str | None = None,
    libraries: bool = False,
    solvers: bool = False,
    budget: float = math.inf,
    fast_math: bool = True,
) -> list[dict[str, Any]]:
    """Return a record for each distinct contraction of the models: the choice, and the seconds of every candidate.

    Args:
        quantize: ``fp16``, ``bf16`` or None.
        libraries: measure the candidates of libraries, too.
        solvers: measure each solver with its own blocking only.
        budget: seconds of measuring; the problems of the least operations are left out.
        fast_math: plan with `fast_math`.
    """
    found: dict[Any, tuple[TuningRequest, Counter[str]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name in models:
            case = prepare(name, Path(folder), scale)
            recorder = Recorder(backend(target))
            options = TargetOptions(num_threads=threads, tuning=recorder, fast_math=fast_math)  # type: ignore[arg-type]
            # uniform weights would stay in float32
            compile_for(target, _program(case.checked if quantize else case.path, quantize), options)
            if target == "gpu":
                _compile_for_gpu(recorder)
            for request, count in recorder.requests.items():
                replaced = recorder.replaced.get(request, "") if isinstance(request, Request) else ""
                if isinstance(request, Request):
                    request = dataclasses.replace(request, replaced=replaced)
                known, counts = found.get(request.key(), (request, Counter()))
                counts[name] += count
                found[request.key()] = (request if replaced else known, counts)
            for path in Path(folder).iterdir():
                path.unlink()
    records = []
    started = time.monotonic()
    largest = sorted(found.values(), key=lambda f: -f[0].problem.flops * sum(f[1].values()))
    for number, (request, counts) in enumerate(largest, 1):
        if time.monotonic() - started > budget:
            break
        if sys.stderr.isatty():
            print(f"\r[{number}/{len(found)}]", end="", file=sys.stderr, flush=True)
        try:
            records.append(_measure(backend(target), request, counts, libraries, solvers))
        except MgxError as error:
            print(f" not measured: {error}", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return records


def regret(problems: Sequence[dict[str, Any]]) -> float:
    """Return the time of the choices over the time of the best candidates, less one."""
    chosen = sum(p["count"] * p["chosen_seconds"] for p in problems)
    best = sum(p["count"] * p["best_seconds"] for p in problems)
    return chosen / best - 1 if best else 0.0


def _program(path: Path, quantize: str | None) -> Program:
    parsed = public_program.wrap(parse_onnx(path))
    if quantize:
        _QUANTIZED[quantize](parsed)
    return parsed.portable


def _compile_for_gpu(recorder: Recorder) -> None:
    from mgx_numba.runtime.gpu.engines import engine
    from mgx_numba.targets.gpu.measuring import compile_candidates

    compile_candidates(engine(), recorder)  # type: ignore[arg-type]


def _bench(request: Any) -> CandidateBench:
    if isinstance(request, Request):
        from mgx_numba.targets.cpu.measuring import Bench

        return Bench(request)
    from mgx_numba.runtime.gpu.engines import engine
    from mgx_numba.targets.gpu.measuring import DeviceBench

    return DeviceBench(engine(), request)


def _measure(
    own: Backend, request: TuningRequest, counts: Counter[str], libraries: bool, only_solvers: bool
) -> dict[str, Any]:
    bench = _bench(request)
    solvers = [
        c for c in own.solvers.candidates(request) if c.solver not in LIBRARIES or (libraries and _able(bench, c))
    ]
    chosen = own.solvers.choose(request) if only_solvers else solvers[0]
    if only_solvers:
        if isinstance(request, Request) and request.threads == 1:
            bench.clock = time.process_time  # type: ignore[attr-defined]
        times = _times(bench, solvers, _ROUNDS, min)
        fastest = min(times, key=times.__getitem__)
        return _found(own, request, counts, chosen, fastest, times, times)
    times = _times(bench, solvers, _ROUNDS)
    winner = min(times, key=times.__getitem__)
    near = [c for s in dict.fromkeys([chosen, winner]) for c in own.solvers.refinements(request, s)]
    near = [c for c in near if c.solver not in LIBRARIES or _able(bench, c)]
    times |= _times(bench, [*dict.fromkeys([chosen, winner, *near])], _ROUNDS)
    fastest = min(times, key=times.__getitem__)
    final = _times(bench, [chosen, fastest], _FINAL_ROUNDS)
    if final[chosen] <= final[fastest]:
        fastest = chosen
    found = _found(own, request, counts, chosen, fastest, times, final)
    if final[chosen] > _CLEAR * final[fastest] and fastest.solver not in LIBRARIES:
        date = time.strftime(_DATE, time.gmtime())
        name, configuration = fastest.solver.name, fastest.configuration
        measured_by = own.fingerprint().with_revisions(own.solvers.revisions(request))
        record = TuningRecord(request.key(), measured_by, name, configuration, final[fastest], date=date)
        found["best_record"] = record.to_json()
    return found


def _found(
    own: Backend,
    request: TuningRequest,
    counts: Counter[str],
    chosen: Candidate,
    fastest: Candidate,
    times: dict[Candidate, float],
    final: dict[Candidate, float],
) -> dict[str, Any]:
    key = request.key()
    return {
        "operation": key.operation,
        "problem": dict(key.fields),
        "models": dict(counts),
        "count": sum(counts.values()),
        "estimate_seconds": {e.solver: e.seconds for e in own.solvers.estimates(request) if e.seconds is not None},
        "chosen": str(chosen),
        "chosen_seconds": final[chosen],
        "best": str(fastest),
        "best_seconds": final[fastest],
        "seconds": {str(c): seconds for c, seconds in sorted(times.items(), key=lambda item: item[1])},
    }


def _able(bench: CandidateBench, candidate: Candidate) -> bool:
    """Return whether a library's candidate runs and computes the same result as kernels."""
    try:
        return bench.sample(candidate) > 0
    except MgxError:
        return False


def _text(record: dict[str, Any]) -> str:
    """Return JSON with a line for each problem, and times of four digits."""
    problems = ",\n".join(json.dumps(_rounded(p), separators=(",", ":")) for p in record["problems"])
    rest = {name: value for name, value in record.items() if name != "problems"}
    return f'{json.dumps(rest)[:-1]}, "problems": [\n{problems}\n]}}\n'


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(own) for name, own in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _times(
    bench: CandidateBench,
    candidates: Sequence[Candidate],
    rounds: int,
    of: Callable[[list[float]], float] = median,
) -> dict[Candidate, float]:
    samples: dict[Candidate, list[float]] = {candidate: [] for candidate in candidates}
    for _ in range(rounds):
        for candidate, seconds in samples.items():
            seconds.append(bench.sample(candidate))
    return {candidate: of(seconds) for candidate, seconds in samples.items()}


def _ship(record: dict[str, Any], folder: Path) -> None:
    """Add the best candidates that are clearly faster than the choices to the shipped records.

    Records measured with other versions or revisions of solvers are replaced.

    Raises:
        OptionError: the records are of a machine with emulated tiles.
    """
    found = [p for p in record["problems"] if "best_record" in p and not _coarser(p)]
    records = [TuningRecord.from_json(p["best_record"]) for p in found]
    if any(EMULATED_TILES in r.fingerprint.features for r in records):
        raise OptionError(f"--ship: what was measured with {EMULATED_TILES} is of no machine")
    path = folder / f"{record['family']}.json"
    own = {r.problem: r.fingerprint for r in records}
    known = read_records(path) if path.exists() else []
    kept = [r for r in known if own.get(r.problem, r.fingerprint) == r.fingerprint]
    write_records(path, best([*kept, *records]))


def _coarser(problem: dict[str, Any]) -> bool:
    """Return whether the best candidate computes float32 in parts and the chosen candidate does not.

    With all such choices YOLO's error on AMX is 5.3e-5 of the largest output instead of 4.6e-5.
    """
    by_tiles = [problem[which].partition("[")[0].endswith("_tiles") for which in ("chosen", "best")]
    return problem["problem"]["dtype"] == "float32" and by_tiles == [False, True]


def _show(record: dict[str, Any]) -> None:
    problems = record["problems"]

    def lost(p: dict[str, Any]) -> float:
        return float(p["count"] * (p["chosen_seconds"] - p["best_seconds"]))

    rows = [
        [_title(p), str(p["count"]), f"{p['chosen_seconds'] * 1e3:.3f}", f"{p['best_seconds'] * 1e3:.3f}",
         p["chosen"], p["best"], f"{lost(p) * 1e3:.3f}"]
        for p in sorted(problems, key=lost, reverse=True)[:_SHOWN]
    ]  # fmt: skip
    show("Choices that lose most", ["problem", "count", "ms", "best ms", "chosen", "best", "lost ms"], rows)
    by_model = [
        [name, f"{regret(own):.1%}"]
        for name in sorted({name for p in problems for name in p["models"]})
        if (own := [{**p, "count": p["models"][name]} for p in problems if name in p["models"]])
    ]
    by_model.append([f"all {len(problems)} problems", f"{regret(problems):.1%}"])
    show(f"Regret of the cost model, threads: {record['threads']}", ["model", "regret"], by_model)
    ratios: dict[str, list[float]] = {}
    for p in problems:
        for name, estimate in p["estimate_seconds"].items():
            if name in p["seconds"]:
                ratios.setdefault(name, []).append(math.log(p["seconds"][name] / estimate))
    rows = [
        [name, str(len(v)), f"{math.exp(median(v)):.2f}", f"{_spread(v):.2f}"] for name, v in sorted(ratios.items())
    ]
    show("Measured over estimated time", ["solver", "problems", "median", "spread"], rows)
    wins = Counter(p["best"].partition("[")[0] for p in problems)
    show("Best", ["solver", "problems"], [[name, str(count)] for name, count in wins.most_common()])


def _spread(logarithms: list[float]) -> float:
    """Return the typical factor by which single problems deviate from the median."""
    middle = median(logarithms)
    return math.exp(median(abs(value - middle) for value in logarithms))


def _title(p: dict[str, Any]) -> str:
    f = p["problem"]
    if p["operation"] == "dot":
        batch = "x".join(map(str, f["batch"])) + " of " if f["batch"] else ""
        return f"dot {batch}{f['m']}x{f['n']}x{f['k']}"
    image, kernel = "x".join(map(str, f["in_lens"])), "x".join(map(str, f["kernel"]))
    stride = "x".join(map(str, f["stride"]))
    return (
        f"convolution {f['batch']}x{f['in_channels']}x{image} to {f['out_channels']}, {kernel}/{stride} g{f['groups']}"
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from mgx_numba.runtime.cpu.threads import available_cores

    parser = argparse.ArgumentParser(prog="python -m bench.choices", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=lambda text: text.split(","), help="cases, such as bert,light_resnet50@8")
    parser.add_argument("--target", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--quantize", choices=list(_QUANTIZED), help="the models in float16 or bfloat16")
    parser.add_argument("--libraries", action="store_true", help="cuBLASLt and cuDNN among the candidates")
    parser.add_argument("--solvers", action="store_true", help="each solver with its own blocking only")
    parser.add_argument("--exact", action="store_true", help="plans without fast_math")
    parser.add_argument(
        "--budget", type=float, default=math.inf, help="seconds of measuring, the largest problems first"
    )
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--json", type=Path, help="write everything that was measured")
    parser.add_argument("--read", type=Path, help="show what was measured before")
    parser.add_argument("--ship", type=Path, metavar="FOLDER", help="add records to those that come with the package")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
