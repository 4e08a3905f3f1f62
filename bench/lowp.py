"""Products of one row with weights of few bits against the peers, engines in turn in one process with equal threads.

    python -m bench.lowp --threads 2                  # beside the rate of reading such weights

Whole models in lower precision are `bench.precisions`.
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

from bench.agreement import max_relative_error
from bench.peers import OURS, Outputs, installed, open_session
from bench.timing import interleave
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.launch import TaskRange
from mgx_numba.core.pages import aligned_array
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.runtime.plan import Plan, Pointer, Region, Step

SHAPES = ((4096, 4096), (11008, 4096), (4096, 11008))
"""Columns and rows of weights: a square one, and those of a decoder of 7 billion parameters."""
BLOCKS = (32, 128)
CHAINS = 8
"""Vectors that are read side by side: enough that no sum waits for the one before it."""
STREAMS = 2
"""Places that are read side by side: memory is read 1.1 times as fast as from one (Zen 5, one thread)."""
CHUNK = 1 << 16
"""Bytes that a task of the read has of each stream."""
CLAIMS = 8
"""Times that a thread claims some of them; each time costs 0.13 us. Of 4 to 64 the fastest (Zen 5, 9 to 28 MB)."""

Run = Callable[[], Any]


def reading(count: int, threads: int) -> Run:
    """Reads so many bytes, in vectors that are added up, from memory of the kind that weights lie in.

    In small pages, which lie anywhere, one thread reads 9 MB at 0.9 of the speed and 23 MB at 0.6 (Zen 5).
    """
    lanes = host.lanes()
    each = CHAINS // STREAMS
    tiles = count // CHUNK // STREAMS
    lines = ["def kernel(args, begin, end):", "    x = pointer_float32(args, 0)", "    out = pointer_float32(args, 1)"]
    lines += ["    for tile in range(begin, end):"]
    lines += [f"        x{q} = offset(x, (tile + {q * tiles}) * {CHUNK // 4})" for q in range(STREAMS)]
    lines += [f"        s{k} = const_float32(0, {lanes})" for k in range(CHAINS)]
    lines += [f"        for i in range(0, {CHUNK // 4}, {each * lanes}):"]
    for k in range(CHAINS):
        lines.append(f"            s{k} = add(s{k}, load(x{k // each}, i + {k % each * lanes}, {lanes}))")
    lines += [f"        store(out, tile * {CHAINS * lanes} + {k * lanes}, s{k})" for k in range(CHAINS)]
    source = cpu_kernel("read_kernel", "\n".join(lines) + "\n")
    words: Any = (Pointer(Region.CONSTANT, 0), Pointer(Region.ARENA))
    data = aligned_array((STREAMS * tiles * CHUNK // 4,), np.dtype(np.float32))
    data[:] = 1
    grain = -(-tiles // (CLAIMS * threads))
    plan = Plan([Step(source, words, TaskRange(tiles, grain))], tiles * CHAINS * lanes * 4, [data], [], [])
    executable = Executable(plan, num_threads=threads)
    return lambda: executable.run([])


def nbits_model(n: int, k: int, block: int, level: int) -> onnx.ModelProto:
    """MatMulNBits of one row; ``level`` says what may be made of the row (0: float32, or what is as good; 4: int8).

    Scales are numbers that float16 holds, as those of models are."""
    rng = np.random.default_rng(0)
    blocks = -(-k // block)
    arrays: dict[str, np.ndarray] = {
        "b": rng.integers(0, 256, (n, blocks, block // 2), dtype=np.uint8),
        "s": rng.uniform(0.01, 0.1, n * blocks).astype(np.float16).astype(np.float32),
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
    """A line for each shape and block size: microseconds and GB/s of each engine, and of reading as many bytes
    as the codes have, and the scales in float16."""
    for n, k in SHAPES:
        for block in BLOCKS:
            feeds = {"x": np.random.default_rng(1).standard_normal((1, k)).astype(np.float32)}
            count = n * k // 2 + 2 * n * k // block
            runs: dict[str, Run] = {"read": reading(count, threads)}
            results: dict[str, Outputs] = {}
            for level in (0, 4):
                path = folder / f"nbits_{n}_{k}_{block}_{level}.onnx"
                onnx.save(nbits_model(n, k, block, level), path)
                for engine in installed((OURS, "onnxruntime")):
                    name = f"{engine} level {level}"
                    runs[name] = open_session(engine, path, feeds, threads).run
                    results[name] = [np.array(r) for r in runs[name]()]
            exact = open_session(OURS, folder / f"nbits_{n}_{k}_{block}_0.onnx", feeds, threads, exact=True).run()
            parts = []
            for name, timing in interleave(runs, budget).items():
                error = f", error {max_relative_error(results[name], exact):.1e}" if name in results else ""
                parts.append(f"{name} {timing.p10 * 1e6:.0f} us {count / timing.p10 / 1e9:.1f} GB/s{error}")
            yield f"{n} x {k}, blocks of {block}: " + "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=6.0, help="seconds for each line")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for line in weights(Path(folder), given.threads, given.budget):
            print(line, flush=True)


if __name__ == "__main__":
    main()
