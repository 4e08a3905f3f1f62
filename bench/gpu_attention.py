"""Attention on the GPU against torch: the shapes of networks, float16, and float32 in each precision.

    python -m bench.gpu_attention [float16] [medium] [high] [--tiles TILES]

Further warpgroup tiles to measure are written as 2x64s3b1: warpgroups, keys, stages, blocks per multiprocessor.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import re
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from bench.gpu_tiles import Runner, torch_seconds
from mgx_numba.codegen.gpu.attention.flash import ROWS, attention_solution
from mgx_numba.codegen.gpu.attention.warpgroup_bf16_split import KEYS, fits_bf16_split
from mgx_numba.codegen.gpu.attention.warpgroups import AttentionTile, fits_warpgroups
from mgx_numba.codegen.launch import Grid, Solution
from mgx_numba.codegen.problems.attention import AttentionProblem
from mgx_numba.codegen.problems.gemm import packed_strides
from mgx_numba.errors import CompileError
from mgx_numba.runtime.gpu.cuda import cuda_engine

CASES = (
    (1, 12, 12, 128, 128, 64, False), (8, 12, 12, 384, 384, 64, False), (1, 12, 12, 197, 197, 64, False),
    (1, 12, 12, 1, 513, 64, False), (1, 32, 8, 1, 4096, 128, False), (4, 16, 16, 2048, 2048, 64, True),
    (4, 16, 16, 2048, 2048, 128, False), (2, 8, 8, 4096, 4096, 40, False), (2, 8, 8, 1024, 1024, 80, False),
    (2, 8, 8, 256, 256, 160, False), (2, 8, 8, 4096, 77, 40, False), (4, 3, 3, 1152, 1152, 192, False),
    (8, 8, 2, 256, 256, 192, False), (2, 12, 6, 1439, 1439, 160, True), (16, 8, 1, 960, 960, 96, True),
    (4, 16, 16, 2048, 2048, 192, False), (4, 16, 16, 2048, 2048, 256, False), (16, 36, 9, 96, 96, 128, False),
)  # fmt: skip
"""Batch, heads, key heads, queries, keys, features, causal."""
KINDS = {"float16": (CASES, 2e-3), "medium": (CASES[:4], 4e-3), "high": (CASES[:4] + CASES[7:], 1e-5)}
"""Element type, or precision of float32, with its cases and the accepted error."""
SHARED_BYTES = 227 << 10
WORKERS = 14
REFUSED: set[str] = set()
"""Symbols of kernels that do not compile."""


def problem_of(kind: str, case: tuple[Any, ...]) -> AttentionProblem:
    """Return a case in the element type of a kind."""
    batch, heads, shared, queries, keys, depth, causal = case
    own = packed_strides((batch, heads, queries, depth))
    theirs = packed_strides((batch, shared, keys, depth))
    dtype = "float16" if kind == "float16" else "float32"
    return AttentionProblem(
        batch, heads, shared, queries, keys, depth, depth, own, theirs, theirs, own, dtype, float(1 / np.sqrt(depth)),
        causal,
    )  # fmt: skip


def by_warpgroups(problem: AttentionProblem, kind: str, tile: AttentionTile) -> bool:
    """Return whether a kernel with selectable tiles computes a problem on the device."""
    parts = (tile.keys, tile.blocks) == (KEYS, 1)
    return fits_warpgroups(problem) or (fits_bf16_split(problem, kind) and parts)


def solutions(kind: str, case: tuple[Any, ...], tiles: list[AttentionTile]) -> Iterator[tuple[str, Solution]]:
    """Yield the chosen launches, and launches with other tiles that fit a multiprocessor."""
    problem = problem_of(kind, case)
    yield "chosen", attention_solution(problem, kind, pairs=True)
    for tile in tiles:
        if not by_warpgroups(problem, kind, tile):
            continue
        solution = attention_solution(problem, kind, pairs=True, tile=tile)
        geometry = solution.launches[0].geometry
        assert isinstance(geometry, Grid)
        if tile.blocks * (geometry.shared_bytes + 2048) <= SHARED_BYTES:
            yield f"{tile.warpgroups}x{tile.keys}s{tile.stages}b{tile.blocks}", solution


def compile_part(part: int, kinds: list[str], tiles: list[AttentionTile]) -> tuple[int, list[str]]:
    """Compile this process's share of all kernels into the store; return their number, and the symbols of those that
    need more registers than their tile's blocks have."""
    asked = (s for kind in kinds for case in KINDS[kind][0] for _, s in solutions(kind, case, tiles))
    kernels = {k.symbol: k for s in asked for k in s.kernels}
    mine = [kernels[symbol] for k, symbol in enumerate(sorted(kernels)) if k % WORKERS == part]
    refused = []
    for kernel in mine:
        try:
            cuda_engine().load([kernel])
        except CompileError:
            refused.append(kernel.symbol)
    return len(mine), refused


