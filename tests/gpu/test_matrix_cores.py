"""Instructions of AMD's matrix cores multiply the lanes' elements, and contractions with them have the values of ref.

Nothing here has run on such a device.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.contraction import solvers
from mgx_numba.codegen.gpu.contraction.gpu_contraction import GpuContraction
from mgx_numba.codegen.gpu.contraction.tensor_cores import MASK
from mgx_numba.codegen.gpu.kernel import gpu_grid, gpu_kernel
from mgx_numba.codegen.gpu.matrix_tiles import TILES, MatrixTile
from mgx_numba.codegen.gpu.products import result_type
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.request import Request
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type, numpy_dtype
from mgx_numba.errors import CompileError
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.memory import address_of, aligned_empty
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import assert_agrees, reference
from ..interpreter.lanes import KernelFault
from ..interpreter.memory import Memory
from ..interpreter.run import interpret
from .code_objects import resources
from .programs import compiled, interpreter

F16, BF16, F32, F64 = Type.half_type, Type.bf16_type, Type.float_type, Type.double_type
AMD = [name for name, found in ARCHITECTURES.items() if not found.nvidia]
LEAST_REGISTERS = 256
"""Vector registers of a thread of 256: LLVM's AMDGPU usage, "Registers"."""
SIDE = 512
"""Rows, columns and terms of a product of which all tiles are full."""


@pytest.fixture(autouse=True)
def some_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "gfx942")


def multiply(tile: MatrixTile) -> KernelSource:
    """Return a kernel of one instruction's matrix product, with contiguous rows (``b``: columns)."""
    side, depth, own = tile.side, tile.depth, tile.lanes // tile.side
    lines = [
        f"p = pointer_{tile.a}(args, 0)",
        f"q = pointer_{tile.b}(args, 1)",
        f"r = pointer_{tile.accumulator}(args, 2)",
        "lane = thread_index(0)",
        f"line = imod(lane, {side})",
        f"block = idiv(lane, {side})",
        f"place = line * {depth} + imod(block * {tile.held}, {depth})",
        f"a = load(p, place, {tile.held})",
        f"b = load(q, place, {tile.held})",
        f"c = {tile.name}(const_{tile.accumulator}(1, {tile.sums}), a, b)",
    ]
    for k in range(tile.sums):
        row = f"(block + {own * (k // tile.group)}) * {tile.group} + {k % tile.group}"
        lines.append(f"store_scalar(r, ({row}) * {side} + line, extract(c, {k}))")
    return gpu_kernel("k", lines, tile.lanes, 3)


def values(rng: np.random.Generator, dtype: str, lens: tuple[int, ...]) -> np.ndarray:
    made = aligned_empty(lens, numpy_dtype(dtype).name)
    if made.dtype.kind in "iu":
        info = np.iinfo(made.dtype)
        made[...] = rng.integers(info.min, info.max, lens, endpoint=True)
    else:
        made[...] = rng.integers(-4, 5, lens)  # whose sums no type rounds
    return made


def run(kernel: KernelSource, tile: MatrixTile, *arrays: np.ndarray) -> None:
    memory = Memory()
    for name, array in zip("pqr", arrays):
        memory.add(address_of(array), array.reshape(-1).view(np.uint8), name)
    interpret(kernel, [address_of(array) for array in arrays], gpu_grid(1, tile.lanes), memory)


@pytest.mark.parametrize("tile", TILES, ids=[t.name for t in TILES])
def test_an_instruction_multiplies_what_lanes_hold(tile: MatrixTile) -> None:
    rng = np.random.default_rng(tile.depth)
    a, b = (values(rng, dtype, (tile.side, tile.depth)) for dtype in (tile.a, tile.b))
    out = aligned_empty((tile.side, tile.side), tile.accumulator)
    whole = np.int64 if tile.accumulator == "int32" else np.float64
    if whole is np.float64 and tile.a not in ("float8_e4m3fn",):  # which has no infinity
        a[3, 1], a[5, 0], b[2, 1] = np.inf, np.nan, -np.inf
    run(multiply(tile), tile, a, b, out)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out, 1 + a.astype(whole) @ b.astype(whole).T)


