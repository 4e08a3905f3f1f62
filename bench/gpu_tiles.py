"""Every tile of the warpgroup products on the shapes of networks, against torch: the data behind the choice of tiles.

    python -m bench.gpu_tiles [gemm] [conv] [--kind high] [--epilogue NAME] [--only TEXT] [--tiles TILES] [--json FILE]

The kind is float16, with ``--kind high`` float32 in parts, or with ``--kind highest`` float32 by multiply-adds, which
do not use warpgroups. With ``--constant`` right operands are constant and may be rearranged, as a network's weights.
Each result is checked against a more precise one, and timed as 20 launches of a graph; torch's products and
convolutions of the same type are timed alike. Further tiles are written as 128x192s5b1c2a1p1: rows, columns, stages,
blocks per multiprocessor, rows and columns of a cluster's tiles, and sets of warpgroups that take turns.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import re
import sys
from collections.abc import Iterator
from ctypes import byref, c_int, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from mgx_numba.codegen.body import scalar_body
from mgx_numba.codegen.gpu.contraction.fma import FmaText, FmaTile, fma_refusal
from mgx_numba.codegen.gpu.contraction.fma import weighed_tiles as weighed_exact
from mgx_numba.codegen.gpu.contraction.gpu_contraction import GpuContraction, permuted_lanes
from mgx_numba.codegen.gpu.contraction.right_columns import POSITIONS, in_halves
from mgx_numba.codegen.gpu.contraction.ring import ring_solution
from mgx_numba.codegen.gpu.contraction.wgmma import tile_question, wgmma_solution
from mgx_numba.codegen.gpu.contraction.wgmma_bf16_split import bf16_split_solution
from mgx_numba.codegen.gpu.contraction.wgmma_operands import bf16_split_refusal, wgmma_refusal
from mgx_numba.codegen.gpu.contraction.wgmma_tiles import (
    TILES,
    WarpgroupTile,
    tile_cycles,
    weighed_tiles,
)
from mgx_numba.codegen.gpu.machine import multiprocessors
from mgx_numba.codegen.launch import Grid, Operand, Solution, TensorMap
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import ElementTypes
from mgx_numba.codegen.problems.epilogue import Epilogue, EpilogueOperand
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.request import Request
from mgx_numba.core.types import Type
from mgx_numba.errors import MgxError
from mgx_numba.runtime.gpu.cuda import cuda_engine

MORE: list[WarpgroupTile] = []
"""Tiles in addition to the package's."""
NEAR = 1.7
"""Ratio to the best estimate up to which tiles are measured that the cost model ranks lower."""
KINDS = {"fp16": ("float16", 2e-3), "high": ("float32", 1e-5), "highest": ("float32", 1e-5)}
"""Element type of all operands, and accepted error of the results as a whole."""
REPEATS = 20
SCRATCH_BYTES = 256 << 20
LOCAL_BYTES = 3
"""CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES of cuda.h."""
GEMMS = (
    (4096, 4096, 4096, True), (4096, 4096, 4096, False), (128, 768, 768, False), (128, 2304, 768, False),
    (128, 3072, 768, False), (128, 768, 3072, False), (3072, 768, 768, False), (3072, 2304, 768, False),
    (3072, 3072, 768, False), (3072, 768, 3072, False), (3072, 768, 768, True), (3072, 2304, 768, True),
    (3072, 3072, 768, True), (3072, 768, 3072, True), (197, 3072, 768, False),
    (197, 768, 3072, False),
    (1, 768, 768, False), (8, 3072, 768, False), (1, 50257, 768, False), (6272, 256, 2304, False),
    (1568, 512, 4608, False), (6272, 256, 1024, False), (100352, 64, 56, False), (100352, 64, 64, False),
    (2056, 4096, 1024, False), (2056, 1024, 4096, False), (2056, 3072, 1024, False), (2056, 1024, 1024, False),
    (512, 2048, 8192, False), (512, 8192, 2048, False), (512, 2048, 2048, False), (25088, 384, 96, False),
    (25088, 96, 384, False), (6272, 768, 192, False), (6272, 192, 768, False), (1568, 1536, 384, False),
    (1568, 384, 1536, False), (392, 3072, 768, False), (392, 768, 3072, False), (1024, 3072, 768, False),
    (1500, 2048, 512, False), (1500, 512, 2048, False), (2048, 1024, 800, False), (8192, 8192, 1024, False),
    (577, 4096, 1024, False), (16384, 320, 320, False),
)  # fmt: skip
"""Rows, columns, depth, and whether the right operand's columns are contiguous."""
CONVS = tuple(
    (batch, side, channels, out, kernel, stride)
    for batch in (1, 32)
    for side, channels, out, kernel, stride in (
        (56, 64, 64, 3, 1), (28, 128, 128, 3, 1), (14, 256, 256, 3, 1), (7, 512, 512, 3, 1), (56, 128, 128, 3, 2),
        (56, 256, 64, 1, 1), (56, 64, 256, 1, 1), (14, 256, 1024, 1, 1), (14, 1024, 256, 1, 1), (7, 512, 2048, 1, 1),
        (7, 2048, 512, 1, 1), (56, 256, 512, 1, 2),
    )
)  # fmt: skip
"""Batch, side, channels, output channels, kernel, stride: the convolutions of ResNet-50."""


