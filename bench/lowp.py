"""Lower precision against the peers, engines in turn in one process with equal threads.

    python -m bench.lowp weights --threads 2          # one row times weights of 4 bits, beside the rate of reading them
    python -m bench.lowp models --models bert,unet    # whole models in 8 and 16 bits

The models in 8 bits are QDQ files that ONNX Runtime's quantiser makes of the bench models, the same for every engine;
besides, ours in float32, by `quantize_int8` and by `quantize_bf16`, and OpenVINO as it comes, which chooses its
precision. An error is the largest difference to our plain float32 over the largest result.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import mgx_numba
from bench.cases import Case, case_names, prepare
from bench.peers import OURS, Outputs, installed, max_relative_error, open_session
from bench.timing import interleave
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.launch import TaskRange
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.runtime.plan import Plan, Pointer, Region, Step

SHAPES = ((4096, 4096), (11008, 4096), (4096, 11008))
"""Columns and rows of weights: a square one, and those of a decoder of 7 billion parameters."""
BLOCKS = (32, 128)
CHAINS = 8
"""Vectors that are read side by side: enough that no sum waits for the one before it."""
CHUNK = 1 << 16
"""Bytes of a task of the read."""

Run = Callable[[], Any]


def reading(count: int, threads: int) -> Run:
    """Reads so many bytes, in vectors that are added up."""
    lanes = host.lanes()
    lines = ["def kernel(args, begin, end):", "    x = pointer_float32(args, 0)", "    out = pointer_float32(args, 1)"]
    lines += ["    for tile in range(begin, end):"]
    lines += [f"        s{k} = const_float32(0, {lanes})" for k in range(CHAINS)]
    lines += [f"        for i in range(tile * {CHUNK // 4}, (tile + 1) * {CHUNK // 4}, {CHAINS * lanes}):"]
    lines += [f"            s{k} = add(s{k}, load(x, i + {k * lanes}, {lanes}))" for k in range(CHAINS)]
    lines += [f"        store(out, tile * {CHAINS * lanes} + {k * lanes}, s{k})" for k in range(CHAINS)]
    source = cpu_kernel("read_kernel", "\n".join(lines) + "\n")
    tiles = count // CHUNK
    words: Any = (Pointer(Region.CONSTANT, 0), Pointer(Region.ARENA))
    data = np.ones(tiles * CHUNK // 4, np.float32)
    plan = Plan([Step(source, words, TaskRange(tiles, 4))], tiles * CHAINS * lanes * 4, [data], [], [])
    executable = Executable(plan, num_threads=threads)
    return lambda: executable.run([])


def nbits_model(n: int, k: int, block: int, level: int) -> onnx.ModelProto:
    """MatMulNBits of one row; ``level`` says what ONNX Runtime may make of the row (0: float32, 4: int8)."""
    rng = np.random.default_rng(0)
    blocks = -(-k // block)
    arrays: dict[str, np.ndarray] = {
        "b": rng.integers(0, 256, (n, blocks, block // 2), dtype=np.uint8),
        "s": rng.uniform(0.01, 0.1, n * blocks).astype(np.float32),
    }
    sizes: dict[str, Any] = {"K": k, "N": n, "bits": 4, "block_size": block, "accuracy_level": level}
    graph = helper.make_graph(
        [helper.make_node("MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", **sizes)],
        "nbits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, n])],
        [numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def weights(folder: Path, threads: int, budget: float) -> Iterator[str]:
    """A line for each shape and block size: microseconds and GB/s of each engine, and of reading as many bytes."""
    for n, k in SHAPES:
        for block in BLOCKS:
            feeds = {"x": np.random.default_rng(1).standard_normal((1, k)).astype(np.float32)}
            count = n * k // 2 + 4 * n * k // block
            runs: dict[str, Run] = {"read": reading(count, threads)}
            results: dict[str, Outputs] = {}
            for level in (0, 4):
                path = folder / f"nbits_{n}_{k}_{block}_{level}.onnx"
                onnx.save(nbits_model(n, k, block, level), path)
                for engine in installed((OURS, "onnxruntime")):
                    if engine == OURS and level:
                        continue
                    name = engine if engine == OURS else f"{engine} level {level}"
                    runs[name] = open_session(engine, path, feeds, threads).run
                    results[name] = [np.array(r) for r in runs[name]()]
            exact = open_session(OURS, folder / f"nbits_{n}_{k}_{block}_0.onnx", feeds, threads, exact=True).run()
            parts = []
            for name, timing in interleave(runs, budget).items():
                error = f", error {max_relative_error(results[name], exact):.1e}" if name in results else ""
                parts.append(f"{name} {timing.p10 * 1e6:.0f} us {count / timing.p10 / 1e9:.1f} GB/s{error}")
            yield f"{n} x {k}, blocks of {block}: " + "; ".join(parts)


class _Batches:
    """One batch, as ONNX Runtime's quantiser asks for it."""

    def __init__(self, feeds: dict[str, np.ndarray]) -> None:
        self.left = [feeds]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


