"""Random products, convolutions and attentions in float16 on the GPU, against the best that NVIDIA's libraries have.

    python -m bench.gpu_random [products] [convolutions] [attention] [--count N] [--seed N] [--tiles N]
                               [--seconds S] [--json FILE] [--plan]

Products are compared with cuBLASLt: each algorithm of its heuristic, and torch's products through cuBLASLt and cuBLAS;
convolutions with cuDNN's fastest algorithm, channels last on both sides; attention with each back end of torch's
`scaled_dot_product_attention`. Each problem is a program of one operator (`bench.random_problems`). A time is that of
one of several runs in a row in a graph, the least of `ROUNDS` rounds, in which ours and theirs take turns.

With ``--tiles`` that many further tiles of each product are timed, in the form of ``bench/data/gpu_tiles.json``.
``--seconds`` limits the whole run. Problems that a file of ``--json`` has already are not run again, but for those
with a ratio below ``--below``. A process measures until a kernel fails on the device, which takes the process with it;
another goes on without that part of the problem. ``--plan`` prints what the cost models choose for an H200; it needs no
device.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

from bench.gpu_check import copy_rate
from bench.gpu_kernels import PEAKS
from bench.gpu_tiles import SCRATCH_BYTES, Runner, label_of
from bench.random_problems import DEVICE, KINDS, Attention, Convolution, Product, problems
from bench.timing import geometric_mean
from mgx_numba.codegen.gpu.architecture import ENVIRONMENT
from mgx_numba.codegen.gpu.contraction.library_solvers import CublasLtProducts
from mgx_numba.codegen.gpu.contraction.solvers import SOLVER_SET, Warpgroups, WarpgroupTiling
from mgx_numba.codegen.gpu.contraction.wgmma_tiles import WarpgroupTile
from mgx_numba.codegen.gpu.machine import H200, planning_for
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.launch import Solution
from mgx_numba.codegen.tuning.request import extents
from mgx_numba.codegen.workers.objects import objects_of
from mgx_numba.core.device_array import DeviceArray
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy, numpy_dtype
from mgx_numba.errors import MgxError
from mgx_numba.runtime.gpu.executor import DeviceExecutable
from mgx_numba.runtime.plan import Plan
from mgx_numba.targets.gpu.lower import lowering, optimized
from mgx_numba.targets.gpu.program import GpuProgram
from mgx_numba.targets.lowering.job import LoweringJob
from mgx_numba.targets.options import TargetOptions

SAMPLE_SECONDS, FEWEST_RUNS, MOST_RUNS = 4e-4, 3, 20
"""Wanted length of a sample, and the least and most runs in it."""
ROUNDS = 5
ALLOWED = 3e-3
"""Relative error above which a result counts as wrong: a few roundings to float16."""
LOST = 3
"""Status of a process in which a kernel failed on the device."""
SHOWN, SAVED = 40, 20
"""Problems of a kind that are shown, and that are measured before figures are saved."""
MEASURED = ("warpgroup", "few_rows", "tensor", "tensor_narrow", "patch", "depthwise", "depthwise_patch")
"""Solvers whose tiles are measured."""
COMPILING = 0.4
"""Share of ``--seconds`` for compiling kernels in advance."""
BATCH = 400
"""Kernels that are compiled before the time is looked at: enough for 16 cores to pay for their start."""


def planned(problem: Any) -> Plan:
    """Return a problem's plan, without a device."""
    options = TargetOptions()
    return lowering(LoweringJob(optimized(problem.program(), options), options)).run()


def other_tiles(problem: Any, most: int) -> Iterable[tuple[str, Solution]]:
    """Yield the best tiles by their estimates, and the solvers of fewer rows or other instructions."""
    if not most or isinstance(problem, Attention):
        return
    seen: set[str] = set()
    for padded in (True, False):
        contraction = problem.contraction(padded)
        for candidate in SOLVER_SET.own_candidates(contraction):
            solver = candidate.solver
            if solver.name not in MEASURED:
                continue
            weighed = sorted(solver.weighed(contraction), key=lambda w: w[0])
            for _, tiling in islice(weighed, most * (4 if solver.name == "depthwise" else 1)):
                shown = "" if tiling is None else " ".join(str(n) for n in asdict(tiling).values())
                own = isinstance(solver, Warpgroups)
                label = _label(tiling) if own else f"{solver.name} {shown}".strip()
                if label not in seen:
                    seen.add(label)
                    yield label, solver.plan(contraction, tiling)