def _activated(method: str) -> Epilogue:
    """Return an epilogue that adds a bias and applies a function of the scalar protocol."""
    half = [Type.half_type] * 2
    body = scalar_body(lambda h, x, b: getattr(h, method)(h.add(x, b)), half)
    return Epilogue((EpilogueOperand("float16", "per_n"),), body, True, f"add_{method}")


def _residual() -> Epilogue:
    """Return an epilogue that adds a bias and a residual in float32."""
    wide = Type.float_type
    body = scalar_body(lambda h, x, b, r: h.add(h.add(h.cast(x, wide), b), r), [Type.half_type, wide, wide])
    return Epilogue((EpilogueOperand("float32", "per_n"), EpilogueOperand("float32", "full")), body, True, "add_add")


EPILOGUES = {
    "": Epilogue(),
    "gelu": _activated("gelu_erf"),
    "silu": _activated("silu"),
    "residual": _residual(),
}
"""Epilogues by name."""
CHOSEN = [""]
"""Name of the epilogue that is measured."""


def request_of(problem: GemmProblem | ConvProblem) -> Request:
    """Return a problem with the chosen epilogue."""
    epilogue = EPILOGUES[CHOSEN[0]]
    strides = tuple((problem.n,) if o.access == "full" else () for o in epilogue.operands)  # type: ignore[union-attr]
    return Request(problem, epilogue, strides, 1, bool(epilogue.operands))


def types_of(kind: str) -> ElementTypes:
    """Return the element types of a kind in `KINDS`."""
    return ElementTypes(*[KINDS[kind][0]] * 4)


def gemm_problem(rows: int, columns: int, depth: int, transposed: bool, kind: str = "fp16") -> GemmProblem:
    """Return a product."""
    return GemmProblem(rows, columns, depth, types=types_of(kind), b_strides=(columns, 1) if transposed else (1, depth))


