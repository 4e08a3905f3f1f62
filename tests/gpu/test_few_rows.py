"""Products of few rows and convolutions of few small images have float64's values, for any epilogue and layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.contraction import gemv
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import assert_agrees, reference
from .programs import compiled, inputs_of, interpreter

F32, F16, BF16 = Type.float_type, Type.half_type, Type.bf16_type
ALLOWED = {F32: 1e-6, F16: 1e-3, BF16: 8e-3}
"""Errors relative to the largest result: those of rounding it, and in float32 of adding up."""


def product(type: Type, batch: tuple[int, ...], rows: int, columns: int, depth: int) -> Program:
    """relu(a b + bias) + residual, of a right operand that has its columns one after the other."""
    program = Program()
    m = program.main
    a = m.add_parameter("a", Shape(type, (*batch, rows, depth)))
    b = m.add_parameter("b", Shape(type, (*batch, columns, depth)))
    order = (*range(len(batch)), len(batch) + 1, len(batch))
    bias, residual = (
        m.add_parameter("bias", Shape(type, (columns,))),
        m.add_parameter("r", Shape(type, (*batch, rows, columns))),
    )
    sums = m.add_instruction("dot", [a, m.add_instruction("transpose", [b], permutation=order)])
    row = m.add_instruction("multibroadcast", [bias], out_lens=sums.shape.lens)
    m.add_return(
        [m.add_instruction("add", [m.add_instruction("relu", [m.add_instruction("add", [sums, row])]), residual])]
    )
    return program


def run(program: Program, inputs: dict[str, np.ndarray], on: Engine) -> tuple[GpuProgram, np.ndarray]:
    made = compiled(program, on)
    assert made.executable is not None
    assert any("gemm_rows" in step.label for step in made.executable.plan.steps)
    (got,) = made.run(inputs)
    return made, got.astype(np.float64)


@pytest.mark.parametrize("type", [F32, F16, BF16])
@pytest.mark.parametrize(
    ("batch", "rows", "columns", "depth"),
    [((), 1, 5, 16), ((2,), 3, 7, 264), ((), 4, 4, 512), ((), 2, 3, 2312), ((), 1, 5, 12), ((2,), 2, 3, 35)],
)
def test_products(type: Type, batch: tuple[int, ...], rows: int, columns: int, depth: int, on: Engine) -> None:
    program = product(type, batch, rows, columns, depth)
    inputs = inputs_of(program, depth)
    wide = {n: v.astype(np.float64) for n, v in inputs.items()}
    wanted = np.maximum(wide["a"] @ wide["b"].swapaxes(-1, -2) + wide["bias"], 0) + wide["r"]
    _, got = run(program, inputs, on)
    assert np.abs(got - wanted).max() <= ALLOWED[type] * np.abs(wanted).max()


@pytest.mark.parametrize("type", [F32, F16, BF16])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("depth", [9, 263, 1031, 4099])
def test_weights_of_an_odd_depth_are_read_in_vectors(type: Type, rows: int, depth: int, on: Engine) -> None:
    """Their columns are stored apart from each other by whole vectors; the last elements are read one by one."""
    program, columns = Program(), 6
    m, rng = program.main, np.random.default_rng(depth)
    w = rng.standard_normal((depth, columns)).astype(type.numpy)
    w[depth - 1, 2], w[depth - 2, 4] = np.inf, np.nan
    a = m.add_parameter("a", Shape(type, (rows, depth)))
    m.add_return([m.add_instruction("dot", [a, m.add_literal(w)])])
    inputs = inputs_of(program, depth)
    inputs["a"][0, depth - 1] = 3
    with np.errstate(invalid="ignore"):
        wanted = inputs["a"].astype(np.float64) @ w.astype(np.float64)
    made, got = run(program, inputs, on)
    if rows == 1 and type is not F32:
        assert made.executable is not None
        (text,) = (s.kernel.text for s in made.executable.plan.steps if "gemm_rows" in s.label)
        assert "load_aligned(r_column" in text
    finite = np.isfinite(wanted)
    assert np.array_equal(np.isnan(got), np.isnan(wanted)) and np.array_equal(np.isinf(got), np.isinf(wanted))
    assert np.abs(got[finite] - wanted[finite]).max() <= ALLOWED[type] * np.abs(wanted[finite]).max()


def test_infinities_and_nan_stay_where_they_are(on: Engine) -> None:
    program = product(F16, (), 3, 6, 264)
    inputs = inputs_of(program, 1)
    inputs["a"][0, 263], inputs["b"][2, 263], inputs["b"][4, 0] = np.nan, np.inf, -np.inf
    _, got = run(program, inputs, on)
    assert np.isnan(got[0]).all() and np.isfinite(got[1:, [0, 1, 3, 5]]).all()
    for column in (2, 4):
        signs = np.sign(inputs["a"][1:, 263 if column == 2 else 0]) * (1 if column == 2 else -1)
        assert (np.isinf(got[1:, column]) == (signs > 0)).all()


def images(
    type: Type, lens: tuple[int, ...], outputs: int, kernel: tuple[int, ...], groups: int = 1, **attributes: Any
) -> Program:
    """relu(convolution(x) + bias)."""
    program = Program()
    m = program.main
    x = m.add_parameter("x", Shape(type, lens))
    weights = np.random.default_rng(2).standard_normal((outputs, lens[1] // groups, *kernel)).astype(type.numpy)
    bias = np.random.default_rng(3).standard_normal((outputs, *(1 for _ in kernel))).astype(type.numpy)
    sums = m.add_instruction("convolution", [x, m.add_literal(weights)], group=groups, **attributes)
    wide = m.add_instruction("multibroadcast", [m.add_literal(bias)], out_lens=sums.shape.lens)
    m.add_return([m.add_instruction("relu", [m.add_instruction("add", [sums, wide])])])
    return program


@pytest.mark.parametrize(
    ("type", "lens", "outputs", "kernel", "groups"),
    [
        (F16, (1, 20, 1, 1), 6, (1, 1), 1),
        (F32, (3, 6, 1, 1), 5, (1, 1), 1),
        (BF16, (2, 16, 1), 8, (1,), 4),
        (F32, (2, 8, 2, 3), 5, (2, 3), 1),
        (F16, (2, 3, 4, 2), 5, (4, 2), 1),
    ],
)
def test_images(
    type: Type, lens: tuple[int, ...], outputs: int, kernel: tuple[int, ...], groups: int, on: Engine
) -> None:
    rank = len(kernel)
    whole = {"padding": (0,) * rank, "stride": (1,) * rank, "dilation": (1,) * rank}
    program = images(type, lens, outputs, kernel, groups, **whole)
    made = compiled(program, on)
    assert made.executable is not None
    labels = [step.label for step in made.executable.plan.steps]
    assert any("convolution_rows" in label for label in labels) and not any("filled" in label for label in labels)
    inputs = inputs_of(program, rank)
    assert_agrees(made.run(inputs), reference(program, inputs))


def test_more_rows_and_filters_that_do_not_cover_images_are_refused() -> None:
    one = {"padding": (0, 0), "stride": (1, 1), "dilation": (1, 1)}
    more = gemv.MOST_ROWS + 1
    programs = [
        product(F16, (), more, 5, 16),
        images(F16, (more, 16, 1, 1), 8, (1, 1), **one),
        images(F16, (1, 16, 2, 1), 8, (1, 1), **one),
        images(F16, (1, 16, 1, 1), 8, (1, 1), **{**one, "padding": (1, 0)}),
        images(F16, (1, 16, 2, 1), 8, (2, 1), 2, **one),
    ]
    for program in programs:
        labels = [step.label for step in compiled(program, interpreter()).executable.plan.steps]  # type: ignore[union-attr]
        assert not any("_rows_" in label for label in labels)


def test_loads_are_wide_and_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    kernels = compiled(product(F16, (), 1, 64, 1024), interpreter()).kernels()
    text = assembly(kernels[0], ARCHITECTURES["sm_90a"])
    first = text.index("fma.rn.f32")
    assert text[:first].count("ld.global.v4.b32") >= 8 and ".local" not in text