def _label(tiling: WarpgroupTiling) -> str:
    own = {name: getattr(tiling, name) for name in WarpgroupTile.__dataclass_fields__}
    return label_of(WarpgroupTile(**own), tiling.splits)


def chosen_text(problem: Any, plan: Plan) -> str:
    """Return the steps of a plan, and the tile that the cost model chooses for a product."""
    labels = [f"{step.label} ({step.reason})" if step.reason else step.label for step in plan.steps]
    text = "; ".join(label.removeprefix("gpu::").removesuffix("_kernel") for label in labels)
    if not isinstance(problem, Attention) and "warpgroup" in text:
        tiling = Warpgroups().chosen(problem.contraction(padded=True))
        text += f" {_label(tiling)}"
    return text


def kernels_of(given: argparse.Namespace, kind: str, known: set[str], part: int, parts: int) -> list[KernelSource]:
    """Return the kernels of this process's share of the problems that are not ``known``."""
    found: dict[str, KernelSource] = {}
    for problem in [p for p in problems(kind, given.seed, given.count) if p.name not in known][part::parts]:
        solutions = [s.kernels for _, s in other_tiles(problem, given.tiles)]
        found |= {k.symbol: k for own in (planned(problem).kernels(), *solutions) for k in own}
    return list(found.values())


def compile_all(given: argparse.Namespace, known: dict[str, set[str]], end: float) -> None:
    """Compile the kernels of all problems that are not ``known`` into the store, until ``end``."""
    begin, parts = time.perf_counter(), os.cpu_count() or 1
    context = multiprocessing.get_context("spawn")
    found: dict[str, KernelSource] = {}
    with concurrent.futures.ProcessPoolExecutor(parts, context) as pool:
        asked = [pool.submit(kernels_of, given, *own, k, parts) for own in known.items() for k in range(parts)]
        for one in asked:
            found |= {k.symbol: k for k in one.result()}
    lowered = time.perf_counter()
    waiting = list(found.values())
    while waiting and time.perf_counter() < end:
        batch, waiting = waiting[:BATCH], waiting[BATCH:]
        objects_of(batch)
    print(
        f"{len(found)} kernels, planned in {lowered - begin:.1f} s, compiled in {time.perf_counter() - lowered:.1f} s;"
        f" {len(waiting)} left",
        flush=True,
    )


class Graph:
    """Several runs of a torch function in a row, recorded as a graph."""

    def __init__(self, torch: Any, run: Callable[[], Any], runs: int) -> None:
        self._torch, self._runs, self._graph = torch, runs, torch.cuda.CUDAGraph()
        self._run = run  # keeps its operands
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(2):
                run()
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph):
            for _ in range(runs):
                run()
        self._graph.replay()

    def seconds(self) -> float:
        """Return the seconds of one run."""
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / self._runs


class Ours:
    """A problem's program on the device."""

    def __init__(self, torch: Any, problem: Any, given: dict[str, Any]) -> None:
        self.program = GpuProgram(problem.program(), TargetOptions())
        executable = self.program.executable
        assert executable is not None
        self.plan = executable.plan
        self._engine, self._executable = executable.engine, executable
        self._inputs = [_array(given[p.name]) for p in self.plan.parameters]
        spec = self.plan.outputs[0]
        assert spec.lens is not None
        self.out = torch.full(spec.lens, float("nan"), device=DEVICE, dtype=torch.float16)
        torch.cuda.synchronize()
        executable.run(self._inputs, [_array(self.out)])
        torch.cuda.synchronize()

    def repeated(self, runs: int) -> Callable[[], float]:
        """Return a function that times one of ``runs`` runs in a row."""
        plan = replace(self.plan, steps=list(self.plan.steps) * runs)
        many = DeviceExecutable(plan, self._engine, like=self._executable)
        many.seconds(self._inputs)
        return lambda: many.seconds(self._inputs) / runs


def _array(tensor: Any) -> DeviceArray:
    dtype = numpy_dtype(str(tensor.dtype).removeprefix("torch."))
    return DeviceArray(Shape(from_numpy(dtype), tuple(tensor.shape)), tensor.data_ptr(), 0, tensor)


