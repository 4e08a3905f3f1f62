"""Products of 8-bit integers: exact in int32, for every instruction set of the CPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.body import scalar_body
from mgx_numba.codegen.cpu.contraction.gemm_int8 import GemmInt8
from mgx_numba.codegen.cpu.contraction.solvers import GEMM_SOLVERS, select
from mgx_numba.codegen.cpu.microkernels.int8_table import INT8_TILES
from mgx_numba.codegen.cpu.microkernels.tile_table import TILE_TABLE_ROWS, tile_for
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.epilogue import Epilogue, EpilogueOperand
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.core.types import Type
from mgx_numba.errors import UnsupportedError
from tests.values import element_strides

from ..features import ARM, features
from .contracting import GuardedPages, needs_page_protection, run_plan

ARM_FORMS = ("", "-i8mm", "-i8mm,-dotprod")
FORMS = ARM_FORMS if ARM else ("", "avx2", "-avx512vnni,-avxvnni", "avx2,-avxvnni", "sse")
"""Enabled CPU features: all, VNNI on 256 bits, and no VNNI on 512, 256 and 128 bits."""
SOLVER = GemmInt8()


def problem_of(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> GemmProblem:
    return GemmProblem(
        a.shape[-2], b.shape[-1], a.shape[-1], a.shape[:-2], element_strides(a), element_strides(b),
        () if out is None else element_strides(out)[:-1], element_types(f"{a.dtype.name} int8 int32 int32"),
    )  # fmt: skip


def multiply(
    a: np.ndarray, b: np.ndarray, threads: int = 1, pages: GuardedPages | None = None, solver: GemmInt8 = SOLVER
) -> np.ndarray:
    problem = problem_of(a, b)
    assert solver.refusal(problem) is None
    out = np.full((*a.shape[:-1], b.shape[-1]), 77, np.int32)
    packed = solver.pack_weights(problem, b)
    assert packed.shape == solver.packed_lens(problem)
    if pages:
        a, packed, out = (pages.place(array) for array in (a, packed, out))
    for fill in (0x00, 0xFF):
        run_plan(solver.plan(problem, threads=threads), {"x": a, "w": packed, "out": out}, pages, fill)
        np.testing.assert_array_equal(out, a.astype(np.int32) @ b.astype(np.int32), str((a.shape, b.shape, a.dtype)))
    return out


def pair(m: int, n: int, k: int, dtype: str, batch: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m * 10007 + n * 101 + k)
    limits = np.iinfo(dtype)
    a = rng.integers(limits.min, limits.max + 1, (*batch, m, k)).astype(dtype)
    return a, rng.integers(-128, 128, (*batch, k, n)).astype(np.int8)


form = features(FORMS, arm=ARM_FORMS)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_odd_sizes(form: str, dtype: str) -> None:
    """All pairs of rows and columns at two depths, and all depths at three of the pairs."""
    sizes = [(m, n, k) for m in (1, 2, 3, 7, 13) for n in (1, 15, 17, 49, 100) for k in (5, 130)]
    sizes += [(m, n, k) for m, n in ((1, 17), (3, 1), (13, 100)) for k in (0, 1, 2, 3, 4, 63)]
    for m, n, k in sizes:
        multiply(*pair(m, n, k, dtype))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_two_activations_were_refused_where_the_tile_reads_sums_of_columns(form: str, dtype: str) -> None:
    for m, n, k in ((1, 17, 3), (13, 49, 130), (8, 100, 64)):
        a, b = pair(m, n, k, dtype, (2,))
        problem = dataclasses.replace(problem_of(a, b), b_constant=False)
        solver = select(problem)
        assert solver.name == "gemm_packing_int8"
        out = np.full((2, m, n), 77, np.int32)
        run_plan(solver.plan(problem, threads=2), {"x": a, "w": b, "out": out})
        np.testing.assert_array_equal(out, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_extremes_neither_saturate_nor_lose_their_sign(form: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    for left in (limits.min, limits.max, -1 if limits.min else 128):
        for right in (-128, 127, -1):
            a, b = np.full((5, 66), left, dtype), np.full((66, 50), right, np.int8)
            multiply(a, b)
            a[:, ::2], b[::2] = limits.max, -128
            multiply(a, b)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_sums_past_int32_wrap_around(form: str, dtype: str) -> None:
    k = (1 << 31) // (127 * 127) + 9
    multiply(np.full((1, k), 127, dtype), np.full((k, 3), 127, np.int8))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_steps_of_depth_blocks_and_threads(form: str, dtype: str) -> None:
    multiply(*pair(40, 130, 9001, dtype), threads=2)
    multiply(*pair(300, 70, 92, dtype), threads=3)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_left_hand_sides_of_any_strides(form: str, dtype: str) -> None:
    for k in (8, 37):
        a, b = pair(6, 21, k, dtype, (2, 3, 2, 2))
        multiply(a, b)
        multiply(a.transpose(3, 1, 2, 0, 4, 5), b)
        multiply(np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2), b)
        multiply(np.broadcast_to(a[:1], a.shape), b)
        multiply(np.broadcast_to(a[..., :1, :], a.shape), np.broadcast_to(b[:, :1], b.shape))
        room = np.zeros((2, 3, 2, 2, 6, k + 4), dtype)
        room[..., 3 : k + 3] = a
        multiply(room[..., 3 : k + 3], b)
        multiply(a, np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2))


@needs_page_protection
def test_nothing_past_the_end_is_read(form: str) -> None:
    for dtype in ("uint8", "int8"):
        for k in (1, 6, 8, 64):
            multiply(*pair(5, 37, k, dtype), pages=GuardedPages())


def test_an_epilogue_scales_the_sums(form: str) -> None:
    a, b = pair(9, 53, 70, "int8")
    scales = np.linspace(0.5, 1.5, 53).astype(np.float32)
    body = scalar_body(lambda s, x, y: s.mul(s.cast(x, Type.float_type), y), (Type.int32_type, Type.float_type))
    epilogue = Epilogue((EpilogueOperand("float32", "per_n"),), body, name="mul")
    out = np.full((9, 53), np.nan, np.float32)
    problem = problem_of(a, b)
    run_plan(SOLVER.plan(problem, epilogue), {"x": a, "w": SOLVER.pack_weights(problem, b), "out": out, "e0": scales})
    np.testing.assert_array_equal(out, (a.astype(np.int32) @ b).astype(np.float32) * scales)


def test_blockings_of_tuning_compute_the_same(form: str) -> None:
    a, b = pair(50, 200, 2100, "int8")
    problem = problem_of(a, b)
    packed = SOLVER.pack_weights(problem, b)
    tried = SOLVER.blockings(problem, 2)
    assert tried
    for blocking in tried:
        out = np.full((50, 200), 77, np.int32)
        run_plan(SOLVER.plan(problem, threads=2, blocking=blocking), {"x": a, "w": packed, "out": out})
        np.testing.assert_array_equal(out, a.astype(np.int32) @ b)


def test_the_form_follows_the_instruction_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    types = element_types("int8 int8 int32 int32")
    for limit in ARM_FORMS[-1:] if ARM else ("avx2,-avxvnni", "sse"):
        monkeypatch.setenv("MGX_CPU_FEATURES", limit)
        assert tile_for(types).packing.k_interleave == 2
        assert tile_for(types).left_word == tile_for(types).right_word == "int32"


@pytest.mark.parametrize("tile", INT8_TILES, ids=lambda tile: f"{tile.name}-{tile.types.a}")
def test_declared_tiles_fit_their_registers_and_the_table(tile: Any) -> None:
    temporary = int(tile.packing.k_interleave == 2)  # what is added to the sums
    registers = 32 if tile.bits == 512 or tile.name.startswith("neon") else 16
    assert tile.rows * tile.vectors + tile.vectors + 1 + temporary <= registers
    assert tile.rows < TILE_TABLE_ROWS and tile.heights[-1] == 1


def test_solvers_refuse_types_without_a_tile_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", "avx512")
    mixed = GemmProblem(4, 5, 6, types=element_types("uint8 int8 int32 int32"))
    for solver in GEMM_SOLVERS:
        if solver.name not in ("gemm_int8", "gemm_int8_residual", "gemm_packing_int8", "gemm_tiles"):
            assert "the element types differ: uint8 int8 int32 int32" in (solver.refusal(mixed) or "")
    assert select(mixed).name in ("gemm_int8", "gemm_int8_residual")
    half = GemmProblem(4, 5, 6, types=element_types("float16"))
    with pytest.raises(UnsupportedError, match="no tile is declared for float16"):
        select(half)
    casting = GemmProblem(4, 5, 6, types=element_types("uint8 int8 int32 float32"))
    assert "no epilogue makes float32" in (SOLVER.refusal(casting) or "")
