"""All GPU checks in one command: tests, tests under compute-sanitizer, rates of kernels, models, and start-up times.

    python -m bench.gpu_check [sanitize] [tests] [memory] [products] [models] [start] [--models a,b] [--kinds a,b]
                              [--kernels N] [--precisions a,b] [--json FILE]

Kinds of models: ``exact``, float32 without ``fast_math``; ``float32``, with it; ``fp16``; ``bf16``. The exit status is
not 0 if a test fails or a model's results are wrong by `bench.exact`.
Kernels of models are timed alone, each several times in a row within a graph. Their sum excludes gaps between launches
and copies to and from the host, which a whole run includes.
Rates are by the device's own clock, over launches recorded in a graph, against a device-to-device copy of the driver.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from ctypes import c_size_t, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import mgx_numba
from bench.cases import prepare
from bench.exact import FARTHEST, QUANTIZE, Exact
from bench.gpu_kernels import PEAKS, step_times, table
from bench.gpu_start import start
from bench.gpu_tiles import torch_seconds
from bench.models import MODELS
from mgx_numba.api.program import program as Compiling
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type, numpy_dtype
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.cuda import cuda_engine
from mgx_numba.runtime.plan import Step
from mgx_numba.targets.gpu.program import GpuProgram
from mgx_numba.targets.options import TargetOptions

PARTS = ("sanitize", "tests", "memory", "products", "models", "start")
F32, F16 = Type.float_type, Type.half_type
COPIED = 1 << 30
LATENCY_RUNS = 30
DEFAULTS = TargetOptions()


def copy_rate() -> float:
    """Return the bytes read and written per second by the driver's copy of memory larger than any cache."""
    engine = cuda_engine()
    queue = engine.queue()
    source, target = (engine.allocate(COPIED, "a copy") for _ in range(2))
    ask = partial(
        engine.driver.call, "cuMemcpyDtoDAsync_v2", c_void_p(target), c_void_p(source), c_size_t(COPIED), queue.stream
    )
    queue.timed(ask)
    seconds = min(queue.timed(ask) for _ in range(5))
    engine.free(source)
    engine.free(target)
    return 2 * COPIED / seconds


def made(build: Callable[[Module], None], options: TargetOptions) -> tuple[GpuProgram, list[np.ndarray]]:
    """Return a program and random inputs for it."""
    program = Program()
    build(program.main)
    rng = np.random.default_rng(0)
    compiled = GpuProgram(program, options)
    assert compiled.executable is not None
    inputs = []
    for p in compiled.executable.plan.parameters:
        dtype = numpy_dtype(p.dtype)
        pattern = rng.standard_normal(1 << 20, dtype=np.float32).astype(dtype)
        inputs.append(np.resize(pattern, p.lens))
    return compiled, inputs


def timed(
    build: Callable[[Module], None], options: TargetOptions = DEFAULTS, without: str = ""
) -> tuple[float, int, int, int]:
    """Return seconds, bytes, flops and number of a program's kernels, without kernels of the label ``without``."""
    compiled, inputs = made(build, options)
    assert compiled.executable is not None
    steps = compiled.executable.plan.steps
    seconds = compiled.executable.time_steps(inputs)
    counted = [(t, s) for t, s in zip(seconds, steps) if s.label != without]
    kernels = [s for _, s in counted if isinstance(s, Step)]
    total = sum(t for t, _ in counted)
    return total, sum(s.bytes for s in kernels), sum(s.flops for s in kernels), len(counted)


def _unary(name: str, lens: tuple[int, ...], type: Type = F32, **attributes: Any) -> Callable[[Module], None]:
    def build(m: Module) -> None:
        m.add_return([m.add_instruction(name, [m.add_parameter("x", Shape(type, lens))], **attributes)])

    return build


def _pointwise(count: int, type: Type) -> Callable[[Module], None]:
    def build(m: Module) -> None:
        x, y, z = (m.add_parameter(n, Shape(type, (count,))) for n in "xyz")
        total = m.add_instruction("add", [m.add_instruction("mul", [x, y]), z])
        m.add_return([m.add_instruction("gelu_erf", [total])])

    return build


def _turned(side: int, type: Type) -> Callable[[Module], None]:
    def build(m: Module) -> None:
        x = m.add_parameter("x", Shape(type, (side, side)))
        transposed = m.add_instruction("transpose", [x], permutation=(1, 0))
        m.add_return([m.add_instruction("relu", [transposed])])

    return build