class Measured:
    """Measures problems; `part` names the part of a problem that runs, `lost` those that failed on the device."""

    def __init__(self, torch: Any, tiles: int, lost: list[list[str]]) -> None:
        self._torch, self._tiles = torch, tiles
        self._rate, self._runner = copy_rate(), Runner()
        self.part, self.lost = "", lost

    def _begins(self, problem: Any, part: str) -> bool:
        """Note that a part begins; return whether it is not lost."""
        self._torch.cuda.synchronize()
        self.part = part
        return [problem.name, part] not in self.lost

    def row(self, problem: Any) -> dict[str, Any]:
        """Check and time a problem; return its figures."""
        torch, runner, times = self._torch, self._runner, {}
        self._begins(problem, "ours")
        given = problem.operands(torch)
        ours = Ours(torch, problem, given)
        error = problem.error(torch, given, ours.out)
        right = error < ALLOWED and bool(torch.isfinite(ours.out).all())
        roof = max(problem.flops / PEAKS["fp16"], problem.bytes / self._rate)
        runs = int(min(MOST_RUNS, max(FEWEST_RUNS, SAMPLE_SECONDS / roof)))
        timed: dict[str, Callable[[], float]] = {"ours": ours.repeated(runs)}
        for library in ("cublaslt", "cublas") if isinstance(problem, Product) else ("",):
            if library:
                torch.backends.cuda.preferred_blas_library(library)
            for name, run in problem.rivals(torch, given).items():
                if self._begins(problem, f"{library} {name}".strip()):
                    try:
                        timed[self.part] = Graph(torch, run, runs).seconds
                    except RuntimeError:  # a back end of attention that does not take the problem
                        torch.cuda.synchronize()
        seconds: dict[str, float] = {}
        for _ in range(ROUNDS):
            for name, sample in timed.items():
                seconds[name] = min(seconds.get(name, 1.0), sample())
        own = seconds.pop("ours")
        places = {"x": given["x"].data_ptr(), "out": ours.out.data_ptr()} if "x" in given else {}
        if isinstance(problem, Product) and self._begins(problem, "heuristic"):
            seconds |= _algorithms(runner, problem, {**places, "w": given["w"].data_ptr()}, runs)
        if self._tiles and not isinstance(problem, Attention) and self._begins(problem, "tiles"):
            tensors = _wide(torch, problem)
            places = {name: tensor.data_ptr() for name, tensor in tensors.items()}
            for label, solution in other_tiles(problem, self._tiles):
                if solution.scratch <= SCRATCH_BYTES and self._begins(problem, label):
                    times[label] = 1e6 * runner.seconds(solution, places, runs)
        best = min(seconds, key=lambda name: seconds[name])
        self._begins(problem, "")
        return {
            "name": problem.name, "us": 1e6 * own, "best_us": 1e6 * seconds[best], "best": best,
            "ratio": seconds[best] / own, "roof": roof / own, "error": error, "right": right,
            "chosen": chosen_text(problem, ours.plan), "rivals": {k: round(1e6 * s, 2) for k, s in seconds.items()},
            "times": {k: round(t, 2) for k, t in times.items()},
        }  # fmt: skip


def _wide(torch: Any, problem: Product | Convolution) -> dict[str, Any]:
    """Return operands for the padded contraction of a problem."""
    x, w, out, _ = extents(problem.contraction(padded=True).request)
    sizes = (("x", x), ("w", 2 * w), ("out", out))  # taps of weights may be padded
    return {name: torch.randn(size, device=DEVICE, dtype=torch.float16) for name, size in sizes}


def _algorithms(runner: Runner, problem: Product, places: dict[str, int], runs: int) -> dict[str, float]:
    """Return the seconds of the algorithms that cuBLASLt's heuristic names, with constants in either order."""
    solver, found = CublasLtProducts(), {}
    for right in ("rows", "columns") if problem.right == "constant" else (problem.right,):
        contraction = replace(problem, right=right).contraction()
        if solver.refusal(contraction):
            continue
        for k, tiling in enumerate(solver.tilings(contraction)):
            try:
                found[f"heuristic {right} {k}"] = runner.seconds(solver.plan(contraction, tiling), places, runs)
            except MgxError:
                continue
    return found


