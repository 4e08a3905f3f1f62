"""Products whose rows tensor cores cannot read as they are: spread over batch axes, of odd length, or walked across."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.machine import machine
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.gpu.program import GpuProgram
from mgx_numba.targets.gpu.rules import contraction

from ..cpu.agreement import reference
from ..passes.support import Graph
from .operators import hosted
from .programs import compiled, inputs_of, interpreter, labels

HALF = Type.half_type


def product(
    lens: tuple[int, ...], columns: int, constant: bool, permutation: tuple[int, ...] = (), residual: bool = False
) -> Program:
    """A product of rows with a matrix, with a bias and, if wanted, a residual that is stored channels first."""
    program, rng = Program(), np.random.default_rng(len(lens))
    m = program.main
    x = value = m.add_parameter("x", Shape(HALF, lens))
    if permutation:
        value = m.add_instruction("transpose", [x], permutation=permutation)
    own, depth = value.shape.lens, value.shape.lens[-1]
    matrix = (rng.standard_normal((depth, columns)) / depth**0.5).astype(np.float16)
    w = m.add_literal(matrix) if constant else m.add_parameter("w", Shape(HALF, matrix.shape))
    if len(own) > 2:
        w = m.add_instruction("multibroadcast", [w], out_lens=(*own[:-2], depth, columns))
    out = m.add_instruction("dot", [value, w])
    bias = m.add_literal(rng.standard_normal(columns).astype(np.float16))
    out = m.add_instruction("add", [out, m.add_instruction("multibroadcast", [bias], out_lens=out.shape.lens)])
    if residual:
        first = m.add_parameter("r", Shape(HALF, (own[0], columns, *own[1:-1])))
        last = m.add_instruction("transpose", [first], permutation=(0, *range(2, len(own)), 1))
        out = m.add_instruction("add", [out, last])
    m.add_return([out])
    return program


def agrees(program: Program, made: GpuProgram) -> None:
    inputs = inputs_of(program)
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    assert not hosted(made), made.fallback_reasons()
    assert np.abs(got.astype(np.float32) - wanted.astype(np.float32)).max() <= 4e-3 * np.abs(wanted).max()


def grid_rows(made: GpuProgram) -> list[int]:
    """Planes of the grids of products."""
    assert made.executable is not None
    steps = [step for step in made.executable.plan.steps if "gemm" in step.label]
    return [step.geometry.blocks[2] for step in steps]


@pytest.mark.parametrize("lens", [(2, 3, 5, 24), (4, 1, 3, 24), (1, 1, 1, 24), (3, 4, 2, 2, 16)])
@pytest.mark.parametrize("constant", [True, False])
def test_batch_axes_over_which_the_right_operand_is_shared_are_rows(
    lens: tuple[int, ...], constant: bool, on: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of 14 rows each filled a tile of 64 alone, and read the weights again for each window."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    program = product(lens, 32, constant)
    made = compiled(program, on)
    assert grid_rows(made) == [1]
    agrees(program, made)


def test_rows_that_have_no_constant_stride_stay_a_batch(on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of a residual that is stored channels first are apart, their pixels are not."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    program = product((3, 4, 5, 16), 24, True, residual=True)
    agrees(program, compiled(program, on))


@pytest.mark.parametrize("lens", [(20, 19), (2, 9, 21), (2, 3, 19, 17)])
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("across", [False, True])
def test_rows_of_odd_length_are_copied_for_tensor_cores(
    lens: tuple[int, ...], constant: bool, across: bool, on: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    monkeypatch.setattr(contraction, "COPYING", 0)
    monkeypatch.setattr(contraction, "machine", lambda: replace(machine(), bandwidth=1e30))
    permutation = (*range(len(lens) - 2), len(lens) - 1, len(lens) - 2) if across else ()
    program = product(lens, 23, constant, permutation)
    made = compiled(program, on)
    assert any("gemm_tensor" in label or "gemm_warpgroup" in label for label in labels(made)), labels(made)
    agrees(program, made)


def test_a_large_product_of_odd_rows_gains_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recommendation network's product of 2048 x 793 x 1024 took 159 us by multiply-adds, and 7 by tensor cores."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    made = compiled(product((2048, 793), 1024, True), interpreter())
    assert any("gemm_warpgroup" in label for label in labels(made)), labels(made)


def test_a_large_product_of_odd_rows_in_tf32_gains_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """That product took 166 us of 286 in TF32: packed columns of float32 had odd lengths."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    g = Graph()
    w = g.random(793, 1024)
    program = g.ret(g.op("dot", g.param("x", (2048, 793)), w))
    made = compiled(program, interpreter(), float32_matmul_precision="medium")
    assert any("gemm_warpgroup" in label for label in labels(made)), labels(made)


def test_a_small_product_of_odd_rows_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    assert len(labels(compiled(product((4, 9), 8, True), interpreter()))) == 1
