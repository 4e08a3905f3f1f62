"""Networks on the GPU against PyTorch's compiler, with the same weights, and the kernels that take the time.

    python -m bench.gpu_inductor [--models a,b] [--kinds fp16,medium,default] [--max-autotune] [--alone] [--json FILE]

``fp16``, ``bf16``: `quantize_fp16` or `quantize_bf16` for ours (inputs and results of bfloat16 programs are float32),
``module.half()`` or ``module.bfloat16()`` for PyTorch; ``default``: float32 with default options on both sides; other
kinds are float32 of that ``float32_matmul_precision`` on both sides.
Both run as device graphs with inputs on the device: PyTorch by ``mode="reduce-overhead"``. They take turns; a time is
the median over rounds of `CALLS` calls in a row, by the device's clock. Results are compared with PyTorch's in float32.
Our memory is the driver's free memory gained by releasing the program, listed with the weights of its plan. Each
network of each kind has its own process: all are prepared in parallel, and timed one after the other when nothing else
runs. With ``--max-autotune``, whose preparation takes timings, each is prepared alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import mgx_numba
from bench.agreement import max_relative_error
from bench.gpu_check import copy_rate
from bench.gpu_kernels import step_times, table
from bench.timing import geometric_mean
from mgx_numba.api.program import program as Compiling
from mgx_numba.core.device_array import DeviceArray
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.graph.calibration import Calibration
from mgx_numba.runtime.gpu.cuda import cuda_engine
from mgx_numba.targets.gpu.program import GpuProgram

KINDS = ("fp16", "medium", "default")
PRECISIONS = {"fp16": "highest", "bf16": "highest", "default": "highest"}
"""PyTorch's ``float32_matmul_precision`` for kinds that do not name one."""
CALLS = 20
"""Calls per round: enough to hide the host's work on the first calls, as in a server under load."""
ROUNDS = 9

EIGHT_BITS: dict[str, Callable[..., Compiling]] = {"int8": mgx_numba.quantize_int8, "fp8": mgx_numba.quantize_fp8}
"""Our 8-bit kinds, with float16 for the rest."""


def exported(torch: Any, module: Any, inputs: tuple[Any, ...], half: bool, path: Path) -> None:
    """Write a module as ONNX; ``half`` makes floating inputs and results float16 and leaves all else float32."""

    class Edges(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *given: Any) -> Any:
            made = self.module(*(x.float() if x.is_floating_point() else x for x in given))
            return tuple(r.half() for r in made) if isinstance(made, tuple) else made.half()

    given = tuple(x.half() if half and x.is_floating_point() else x for x in inputs)
    names = [f"x{k}" for k in range(len(inputs))]
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Edges() if half else module, given, str(path), input_names=names, opset_version=17, dynamo=False
        )