def summary(kind: str, rows: list[dict[str, Any]]) -> None:
    """Print a kind's mean, and its slowest problems."""
    if not rows:
        return
    ratios = [row["ratio"] for row in rows]
    wrong = [row["name"] for row in rows if not row["right"]]
    print(
        f"{kind}: {len(rows)} problems, geometric mean {geometric_mean(ratios):.3f}, least {min(ratios):.2f},"
        f" {sum(r < 0.7 for r in ratios)} below 0.7, {sum(r < 0.95 for r in ratios)} below 0.95;"
        f" wrong: {', '.join(wrong) or 'none'}"
    )
    for row in sorted(rows, key=lambda row: row["ratio"])[:SHOWN]:
        fastest = min(row["times"].items(), key=lambda item: item[1], default=("", 0.0))
        others = f" | fastest tile {fastest[0]} {fastest[1]:.1f}" if fastest[0] else ""
        print(
            f"  {row['ratio']:.2f} {row['name']:34} {row['us']:8.1f} us, {row['best']} {row['best_us']:.1f},"
            f" {100 * row['roof']:.0f}% of roof, {row['chosen']}{others}"
        )
    sys.stdout.flush()


def _show_plans(kinds: list[str], seed: int, count: int) -> None:
    """Print the cost models' choices for an H200."""
    os.environ[ENVIRONMENT] = H200.architecture
    kernels: dict[str, KernelSource] = {}
    with planning_for(H200):
        for kind in kinds:
            for problem in problems(kind, seed, count):
                plan = planned(problem)
                kernels |= {k.symbol: k for k in plan.kernels()}
                print(f"{problem.name:36} {chosen_text(problem, plan)}")
    print(f"{len(kernels)} kernels")


def measure(kinds: list[str], given: argparse.Namespace, end: float) -> None:
    """Measure problems that the file of figures lacks, until ``end`` or until a kernel fails on the device.

    The process ends with the status `LOST` in that case.
    """
    import torch

    torch.cuda.init()
    torch.backends.cudnn.benchmark = True
    warnings.simplefilter("ignore")  # back ends of attention say why they do not take a problem
    path = Path(given.json)
    figures: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    measured = Measured(torch, given.tiles, figures.setdefault("lost", []))
    for kind in kinds:
        rows = figures.setdefault(kind, [])
        known = {row["name"] for row in rows}
        for problem in problems(kind, given.seed, given.count):
            lost = [problem.name, "ours"] in measured.lost
            if problem.name in known or lost or time.time() > end:
                continue
            try:
                rows.append(measured.row(problem))
                torch.cuda.empty_cache()
            except (MgxError, RuntimeError) as error:
                print(f"FAILED {problem.name}, {measured.part}: {str(error)[:200]}", flush=True)
                measured.lost.append([problem.name, measured.part])
                path.write_text(json.dumps(figures))
                os._exit(LOST)
            if len(rows) % SAVED == 0:
                path.write_text(json.dumps(figures))
        path.write_text(json.dumps(figures))
        print(f"{kind}: {end - time.time():.0f} s are left", flush=True)


def main() -> int:
    """Check and time the selected kinds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="default: all")
    parser.add_argument("--count", type=int, default=0, help="problems of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiles", type=int, default=0, help="further tiles of each product to time")
    parser.add_argument("--seconds", type=float, default=1e6, help="for all")
    parser.add_argument("--json", default="gpu_random.json", help="file for the figures, which goes on where it ends")
    parser.add_argument("--below", type=float, default=0.0, help="ratio below which problems are measured again")
    parser.add_argument("--plan", action="store_true", help="show choices, without a device")
    given = parser.parse_args()
    kinds = given.kinds or list(KINDS)
    if given.plan:
        _show_plans(kinds, given.seed, given.count)
        return 0
    path, end = Path(given.json), time.time() + given.seconds
    figures: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for kind in kinds:
        figures[kind] = [row for row in figures.get(kind, []) if row["ratio"] >= given.below]
    path.write_text(json.dumps({**figures, "lost": []}))
    known = {kind: {row["name"] for row in figures[kind]} for kind in kinds}
    compile_all(given, known, time.perf_counter() + COMPILING * given.seconds)
    context, status = multiprocessing.get_context("spawn"), LOST
    while status == LOST:
        process = context.Process(target=measure, args=(kinds, given, end))
        process.start()
        process.join()
        status = process.exitcode or 0
    figures = json.loads(path.read_text())
    for kind in kinds:
        summary(kind, figures[kind])
    for name, part in figures["lost"]:
        print(f"failed on the device: {name}, {part}")
    wrong = any(not row["right"] for kind in kinds for row in figures[kind])
    return int(status or wrong or any(part == "ours" for _, part in figures["lost"]))


if __name__ == "__main__":
    sys.exit(main())