def qdq_file(case: Case, folder: Path) -> Path:
    """The model in 8 bits by ONNX Runtime's quantiser, after its pre-processing, which joins normalisations with
    convolutions: weights by channel in int8, activations in uint8."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready, path = (folder / f"{case.name}.{kind}.onnx" for kind in ("ready", "qdq"))
    quant_pre_process(str(case.checked), str(ready), skip_symbolic_shape=True)
    quantize_static(
        ready, path, _Batches(case.feeds), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    return path


def quantized(case: Case, threads: int, kind: str) -> Run:
    """Ours, of the float32 model."""
    program = mgx_numba.parse_onnx(str(case.checked))
    if kind == "int8":
        mgx_numba.quantize_int8(program, mgx_numba.get_target("cpu"), [case.feeds])
    else:
        mgx_numba.quantize_bf16(program)
    program.compile("cpu", num_threads=threads)
    return lambda: program.run(case.feeds)


def models(names: list[str], folder: Path, threads: int, budget: float) -> Iterator[str]:
    """A line for each model: milliseconds and error of each engine and precision."""
    for name in names:
        case = prepare(name, folder)
        qdq = qdq_file(case, folder)
        exact = [np.array(r) for r in open_session(OURS, case.checked, case.feeds, threads, exact=True).run()]
        runs: dict[str, Run] = {f"{OURS} float32": open_session(OURS, case.checked, case.feeds, threads).run}
        runs |= {f"{e} int8 file": open_session(e, qdq, case.feeds, threads, own=True).run for e in installed()}
        runs |= {f"{OURS} {kind}": quantized(case, threads, kind) for kind in ("int8", "bf16")}
        if installed(("openvino",)):
            runs["openvino as it comes"] = open_session("openvino", case.checked, case.feeds, threads, own=True).run
        errors = {key: max_relative_error([np.array(r) for r in run()], exact) for key, run in runs.items()}
        timings = interleave(runs, budget)
        parts = [f"{key} {timing.median * 1e3:.2f} ms, error {errors[key]:.1e}" for key, timing in timings.items()]
        yield f"{name}: " + "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("weights", "models"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--models", default="bert,efficientnet_b0,mobilenet_v2,resnet50,unet,vit", help="names of bench.cases"
    )
    parser.add_argument("--budget", type=float, default=6.0, help="seconds for each line")
    given = parser.parse_args()
    names = given.models.split(",")
    if not set(names) <= set(case_names()):
        parser.error(f"--models: unknown {', '.join(sorted(set(names) - set(case_names())))}")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        lines = weights(place, given.threads, given.budget)
        for line in lines if given.part == "weights" else models(names, place, given.threads, given.budget):
            print(line, flush=True)


if __name__ == "__main__":
    main()