def compare(
    torch: Any, runner: Runner, kind: str, case: tuple[Any, ...], allowed: float, tiles: list[AttentionTile]
) -> str:
    """Check and time a case; for ``medium``, torch's float32 runs with ``allow_tf32``."""
    batch, heads, shared, queries, keys, depth, causal = case
    dtype = torch.float16 if kind == "float16" else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = kind == "medium"
    q = torch.randn(batch, heads, queries, depth, device="cuda").to(dtype)
    k, v = (torch.randn(batch, shared, keys, depth, device="cuda").to(dtype) for _ in range(2))
    library = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=causal, enable_gqa=heads != shared)
    wanted = library(q.double(), k.double(), v.double())
    theirs_seconds = torch_seconds(torch, partial(library, q, k, v))
    counters = torch.zeros(batch * heads * -(-queries // ROWS), dtype=torch.int32, device="cuda")
    found = []
    for label, solution in solutions(kind, case, tiles):
        out = torch.full_like(q, float("nan"))
        places = {"q": q.data_ptr(), "k": k.data_ptr(), "v": v.data_ptr(), "out": out.data_ptr()}
        places["counters"] = counters.data_ptr()
        if not REFUSED.isdisjoint(kernel.symbol for kernel in solution.kernels):
            continue
        seconds = runner.seconds(solution, places)
        error = float((out.double() - wanted).norm() / wanted.norm())
        spilt = runner.local_bytes(solution)
        found.append((seconds, f"{label}{f' spills {spilt}' * bool(spilt)}", error))
    seconds, _, error = found[0]
    others = "".join(f"; {label} {1e6 * s:.1f}{' WRONG' * (not e < allowed)}" for s, label, e in sorted(found[1:]))
    return (
        f"{kind:8} {batch}x{heads}/{shared} {queries}x{keys} d{depth} {'causal' * causal:6}: torch"
        f" {1e6 * theirs_seconds:7.1f} us, ours {1e6 * seconds:7.1f} ({theirs_seconds / seconds:.2f}),"
        f" {problem_of(kind, case).flops / seconds / 1e12:.0f} TF, error {error:.1e}"
        f" {'' if error < allowed else 'WRONG'}{others}"
    )


def _tile_of(text: str) -> AttentionTile:
    """Parse a tile of the command line."""
    return AttentionTile(*map(int, re.findall(r"\d+", text)))


def main() -> int:
    """Check and time all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="default: all")
    parser.add_argument("--tiles", default="", help="comma-separated tiles besides those that are chosen")
    given = parser.parse_args()
    kinds = given.kinds or list(KINDS)
    texts = [text for text in given.tiles.split(",") if text]
    tiles = [_tile_of(text) for text in texts]
    with concurrent.futures.ProcessPoolExecutor(WORKERS) as pool:
        asked = [pool.submit(compile_part, k, kinds, tiles) for k in range(WORKERS)]
        counts, refused = zip(*(a.result() for a in asked))
        REFUSED.update(*refused)
        print(f"{sum(counts)} kernels, {len(REFUSED)} of them for more registers than there are", flush=True)
    import torch

    torch.cuda.init()
    runner = Runner()
    for kind in kinds:
        cases, allowed = KINDS[kind]
        for case in cases:
            print(compare(torch, runner, kind, case, allowed, tiles), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
