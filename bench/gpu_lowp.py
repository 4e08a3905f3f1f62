"""8-bit products and convolutions on the GPU against 16 bits, and 4-bit weights against memory bandwidth.

    python -m bench.gpu_lowp [products] [weights] [models] [--tiles] [--networks a,b] [--json FILE]

``products``: each shape as in its network, with bias, activation and conversion to the next layer's type, in int8,
float8 and float16. Results are checked first (integers exactly); rates are printed with the type's peak, and least
bytes with a copy. ``--tiles``: every tile instead of the chosen one. ``models``: whole networks in float16, and in 8
bits with float16 for the rest, taking turns; the error is against our float32. ``weights``: one row times 4-bit weights
in blocks, several matrices as one, and one after the other. They are compared with kernels that copy the same bytes and
kernels that do almost nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu_check import copy_rate
from bench.gpu_inductor import Ours, exported, ranges
from bench.gpu_kernels import PEAKS, table
from bench.gpu_tiles import CONVS, GEMMS
from mgx_numba.codegen.gpu.contraction import wgmma
from mgx_numba.codegen.gpu.contraction.wgmma_tiles import TILES
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.transfers import to_device
from mgx_numba.runtime.plan import Step
from mgx_numba.targets.gpu.program import GpuProgram
from mgx_numba.targets.options import TargetOptions

PARTS = ("products", "weights", "models")
F16, F32, U8, I8, E4M3 = Type.half_type, Type.float_type, Type.uint8_type, Type.int8_type, Type.fp8e4m3fn_type
TYPES = {"int8": U8, "fp8": E4M3, "fp16": F16}
ROUNDS = 9
FAST = TargetOptions(fast_math=True)
DECODER = ((4096, 4096), (11008, 4096), (4096, 11008))
"""Columns and rows of weights: a square matrix, and matrices of a decoder of 7 billion parameters."""
BLOCKS = (32, 128)
ROTATED_BYTES = 192 << 20
"""Bytes of codes that are read in rotation: several times the second-level cache."""
TOGETHER = 8
"""Number of matrices: together, those of the smallest shape are several times the second-level cache of an H100 (50
MiB)."""


def finished(m: Module, sums: Instruction, axis: int, kind: str) -> Instruction:
    """Append scale, bias and ReLU to sums, and convert them to the type of the next layer's input."""
    lens, channels = sums.shape.lens, sums.shape.lens[axis]
    rng = np.random.default_rng(0)

    def along(values: np.ndarray) -> Instruction:
        return m.add_instruction("broadcast", [m.add_literal(values)], axis=axis, out_lens=lens)

    def everywhere(value: float) -> Instruction:
        return m.add_instruction("multibroadcast", [m.add_literal(np.array([value], np.float32))], out_lens=lens)

    bias = rng.standard_normal(channels)
    if kind == "fp16":
        added = m.add_instruction("add", [sums, along(bias.astype(np.float16))])
        return m.add_instruction("relu", [added])
    steps = np.ldexp(np.float32(1), rng.integers(-11, -8, channels)).astype(np.float32)
    value = m.add_instruction("dequantizelinear", [sums, along(steps)])
    value = m.add_instruction("add", [value, along(bias.astype(np.float32))])
    value = m.add_instruction("relu", [value])
    return m.add_instruction("quantizelinear", [value, everywhere(0.25)], out_type=TYPES[kind])


def random(rng: np.random.Generator, type: Type, lens: tuple[int, ...]) -> np.ndarray:
    """Return numbers of a type, spread like a network's; a repeating pattern."""
    count = min(int(np.prod(lens)), (1 << 20) + 7)
    if type in (U8, I8):
        found = rng.integers(0 if type is U8 else -127, 128, count).astype(type.numpy)
    else:
        found = rng.standard_normal(count).astype(np.float32).astype(type.numpy)
    return np.resize(found, lens)


