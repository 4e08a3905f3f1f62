"""Products of one row with low-bit weights against the peers, engines in turn in one process with equal threads.

    python -m bench.lowp --threads 2                  # beside the rate of reading such weights
    python -m bench.lowp --threads 2 --megabytes 400  # so many megabytes of such products, one after the other

The weights of one product stay in a large last-level cache between runs. A decoder's weights do not, since its layers
follow each other: give ``--megabytes`` several times the cache's size. Whole models in lower precision are in
`bench.precisions`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
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
"""Columns and rows of weights: a square matrix, and matrices of a decoder of 7 billion parameters."""
BLOCKS = (32, 128)
CHAINS = 8
"""Vectors that are read in parallel: enough that no sum waits for the previous one."""
STREAMS = 2
"""Addresses that are read in parallel: reading is 1.1 times as fast as from one address (Zen 5, one thread)."""
CHUNK = 1 << 16
"""Bytes of each stream per task."""
CLAIMS = 8
"""Number of times that a thread claims tasks; each costs 0.13 us. The fastest of 4 to 64 (Zen 5, 9 to 28 MB)."""

Run = Callable[[], Any]


def reading(count: int, threads: int) -> Run:
    """Return a function that reads ``count`` bytes and sums them, from memory of the same kind as weights.

    In small pages at scattered addresses, one thread reads 9 MB at 0.9 of the speed and 23 MB at 0.6 (Zen 5).
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


def nbits_model(sizes: Sequence[tuple[int, int]], block: int, level: int) -> onnx.ModelProto:
    """Return a model of chained products of one row with weights of the given columns and rows.

    ``level`` is the accuracy level of the row (0: float32 or equivalent; 4: int8). Scales are float16 values, as in
    models, and keep the results' magnitude.
    """
    rng = np.random.default_rng(0)
    nodes, arrays = [], []
    for i, (n, k) in enumerate(sizes):
        blocks = -(-k // block)
        low, high = rng.integers(1, 16, (2, n, blocks, block // 2), dtype=np.uint8)
        codes = high << 4 | low
        # Codes are uniform in -7 to 7: a nonzero mean would make a chain's results grow; the root mean square is 4.3.
        scales = (rng.uniform(0.5, 1.4, n * blocks) / (4.3 * k**0.5)).astype(np.float16).astype(np.float32)
        arrays += [numpy_helper.from_array(codes, f"b{i}"), numpy_helper.from_array(scales, f"s{i}")]
        attributes: dict[str, Any] = {"K": k, "N": n, "bits": 4, "block_size": block, "accuracy_level": level}
        names = [f"x{i}", f"b{i}", f"s{i}"]
        nodes.append(helper.make_node("MatMulNBits", names, [f"x{i + 1}"], domain="com.microsoft", **attributes))
    graph = helper.make_graph(
        nodes,
        "nbits",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [1, sizes[0][1]])],
        [helper.make_tensor_value_info(f"x{len(sizes)}", TensorProto.FLOAT, [1, sizes[-1][0]])],
        arrays,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def bytes_of(sizes: Sequence[tuple[int, int]], block: int) -> int:
    """Return the bytes of codes and of float16 scales."""
    return sum(n * k // 2 + 2 * n * k // block for n, k in sizes)


def chains(megabytes: int) -> list[tuple[tuple[int, int], ...]]:
    """Return each of `SHAPES`, or chains with ``megabytes`` of codes: square products, and a decoder's feed-forward
    layers."""
    if not megabytes:
        return [(size,) for size in SHAPES]
    layers = (SHAPES[:1], SHAPES[1:])
    return [layer * -(-(megabytes << 20) // sum(n * k // 2 for n, k in layer)) for layer in layers]


def weights(folder: Path, threads: int, budget: float, megabytes: int) -> Iterator[str]:
    """Yield a line for each chain and block size: microseconds and GB/s of each engine, and of reading the same
    bytes."""
    for sizes in chains(megabytes):
        for block in BLOCKS:
            feeds = {"x0": np.random.default_rng(1).standard_normal((1, sizes[0][1])).astype(np.float32)}
            count = bytes_of(sizes, block)
            runs: dict[str, Run] = {"read": reading(count, threads)}
            results: dict[str, Outputs] = {}
            paths = {level: folder / f"nbits_{block}_{level}.onnx" for level in (0, 4)}
            for level, path in paths.items():
                onnx.save(nbits_model(sizes, block, level), path)
                for engine in installed((OURS, "onnxruntime")):
                    name = f"{engine} level {level}"
                    runs[name] = open_session(engine, path, feeds, threads).run
                    results[name] = [np.array(r) for r in runs[name]()]
            exact = open_session(OURS, paths[0], feeds, threads, exact=True).run()
            parts = []
            for name, timing in interleave(runs, budget).items():
                error = f", error {max_relative_error(results[name], exact):.1e}" if name in results else ""
                parts.append(f"{name} {timing.p10 * 1e6:.0f} us {count / timing.p10 / 1e9:.1f} GB/s{error}")
            shapes = " and ".join(f"{n} x {k}" for n, k in dict.fromkeys(sizes))
            yield f"{len(sizes)} products, {shapes}, blocks of {block}: " + "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=6.0, help="seconds for each line")
    parser.add_argument("--megabytes", type=int, default=0, help="of products that follow each other; 0: each alone")
    given = parser.parse_args()
    if given.megabytes < 0:
        parser.error(f"--megabytes: expected 0 or more, got {given.megabytes}")
    with tempfile.TemporaryDirectory() as folder:
        for line in weights(Path(folder), given.threads, given.budget, given.megabytes):
            print(line, flush=True)


if __name__ == "__main__":
    main()