def conv_problem(
    batch: int, side: int, channels: int, out: int, kernel: int, stride: int, kind: str = "fp16"
) -> ConvProblem:
    """Return a convolution."""
    pads = (kernel // 2,) * 2
    return ConvProblem(
        batch,
        channels,
        out,
        (side, side),
        (kernel, kernel),
        (stride, stride),
        pads_begin=pads,
        pads_end=pads,
        types=types_of(kind),
    )


def size_of(problem: GemmProblem | ConvProblem) -> tuple[int, int]:
    """Return the rows and columns of the result."""
    if isinstance(problem, GemmProblem):
        return problem.m, problem.n
    return problem.batch * problem.out_pixels, problem.out_channels


def exact_candidates(problem: GemmProblem | ConvProblem) -> Iterator[tuple[FmaTile | None, int, Solution]]:
    """Yield the tiles and splits of multiply-add kernels for a problem, the chosen one first."""
    placed = GpuContraction(Request(problem, Epilogue(), (), 1, False))
    refused = fma_refusal(placed)
    assert not refused, refused
    weighed = weighed_exact(placed)
    yield None, 0, ring_solution(FmaText(placed, None, 0), "fma")
    for cycles, tile, splits in weighed:
        if cycles <= NEAR * weighed[0][0]:
            yield tile, splits, ring_solution(FmaText(placed, tile, splits), "fma")


def candidates(
    problem: GemmProblem | ConvProblem, kind: str, constant: bool
) -> Iterator[tuple[FmaTile | WarpgroupTile | None, int, Solution]]:
    """Yield the tiles and splits of a problem, the chosen one first."""
    if kind == "highest":
        yield from exact_candidates(problem)
        return
    parts = kind == "high"
    request = request_of(problem)
    placed = GpuContraction(request, precision="high", constant=parts or constant, any_order=parts or constant)
    refused = bf16_split_refusal(placed) if parts else wgmma_refusal(placed)
    assert not refused, refused
    planned = bf16_split_solution if parts else wgmma_solution
    rows, columns = size_of(problem)
    depth = problem.k if isinstance(problem, GemmProblem) else problem.taps * problem.group_in
    yield None, 0, planned(placed)
    question, cores = tile_question(placed, parts), multiprocessors()
    longest = NEAR * weighed_tiles(question, cores)[0][0]
    for tile in (tile.transposed() if question.transposed else tile for tile in (*TILES, *MORE)):
        for splits in (1, 2, 3, 4, 6, 8):
            if question.transposed and tile.cluster > 1 and tile.columns % (64 * tile.cluster):
                continue
            if splits > 1 and tile.rows * tile.columns > 128 * 256:
                continue
            if tile_cycles(tile, splits, question, cores) > longest:
                continue
            if parts and not tile.fits_bf16_split(-(-depth // (POSITIONS * splits))):
                continue
            try:
                solution = planned(placed, tile, splits)
            except MgxError:
                continue
            high, wide = tile.rows * tile.cluster, tile.columns * tile.across
            tiles = tile.cluster * tile.across * -(-rows // high) * -(-columns // wide)
            if splits == 1 or (len(solution.launches) > 1 and tiles <= 132):
                yield tile, splits, solution


def compile_part(
    part: int,
    parts: int,
    given: list[GemmProblem | ConvProblem],
    kind: str,
    constant: bool,
    more: list[WarpgroupTile],
    epilogue: str,
) -> int:
    """Compile this process's share of all kernels into the store."""
    MORE[:], CHOSEN[:] = more, [epilogue]
    kernels = {k.symbol: k for p in given for _, _, solution in candidates(p, kind, constant) for k in solution.kernels}
    mine = [kernels[symbol] for k, symbol in enumerate(sorted(kernels)) if k % parts == part]
    cuda_engine().load(mine)
    return len(mine)


class Runner:
    """Runs solutions on torch's tensors."""

    def __init__(self) -> None:
        self.engine = cuda_engine()
        self.queue = self.engine.queue()
        self.scratch = self.engine.allocate(SCRATCH_BYTES, "parts of sums")

    def local_bytes(self, solution: Solution) -> int:
        """Return the bytes of local memory per thread, which are spilled registers."""
        value = c_int()
        for function in self.engine.load([solution.launches[0].kernel]):
            self.engine.driver.call("cuFuncGetAttribute", byref(value), c_int(LOCAL_BYTES), c_void_p(function))
        return value.value

    def seconds(self, solution: Solution, places: dict[str, int], repeats: int = REPEATS) -> float:
        """Return the seconds of one of ``repeats`` runs in a row, after an untimed run that computes the result."""
        assert solution.scratch <= SCRATCH_BYTES, solution.scratch
        functions = self.engine.load([launch.kernel for launch in solution.launches])
        launches = []
        for function, launch in zip(functions, solution.launches):
            words = np.zeros(len(launch.args), np.int64)
            mapped = []
            for k, arg in enumerate(launch.args):
                if isinstance(arg, TensorMap):
                    place = {**places, "scratch": self.scratch}[arg.operand.name] + arg.operand.offset
                    mapped.append((k, self.engine.tensor_map(arg.layout, place)))
                elif isinstance(arg, Operand):
                    words[k] = {**places, "scratch": self.scratch}[arg.name] + arg.offset
                else:
                    assert isinstance(arg, int)
                    words[k] = arg
            for k, described in mapped:
                words[k : k + described.size] = described
            launches.append((function, words, launch.geometry))

        def ask(times: int) -> None:
            for _ in range(times):
                for function, words, geometry in launches:
                    if isinstance(geometry, Grid):
                        self.queue.launch(function, words, geometry)
                    else:
                        self.queue.call(function, words)

        ask(1)
        self.queue.wait()
        again = self.queue.recorded(lambda: ask(repeats))
        again()
        return min(self.queue.timed(again) for _ in range(5)) / repeats


def torch_seconds(torch: Any, run: Any) -> float:
    """Return the seconds of a torch call, measured alike."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            run()
    graph.replay()
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / REPEATS)
    return min(times)


def label_of(tile: FmaTile | WarpgroupTile, splits: int) -> str:
    """Return the text of a tile."""
    if isinstance(tile, FmaTile):
        return f"{tile.rows}x{tile.columns} k{splits}"
    pair = f" c{tile.cluster}a{tile.across}" * (tile.cluster * tile.across > 1)
    pair += f" p{tile.pingpong}" * (tile.pingpong > 1)
    return f"{tile.rows}x{tile.columns} s{tile.stages} b{tile.blocks}{pair} k{splits}"


def compare(
    torch: Any, runner: Runner, name: str, problem: GemmProblem | ConvProblem, kind: str, constant: bool
) -> dict[str, Any]:
    """Check and time all candidates of a problem."""
    name_of, allowed = KINDS[kind]
    dtype, wide = getattr(torch, name_of), torch.float32 if name_of == "float16" else torch.float64
    rand = lambda *lens: (torch.randn(*lens, device="cuda") / lens[-1] ** 0.25).to(dtype)  # noqa: E731
    if isinstance(problem, GemmProblem):
        transposed = problem.b_strides[1] == 1
        x, w = rand(problem.m, problem.k), rand(problem.n, problem.k)
        w = w.t().contiguous() if transposed else w
        right = w if transposed else w.t()
        wanted, library = x.to(wide) @ right.to(wide), torch_seconds(torch, lambda: x @ right)
        columns = w.cpu().numpy()
    else:
        full = problem
        x, w = (
            rand(full.batch, *full.in_lens, full.in_channels),
            rand(full.out_channels, *full.kernel, full.in_channels),
        )
        nchw, w4 = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
        conv = lambda a, b: torch.nn.functional.conv2d(a, b, padding=full.pads_begin, stride=full.stride)  # noqa: E731
        library = torch_seconds(torch, lambda: conv(nchw, w4))
        wanted = conv(nchw.to(wide), w4.to(wide)).permute(0, 2, 3, 1).reshape(-1, full.out_channels)
        columns = w.reshape(full.out_channels, -1, full.in_channels).cpu().numpy()
    bias, residual = rand(wanted.shape[-1]), rand(*wanted.shape)
    if CHOSEN[0] == "residual":
        dtype, bias, residual = torch.float32, bias.float(), residual.float()
        wanted = wanted + bias + residual
    elif CHOSEN[0]:
        function = {"gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}[CHOSEN[0]]
        wanted = function(wanted + bias.to(wide))
    out = torch.empty(wanted.shape, device="cuda", dtype=dtype)
    ordered = {(0, False): w}
    found = []
    for tile, splits, solution in candidates(problem, kind, constant):
        out.fill_(float("nan"))
        how = solution.lane_permutation, solution.halves
        if how not in ordered:
            turned_columns = (
                permuted_lanes(columns, 0, solution.lane_permutation) if solution.lane_permutation else columns
            )
            kept = in_halves(turned_columns).view(np.int16) if solution.halves else np.ascontiguousarray(turned_columns)
            ordered[how] = torch.from_numpy(kept).cuda()
        torch.cuda.synchronize()
        places = {"x": x.data_ptr(), "w": ordered[how].data_ptr(), "out": out.data_ptr()}
        places |= {"e0": bias.data_ptr(), "e1": residual.data_ptr()}
        seconds = runner.seconds(solution, places)
        error = float((out.to(wide) - wanted).norm() / wanted.norm())
        label = "chosen"
        if tile:
            spilt = runner.local_bytes(solution)
            label = label_of(tile, splits) + f" spills {spilt}" * bool(spilt)
        if not error < allowed:
            print(f"    WRONG {name} {label}: {error}", flush=True)
            continue
        found.append((seconds, label))
    chosen = next((s for s, label in found if label == "chosen"), float("nan"))
    found.sort()
    best = "; ".join(f"{label} {1e6 * s:.1f}" for s, label in found[:8])
    rate = problem.flops / found[0][0] / 1e12 if found else 0
    print(
        f"{name:30} torch {1e6 * library:7.1f} us, chosen {1e6 * chosen:7.1f} ({library / chosen:.2f}), {rate:.0f} TF |"
        f" {best}",
        flush=True,
    )
    return {"name": name, "torch": library, "times": {label: s for s, label in found}}


def main() -> int:
    """Run the selected parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=["gemm", "conv", []], help="default: both")
    parser.add_argument("--kind", choices=KINDS, default="fp16", help="element types")
    parser.add_argument("--epilogue", choices=EPILOGUES, default="", help="of products in float16")
    parser.add_argument("--constant", action="store_true", help="right operands that are constants")
    parser.add_argument("--only", default="", help="comma-separated beginnings of the names of what is measured")
    parser.add_argument("--tiles", default="", help="comma-separated tiles besides those of the package")
    parser.add_argument("--json", help="file for the figures")
    given = parser.parse_args()
    MORE[:] = [WarpgroupTile(*map(int, re.findall(r"\d+", text))) for text in given.tiles.split(",") if text]
    CHOSEN[:] = [given.epilogue]
    parts = given.parts or ["gemm", "conv"]
    problems: dict[str, GemmProblem | ConvProblem] = {}
    if "gemm" in parts:
        constant = given.constant or given.kind == "high"  # float32 parts have one layout
        gemms = [g for g in GEMMS if not (constant and g[3])]
        problems |= {"x".join(map(str, g[:3])) + " turned" * g[3]: gemm_problem(*g, given.kind) for g in gemms}
    if "conv" in parts:
        problems |= {f"conv{c[4]}/{c[5]} {c[0]}x{c[1]}^2x{c[2]}->{c[3]}": conv_problem(*c, given.kind) for c in CONVS}
    problems = {name: p for name, p in problems.items() if name.startswith(tuple(given.only.split(",")))}
    workers = 14
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        asked = [
            pool.submit(compile_part, k, workers, list(problems.values()), given.kind, given.constant, MORE, CHOSEN[0])
            for k in range(workers)
        ]
        print(f"{sum(a.result() for a in asked)} kernels", flush=True)
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    torch.cuda.init()
    runner = Runner()
    figures = []
    for name, problem in problems.items():
        figures.append(compare(torch, runner, name, problem, given.kind, given.constant))
        if given.json:  # saved after each case, in case that time runs out
            Path(given.json).write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