def _layer_norm(rows: int, columns: int, before: bool) -> Callable[[Module], None]:
    def build(m: Module) -> None:
        lens = (rows, columns)
        x = m.add_parameter("x", Shape(F32, lens))
        scale, shift = (m.add_parameter(n, Shape(F32, (columns,))) for n in ("scale", "shift"))

        def row(v: Any) -> Any:
            return m.add_instruction("multibroadcast", [v], out_lens=lens)

        if before:
            bias, residual = m.add_parameter("bias", Shape(F32, (columns,))), m.add_parameter("r", Shape(F32, lens))
            x = m.add_instruction("gelu_erf", [m.add_instruction("add", [x, row(bias)])])
            x = m.add_instruction("add", [x, residual])
        mean = m.add_instruction("reduce_mean", [x], axes=(1,))
        centred = m.add_instruction("sub", [x, row(mean)])
        square = m.add_instruction("mul", [centred, centred])
        variance = m.add_instruction("reduce_mean", [square], axes=(1,))
        epsilon = m.add_instruction(
            "multibroadcast", [m.add_literal(np.full((1,), 1e-5, np.float32))], out_lens=(rows, 1)
        )
        factor = m.add_instruction("rsqrt", [m.add_instruction("add", [variance, epsilon])])
        normal = m.add_instruction("mul", [centred, row(factor)])
        m.add_return([m.add_instruction("add", [m.add_instruction("mul", [normal, row(scale)]), row(shift)])])

    return build


