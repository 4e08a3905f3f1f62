"""Decoding and prefill of language models of Llama's shapes on a GPU, against its copy's rate and its peak of products.

    python -m bench.gpu_language [--sizes 1b,8b] [--bits 4,16] [--layers N] [--prompt N] [--tokens N] [--kernels N]

Weights are random, activations float16. Printed are the median of a step and the bytes that it must read (weights, and
keys and values so far) per second, as a share of the bytes that a copy reads and writes per second; the median of a
prompt and its operations per second, as a share of those of PyTorch's product of 8,192 squared. A step is measured as
`Generator` runs it in a greedy search, its token chosen on the device and read by the host a step later, and with
logits that the host reads.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu_check import copy_rate
from bench.gpu_tiles import torch_seconds
from bench.language_shapes import SHAPES, Shape, matrices, write_folder
from mgx_numba.driver.measure import Repeats, measure
from mgx_numba.llm import Model
from mgx_numba.llm.generation.ahead import StepsAhead
from mgx_numba.llm.generation.engine import DecoderBatch
from mgx_numba.llm.generation.params import SearchOptions

VOCABULARY, SIDE = 128256, 8192


def peak() -> float:
    """Return the operations per second of PyTorch's float16 product."""
    import torch

    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.float16) for _ in range(2))
    return 2 * SIDE**3 / torch_seconds(torch, lambda: a @ b)


def median(call: Callable[[], object], count: int) -> float:
    """Return the median of the seconds of calls, after one that is not measured."""
    call()
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def kernels(model: Any, batch: DecoderBatch, ids: np.ndarray, shown: int) -> list[str]:
    """Return lines for the kernels of a step that take most of its time, each repeated alone."""
    feeds = {**batch.inputs(ids), **{c.name: a for c, a in zip(model.decoder.caches, batch._memory.arrays())}}
    groups: dict[str, list[float]] = {}
    for step in measure(model.decoder.program, feeds, Repeats(1)).steps:
        groups.setdefault(step.label, []).append(step.average)
    total = sum(map(sum, groups.values()))
    lines = [f"    kernels alone: {1e3 * total:.3f} ms, {sum(map(len, groups.values()))} launches"]
    for label, times in sorted(groups.items(), key=lambda g: -sum(g[1]))[:shown]:
        each, share = 1e6 * sum(times) / len(times), sum(times) / total
        lines.append(f"    {len(times):4} x {each:8.1f} us {share:6.1%}  {label}")
    return lines


def measured(s: Shape, bits: int, given: argparse.Namespace, copied: float, most: float) -> None:
    """Measure a model and print its rates."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        write_folder(Path(folder), s, VOCABULARY, "float16", bits)
        wrote = time.perf_counter()
        model = Model(folder, target="gpu")
        print(f"  written in {wrote - begin:.1f} s, compiled in {time.perf_counter() - wrote:.1f} s", flush=True)
    weights = s.layers * sum(n * k for n, k in matrices(s).values()) + VOCABULARY * s.hidden
    batch = DecoderBatch(model.decoder, 1, True)
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, VOCABULARY, (1, given.prompt))

    feeds = batch.inputs(prompt)
    seconds = median(lambda: batch._memory.run_there(feeds, prompt), 5)
    operations = 2 * weights * given.prompt + 2 * s.layers * s.heads * s.size * given.prompt**2
    print(f"  prompt of {given.prompt}: {1e3 * seconds:.2f} ms, {operations / seconds / 1e12:.0f} TFLOP/s, "
          f"{operations / seconds / most:.0%} of the peak", flush=True)  # fmt: skip
    print(*kernels(model, batch, prompt, given.kernels), sep="\n", flush=True)
    batch = DecoderBatch(model.decoder, 1, True)
    batch.step(prompt[:, :64])
    token = prompt[:, :1]
    batch.make_room(2 * given.tokens + 4)
    read = weights * (2 if bits == 16 else 0.5 + 2 / 32) + 4 * s.layers * s.key_heads * s.size * batch.columns
    ahead = StepsAhead(batch, SearchOptions(), VOCABULARY, None, model.choices)
    if not ahead.prepare():
        raise SystemExit("the host takes part in a step")
    for what, call in (
        ("chosen on the device", lambda: ahead.next(token, True)),
        ("with logits to the host", lambda: batch.step(token)),
    ):
        seconds = median(call, given.tokens)
        ahead.drop()
        share = read / seconds / copied
        print(f"  token {what}: {1e3 * seconds:.3f} ms, {share:.0%} of the copy's rate", flush=True)
    print(*kernels(model, batch, token, given.kernels), sep="\n", flush=True)


def main() -> None:
    """Measure all shapes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1b,8b")
    parser.add_argument("--bits", default="4,16")
    parser.add_argument("--layers", type=int, default=0, help="most layers (default: those of the shape)")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--kernels", type=int, default=8, help="printed kernels")
    given = parser.parse_args()
    copied, most = copy_rate(), peak()
    print(f"copy {copied / 1e12:.2f} TB/s, product {most / 1e12:.0f} TFLOP/s", flush=True)
    for size in given.sizes.split(","):
        s = SHAPES[size]
        s = Shape(s.hidden, min(s.layers, given.layers or s.layers), s.heads, s.key_heads, s.size, s.inner)
        for bits in map(int, given.bits.split(",")):
            print(f"{size} of {s.layers} layers, {bits} bits", flush=True)
            measured(s, bits, given, copied, most)


if __name__ == "__main__":
    main()
