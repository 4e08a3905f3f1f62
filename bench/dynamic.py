"""Costs of dynamic lengths: plans for new lengths, ranges, runs against a static compile, threads, loops.

``python -m bench.dynamic`` prints a table for each; ``--parts lengths,range,speed,threads,loop`` selects. Times of
plans and compiling are CPU seconds of the thread or the process, the least of several. Throughput and loops are in
wall-clock time and need a quiet machine; the part threads also prints CPU seconds per row. Nothing is asserted.
The part lengths prints how many kernels runs compiled, and how many they took from the cache folder that ``compile``
had not compiled, since another program had. ``--models`` selects its networks. ``--target gpu`` has only this part, in
wall-clock time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from mgx_numba.api.program import program as public_program
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.workers import batch
from mgx_numba.core.shape import DynamicDimension
from mgx_numba.frontends.onnx import parse_onnx
from tests.dynamic.models import FLOAT, MODELS, Case, Feeds, Graph, encoder

__all__ = ["main"]

OPEN = DynamicDimension(0, 4096)
LAYERS, WIDTH, MOST = 12, 64, 64
"""Layers, width and largest length of the deep encoder."""
DRAWN = 50
"""Random sets of lengths, of which the largest serves to compare speed."""


def compiled(case: Case, dim: DynamicDimension = OPEN, target: str = "cpu", **options: Any) -> Any:
    """Compile a case's model with its open dimensions in a range, for a target."""
    return public_program.wrap(parse_onnx(case.model, default_dyn_dim_value=dim)).compile(target, **options)


def static(case: Case, feeds: Feeds) -> Any:
    """Compile a case's model for the lengths of given inputs."""
    lens = {name: list(array.shape) for name, array in feeds.items()}
    return public_program.wrap(parse_onnx(case.model, map_input_dims=lens)).compile("cpu")


def mlp() -> Case:
    """Return a model of three products over an open batch."""
    g = Graph()
    y = "x"
    for k, n in ((256, 512), (512, 512), (512, 64)):
        y = g.op("Relu", g.op("Gemm", y, g.weights(k, n), g.weights(n)))

    def draw(rng: np.random.Generator) -> Feeds:
        return {"x": rng.standard_normal((int(rng.integers(1, 33)), 256)).astype(np.float32)}

    return Case(g.model({"x": (FLOAT, ["N", 256])}, [y]), draw)


def cases() -> dict[str, Case]:
    """Return the models of the tests, and a deep encoder."""
    deep = encoder(LAYERS, WIDTH, MOST)
    return {**{name: make() for name, make in MODELS.items()}, f"encoder, {LAYERS} layers": deep}


class _Counted:
    """Compiles kernels as the workers do, and counts them."""

    def __init__(self) -> None:
        self.count = 0
        self._compile = batch.compile_objects

    def __call__(self, sources: Sequence[KernelSource], *rest: Any, **options: Any) -> list[bytes]:
        self.count += len(sources)
        return self._compile(sources, *rest, **options)


_compiled_kernels = _Counted()


def new_lengths(rounds: int, target: str = "cpu", models: Sequence[str] = ()) -> None:
    """Print the time (ms) of a first run at new lengths, less that of the fastest run at known lengths.

    It is CPU time of the calling thread, wall-clock time on devices. ``models`` selects cases whose names contain a
    word.
    """
    batch.compile_objects = _compiled_kernels  # type: ignore[assignment]
    print("new lengths: ms beyond the run, by the share of lengths that stay below")
    clock, clock_of_all = (time.thread_time, time.process_time) if target == "cpu" else (time.perf_counter,) * 2
    for name, case in cases().items():
        if models and not any(word in name for word in models):
            continue
        begun = clock_of_all()
        net = compiled(case, target=target)
        seconds, kernels = clock_of_all() - begun, len(net.kernels())
        rng, costs, seen, before = np.random.default_rng(0), [], set(), _compiled_kernels.count
        for _ in range(rounds):
            feeds = case.draw(rng)
            lens = tuple(array.shape for array in feeds.values())
            if lens in seen:
                continue
            seen.add(lens)
            first, *again = (_seconds(partial(net.run, feeds), clock) for _ in range(4))
            costs.append(1e3 * (first - min(again)))
        least, middle, most = min(costs), statistics.median(costs), sorted(costs)[int(0.9 * len(costs))]
        new, taken = _compiled_kernels.count - before, len(net.kernels()) - kernels
        print(
            f"  {name:24} least {least:7.1f}  half {middle:7.1f}  0.9 {most:7.1f}   (compiled in {seconds:.1f} s,"
            f" {kernels} kernels; in runs {new} were compiled, {max(0, taken - new)} were there)",
            flush=True,
        )


def ranges() -> None:
    """Print costs of a range up to 5,000,000 and of one up to 8: CPU seconds of compiling, kernels, and saved bytes."""
    print("ranges: compiling in an empty cache folder is what MGX_CACHE_DIR=$(mktemp -d) shows")
    for name, case in {"mlp": mlp(), "shuffle_net": MODELS["shuffle_net"]()}.items():
        for most in (8, 5_000_000):
            begun = time.process_time()
            net = compiled(case, DynamicDimension(1, most))
            seconds = time.process_time() - begun
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.mxr"
                net.save(str(path))
                size = path.stat().st_size
            print(
                f"  {name:12} 1..{most:<9} {seconds:6.2f} s  {len(net.kernels()):3} kernels  {size / 1e6:6.2f} MB saved"
            )