@pytest.mark.parametrize(
    ("name", "lane", "held", "sums"),
    [
        ("mfma_32x32x8_float16", 37, (5, 4), {0: (4, 5), 3: (7, 5), 4: (12, 5), 15: (31, 5)}),
        ("mfma_16x16x16_bfloat16", 37, (5, 8), {0: (8, 5), 3: (11, 5)}),
        ("mfma_32x32x16_int8_int8", 63, (31, 8), {0: (4, 31), 15: (31, 31)}),
        ("mfma_16x16x4_float64", 37, (5, 2), {0: (2, 5), 1: (6, 5), 3: (14, 5)}),
        ("mfma_32x32x2_float32", 37, (5, 1), {0: (4, 5), 15: (31, 5)}),
        ("wmma_16x16x16_float16_both", 21, (5, 0), {0: (1, 5), 1: (3, 5), 7: (15, 5)}),
        ("wmma_16x16x16_float16", 21, (5, 8), {0: (8, 5), 1: (9, 5), 7: (15, 5)}),
    ],
)
def test_lanes_hold_what_the_manuals_say(
    name: str, lane: int, held: tuple[int, int], sums: dict[int, tuple[int, int]]
) -> None:
    (tile,) = [t for t in TILES if t.name == name][:1]
    assert tile.place(lane) == held
    assert {k: (tile.row(lane, k), lane % tile.side) for k in sums} == sums


@pytest.mark.parametrize("name", AMD)
def test_each_instruction_is_one_of_its_architectures(name: str) -> None:
    for tile in TILES:
        if name in tile.architectures:
            text = assembly(multiply(tile), ARCHITECTURES[name])
            (line,) = [own for own in text.splitlines() if re.match(rf"\s+v_{tile.family}_", own)]
            assert f"{tile.side}x{tile.side}x{tile.depth}" in line
        else:
            with pytest.raises(CompileError, match=f"{tile.name}: {name} has no such instruction"):
                assembly(multiply(tile), ARCHITECTURES[name])


def test_lanes_of_two_waves_do_not_multiply_together() -> None:
    """A wave whose first lanes wait elsewhere was left out, and the others were taken for one."""
    tile = next(t for t in TILES if t.lanes == 64)
    zeros = {d: f"const_{d}(0, {n})" for d, n in ((tile.a, tile.held), (tile.accumulator, tile.sums))}
    call = f"c = {tile.name}({zeros[tile.accumulator]}, {zeros[tile.a]}, {zeros[tile.b]})"
    lines = ["thread = thread_index(0)", "if (thread >= 32) & (thread < 96):", f"    {call}"]
    kernel = gpu_kernel("apart_kernel", lines, 128, 0)
    with pytest.raises(KernelFault, match="64 threads .the first is 32. wait at mfma"):
        interpret(kernel, [], gpu_grid(1, 128), Memory())


def test_operands_that_lanes_do_not_hold_are_reported() -> None:
    tile = next(t for t in TILES if t.name == "wmma_16x16x16_float16_both")
    rng = np.random.default_rng(1)
    arrays = [*(values(rng, "float16", (16, 16)) for _ in "ab"), aligned_empty((16, 16), "float32")]
    text = multiply(tile).text
    other = KernelSource("gpu", "k", text.replace("a = load(p, place, 16)", "a = load(p, line * 16 * (1 - block), 16)"))
    with pytest.raises(KernelFault, match="lanes that hold the same elements of an operand do not agree about them"):
        run(other, tile, *arrays)
    fewer = KernelSource("gpu", "k", text.replace("a = load(p, place, 16)", "a = load(p, place, 8)"))
    with pytest.raises(KernelFault, match=r"multiplies \(8,\) of float16; expected \(16,\)"):
        run(fewer, tile, *arrays)
    with pytest.raises(CompileError, match=r"expected .*vec\(float16, 16\)"):
        assembly(fewer, ARCHITECTURES["gfx1100"])


def agree(program: Program, inputs: dict[str, np.ndarray], precision: str = "highest") -> GpuProgram:
    made = compiled(program, interpreter(), float32_matmul_precision=precision)
    assert made.executable is not None
    labels = [step.label for step in made.executable.plan.steps]
    assert any("_tensor_" in label for label in labels), labels
    assert_agrees(made.run(inputs), reference(program, inputs))
    return made


def product(type: Type, rows: int, columns: int, depth: int, turned: bool) -> tuple[Program, dict[str, np.ndarray]]:
    """relu(a b + bias)."""
    program, rng = Program(), np.random.default_rng(rows)
    m: Module = program.main
    lens = {"a": (rows, depth), "b": (depth, columns) if turned else (columns, depth), "bias": (columns,)}
    p = {name: m.add_parameter(name, Shape(type, n)) for name, n in lens.items()}
    right = p["b"] if turned else m.add_instruction("transpose", [p["b"]], permutation=(1, 0))
    sums = m.add_instruction("dot", [p["a"], right])
    bias = m.add_instruction("multibroadcast", [p["bias"]], out_lens=(rows, columns))
    m.add_return([m.add_instruction("relu", [m.add_instruction("add", [sums, bias])])])
    return program, {name: rng.standard_normal(n).astype(type.numpy) for name, n in lens.items()}