def product_program(kind: str, shape: tuple[int, ...], finish: bool) -> Program:
    """Return a program of a product (rows, columns, depth) or convolution (batch, side, channels, out, kernel,
    stride)."""
    program, rng, type = Program(), np.random.default_rng(1), TYPES[kind]
    m, weights = program.main, I8 if kind == "int8" else type
    if len(shape) == 3:
        rows, columns, depth = shape
        x = m.add_parameter("x", Shape(type, (rows, depth)))
        w = m.add_literal(random(rng, weights, (depth, columns)))
        sums, axis = m.add_instruction("dot" if kind == "fp16" else "quant_dot", [x, w]), 1
    else:
        batch, side, channels, out, kernel, stride = shape
        x = m.add_parameter("x", Shape(type, (batch, side, side, channels)))
        image = m.add_instruction("transpose", [x], permutation=(0, 3, 1, 2))
        w = m.add_literal(random(rng, weights, (out, channels, kernel, kernel)))
        name, axis = "convolution" if kind == "fp16" else "quant_convolution", 1
        sums = m.add_instruction(name, [image, w], padding=(kernel // 2,) * 2, stride=(stride,) * 2)
    made = finished(m, sums, axis, kind) if finish else sums
    m.add_return([made if len(shape) == 3 else m.add_instruction("transpose", [made], permutation=(0, 2, 3, 1))])
    return program


@contextmanager
def only(tile: Any) -> Iterator[None]:
    """Force a tile for all products inside a ``with`` block; None keeps the usual choice."""
    usual = wgmma.chosen_tile
    if tile is not None:
        wgmma.chosen_tile = lambda *_, **__: (tile, 1)  # type: ignore[assignment]
    try:
        yield
    finally:
        wgmma.chosen_tile = usual


def wrong(torch: Any, kind: str, shape: tuple[int, ...], made: GpuProgram, x: np.ndarray, w: np.ndarray) -> float:
    """Return the error of sums against torch's, relative to the largest; for integers, the number of differences."""
    (got,) = (np.asarray(r) for r in made.run({"x": x}))
    exact = torch.float64 if kind == "int8" else torch.float32
    a, b = (torch.from_numpy(v.astype(np.float32)).cuda().to(exact) for v in (x, w))
    if len(shape) == 3:
        wanted = a @ b
    else:
        pads = shape[4] // 2
        wanted = torch.nn.functional.conv2d(a.permute(0, 3, 1, 2), b, padding=pads, stride=shape[5])
        wanted = wanted.permute(0, 2, 3, 1)
    wide = wanted.cpu().numpy()
    if kind == "int8":
        return float((got != wide.astype(np.int32)).mean())
    return float(np.abs(got.astype(np.float64) - wide).max() / np.abs(wide).max())


def products(tiles: bool, shapes: list[tuple[int, ...]]) -> list[dict[str, Any]]:
    """Print a line for each shape, kind and tile; return the figures."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rate, found = copy_rate(), []
    for shape in shapes:
        name = "x".join(map(str, shape)) if len(shape) == 3 else "conv{4}/{5} {0}x{1}^2x{2}->{3}".format(*shape)
        parts = []
        for kind in TYPES:
            for tile in (*TILES, None) if tiles else (None,):
                with only(tile):
                    program = product_program(kind, shape, True)
                    made, plain = (GpuProgram(product_program(kind, shape, f), FAST) for f in (True, False))
                    (p,) = program.parameter_shapes().values()
                    x = random(np.random.default_rng(2), p.type, p.lens)
                    w = next(i.literal for i in plain_literals(program) if i.literal is not None).numpy()
                    error = wrong(torch, kind, shape, plain, x, w)
                    assert made.executable is not None
                    times = made.executable.time_steps([x])
                steps = [s for s in made.executable.plan.steps if isinstance(s, Step)]
                seconds = sum(t for s, t in zip(steps, times) if "transpose" not in s.label)
                flops, moved = sum(s.flops for s in steps), sum(s.bytes for s in steps)
                roof = max(flops / PEAKS[kind], moved / rate) / seconds
                label = f"{kind}{f' {tile.rows}x{tile.columns}b{tile.blocks}s{tile.stages}' if tile else ''}"
                bad = error > (0 if kind == "int8" else 2e-3)
                parts.append(f"{label} {1e6 * seconds:.1f} us {flops / seconds / 1e12:.0f} T {100 * roof:.0f}%")
                parts[-1] += f" {len(steps)} steps WRONG {error:.1e}" if bad else ""
                found.append({"name": name, "label": label, "us": 1e6 * seconds, "roof": roof, "error": error})
        print(f"{name:30} {'; '.join(parts)}", flush=True)
    return found


def plain_literals(program: Program) -> list[Instruction]:
    """Return the literals of a program, largest first."""
    held = [i for i in program.main if i.literal is not None]
    return sorted(held, key=lambda i: -i.shape.elements)


def in_a_row(count: int, build: Callable[[Module, int], Instruction]) -> float:
    """Return the seconds per kernel of ``count`` kernels that a graph runs in sequence, each on its own operands."""
    program, rng = Program(), np.random.default_rng(0)
    program.main.add_return([build(program.main, k) for k in range(count)])
    made = GpuProgram(program, FAST)
    assert made.executable is not None
    steps = [s for s in made.executable.plan.steps if isinstance(s, Step)]
    if len(steps) != count:
        raise RuntimeError(f"{len(steps)} kernels instead of {count}")
    engine, given = made.executable.engine, made.executable.plan.parameters
    inputs = [to_device(engine, np.resize(rng.standard_normal(1 << 20).astype(p.dtype), p.lens), p.name) for p in given]
    return min(made.executable.seconds(inputs) for _ in range(ROUNDS)) / count


def nbits_product(
    m: Module, x: Instruction, columns: int, block: int, rng: np.random.Generator, more: int = 0
) -> Instruction:
    """Multiply ``x`` by random 4-bit weights; different ``more`` gives different weights."""
    lens = (columns, x.shape.lens[1] // block)
    literals: list[np.ndarray] = [
        np.resize(rng.integers(0, 256, (1 << 20) + more).astype(np.uint8), (*lens, block // 2)),
        np.resize(rng.uniform(0.001, 0.1, (1 << 16) + more).astype(np.float32), lens),
    ]
    return m.add_instruction("matmul_nbits", [x, *map(m.add_literal, literals)], bits=4, block_size=block)


def alone(columns: int, depth: int, block: int) -> dict[str, float]:
    """Return seconds of one product with weights in memory, of a copy of the same bytes, and of a nearly empty
    kernel."""
    rng, shared = np.random.default_rng(0), dict[Module, Instruction]()

    def product(m: Module, k: int) -> Instruction:
        if m not in shared:
            shared[m] = m.add_parameter("x", Shape(F16, (1, depth)))
        return nbits_product(m, shared[m], columns, block, rng, k)

    def copied(elements: int) -> Callable[[Module, int], Instruction]:
        return lambda m, k: m.add_instruction("relu", [m.add_parameter(f"x{k}", Shape(F16, (elements,)))])

    count = -(-ROTATED_BYTES // (columns * depth // 2))
    moved = columns * depth // 2 + 4 * columns * depth // block
    return {
        "product": in_a_row(count, product),
        "copying": in_a_row(count, copied(moved // 4)),
        "nothing": in_a_row(count, copied(8)),
    }


def weights() -> list[dict[str, Any]]:
    """Measure one row times 4-bit weights, against a copy; see also `alone`.

    Several matrices are joined along columns, since a single matrix stays in the second-level cache between runs.
    """
    rate, found = copy_rate(), []
    rng = np.random.default_rng(0)
    for columns, depth in DECODER:
        for block in BLOCKS:
            program = Program()
            m = program.main
            x = m.add_parameter("x", Shape(F16, (1, depth)))
            m.add_return([nbits_product(m, x, TOGETHER * columns, block, rng)])
            made = GpuProgram(program, FAST)
            assert made.executable is not None
            (step,) = (s for s in made.executable.plan.steps if isinstance(s, Step))
            (seconds,) = made.executable.time_steps([random(rng, F16, (1, depth))])
            part, single = step.bytes / seconds / rate, alone(columns, depth, block)
            print(
                f"{columns} x {depth}, blocks of {block:3}: {1e6 * seconds / TOGETHER:6.2f} us each,"
                f" {step.bytes / seconds / 1e9:.0f} GB/s, {100 * part:.0f}% of a copy's; alone"
                f" {', '.join(f'{1e6 * t:.2f} ({what})' for what, t in single.items())}",
                flush=True,
            )
            found.append({"columns": columns, "depth": depth, "block": block, "seconds": seconds, "of_copy": part})
            found[-1] |= single
    return found


def models(names: list[str], kinds: list[str]) -> list[dict[str, Any]]:
    """Time networks in float16 and in 8 bits by turns, and the kernels that take the time."""
    import torch

    from bench.torch_models import NETWORKS

    rate, found = copy_rate(), []
    for name in names:
        torch.manual_seed(0)
        module, inputs = NETWORKS[name]()
        module, inputs = module.cuda(), tuple(x.cuda() for x in inputs)
        with torch.inference_mode():
            wanted = module(*inputs)
        wanted = [r.cpu().numpy() for r in (wanted if isinstance(wanted, tuple) else (wanted,))]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            exported(torch, module, inputs, True, path)
            seen = ranges(torch, module, inputs, Path(folder), all(x.ndim == 4 for x in inputs))
            given = [x.half() if x.is_floating_point() else x for x in inputs]
            made = {kind: Ours(torch, path, kind, given, seen) for kind in kinds}
        times = {kind: [one.seconds()] for kind, one in made.items()}
        for _ in range(ROUNDS - 1):
            for kind, one in made.items():
                times[kind].append(one.seconds())
        for kind, one in made.items():
            seconds = float(np.median(times[kind]))
            error = max(
                float(np.linalg.norm(r.astype(np.float32) - w) / np.linalg.norm(w)) for r, w in zip(one.results, wanted)
            )
            steps = one.steps()
            faster = float(np.median(times[kinds[0]])) / seconds
            print(
                f"{name:14} {kind:5} {1e3 * seconds:7.3f} ms ({faster:.2f} times as fast as {kinds[0]}), {len(steps)}"
                f" kernels, error {error:.1e}, compiled in {one.compiling:.1f} s, on the host:"
                f" {'; '.join(one.hosted) or 'nothing'}",
                flush=True,
            )
            print("\n".join(table(steps, kind, rate)), flush=True)
            found.append({"name": name, "kind": kind, "ms": 1e3 * seconds, "error": error, "steps": steps})
        del made, module
        gc.collect()
        torch.cuda.empty_cache()
    return found


def main() -> int:
    """Run the selected parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--networks", default="resnet50 b32,bert 8x384", help="comma-separated, of bench.torch_models")
    parser.add_argument("--kinds", default="fp16,int8,fp8", help="of networks, comma-separated")
    parser.add_argument("--shapes", help="numbers of the products that are wanted, by commas; default: all")
    parser.add_argument("--tiles", action="store_true", help="every tile")
    parser.add_argument("--json", help="file for the figures")
    given = parser.parse_args()
    parts, figures = given.parts or PARTS, {}
    if "products" in parts:
        shapes: list[tuple[int, ...]] = [g[:3] for g in GEMMS if not g[3]] + list(CONVS)
        figures["products"] = products(
            given.tiles, [shapes[int(k)] for k in given.shapes.split(",")] if given.shapes else shapes
        )
    if "weights" in parts:
        figures["weights"] = weights()
    if "models" in parts:
        figures["models"] = models(given.networks.split(","), given.kinds.split(","))
    if given.json:
        Path(given.json).write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