def memory() -> list[dict[str, Any]]:
    """Return rates of memory-bound kernels as fractions of the copy's rate."""
    rate = copy_rate()
    print(f"copy {rate / 1e12:.2f} TB/s", flush=True)
    rows = [(1 << 25) // n for n in (17, 100, 1000, 3000, 10000, 65536)]
    cases: dict[str, Callable[[Module], None]] = {
        "pointwise 2^27 float32": _pointwise(1 << 27, F32),
        "pointwise 2^27 float16": _pointwise(1 << 27, F16),
        "softmax 8192x4096": _unary("softmax", (8192, 4096), axis=1),
        "softmax 8192x4096 float16": _unary("softmax", (8192, 4096), F16, axis=1),
        "layer norm 8192x4096": _layer_norm(8192, 4096, False),
        "bias gelu add layer norm 8192x4096": _layer_norm(8192, 4096, True),
        "column sums 8192x4096": _unary("reduce_sum", (8192, 4096), axes=(0,)),
        "row sums 8192x4096": _unary("reduce_sum", (8192, 4096), axes=(1,)),
        "transpose 8192^2": _turned(8192, F32),
        "transpose 8192^2 float16": _turned(8192, F16),
        "softmax over channels": _unary("softmax", (64, 128, 64, 64), axis=1),
        **{
            f"softmax rows of {n}": _unary("softmax", (count, n), axis=1)
            for count, n in zip(rows, (17, 100, 1000, 3000, 10000, 65536))
        },
    }
    found = []
    for name, build in cases.items():
        seconds, moved, _, steps = timed(build)
        part = moved / seconds / rate
        found.append({"name": name, "ms": 1e3 * seconds, "of_copy": part, "steps": steps})
        print(f"{name:38} {1e3 * seconds:8.3f} ms {100 * part:4.0f}% of copy, {steps} steps", flush=True)
    return found


def _product(rows: int, columns: int, depth: int, type: Type) -> Callable[[Module], None]:
    def build(m: Module) -> None:
        a, b = m.add_parameter("a", Shape(type, (rows, depth))), m.add_parameter("b", Shape(type, (depth, columns)))
        m.add_return([m.add_instruction("dot", [a, b])])

    return build


def _convolution(
    batch: int, side: int, channels: int, out: int, kernel: int, stride: int, type: Type
) -> Callable[[Module], None]:
    """Return a builder of a channels-last convolution with a channels-first result, by a separate step."""

    def build(m: Module) -> None:
        x = m.add_parameter("x", Shape(type, (batch, side, side, channels)))
        x = m.add_instruction("transpose", [x], permutation=(0, 3, 1, 2))
        weights = np.random.default_rng(1).standard_normal((out, channels, kernel, kernel)).astype(type.numpy)
        padding, strides = (kernel // 2,) * 2, (stride,) * 2
        y = m.add_instruction("convolution", [x, m.add_literal(weights)], padding=padding, stride=strides)
        m.add_return([y])

    return build


PRECISIONS = ("fp16", "medium", "high", "highest")
GEMMS = ((4096, 4096, 4096), (3072, 768, 3072), (3072, 3072, 768), (128, 768, 768), (128, 3072, 768))
CONVS = tuple(
    (batch, *conv)
    for batch in (1, 32)
    for conv in (
        (56, 64, 64, 3, 1), (28, 128, 128, 3, 1), (14, 256, 256, 3, 1), (7, 512, 512, 3, 1), (56, 256, 256, 1, 1),
        (224, 3, 64, 7, 2),
    )
)  # fmt: skip
"""Batch, side, channels, output channels, kernel and stride."""


def products(kinds: Sequence[str] = PRECISIONS) -> list[dict[str, Any]]:
    """Return rates of products and convolutions, against torch where it is installed; float32 in each precision.

    Results of convolutions are channels-last, as inputs are, or converted ``to NCHW`` on both sides.
    """
    found = []
    for kind in kinds:
        type = F16 if kind == "fp16" else F32
        options = TargetOptions(float32_matmul_precision=kind if type is F32 else None)
        for lens in GEMMS:
            name, theirs = "x".join(map(str, lens)), _torch_product(lens, kind)
            found.append(_rate(name, kind, _product(*lens, type), options, theirs))
        for conv in CONVS:
            batch, side, channels, _, kernel, _ = conv
            for last in (True, False):
                name = f"conv{kernel} {batch}x{side}^2x{channels}{' to NCHW' * (not last)}"
                theirs = _torch_convolution(*conv, kind, last)
                left = "gpu::transpose_kernel" * last
                found.append(_rate(name, kind, _convolution(*conv, type), options, theirs, left))
    return found


def _rate(
    name: str,
    kind: str,
    build: Callable[[Module], None],
    options: TargetOptions,
    theirs: float,
    without: str = "",
) -> dict[str, Any]:
    seconds, _, flops, steps = timed(build, options, without)
    rate = flops / seconds
    print(
        f"{name:26} {kind:8} {1e6 * seconds:9.1f} us {rate / 1e12:6.1f} TFLOP/s, {100 * rate / PEAKS[kind]:3.0f}% of"
        f" the peak, {steps} steps, torch {1e6 * theirs:9.1f} us ({theirs / seconds:.2f})",
        flush=True,
    )
    return {"name": name, "kind": kind, "us": 1e6 * seconds, "tflops": rate / 1e12, "torch_us": 1e6 * theirs}


def _torch(kind: str) -> Any:
    """Return torch set to the precision of a kind, or None if it is not installed; ``high`` is compared with
    ``highest``."""
    try:
        import torch
    except ImportError:
        return None
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = kind == "medium"
    return torch


def _torch_product(lens: tuple[int, int, int], kind: str) -> float:
    torch = _torch(kind)
    if torch is None:
        return float("nan")
    dtype = torch.float16 if kind == "fp16" else torch.float32
    rows, columns, depth = lens
    a, b = (torch.randn(n, m, device="cuda").to(dtype) for n, m in ((rows, depth), (depth, columns)))
    return torch_seconds(torch, lambda: a @ b)


def _torch_convolution(
    batch: int, side: int, channels: int, out: int, kernel: int, stride: int, kind: str, last: bool
) -> float:
    torch = _torch(kind)
    if torch is None:
        return float("nan")
    dtype = torch.float16 if kind == "fp16" else torch.float32
    x, w = (torch.randn(n, channels, m, m, device="cuda") for n, m in ((batch, side), (out, kernel)))
    x, w = (t.to(dtype, memory_format=torch.channels_last) for t in (x, w))
    form = torch.channels_last if last else torch.contiguous_format

    def run() -> None:
        torch.nn.functional.conv2d(x, w, padding=kernel // 2, stride=stride).contiguous(memory_format=form)

    return torch_seconds(torch, run)


def models(names: list[str], kinds: list[str], shown: int) -> list[dict[str, Any]]:
    """Return models' latencies with data on the host, the times of their steps alone, and verdicts (`bench.exact`).

    ``shown`` is the number of printed groups of steps.
    """
    found, rate = [], copy_rate()
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            case = prepare(name, Path(folder))
            plain, checked = (onnx.load(path) for path in (case.path, case.checked))
        exact = Exact(checked, case.feeds)
        # results added for the check are not timed
        own = plain if len(plain.graph.output) != len(checked.graph.output) else None
        for kind in kinds:
            row = model_row(name, kind, checked, own, case.feeds, exact)
            print("\n".join(table(row["steps"], kind, rate, shown)), flush=True)
            found.append(row)
    return found


def _compiled(model: onnx.ModelProto, kind: str) -> Compiling:
    program = mgx_numba.parse_onnx_buffer(model.SerializeToString())
    if kind in QUANTIZE:
        QUANTIZE[kind](program)
    program.compile("gpu", fast_math=kind != "exact")
    return program


def model_row(
    name: str,
    kind: str,
    model: onnx.ModelProto,
    plain: onnx.ModelProto | None,
    feeds: dict[str, np.ndarray],
    exact: Exact,
) -> dict[str, Any]:
    """Return the figures of one model in one precision; ``plain`` is timed in place of the checked model, if given."""
    start = time.perf_counter()
    program = _compiled(model, kind)
    compiling = time.perf_counter() - start
    verdict = exact.judge(program.run(feeds), kind)
    if plain is not None:
        program = _compiled(plain, kind)
    times = []
    for _ in range(LATENCY_RUNS):
        start = time.perf_counter()
        program.run(feeds)
        times.append(time.perf_counter() - start)
    compiled = program.compiled
    assert isinstance(compiled, GpuProgram)
    seen = step_times(compiled, feeds)
    hosted = sorted({f"{step['label']} ({step['reason']})" for step in seen if step["reason"]})
    device = sum(step["seconds"] for step in seen if not step["reason"])
    row = {"name": name, "kind": kind, "ms": 1e3 * float(np.median(times)), "kernels_ms": 1e3 * device}
    print(
        f"{name:24} {kind:8} {row['ms']:8.2f} ms, kernels {row['kernels_ms']:8.2f} ms, {verdict}, compiled"
        f" in {compiling:.1f} s, {len(seen)} steps, on the host: {'; '.join(hosted) or 'nothing'}",
        flush=True,
    )
    alone = verdict.rounding.error if verdict.rounding else None
    figures = {"error": verdict.found.error, "rounding_error": alone, "right": verdict.right, "hosted": hosted}
    return {
        **row,
        **figures,
        "choices_differing": verdict.found.differing,
        "compile_s": compiling,
        "hosted": hosted,
        "steps": seen,
    }


def tests() -> int:
    """Run the tests that need a device; return their exit status."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "8", "-m", "gpu", "tests/gpu"]
    return subprocess.run(command).returncode


SANITIZED = {
    "memcheck": ("tests/gpu/test_tensor_products.py", "tests/gpu/test_few_rows.py", "tests/gpu/test_periodic.py"),
    "racecheck": ("tests/gpu/test_rows_of_clusters.py", "tests/gpu/test_few_rows.py"),
}
"""Tools of compute-sanitizer and the tests that they watch; tests that fail on purpose are excluded.

Warnings of racecheck are neither printed nor failures. They are of one kind: memory that ``st.async`` writes and a wait
on an mbarrier orders (`codegen/gpu/lang/clusters.py`, used by `codegen/gpu/cluster/thread_layout.py`), which the tool
does not track.
"""
_FOUND = 9
"""Exit status by which compute-sanitizer reports a finding."""


def sanitize() -> int:
    """Run tests under compute-sanitizer; return its exit status, 0 if it is not installed."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        print("compute-sanitizer is not installed: nothing is checked", flush=True)
        return 0
    status = 0
    for name, files in SANITIZED.items():
        command = [tool, "--tool", name, "--error-exitcode", str(_FOUND), "--target-processes", "all", sys.executable]
        command += ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "gpu", *files]
        status |= subprocess.run(command).returncode
    return status


def main() -> int:
    """Run the selected parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--models", default=",".join(["light_resnet50", *MODELS]), help="comma-separated cases")
    parser.add_argument("--kinds", default="float32", help=f"of models, comma-separated: {', '.join(FARTHEST)}")
    parser.add_argument(
        "--kernels", type=int, default=6, help="of each model, how many groups are shown, slowest first"
    )
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="of products, comma-separated")
    parser.add_argument("--json", help="file for the figures")
    given = parser.parse_args()
    for option, known in (("kinds", FARTHEST), ("precisions", PRECISIONS)):
        unknown = [name for name in getattr(given, option).split(",") if name not in known]
        if unknown:
            parser.error(f"--{option}: {', '.join(unknown)}: expected some of {', '.join(known)}")
    parts = given.parts or PARTS
    status, figures = 0, {}
    if "sanitize" in parts:
        status = sanitize()
    if "tests" in parts:
        status |= tests()
    if "memory" in parts:
        figures["memory"] = memory()
    if "products" in parts:
        figures["products"] = products(given.precisions.split(","))
    if "models" in parts:
        figures["models"] = models(given.models.split(","), given.kinds.split(","), given.kernels)
        status |= not all(row["right"] for row in figures["models"])
    if "start" in parts:
        figures["start"] = start(given.models.split(","), half="fp16" in given.kinds.split(","))
    if given.json:
        Path(given.json).write_text(json.dumps(figures, indent=1))
    return status


if __name__ == "__main__":
    sys.exit(main())
