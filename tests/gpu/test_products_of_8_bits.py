"""Products and convolutions of 8-bit integers equal ref exactly, of float8 within rounding."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.contraction import solvers, wgmma
from mgx_numba.codegen.gpu.contraction.wgmma_tiles import WarpgroupTile
from mgx_numba.codegen.gpu.toolchain.compiler import assembly, compile_object
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import reference
from .operators import hosted
from .programs import compiled, interpreter

I8, U8, E4M3, E5M2 = Type.int8_type, Type.uint8_type, Type.fp8e4m3fn_type, Type.fp8e5m2_type
KINDS = {"warpgroup": "sm_90a", "tensor": "sm_89", "": "sm_75"}
"""Prefixes of kernel names by kind of multiplication, each with an architecture that has no better kind."""
FLOAT8_ERROR = 5e-4
"""Error of float8 sums relative to the largest: tensor cores accumulate with fewer bits than float32 (H200: 8e-5 for 32
terms)."""


@pytest.fixture
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MGX_GPU_ARCH", KINDS[request.param])
    return str(request.param)


def values(rng: np.random.Generator, type: Type, lens: tuple[int, ...]) -> np.ndarray:
    """All that a type has, its ends often."""
    if type.is_floating:
        return (rng.standard_normal(lens) * 4).astype(type.numpy)
    info = np.iinfo(type.numpy)
    found = rng.integers(info.min, info.max, lens, endpoint=True)
    return np.where(rng.random(lens) < 0.3, rng.choice([info.min, info.max], lens), found).astype(type.numpy)


def agree(program: Program, inputs: dict[str, np.ndarray], kind: str, on: Engine, exact: bool = True) -> GpuProgram:
    made = compiled(program, on, fast_math=not exact)
    assert made.executable is not None and not hosted(made), made.fallback_reasons()
    labels = [step.label for step in made.executable.plan.steps]
    assert any(re.search(f"(gemm|convolution)_{kind}", label) for label in labels), labels
    for got, wanted in zip(made.run(inputs), reference(program, inputs).results, strict=True):
        if exact:
            np.testing.assert_array_equal(got, wanted)
        else:
            wide = wanted.astype(np.float64)
            assert np.abs(got.astype(np.float64) - wide).max() <= FLOAT8_ERROR * np.abs(wide).max()
    return made


def product(
    a: Type, b: Type, batch: tuple[int, ...], rows: int, columns: int, depth: int, constant: bool = True
) -> tuple[Program, dict[str, np.ndarray]]:
    """A quantised product; a right operand that is not constant has its columns contiguous."""
    program, rng = Program(), np.random.default_rng(rows + depth)
    m: Module = program.main
    inputs = {"a": values(rng, a, (*batch, rows, depth))}
    x = m.add_parameter("a", Shape(a, (*batch, rows, depth)))
    if constant:
        w = m.add_literal(values(rng, b, (depth, columns)))
        w = m.add_instruction("multibroadcast", [w], out_lens=(*batch, depth, columns)) if batch else w
    else:
        inputs["b"] = values(rng, b, (*batch, columns, depth))
        order = (*range(len(batch)), len(batch) + 1, len(batch))
        w = m.add_instruction(
            "transpose", [m.add_parameter("b", Shape(b, (*batch, columns, depth)))], permutation=order
        )
    m.add_return([m.add_instruction("quant_dot", [x, w])])
    return program, inputs


@pytest.mark.parametrize(
    ("kind", "a", "b", "batch", "rows", "columns", "depth", "constant"),
    [
        ("warpgroup", U8, I8, (), 70, 72, 144, True),
        ("warpgroup", I8, I8, (), 5, 24, 272, True),
        ("warpgroup", I8, U8, (2, 3), 33, 40, 80, False),
        ("warpgroup", U8, U8, (3,), 16, 8, 16, False),
        ("warpgroup", E4M3, E4M3, (), 70, 72, 144, True),
        ("warpgroup", E5M2, E5M2, (2,), 20, 24, 32, False),
        ("tensor", U8, I8, (), 37, 40, 144, True),
        ("tensor", I8, U8, (2,), 5, 8, 48, False),
        ("tensor", I8, I8, (), 5, 24, 528, True),
        ("tensor", E4M3, E4M3, (), 17, 24, 80, True),
        ("", U8, I8, (), 9, 13, 31, True),
        ("", I8, U8, (2,), 3, 8, 17, False),
        ("", U8, I8, (), 1, 7, 1, True),
        ("", E5M2, E5M2, (), 5, 6, 19, True),
    ],
    indirect=["kind"],
)
def test_products(
    kind: str, a: Type, b: Type, batch: tuple[int, ...], rows: int, columns: int, depth: int, constant: bool, on: Engine
) -> None:
    program, inputs = product(a, b, batch, rows, columns, depth, constant)
    agree(program, inputs, kind, on, exact=not a.is_floating)


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("sm_75", U8, I8),
        ("sm_75", I8, U8),
        ("gfx90a", I8, I8),
        ("gfx942", I8, I8),
        ("gfx1100", U8, I8),
        ("gfx1100", I8, U8),
        ("gfx1201", U8, U8),
        ("gfx1201", E4M3, E4M3),
        ("gfx1201", E5M2, E5M2),
    ],
)
@pytest.mark.parametrize(("rows", "columns", "depth"), [(37, 24, 144), (5, 7, 528)])
def test_products_through_registers(
    name: str, a: Type, b: Type, rows: int, columns: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    program, inputs = product(a, b, (), rows, columns, depth)
    agree(program, inputs, "tensor", interpreter(), exact=not a.is_floating)


@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_what_lies_in_no_whole_vectors(name: str, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    program, inputs = product(U8, I8, (), 6, 9, 21)
    agree(program, inputs, "(tensor_narrow|int32|warpgroup)", on)


def test_sums_in_parts_are_added_in_integers(monkeypatch: pytest.MonkeyPatch, on: Engine) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    monkeypatch.setattr(wgmma, "chosen_tile", lambda *_: (WarpgroupTile(64, 64, 2, 1), 3))
    program, inputs = product(U8, I8, (), 20, 40, 912)
    made = agree(program, inputs, "warpgroup", on)
    assert made.executable is not None and len(made.executable.plan.steps) == 2


def requantized(m: Module, sums: Instruction, axis: int, residual: Instruction | None = None) -> Instruction:
    """``quantize(relu(dequantize(sums) + bias [+ dequantize(residual)]))``, all scales powers of two: exact."""
    lens, channels = sums.shape.lens, sums.shape.lens[axis]
    rng = np.random.default_rng(channels)

    def along(numbers: np.ndarray) -> Instruction:
        return m.add_instruction("broadcast", [m.add_literal(numbers)], axis=axis, out_lens=lens)

    def all_over(number: np.ndarray) -> Instruction:
        return m.add_instruction("multibroadcast", [m.add_literal(number)], out_lens=lens)

    steps = np.ldexp(np.float32(1), -rng.integers(8, 11, channels).astype(np.int32)).astype(np.float32)
    points = rng.integers(-1000, 1000, channels).astype(np.int32)
    value = m.add_instruction("dequantizelinear", [sums, along(steps), along(points)])
    value = m.add_instruction("add", [value, along(rng.integers(-9, 9, channels).astype(np.float32))])
    one = all_over(np.array([0.5], np.float32))
    if residual is not None:
        value = m.add_instruction("add", [value, m.add_instruction("dequantizelinear", [residual, one])])
    value = m.add_instruction("relu", [value])
    return m.add_instruction("quantizelinear", [value, one, all_over(np.array([-128], np.int8))])


@pytest.mark.parametrize(
    ("kind", "batch", "lens", "channels", "out", "kernel", "stride", "pad", "group", "dilation"),
    [
        ("warpgroup", 2, (7, 5), 128, 40, 3, 1, 1, 1, 1),
        ("warpgroup", 1, (9, 8), 80, 48, 3, 2, 1, 1, 1),
        ("warpgroup", 2, (6, 9), 144, 16, 1, 2, 0, 1, 1),
        ("warpgroup", 1, (6, 6), 256, 32, 3, 1, 2, 2, 2),
        ("warpgroup", 3, (12,), 64, 16, 5, 2, 2, 1, 1),
        ("tensor", 2, (4, 5), 16, 24, 3, 2, 1, 1, 1),
        ("tensor", 2, (5, 5), 32, 32, 1, 1, 0, 2, 1),
        ("", 1, (3, 4), 8, 6, 3, 1, 1, 2, 1),
    ],
    indirect=["kind"],
)
def test_convolutions_with_all_that_follows_in_one_kernel(
    kind: str, batch: int, lens: tuple[int, ...], channels: int, out: int, kernel: int, stride: int, pad: int,
    group: int, dilation: int, on: Engine, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if kind == "tensor":
        monkeypatch.setattr(solvers, "SOLVERS", tuple(s for s in solvers.SOLVERS if s.name != "patch"))
    program, rng, axes = Program(), np.random.default_rng(channels), len(lens)
    m: Module = program.main
    x = m.add_parameter("x", Shape(U8, (batch, *lens, channels)))
    x = m.add_instruction("transpose", [x], permutation=(0, axes + 1, *range(1, axes + 1)))
    y = m.add_instruction(
        "quant_convolution", [x, m.add_literal(values(rng, I8, (out, channels // group, *[kernel] * axes)))],
        padding=(pad,) * axes, stride=(stride,) * axes, dilation=(dilation,) * axes, group=group,
    )  # fmt: skip
    lens_out = y.shape.lens
    r = m.add_parameter("r", Shape(I8, (batch, *lens_out[2:], out)))
    r = m.add_instruction("transpose", [r], permutation=(0, axes + 1, *range(1, axes + 1)))
    m.add_return([requantized(m, y, 1, r)])
    inputs = {name: values(rng, shape.type, shape.lens) for name, shape in program.parameter_shapes().items()}
    made = agree(program, inputs, kind, on)
    assert made.executable is not None
    assert sum("convolution" in step.label for step in made.executable.plan.steps) == 1


@pytest.mark.parametrize(("channels", "kernel"), [(3, 3), (5, 1)])
def test_few_channels_are_filled_up(channels: int, kernel: int, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_80")
    program, rng = Program(), np.random.default_rng(channels)
    m: Module = program.main
    x = m.add_parameter("x", Shape(U8, (2, channels, 6, 5)))
    w = m.add_literal(values(rng, I8, (9, channels, kernel, kernel)))
    y = m.add_instruction("quant_convolution", [x, w], padding=(kernel // 2,) * 2)
    m.add_return([y])
    agree(program, {"x": values(rng, U8, (2, channels, 6, 5))}, "tensor", on)


@pytest.mark.parametrize(
    ("a", "name", "instruction"),
    [
        (U8, "sm_90a", "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8"),
        (I8, "sm_90a", "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8"),
        (E4M3, "sm_90a", "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3"),
        (U8, "sm_80", "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32"),
        (E5M2, "sm_120a", "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32"),
        (U8, "sm_75", "mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32"),
        (U8, "gfx90a", "v_mad"),
        (I8, "gfx90a", "v_mfma_i32_16x16x16i8"),
        (I8, "gfx942", "v_mfma_i32_16x16x32_i8"),
        (U8, "gfx1100", "v_wmma_i32_16x16x16_iu8"),
        (I8, "gfx1201", "v_wmma_i32_16x16x16_iu8"),
        (E4M3, "gfx1201", "v_wmma_f32_16x16x16_fp8_fp8"),
    ],
)
def test_the_instructions_of_each_architecture(
    a: Type, name: str, instruction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    monkeypatch.setattr(wgmma, "chosen_tile", lambda *_: (WarpgroupTile(64, 64, 2, 1), 1))
    program, _ = product(a, a if a.is_floating else I8, (), 64, 64, 128)
    (kernel,) = compiled(program, interpreter()).kernels()
    text = assembly(kernel, ARCHITECTURES[name])
    assert instruction in text
    if ARCHITECTURES[name].nvidia:
        assert ".local" not in text
    else:
        assert ".private_segment_fixed_size: 0\n" in text
        assert kernel.symbol.encode() in compile_object(kernel, ARCHITECTURES[name])