@pytest.mark.parametrize(
    ("name", "type"),
    [
        *((name, type) for name in ("gfx90a", "gfx942") for type in (F16, BF16, F32, F64)),
        *((name, type) for name in ("gfx1100", "gfx1201") for type in (F16, BF16)),
        ("sm_75", F16),
    ],
)
def test_products(name: str, type: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    agree(*product(type, 37, 24, 40, True))


@pytest.mark.parametrize(
    ("name", "type"), [("gfx942", F64), ("gfx90a", F32), ("gfx1100", F16), ("gfx1201", BF16), ("sm_75", F16)]
)
def test_products_in_parts(name: str, type: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    made = agree(*product(type, 5, 7, {F64: 200, F32: 400}.get(type, 800), False))
    assert made.executable is not None and len(made.executable.plan.steps) == 2


@pytest.mark.parametrize(("name", "tile"), [("gfx942", (64, 64)), ("gfx1100", (64, 64)), ("gfx1201", (128, 64))])
def test_larger_tiles(name: str, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    (text,) = [s for s in solvers.SOLVERS if s.name == "tensor"]
    assert isinstance(text, solvers.TensorCores)
    (wanted,) = [t for t in text.text().tiles if (t.rows, t.columns) == tile]
    monkeypatch.setattr(text.text(), "chosen", classmethod(lambda *_: (wanted, 1)))
    agree(*product(F16, 70, 72, 40, True))


@pytest.mark.parametrize("name", ["gfx90a", "gfx1100", "gfx1201", "sm_75"])
@pytest.mark.parametrize(("kernel", "stride", "group"), [(3, 1, 1), (2, 2, 2)])
def test_convolutions(name: str, kernel: int, stride: int, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    program, rng = Program(), np.random.default_rng(kernel)
    m: Module = program.main
    x = m.add_parameter("x", Shape(F16, (2, 6, 5, 16)))
    image = m.add_instruction("transpose", [x], permutation=(0, 3, 1, 2))
    weights = rng.standard_normal((24, 16 // group, kernel, kernel)).astype(np.float16)
    attributes = {"padding": (1, 1), "stride": (stride,) * 2, "group": group}
    y = m.add_instruction("convolution", [image, m.add_literal(weights)], **attributes)
    m.add_return([m.add_instruction("relu", [y])])
    agree(program, {"x": rng.standard_normal((2, 6, 5, 16)).astype(np.float16)})


@pytest.mark.parametrize("name", ["gfx942", "gfx1100", "sm_75"])
def test_infinities_and_nan_stay_in_their_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    program, inputs = product(F16, 20, 24, 40, False)
    inputs["a"][3, 5], inputs["a"][7, 0] = np.nan, np.inf
    agree(program, inputs)


def test_float32_keeps_its_bits_unless_fewer_are_allowed() -> None:
    program, inputs = product(F32, 9, 24, 40, True)
    assert "mfma_16x16x4_float32" in agree(program, inputs, "high").kernels()[0].text
    rounded = {name: (own.view(np.int32) & MASK).view(np.float32) for name, own in inputs.items()}
    assert "mfma_16x16x8_float32" in agree(program, rounded, "medium").kernels()[0].text


@pytest.mark.parametrize("name", AMD)
def test_kernels_of_all_tiles_have_their_instructions_and_no_spills(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    arch, solver = ARCHITECTURES[name], solvers.TensorCores()
    largest: dict[str, MatrixTile] = {}
    for tile in TILES:
        if name in tile.architectures:
            largest.setdefault(tile.types, tile)
    for tile in largest.values():
        result = result_type(tile.a, tile.accumulator)
        types = element_types(f"{tile.a} {tile.b} {result} {result}")
        along = (1, SIDE) if tile.a != "float64" else (SIDE, 1)
        problem = GemmProblem(SIDE, SIDE, SIDE, (), (SIDE, 1), along, (SIDE,), types)
        contraction = GpuContraction(Request(problem, Epilogue(), (), 1, False), precision="medium")
        tiling = next(t for t in solver.tilings(contraction) if t.splits == 1)
        (launch,) = solver.plan(contraction, tiling).launches
        assert isinstance(launch.kernel, KernelSource) and launch.geometry.shared_bytes <= arch.shared_bytes
        text = assembly(launch.kernel, arch)
        kernel = resources(text)
        assert kernel[".vgpr_spill_count"] == kernel[".sgpr_spill_count"] == kernel[".private_segment_fixed_size"] == 0
        assert kernel[".vgpr_count"] <= LEAST_REGISTERS and kernel[".max_flat_workgroup_size"] == 256
        assert f"v_{tile.family}_" in text and not re.search(r"^\s+flat_", text, re.M)
