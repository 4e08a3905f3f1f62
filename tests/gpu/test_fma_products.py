"""Float32 products by multiply-adds have float32 accuracy, with the epilogue in the same kernel."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.contraction import fma, solvers
from mgx_numba.codegen.gpu.contraction.fma import TILES, FmaTile
from mgx_numba.codegen.gpu.contraction.gpu_contraction import GpuContraction
from mgx_numba.codegen.gpu.machine import multiprocessors
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.codegen.problems.element_types import ElementTypes
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.request import Request
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import assert_agrees, reference
from .programs import compiled, interpreter

F32, F16 = Type.float_type, Type.half_type


def agree(program: Program, inputs: dict[str, np.ndarray], on: Engine) -> GpuProgram:
    made = compiled(program, on, float32_matmul_precision="highest")
    assert made.executable is not None
    assert any("_fma_" in step.label for step in made.executable.plan.steps)
    assert_agrees(made.run(inputs), reference(program, inputs))
    return made


def product(rows: int, columns: int, depth: int, turned: bool, result: Type) -> tuple[Program, dict[str, np.ndarray]]:
    """relu(a b + bias), perhaps converted."""
    program, rng = Program(), np.random.default_rng(rows)
    m: Module = program.main
    lens = {"a": (rows, depth), "b": (depth, columns) if turned else (columns, depth), "bias": (columns,)}
    p = {name: m.add_parameter(name, Shape(F32, n)) for name, n in lens.items()}
    right = p["b"] if turned else m.add_instruction("transpose", [p["b"]], permutation=(1, 0))
    sums = m.add_instruction("dot", [p["a"], right])
    sums = m.add_instruction("add", [sums, m.add_instruction("multibroadcast", [p["bias"]], out_lens=(rows, columns))])
    sums = m.add_instruction("relu", [sums])
    m.add_return([sums if result is F32 else m.add_instruction("convert", [sums], target_type=result)])
    return program, {name: rng.standard_normal(n).astype(np.float32) for name, n in lens.items()}


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "turned", "result"),
    [(5, 24, 36, False, F32), (70, 72, 40, True, F16), (66, 7, 8, False, F32), (3, 20, 264, True, F32)],
)
def test_products(rows: int, columns: int, depth: int, turned: bool, result: Type, on: Engine) -> None:
    agree(*product(rows, columns, depth, turned, result), on)


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}")
@pytest.mark.parametrize(
    ("rows", "columns", "depth", "turned", "splits"),
    [(70, 36, 20, True, 1), (5, 67, 52, False, 2)],
)
def test_each_tile(
    tile: FmaTile,
    rows: int,
    columns: int,
    depth: int,
    turned: bool,
    splits: int,
    monkeypatch: pytest.MonkeyPatch,
    on: Engine,
) -> None:
    monkeypatch.setattr(solvers, "SOLVERS", (solvers.MultiplyAdds(),))
    monkeypatch.setattr(fma.FmaText, "chosen", classmethod(lambda _, __: (tile, splits)))
    made = agree(*product(rows, columns, depth, turned, F32), on)
    assert made.executable is not None
    grid = made.executable.plan.steps[0].geometry
    assert grid.blocks == (-(-rows // tile.rows) * -(-columns // tile.columns), 1, splits)


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}")
def test_tiles_of_convolutions(tile: FmaTile, monkeypatch: pytest.MonkeyPatch, on: Engine) -> None:
    monkeypatch.setattr(solvers, "SOLVERS", (solvers.MultiplyAdds(),))
    monkeypatch.setattr(fma.FmaText, "chosen", classmethod(lambda _, __: (tile, 1)))
    agree(*convolution((2, 6, 7), (4, 8), (2, 2), padding=(1, 0), stride=(1, 1)), on)


def convolution(
    lens: tuple[int, ...], channels: tuple[int, int], kernel: tuple[int, ...], group: int = 1, **attributes: object
) -> tuple[Program, dict[str, np.ndarray]]:
    """relu of a convolution of images, of these lengths besides channels, with their channels last."""
    program, rng = Program(), np.random.default_rng(len(lens))
    m: Module = program.main
    x = m.add_parameter("x", Shape(F32, (*lens, channels[0])))
    rank = len(kernel)
    image = m.add_instruction("transpose", [x], permutation=(0, rank + 1, *range(1, rank + 1)))
    weights = m.add_literal(rng.standard_normal((channels[1], channels[0] // group, *kernel)).astype(np.float32))
    attributes.setdefault("dilation", (1,) * rank)
    y = m.add_instruction("convolution", [image, weights], group=group, **attributes)
    m.add_return([m.add_instruction("relu", [y])])
    return program, {"x": rng.standard_normal((*lens, channels[0])).astype(np.float32)}


@pytest.mark.parametrize(("kernel", "stride", "group"), [(3, 1, 1), (2, 2, 2)])
def test_convolutions(kernel: int, stride: int, group: int, on: Engine) -> None:
    agree(*convolution((2, 6, 5), (8, 12), (kernel,) * 2, group, padding=(1, 1), stride=(stride,) * 2), on)


@pytest.mark.parametrize(
    ("lens", "channels", "kernel", "attributes"),
    [
        ((2, 9), (4, 8), (5,), {"padding": (2,), "stride": (2,)}),  # several taps in a slice
        ((1, 5, 4, 6), (4, 8), (2, 3, 2), {"padding": (1, 1, 0), "stride": (1, 2, 1)}),
        ((1, 9, 8), (36, 4), (2, 3), {"padding": (1, 2), "stride": (1, 1), "dilation": (3, 2)}),  # a tap over slices
        ((1, 9, 9), (4, 8), (7, 7), {"padding": (3, 3), "stride": (2, 2)}),  # more taps than a mask has bits
        ((2, 6, 7), (4, 8), (8, 4), {"padding": (4, 2), "stride": (3, 1)}),  # as many
        ((2, 6, 5), (20, 8), (1, 1), {"padding": (0, 0), "stride": (2, 2)}),
        ((1, 3, 3), (32, 8), (1, 1), {"padding": (2, 1), "stride": (1, 1)}),  # rows that lie on no image
    ],
)
def test_taps_of_convolutions(
    lens: tuple[int, ...],
    channels: tuple[int, int],
    kernel: tuple[int, ...],
    attributes: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    on: Engine,
) -> None:
    monkeypatch.setattr(solvers, "SOLVERS", (solvers.MultiplyAdds(),))
    agree(*convolution(lens, channels, kernel, **attributes), on)


def test_infinities_and_nan_stay_in_their_rows(on: Engine) -> None:
    program, inputs = product(20, 24, 36, False, F32)
    inputs["a"][3, 5], inputs["a"][7, 0] = np.nan, np.inf
    agree(program, inputs, on)


def test_the_instructions_are_multiply_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    program, _ = product(256, 256, 64, True, F32)
    kernels = compiled(program, interpreter(), float32_matmul_precision="highest").kernels()
    text = assembly(kernels[0], ARCHITECTURES["sm_90a"])
    assert "fma.rn.f32" in text and "cp.async.cg" in text and "mma." not in text and ".local" not in text


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("turned", [True, False])
def test_each_architecture_has_the_kernels(name: str, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    monkeypatch.setattr(solvers, "SOLVERS", (solvers.MultiplyAdds(),))
    program, _ = product(256, 256, 64, turned, F32)
    made = compiled(program, interpreter(), float32_matmul_precision="highest")
    text = assembly(made.kernels()[0], ARCHITECTURES[name])
    assert ".local" not in text
    assert made.executable is not None
    (step,) = made.executable.plan.steps
    assert step.geometry.shared_bytes <= ARCHITECTURES[name].shared_bytes


def test_tiles_are_chosen_by_what_multiprocessors_get() -> None:
    """A large product gets the largest tile; if large tiles leave a round half empty, smaller tiles or split-K are
    chosen."""
    types = ElementTypes(*["float32"] * 4)

    def chosen(rows: int, columns: int, depth: int) -> tuple[FmaTile, int]:
        problem = GemmProblem(rows, columns, depth, types=types, b_strides=(columns, 1))
        contraction, solver = GpuContraction(Request(problem, Epilogue(), (), 1, False)), solvers.MultiplyAdds()
        times = [solver.estimate(contraction, tiling) for tiling in solver.tilings(contraction)]
        assert solver.estimate(contraction) == min(times) == times[0]
        return fma.FmaText.chosen(contraction)

    cores = multiprocessors()
    assert chosen(128 * cores, 128 * 16, 4096) == (TILES[0], 1)
    tile, splits = chosen(128 * (cores + 12), 128, 3072)
    assert (tile.rows * tile.columns, splits) != (128 * 128, 1)
    assert chosen(64, 64, 64) == (TILES[-1], 1)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "lens", "splits"),
    [
        (4096, 4096, 4096, (128, 128), 1),
        (3072, 768, 3072, (64, 128), 4),
        (3072, 3072, 768, (64, 128), 1),
        (128, 3072, 768, (64, 128), 4),
        (1, 4, 4, (64, 64), 1),
    ],
)
def test_tiles_are_those_that_were_the_fastest(
    rows: int, columns: int, depth: int, lens: tuple[int, int], splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choices measured on an H200, which has 132 multiprocessors."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    monkeypatch.setattr(fma, "multiprocessors", lambda: 132)
    problem = GemmProblem(rows, columns, depth, types=ElementTypes(*["float32"] * 4), b_strides=(columns, 1))
    tile, parts = fma.FmaText.chosen(GpuContraction(Request(problem, Epilogue(), (), 1, False)))
    assert ((tile.rows, tile.columns), parts) == (lens, splits)