def speed(rounds: int) -> None:
    """Print times of the dynamic program against a static compile for the same lengths, taking turns.

    The largest of the drawn lengths is used, since finding the plan takes most of the microseconds of small runs.
    """
    print("speed: dynamic / static, wall clock of the quickest of many turns")
    for name, case in cases().items():
        rng = np.random.default_rng(3)
        drawn = [case.draw(rng) for _ in range(DRAWN)]
        feeds = max(drawn, key=lambda one: sum(array.size for array in one.values()))
        nets = [compiled(case), static(case, feeds)]
        least = [float("inf")] * 2
        for _ in range(rounds * 20):
            for k, net in enumerate(nets):
                begun = time.perf_counter()
                net.run(feeds)
                least[k] = min(least[k], time.perf_counter() - begun)
        print(f"  {name:24} {least[0] / least[1]:6.3f}   ({1e6 * least[0]:.0f} and {1e6 * least[1]:.0f} us)")


def threads(seconds: float, count: int = 16) -> None:
    """Print rows per second of threads that call one program with random batch sizes, against a fixed batch of their
    mean."""
    print(f"threads: {count} of them, random batches of 1 to 31 rows beside batches of 16")
    net = compiled(mlp(), DynamicDimension(1, 64), num_threads=1)
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((n, 256)).astype(np.float32) for n in range(1, 32)]
    rates, costs = [], []
    for turn, chosen in enumerate((batches[15:16], batches) * 3):
        done = [0] * count

        def work(own: int, chosen: Sequence[np.ndarray] = chosen, done: list[int] = done, turn: int = turn) -> None:
            order = np.random.default_rng(1000 * turn + own).integers(0, len(chosen), 1 << 12)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                for k in order[:64]:
                    net.run({"x": chosen[k]})
                    done[own] += len(chosen[k])
                order = np.roll(order, 64)

        workers = [threading.Thread(target=work, args=(own,)) for own in range(count)]
        begun = time.process_time()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        costs.append((time.process_time() - begun) / sum(done))
        rates.append(sum(done) / seconds)
    fixed, mixed = max(rates[::2]), max(rates[1::2])
    print(f"  fixed {fixed:.0f} rows/s, random {mixed:.0f} rows/s: {100 * (1 - mixed / fixed):.1f}% lost")
    fixed, mixed = 1e6 * min(costs[::2]), 1e6 * min(costs[1::2])
    print(f"  CPU: fixed {fixed:.2f} us a row, random {mixed:.2f}: {100 * (1 - fixed / mixed):.1f}% lost")


def loop(rounds: int, iterations: int = 1000) -> None:
    """Print microseconds per iteration of a Loop over a small body, less those of an empty loop."""
    print(f"loop of {iterations} iterations")
    for name, model in {"two additions": _loop(False), "with a scan output": _loop(True)}.items():
        parsed = parse_onnx(model, limit_max_iterations=iterations)
        net = public_program.wrap(parsed).compile("cpu", num_threads=1)

        def run(trips: int, net: Any = net) -> float:
            feeds = {"trips": np.array(trips, np.int64), "x": np.ones(4, np.float32)}
            net.run(feeds)
            return min(_seconds(partial(net.run, feeds), time.perf_counter) for _ in range(rounds))

        print(f"  {name:24} {1e6 * (run(iterations) - run(0)) / iterations:.2f} us an iteration")


def _loop(scans: bool) -> Any:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["a", "one"], ["half"]),
            helper.make_node("Mul", ["half", "one"], ["next"]),
            helper.make_node("Identity", ["go"], ["on"]),
            *([helper.make_node("Identity", ["next"], ["seen"])] if scans else []),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, [4]),
            *([helper.make_tensor_value_info("seen", FLOAT, [4])] if scans else []),
        ],
        [helper.make_tensor("one", FLOAT, [4], [1.0, 0.5, 2.0, 0.25])],
    )
    outputs = ["last", "all"][: 1 + scans]
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "x"], outputs, body=body)],
        "loop",
        [
            helper.make_tensor_value_info("trips", TensorProto.INT64, []),
            helper.make_tensor_value_info("x", FLOAT, [4]),
        ],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 10
    return model


def _seconds(function: Callable[[], object], clock: Callable[[], float]) -> float:
    begun = clock()
    function()
    return clock() - begun


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parts: dict[str, Callable[[int], None]] = {
        "lengths": lambda rounds: new_lengths(4 * rounds, options.target, options.models),
        "range": lambda rounds: ranges(),
        "speed": speed,
        "threads": lambda rounds: threads(rounds / 10),
        "loop": loop,
    }
    parser = argparse.ArgumentParser(prog="python -m bench.dynamic", description=__doc__)
    parser.add_argument("--parts", default=",".join(parts), help=f"of {', '.join(parts)}")
    parser.add_argument("--target", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--models", nargs="*", default=[], help="words of the names of the networks of lengths")
    parser.add_argument("--rounds", type=int, default=10, help="how long to measure; default 10")
    options = parser.parse_args(arguments)
    chosen = ["lengths"] if options.target == "gpu" else options.parts.split(",")
    unknown = sorted(set(chosen) - parts.keys())
    if unknown:
        parser.error(f"unknown parts {', '.join(unknown)}: expected some of {', '.join(parts)}")
    for name in chosen:
        parts[name](options.rounds)


if __name__ == "__main__":
    main()
