"""Depthwise convolutions of 8-bit integers, whose sums are exact, and of bfloat16."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.codegen.cpu.contraction.depthwise import ConvDepthwise, ConvDepthwiseAny
from mgx_numba.codegen.cpu.contraction.solvers import select
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import ElementTypes, element_types
from tests.values import element_strides

from .contracting import (
    GuardedPages,
    apply_full_epilogue,
    convolve,
    full_epilogue,
    full_epilogue_arrays,
    needs_page_protection,
    run_plan,
)

UNSIGNED, SIGNED = element_types("uint8 int8 int32 int32"), element_types("int8 int8 int32 int32")
NARROW = element_types("bfloat16 bfloat16 float32 float32")
ALL = (UNSIGNED, SIGNED, NARROW)
DEPTHWISE = ConvDepthwise()


def values(rng: np.random.Generator, dtype: str, lens: tuple[int, ...]) -> np.ndarray:
    if dtype == "bfloat16":
        return rng.standard_normal(lens).astype(ml_dtypes.bfloat16)
    limits = np.iinfo(dtype)
    return rng.choice(np.array([limits.min, limits.max, 0, 1, 37], dtype), lens)


def run(
    problem: ConvProblem, x: np.ndarray, w: np.ndarray, pages: GuardedPages | None = None, **how: Any
) -> np.ndarray:
    """Return the result of each solver for these types, which must agree."""
    found: list[np.ndarray] = []
    packed = DEPTHWISE.pack_weights(problem, w)
    for solver in (DEPTHWISE, ConvDepthwiseAny()) if problem.types.out == "int32" else (DEPTHWISE,):
        assert solver.refusal(problem) is None
        out = np.full((problem.batch, *problem.out_lens, problem.out_channels), 77, problem.types.out)
        placed = {"x": x, "w": packed, "out": out}
        if pages:
            placed = {name: pages.place(array) for name, array in placed.items()}
        run_plan(solver.plan(problem, **how), placed, pages)
        found.append(placed["out"])
    np.testing.assert_array_equal(found[0], found[-1])
    return found[0]


def agree(found: np.ndarray, expected: np.ndarray, types: ElementTypes) -> None:
    if types is NARROW:
        assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()
    else:
        np.testing.assert_array_equal(found, expected)


CASES: list[tuple[int, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    (32, (9, 11), (3, 3), {"pads_begin": (1, 1), "pads_end": (1, 1)}),
    (21, (8, 13), (3, 3), {"pads_begin": (1, 1), "pads_end": (1, 1), "stride": (2, 2), "batch": 2}),
    (40, (7, 6), (5, 5), {"pads_begin": (2, 2), "pads_end": (2, 1)}),
    (16, (12, 9), (3, 2), {"dilation": (1, 2), "pads_begin": (0, 1), "stride": (1, 3)}),
    (3, (17,), (4,), {"pads_begin": (-1,)}),
    (17, (4, 5, 6), (2, 3, 3), {"pads_begin": (1, 0, 1)}),
    (5, (1, 1), (1, 1), {}),
    (4, (40, 40), (22, 22), {}),
]


@pytest.mark.parametrize("ceiling", ["", "avx2", "sse"])
@pytest.mark.parametrize("types", ALL, ids=str)
def test_convolutions(types: ElementTypes, ceiling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, other taps, channels that fill no vector, pixels with gaps between them; sums of extreme values are
    exact."""
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    rng = np.random.default_rng(3)
    for channels, lens, kernel, options in CASES if not ceiling else CASES[1:4]:
        batch = options.get("batch", 1)
        room = values(rng, types.a, (batch, *lens, channels + 6))
        x = room[..., 3 : 3 + channels]
        given = {"batch": batch, **options, "x_strides": element_strides(x)[:-1]}
        problem = ConvProblem(
            in_channels=channels, out_channels=channels, in_lens=lens, kernel=kernel, groups=channels, types=types,
            **given,
        )  # fmt: skip
        w = values(rng, types.b, problem.weight_lens)
        agree(run(problem, x, w, threads=2), convolve(problem, x, w), types)


def test_an_epilogue_gets_integers() -> None:
    problem = ConvProblem(1, 24, 24, (6, 7), (3, 3), pads_begin=(1, 1), pads_end=(1, 1), groups=24, types=UNSIGNED)
    rng = np.random.default_rng(5)
    x, w = values(rng, "uint8", (1, 6, 7, 24)), values(rng, "int8", problem.weight_lens)
    extras = {k: np.trunc(8 * v) for k, v in full_epilogue_arrays(rng, (1, 6, 7), 24, "float64").items()}
    extras = {k: v.astype(np.int32) for k, v in extras.items()}
    strides = [(), (6 * 7 * 24, 24), (6 * 7, 1), ()]
    out = np.zeros((1, 6, 7, 24), np.int32)
    plan = DEPTHWISE.plan(problem, full_epilogue("int32"), strides, 2)
    run_plan(plan, {"x": x, "w": DEPTHWISE.pack_weights(problem, w), "out": out, **extras})
    np.testing.assert_array_equal(out, apply_full_epilogue(convolve(problem, x, w).astype(np.int32), extras))


@needs_page_protection
@pytest.mark.parametrize("types", ALL, ids=str)
def test_nothing_outside_is_read(types: ElementTypes) -> None:
    rng = np.random.default_rng(6)
    for kernel in (3, 11):
        pads = (kernel // 2,) * 2
        problem = ConvProblem(
            1, 19, 19, (9, 9), (kernel, kernel), pads_begin=pads, pads_end=pads, groups=19, types=types
        )
        x, w = values(rng, types.a, (1, 9, 9, 19)), values(rng, types.b, problem.weight_lens)
        agree(run(problem, x, w, GuardedPages()), convolve(problem, x, w), types)


def test_not_a_number_stays_one() -> None:
    problem = ConvProblem(1, 16, 16, (5, 5), (3, 3), pads_begin=(1, 1), pads_end=(1, 1), groups=16, types=NARROW)
    x, w = np.ones((1, 5, 5, 16), ml_dtypes.bfloat16), np.ones(problem.weight_lens, ml_dtypes.bfloat16)
    x[0, 1, 1, 2], x[0, 4, 4, 3] = np.nan, np.inf
    found = run(problem, x, w)
    assert np.isnan(found[0, :3, :3, 2]).all() and np.isnan(found).sum() == 9
    assert np.isposinf(found[0, 3:, 3:, 3]).all() and np.isinf(found).sum() == 4


def test_what_is_refused() -> None:
    def reason(types: str, **options: Any) -> str:
        problem = ConvProblem(1, 8, 8, (600, 1), options.pop("kernel", (3, 1)), groups=8, types=element_types(types))
        return DEPTHWISE.refusal(problem) or ""

    assert "may not be exact" in reason(str(UNSIGNED), kernel=(515, 1))
    assert reason(str(UNSIGNED), kernel=(514, 1)) == ""
    assert "uint8 is multiplied by int8" in reason("uint8 uint8 int32 int32")
    assert "bfloat16 is multiplied by bfloat16" in reason("bfloat16 float32 float32 float32")
    assert "element types differ" in reason("float32 bfloat16 float32 float32")
    assert select(ConvProblem(1, 8, 8, (9, 9), (3, 3), groups=8, types=SIGNED)).name == "conv_depthwise"
