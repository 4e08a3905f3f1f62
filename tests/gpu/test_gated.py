"""Gated linear units fused into their product by warpgroups, for odd widths, several tiles, NaN, and late lengths."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.contraction import solvers, wgmma
from mgx_numba.codegen.gpu.contraction.gpu_contraction import interleaved
from mgx_numba.codegen.gpu.contraction.wgmma_tiles import WarpgroupTile
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.gpu.program import GpuProgram

from ..cpu.agreement import reference
from .programs import compiled, inputs_of, interpreter, labels

F16, BF16, F32 = Type.half_type, Type.bf16_type, Type.float_type
ALLOWED = {F16: 2e-3, BF16: 2e-2, F32: 2e-3}
"""Errors relative to the largest result: those of rounding sums and what is made of them, and of TF32."""


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use warpgroups for all problems that they support, even for small problems where others may be faster."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    monkeypatch.setattr(solvers, "SOLVERS", (solvers.Warpgroups(), solvers.Tiles()))


def unit(
    type: Type, lens: tuple[int, ...], half: int, gate: str = "gelu_erf", bias: bool = True, residual: bool = False
) -> Program:
    """x w + bias of rows of ``lens``, whose first half is multiplied with the ``gate`` of the second one."""
    program, rng = Program(), np.random.default_rng(half)
    m, depth = program.main, lens[-1]
    x = m.add_parameter("x", Shape(type, lens))
    w = m.add_literal(rng.standard_normal((depth, 2 * half)).astype(type.numpy))
    if len(lens) > 2:
        w = m.add_instruction("multibroadcast", [w], out_lens=(*lens[:-2], depth, 2 * half))
    y = m.add_instruction("dot", [x, w])
    if bias:
        b = m.add_literal(rng.standard_normal(2 * half).astype(type.numpy))
        y = m.add_instruction("add", [y, m.add_instruction("multibroadcast", [b], out_lens=y.shape.lens)])
    a, b = (m.add_instruction("slice", [y], axes=[len(lens) - 1], starts=[k], ends=[k + half]) for k in (0, half))
    y = m.add_instruction("mul", [a, m.add_instruction(gate, [b])])
    if residual:
        y = m.add_instruction("add", [y, m.add_parameter("r", y.shape)])
    m.add_return([y])
    return program


def agree(
    program: Program, on: Engine, type: Type = F16, fast_math: bool = False, kernel: str = "warpgroup"
) -> GpuProgram:
    """Check that one kernel has the values of ref."""
    made = compiled(program, on, fast_math=fast_math, float32_matmul_precision="medium")
    (label,) = labels(made)
    assert kernel in label, label
    inputs = inputs_of(program)
    (got,) = made.run(inputs)
    (wanted,) = (r.astype(np.float64) for r in reference(program, inputs).results)
    assert got.shape == wanted.shape
    error = np.abs(got.astype(np.float64) - wanted).max() / np.abs(wanted).max()
    assert error <= ALLOWED[type], error
    return made


@pytest.mark.parametrize(
    ("type", "lens", "half", "gate", "bias", "residual"),
    [
        (F16, (70, 72), 64, "gelu_erf", True, False),
        (F16, (2, 33, 40), 24, "gelu_tanh", True, True),
        (BF16, (65, 136), 72, "silu", False, False),
        (F16, (3, 8), 8, "sigmoid", True, False),
        (BF16, (2, 2, 9, 16), 104, "gelu_erf", True, True),
        (F32, (20, 24), 40, "silu", True, False),
    ],
)
@pytest.mark.parametrize("fast_math", [False, True])
def test_values(
    type: Type, lens: tuple[int, ...], half: int, gate: str, bias: bool, residual: bool, fast_math: bool, on: Engine
) -> None:  # fmt: skip
    agree(unit(type, lens, half, gate, bias, residual), on, type, fast_math)


@pytest.mark.parametrize(
    ("tile", "cores"),
    [
        (WarpgroupTile(128, 256, 2, 1), 1),
        (WarpgroupTile(192, 64, 2, 1), 2),
        (WarpgroupTile(64, 160, 2, 1), 2),
        (WarpgroupTile(64, 64, 2, 1, 1, 2), 2),
        (WarpgroupTile(128, 32, 2, 1), 1),
        (WarpgroupTile(64, 64, 3, 1, pingpong=2), 2),
    ],
)
def test_tiles(tile: WarpgroupTile, cores: int, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wgmma, "chosen_tile", lambda *_: (tile, 1))
    monkeypatch.setattr(wgmma, "multiprocessors", lambda: cores)
    monkeypatch.setattr(solvers, "SOLVERS", (solvers.Warpgroups(),))  # costs on one multiprocessor mean nothing
    agree(unit(F16, (150, 72), 160), on)


@pytest.mark.parametrize(
    ("type", "lens", "half", "gate"),
    [
        (F16, (1, 72), 12, "gelu_erf"),
        (BF16, (3, 1300), 5, "silu"),
        (F16, (2, 2, 2600), 8, "gelu_tanh"),
        (F32, (2, 30), 33, "sigmoid"),
    ],
)
def test_few_rows(
    type: Type, lens: tuple[int, ...], half: int, gate: str, on: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solvers, "SOLVERS", (solvers.Gemv(), solvers.Tiles()))
    agree(unit(type, lens, half, gate), on, type, kernel="gemm_rows")


def test_sums_are_not_computed_in_parts() -> None:
    made = agree(unit(F16, (64, 1024), 16), interpreter())
    assert len(labels(made)) == 1


def test_numbers_that_are_not_finite_stay_in_their_rows(on: Engine) -> None:
    program = unit(F16, (70, 72), 24)
    inputs = inputs_of(program)
    inputs["x"][3, 5], inputs["x"][66, 0] = np.nan, np.inf
    (got,), (wanted,) = compiled(program, on).run(inputs), reference(program, inputs).results
    finite = np.isfinite(wanted)
    assert np.isnan(got[3]).all() and np.array_equal(np.isfinite(got), finite) and not finite[66].all()
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    difference = got[finite].astype(np.float64) - wanted[finite]
    assert np.abs(difference).max() <= ALLOWED[F16] * np.abs(wanted[finite]).max()


def test_an_input_between_vectors(on: Engine) -> None:
    """Rows that the copy engine does not bring are copied first."""
    program, rng = Program(), np.random.default_rng(0)
    m = program.main
    x = m.add_parameter("x", Shape(F16, (40, 20)))
    x = m.add_instruction("slice", [x], axes=[1], starts=[3], ends=[19])
    y = m.add_instruction("dot", [x, m.add_literal(rng.standard_normal((16, 64)).astype(np.float16))])
    a, b = (m.add_instruction("slice", [y], axes=[1], starts=[k], ends=[k + 32]) for k in (0, 32))
    m.add_return([m.add_instruction("mul", [a, m.add_instruction("silu", [b])])])
    made, inputs = compiled(program, on), inputs_of(program)
    assert any("warpgroup" in label for label in labels(made)) and not any("host" in label for label in labels(made))
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    assert np.abs(got - wanted).max() <= ALLOWED[F16] * np.abs(wanted).max()


def test_halves_of_no_whole_pieces_are_two_kernels(on: Engine) -> None:
    program = unit(F16, (20, 16), 12)
    made, inputs = compiled(program, on), inputs_of(program)
    assert len(labels(made)) == 2
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    assert np.abs(got - wanted).max() <= ALLOWED[F16] * np.abs(wanted).max()


def test_architectures_without_warpgroups_have_two_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_80")
    assert len(labels(compiled(unit(F16, (64, 64), 64), interpreter()))) == 2


def test_rows_that_are_known_later(on: Engine) -> None:
    program, rng = Program(), np.random.default_rng(0)
    m = program.main
    x = m.add_parameter("x", Shape.dynamic(F16, [DynamicDimension(1, 256), DynamicDimension(32, 32)]))
    y = m.add_instruction("dot", [x, m.add_literal(rng.standard_normal((32, 64)).astype(np.float16))])
    a, b = (m.add_instruction("slice", [y], axes=[1], starts=[k], ends=[k + 32]) for k in (0, 32))
    m.add_return([m.add_instruction("mul", [a, m.add_instruction("silu", [b])])])
    made = compiled(program, on)
    for rows in (1, 100, 256):
        inputs = {"x": rng.standard_normal((rows, 32)).astype(np.float16)}
        (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
        assert np.abs(got - wanted).max() <= ALLOWED[F16] * np.abs(wanted).max()


@pytest.mark.parametrize("rows", [1, 70])
def test_two_products_of_one_input_are_one_kernel(rows: int, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvers, "SOLVERS", (solvers.Gemv(), solvers.Warpgroups(), solvers.Tiles()))
    program, rng = Program(), np.random.default_rng(0)
    m = program.main
    x = m.add_parameter("x", Shape(F16, (rows, 40)))
    gate, up = (
        m.add_instruction("dot", [x, m.add_literal(rng.standard_normal((40, 72)).astype(np.float16))]) for _ in "gu"
    )
    activated = m.add_instruction("mul", [gate, m.add_instruction("sigmoid", [gate])])
    m.add_return([m.add_instruction("mul", [activated, up])])
    agree(program, on, fast_math=True, kernel="silu_mul")


def test_columns_of_halves_alternate() -> None:
    stored = interleaved(np.arange(2 * 12).reshape(1, 24), 1, 4)
    assert stored.tolist() == [[0, 1, 2, 3, 12, 13, 14, 15, 4, 5, 6, 7, 16, 17, 18, 19, 8, 9, 10, 11, 20, 21, 22, 23]]


def test_an_epilogue_of_two_sums_has_operations() -> None:
    with pytest.raises(ShapeError, match="expected those that make one value of two sums"):
        Epilogue(gated=True)
