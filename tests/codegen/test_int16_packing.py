"""Packing of many weights into 17 bits by a kernel, against the packing of a few in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.cpu.contraction import gemv_int16
from mgx_numba.codegen.cpu.contraction.gemv_int16 import GemvInt16
from mgx_numba.codegen.cpu.contraction.int16_weights import BLOCK, pack_by_kernel, pack_words, words_lens
from mgx_numba.codegen.cpu.contraction.solver import UnsuitedWeights
from mgx_numba.codegen.cpu.microkernels.tile_table import tile_for
from mgx_numba.codegen.cpu.toolchain.loader import load
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.graph.passes import Options, run_passes
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions

from ..cpu.programs import FUSION, program_of


def packed_both_ways(weights: np.ndarray, vectors: int) -> tuple[str, str, np.ndarray, np.ndarray]:
    """The errors and words of NumPy and of the kernel."""
    lanes = tile_for(element_types("float32")).lanes
    depth, columns = weights.shape
    lens = words_lens(-(-columns // (vectors * lanes)), depth, vectors * lanes, True)
    errors, words = ["", ""], [np.zeros(lens, np.int32) for _ in range(2)]
    for way, pack in enumerate((lambda *given: pack_words(*given, True), lambda *given: pack_by_kernel(*given, load))):
        try:
            pack(weights, words[way], lanes)
        except UnsuitedWeights as error:
            errors[way] = str(error)
    return *errors, *words


def values(depth: int, columns: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    w = (rng.standard_normal((depth, columns)) * 10.0 ** rng.integers(-30, 30, columns)).astype(np.float32)
    w[rng.random(w.shape) < 0.1] = 0
    return w * np.where(rng.random(w.shape) < 0.01, np.float32(1e-7), np.float32(1))


def ordered(w: np.ndarray, order: str) -> np.ndarray:
    """The weights by rows (r) or columns (c), also as parts of larger ones (R, C)."""
    if order in "cC":
        return ordered(w.T, {"c": "r", "C": "R"}[order]).T
    if order == "r":
        return np.ascontiguousarray(w)
    wide = np.full((w.shape[0] + 2, w.shape[1] + 5), np.nan, np.float32)
    wide[1:-1, 3:-2] = w
    return wide[1:-1, 3:-2]


@pytest.mark.parametrize("order", ["r", "c", "R", "C"])
@pytest.mark.parametrize(
    ("depth", "columns", "vectors"),
    [(1, 1, 2), (17, 5, 2), (BLOCK, 64, 4), (BLOCK + 1, 70, 4), (3 * BLOCK - 5, 32, 2), (100, 1000, 4), (2600, 300, 4)],
)
def test_words_are_those_of_numpy(depth: int, columns: int, vectors: int, order: str) -> None:
    error, same, wanted, words = packed_both_ways(ordered(values(depth, columns), order), vectors)
    assert error == same == ""
    np.testing.assert_array_equal(words, wanted)


@pytest.mark.parametrize("limit", ["avx2", "sse"])
@pytest.mark.parametrize("order", ["r", "c"])
def test_narrower_vectors(limit: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", limit)
    error, same, wanted, words = packed_both_ways(ordered(values(BLOCK + 9, 75), order), 4)
    assert error == same == ""
    np.testing.assert_array_equal(words, wanted)


@pytest.mark.parametrize("order", ["r", "c"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [(np.inf, "infinite"), (-np.inf, "infinite"), (np.nan, "infinite"), (6e36, "infinite"), (1e3, "small")],
)
def test_what_has_no_scale_or_too_wide_a_range_is_refused(value: float, reason: str, order: str) -> None:
    w = np.random.default_rng(1).standard_normal((2 * BLOCK + 3, 130)).astype(np.float32)
    if reason == "small":
        w[:, 129] *= np.float32(1e-4)
    w[2 * BLOCK, 129] = w[5, 129] = value
    error, same, *_ = packed_both_ways(ordered(w, order), 4)
    assert error == same and reason in error


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7FFF0001])
def test_nan_of_any_bits_is_refused(bits: int) -> None:
    """Also those that would leave the exponent if their scale was rounded up like a number's."""
    w = values(BLOCK + 3, 70)
    w.view(np.uint32)[BLOCK + 1, 69] = bits
    error, same, *_ = packed_both_ways(w, 4)
    assert error == same and "not a number" in error


def test_denormal_weights_and_columns_of_zeros() -> None:
    w = values(300, 130) * np.float32(0)
    w[:, 64:] = np.random.default_rng(0).integers(-3, 4, (300, 66)) * np.float32(1e-44)
    error, same, wanted, words = packed_both_ways(w, 4)
    assert error == same == ""
    np.testing.assert_array_equal(words, wanted)


@pytest.mark.parametrize("order", ["r", "c"])
def test_plans_with_many_weights_are_packed_by_the_kernel(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemv_int16, "SHARED_BYTES", 0)
    monkeypatch.setattr(GemvInt16, "pack_weights", None)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 700)).astype(np.float32)
    w = ordered(rng.standard_normal((700, 600)).astype(np.float32), "r")

    def build(m, p):
        literal = m.add_literal(w if order == "r" else np.ascontiguousarray(w.T))
        right = literal if order == "r" else m.add_instruction("transpose", [literal], permutation=[1, 0])
        return m.add_instruction("dot", [p[0], right])

    program = program_of([x], build)
    run_passes(program, list(FUSION), Options(fast_math=True))
    plan = lower(program, TargetOptions(num_threads=1, fast_math=True))
    assert any("gemv_int16" in step.kernel.name for step in plan.steps)
    np.testing.assert_allclose(Executable(plan, num_threads=1).run([x])[0], x.astype(float) @ w, atol=2e-2)


def test_few_weights_and_weights_apart_are_left_to_numpy() -> None:
    few, many = np.ones((64, 64), np.float32), np.ones((2048, 2 * 1024), np.float32)[:, ::2]
    for weights in (few, many[:, ::-1], many):
        problem = gemv_int16.GemmProblem(m=1, n=weights.shape[1], k=weights.shape[0], fast_math=True)
        assert GemvInt16().pack_by_kernel(problem, weights, load, lambda kernel: False) is None


@pytest.mark.parametrize("order", ["r", "c"])
def test_few_weights_are_packed_by_a_kernel_that_need_not_be_compiled(order: str) -> None:
    weights = ordered(values(100, 70), order)
    problem = gemv_int16.GemmProblem(m=1, n=70, k=100, fast_math=True)
    packed = GemvInt16().pack_by_kernel(problem, weights, load, lambda kernel: True)
    assert packed is not None
    np.testing.assert_array_equal(packed, GemvInt16().pack_weights(problem, weights))