class Ours:
    """A program compiled for the device, with its inputs and results there.

    8-bit kinds are quantised with the ranges from `ranges`.
    """

    def __init__(
        self, torch: Any, path: Path, kind: str, inputs: Sequence[Any], calibration: Calibration | None = None
    ) -> None:
        program: Compiling = mgx_numba.parse_onnx(str(path))
        start = time.perf_counter()
        if kind in EIGHT_BITS:
            assert calibration is not None
            EIGHT_BITS[kind](program, mgx_numba.get_target("gpu"), calibration)
        if kind in ("fp16", *EIGHT_BITS):
            mgx_numba.quantize_fp16(program)
        if kind == "bf16":
            mgx_numba.quantize_bf16(program)
        plain = kind in PRECISIONS or kind in EIGHT_BITS
        options: dict[str, Any] = {} if plain else {"float32_matmul_precision": kind}
        program.compile("gpu", **options)
        self.compiling = time.perf_counter() - start
        compiled = program.compiled
        assert isinstance(compiled, GpuProgram) and compiled.executable is not None
        self.hosted = sorted(set(compiled.fallback_reasons().values()))
        self.executable, self._compiled = compiled.executable, compiled
        given = [inputs[int(p.name[1:])] for p in self.executable.plan.parameters]
        self._on_host = [x.cpu().numpy() for x in given]
        self.results = [np.asarray(r) for r in self.executable.run(self._on_host)]
        lens = [Shape(from_numpy(x.dtype), x.shape) for x in self._on_host]
        self._inputs = [DeviceArray(s, x.data_ptr(), 0, x) for s, x in zip(lens, given)]
        shapes = [Shape(from_numpy(r.dtype), r.shape) for r in self.results]
        memory = [torch.empty(r.nbytes, dtype=torch.uint8, device="cuda") for r in self.results]
        self._outputs = [DeviceArray(s, m.data_ptr(), 0, m) for s, m in zip(shapes, memory)]
        self._torch, self._stream = torch, torch.cuda.Stream()
        for _ in range(2):
            self.seconds()

    def give_up(self) -> tuple[int, int]:
        """Release the program; return the device bytes of the program and of its constants."""
        weights = sum(array.nbytes for array in self.executable.plan.constants)
        engine = cuda_engine(self.executable.engine.number)
        engine.kept.release()
        before = engine.device.room()[0]
        del self.executable, self._compiled
        gc.collect()
        engine.kept.release()
        return engine.device.room()[0] - before, weights

    def seconds(self) -> float:
        """Return the seconds per call, measured over `CALLS` calls in sequence."""
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._torch.cuda.synchronize()
        start.record(self._stream)
        for _ in range(CALLS):
            self.executable.run(self._inputs, self._outputs, self._stream.cuda_stream)
        end.record(self._stream)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / CALLS

    def steps(self) -> list[dict[str, Any]]:
        """Return the time of each kernel (`step_times`)."""
        inputs = {p.name: x for p, x in zip(self.executable.plan.parameters, self._on_host)}
        return [s for s in step_times(self._compiled, inputs) if not s["reason"]]


def ranges(torch: Any, module: Any, inputs: Sequence[Any], folder: Path, one: bool) -> Calibration:
    """Calibrate a module on its inputs, or on the first of each batch (``one``)."""
    first = tuple(x[:1] for x in inputs) if one else tuple(inputs)
    exported(torch, module, first, True, folder / "first.onnx")
    program: Compiling = mgx_numba.parse_onnx(str(folder / "first.onnx"))
    given = {f"x{k}": (x.half() if x.is_floating_point() else x).cpu().numpy() for k, x in enumerate(first)}
    return mgx_numba.calibrate(program, mgx_numba.get_target("gpu"), [given])


def theirs(torch: Any, module: Any, inputs: tuple[Any, ...], kind: str, mode: str) -> Callable[[], float]:
    """Return a function that times a call of a module as PyTorch compiles it."""
    torch.set_float32_matmul_precision(PRECISIONS.get(kind, kind))
    torch.backends.cudnn.allow_tf32 = kind == "medium"
    if kind in ("fp16", "bf16"):
        dtype = torch.float16 if kind == "fp16" else torch.bfloat16
        module = module.to(dtype)
        inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    if any(isinstance(m, torch.nn.Conv2d) for m in module.modules()):  # convolutions prefer channels-last memory
        module = module.to(memory_format=torch.channels_last)
        form = torch.channels_last
        inputs = tuple(x.contiguous(memory_format=form) if x.ndim == 4 else x for x in inputs)
    for x in inputs:
        torch._dynamo.mark_static_address(x)
    compiled = torch.compile(module, mode=mode)

    def call() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.inference_mode():
            compiled(*inputs)

    for _ in range(4):
        call()

    def seconds() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / CALLS

    return seconds


class Job:
    """A network of a kind in its own process, which prepares it, and times it on request."""

    def __init__(self, name: str, kind: str, mode: str | None, rate: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.name, self.kind = name, kind
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(name, kind, mode, rate, theirs))
        self._process.start()
        theirs.close()

    def ready(self) -> bool:
        """Wait until the network is prepared; return False on failure."""
        return self._answer() is not None

    def timed(self) -> dict[str, Any] | None:
        """Return the figures, or None on failure."""
        self._pipe.send(True)
        found = self._answer()
        self._process.join()
        return found

    def _answer(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError:
            print(f"{self.name} {self.kind}: FAILED", flush=True)
            return None


def _work(name: str, kind: str, mode: str | None, rate: float, pipe: Connection) -> None:
    """Run the process of a `Job`."""
    import torch

    torch.cuda.init()
    steps = compare(torch, name, kind, mode, rate)
    next(steps)
    pipe.send(True)
    pipe.recv()
    pipe.send(next(steps))


def compare(torch: Any, name: str, kind: str, mode: str | None, rate: float) -> Iterator[dict[str, Any]]:
    """Prepare a network and yield an empty result; then time it and yield its figures. Without a mode, only ours is
    timed."""
    from bench.torch_networks import ALL_NETWORKS

    torch.manual_seed(0)
    with torch.device("cuda"):
        module, inputs = ALL_NETWORKS[name]()
    half = kind == "fp16"
    with torch.inference_mode():
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        wanted = module(*inputs)
    wanted = [r.cpu().numpy() for r in (wanted if isinstance(wanted, tuple) else (wanted,))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        exported(torch, module, inputs, half, path)
        given = [x.half() if half and x.is_floating_point() else x for x in inputs]
        ours = Ours(torch, path, kind, given)
    error = max_relative_error(ours.results, wanted)
    start = time.perf_counter()
    other = theirs(torch, module, inputs, kind, mode) if mode else lambda: float("nan")
    compiling = time.perf_counter() - start
    yield {}
    rounds = [(ours.seconds(), other()) for _ in range(ROUNDS)]
    own, peer = (float(np.median(t)) for t in zip(*rounds))
    steps = ours.steps()
    alone = sum(s["seconds"] for s in steps)
    held, weights = ours.give_up()
    print(
        f"{name:14} {kind:8} ours {1e3 * own:7.3f} ms, inductor {1e3 * peer:7.3f} ({peer / own:.2f}), {len(steps)}"
        f" kernels, alone {1e3 * alone:.3f} ms, error {error:.1e}, compiled in {ours.compiling:.1f} and"
        f" {compiling:.1f} s, {held / 1e6:.0f} MB of the device for {weights / 1e6:.0f} MB of weights,"
        f" on the host: {'; '.join(ours.hosted) or 'nothing'}",
        flush=True,
    )
    print("\n".join(table(steps, kind, rate)), flush=True)
    row = {"name": name, "kind": kind, "ms": 1e3 * own, "inductor_ms": 1e3 * peer, "error": error, "steps": steps}
    row |= {"compile_s": ours.compiling, "inductor_compile_s": compiling, "held_bytes": held, "weight_bytes": weights}
    yield {**row, "hosted": ours.hosted}


def main() -> int:
    """Run the selected networks."""
    from bench.torch_networks import ALL_NETWORKS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(ALL_NETWORKS), help="comma-separated networks")
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated precisions")
    parser.add_argument("--max-autotune", action="store_true", help="let inductor search for minutes")
    parser.add_argument("--alone", action="store_true", help="without inductor")
    parser.add_argument("--json", help="file for the figures")
    given = parser.parse_args()
    mode = None if given.alone else "max-autotune" if given.max_autotune else "reduce-overhead"
    kinds = given.kinds.split(",")
    asked = [(name, kind) for name in given.models.split(",") for kind in kinds]
    share = str(max(2, (os.cpu_count() or 1) // len(asked)))
    for variable in ("MIGRAPHX_GPU_COMPILE_PARALLEL", "TORCHINDUCTOR_COMPILE_THREADS"):
        os.environ.setdefault(variable, share)
    rate = copy_rate()
    found: list[dict[str, Any]] = []
    for group in [[a] for a in asked] if given.max_autotune else [asked]:
        jobs = [Job(name, kind, mode, rate) for name, kind in group]
        prepared = [job for job in jobs if job.ready()]
        found += [row for job in prepared if (row := job.timed())]
    for kind in kinds:
        parts = [row["inductor_ms"] / row["ms"] for row in found if row["kind"] == kind]
        if mode and parts:
            print(f"{kind}: geometric mean {geometric_mean(parts):.2f}, least {min(parts):.2f}")
    if given.json:
        Path(given.json).write_text(json.dumps(found))
    return int(len(found) < len(asked))


if __name__ == "__main__":
    sys.exit(main())
