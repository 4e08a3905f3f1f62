"""Products and convolutions on matrix tiles: AMX's, and vector code that emulates them."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.codegen.body import scalar_body
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.contraction.blocking import Blocking, cut, fit, groups_inside
from mgx_numba.codegen.cpu.contraction.conv import ConvDirect
from mgx_numba.codegen.cpu.contraction.conv_amx import ConvAmx
from mgx_numba.codegen.cpu.contraction.conv_transposed import ConvTransposedAmx
from mgx_numba.codegen.cpu.contraction.epilogue_kernel import epilogue_kernel_source
from mgx_numba.codegen.cpu.contraction.gemm_amx import ConvPointwiseAmx, GemmAmx, tile_of
from mgx_numba.codegen.cpu.contraction.padded_input import PaddedInput
from mgx_numba.codegen.cpu.contraction.solver import UnsuitedWeights
from mgx_numba.codegen.cpu.contraction.solvers import select
from mgx_numba.codegen.cpu.microkernels.tile_table import matrix_tile
from mgx_numba.codegen.cpu.toolchain.compiler import inspect
from mgx_numba.codegen.platform import platform
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import ElementTypes, element_types
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.core.types import parse_type
from tests.values import element_strides

from ..features import features
from .contracting import (
    GuardedPages,
    apply_full_epilogue,
    convolve,
    full_epilogue,
    full_epilogue_arrays,
    needs_page_protection,
    run_plan,
)
from .launching import run_launch
from .test_contraction_prologue import scale_add

PARTS, BFLOAT16 = element_types("float32"), element_types("float32 bfloat16 float32 float32")
NARROW = element_types("bfloat16 bfloat16 float32 float32")
UNSIGNED, SIGNED = element_types("uint8 int8 int32 int32"), element_types("int8 int8 int32 int32")
ALL = (PARTS, BFLOAT16, NARROW, UNSIGNED, SIGNED)
TOLERANCE = {PARTS: 2.0**-16, BFLOAT16: 2e-6, NARROW: 2e-6, UNSIGNED: 0.0, SIGNED: 0.0}
"""Error relative to the largest result: products in parts have 16 bits, the others are exact except for float32
sums."""
GEMM, CONV = GemmAmx(), ConvAmx()
FORMS = [host.EMULATED_TILES, *([""] if matrix_tile(PARTS) is not None else [])]
pytestmark = pytest.mark.skipif(host.host().vector_bits < 512, reason="the CPU has no AVX-512")


form = features(FORMS, autouse=True)


def values(rng: np.random.Generator, types: ElementTypes, lens: tuple[int, ...], right: bool = False) -> np.ndarray:
    dtype = types.b if right else types.a
    if dtype in ("int8", "uint8"):
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max + 1, lens).astype(dtype)
    return rng.standard_normal(lens).astype(np.float32).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def seen(types: ElementTypes, a: np.ndarray) -> np.ndarray:
    """Return the left operand as the kernel multiplies it, rounded to bfloat16 where that is its type."""
    return a.astype(ml_dtypes.bfloat16).astype(np.float64) if types is BFLOAT16 else a.astype(np.float64)


def agree(found: np.ndarray, expected: np.ndarray, types: ElementTypes) -> None:
    """Equal where not finite, else within the tolerance."""
    with np.errstate(over="ignore"):
        wanted = expected.astype(found.dtype)
    whole = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~whole], wanted[~whole])
    scale = np.abs(wanted[whole]).max(initial=0.0)
    assert np.abs(found[whole] - expected[whole]).max(initial=0.0) <= TOLERANCE[types] * scale


def multiply(
    types: ElementTypes, a: np.ndarray, b: np.ndarray, pages: GuardedPages | None = None, blocking: Any = None
) -> np.ndarray:
    problem = GemmProblem(
        a.shape[-2], b.shape[-1], a.shape[-1], a.shape[:-2], element_strides(a), element_strides(b), types=types,
        fast_math=True,
    )  # fmt: skip
    assert GEMM.refusal(problem) is None
    packed = GEMM.pack_weights(problem, b)
    assert packed.shape == GEMM.packed_lens(problem) and packed.dtype == np.int32
    out = np.full((*a.shape[:-1], b.shape[-1]), 77, types.out)
    x = a
    if pages:
        x, packed, out = (pages.place(array) for array in (a, packed, out))
    run_plan(GEMM.plan(problem, threads=2, blocking=blocking), {"x": x, "w": packed, "out": out}, pages)
    return out


def product(types: ElementTypes, m: int, n: int, k: int, batch: tuple[int, ...] = (), **how: Any) -> None:
    rng = np.random.default_rng([m, n, k])
    a, b = values(rng, types, (*batch, m, k)), values(rng, types, (*batch, k, n), True)
    agree(multiply(types, a, b, **how), seen(types, a) @ b.astype(np.float64), types)


@pytest.mark.parametrize("types", ALL, ids=str)
def test_products_of_any_size(types: ElementTypes) -> None:
    for size in ((1, 1, 1), (5, 7, 9), (16, 16, 64), (33, 100, 70), (49, 65, 300), (63, 33, 100), (34, 40, 2100)):
        product(types, *size)
    product(types, 20, 30, 40, (3,))
    product(types, 70, 70, 260, blocking=Blocking(40, 2, 1, 32))


def test_calls_that_have_no_rows_or_nothing_to_finish() -> None:
    """Four blocks of rows, of which the last is empty, each in a call of its own, over one step of the sum and two."""
    rng = np.random.default_rng(4)
    a, b = values(rng, NARROW, (70, 60)), values(rng, NARROW, (60, 40), True)
    problem = GemmProblem(70, 40, 60, types=NARROW, fast_math=True)
    operands = full_epilogue_arrays(rng, (70,), 40, "float32")
    wanted = apply_full_epilogue(seen(NARROW, a) @ b.astype(np.float64), operands)
    for depth in (32, 16):
        out = np.full((70, 40), 77, np.float32)
        plan = GEMM.plan(problem, full_epilogue("float32"), threads=2, blocking=Blocking(32, 2, 1, depth, 2))
        arrays = {"x": a, "w": GEMM.pack_weights(problem, b), "out": out, **operands}
        if plan.scratch:
            arrays["scratch"] = np.zeros(plan.scratch, np.uint8)
        for launch in plan.launches:
            run_launch(launch, arrays, None)
        agree(out, wanted, NARROW)


@pytest.mark.parametrize("types", [PARTS, UNSIGNED], ids=str)
def test_strided_and_repeated_rows(types: ElementTypes) -> None:
    rng = np.random.default_rng(3)
    room, b = values(rng, types, (40, 150)), values(rng, types, (64, 50), True)
    for a in (room[:, 5:69], room[::2, 2:130:2], room[:, :40].T[:, :][:, 4:]):
        right = b[: a.shape[-1]]
        agree(multiply(types, a, right), seen(types, a) @ right.astype(np.float64), types)
    a, many = np.broadcast_to(room[:9, :64], (3, 9, 64)), values(rng, types, (3, 64, 20), True)
    agree(multiply(types, a, many), seen(types, a) @ many.astype(np.float64), types)


def test_many_rows_of_few_terms_keep_their_tile() -> None:
    """Weights that are packed for it in 16 bits are not brought to the vectors of float32."""
    product(BFLOAT16, 784, 130, 24)
    product(BFLOAT16, 3136, 144, 24, (1,))


@needs_page_protection
@pytest.mark.parametrize("types", ALL, ids=str)
def test_nothing_past_the_end_is_touched(types: ElementTypes) -> None:
    for size in ((17, 33, 64), (3, 5, 7)):
        product(types, *size, pages=GuardedPages())


def test_what_bfloat16_cannot_hold_is_as_in_float32() -> None:
    rng = np.random.default_rng(5)
    a, b = values(rng, PARTS, (40, 66)), values(rng, PARTS, (66, 50), True)
    a[3, 5], a[4, 7], a[20, 0], a[22, 3] = np.inf, np.nan, -np.inf, 3.4e38
    b[8, 0], a[5, 8] = 0, np.inf
    with np.errstate(all="ignore"):
        agree(multiply(PARTS, a, b), a.astype(np.float64) @ b.astype(np.float64), PARTS)
        agree(multiply(PARTS, a, b, blocking=Blocking(32, 1, 1, 16)), a.astype(np.float64) @ b, PARTS)
    small = values(rng, PARTS, (40, 66)) * np.float32(1e-39)  # denormals
    agree(multiply(PARTS, small, b), small.astype(np.float64) @ b.astype(np.float64), PARTS)
    zero = np.zeros((40, 66), np.float32)
    np.testing.assert_array_equal(multiply(PARTS, zero, b), 0)


def test_weights_that_cannot_be_split_are_left_to_others() -> None:
    problem = GemmProblem(64, 20, 30, fast_math=True)
    for value, why in ((np.inf, "not finite"), (np.nan, "not finite"), (3.4e38, "round to infinity")):
        b = np.ones((30, 20), np.float32)
        b[3, 4] = value
        with pytest.raises(UnsuitedWeights, match=why):
            GEMM.pack_weights(problem, b)
    b[:, 4] = 1e-30
    with pytest.raises(UnsuitedWeights, match="denormals"):
        GEMM.pack_weights(problem, b)


CONVOLUTIONS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1, 64, 40, (7, 7), (3, 3)), {"pads_begin": (1, 1), "pads_end": (1, 1)}),
    ((2, 5, 7, (9, 11), (3, 3)), {"pads_begin": (1, 0), "pads_end": (0, 2), "stride": (2, 2)}),
    ((1, 3, 40, (23, 23), (7, 7)), {"pads_begin": (3, 3), "pads_end": (3, 3), "stride": (2, 2)}),
    ((2, 32, 33, (8, 9), (1, 1)), {"stride": (2, 2)}),
    ((2, 12, 33, (7, 9), (1, 3)), {"stride": (3, 2)}),
    ((1, 64, 20, (9, 7), (1, 1)), {"stride": (2, 3), "pads_begin": (1, 0), "pads_end": (0, 1)}),
    ((1, 20, 24, (10, 6), (3, 2)), {"pads_begin": (2, 0), "pads_end": (1, 1), "dilation": (2, 1)}),
    ((1, 16, 24, (30,), (5,)), {"stride": (3,)}),
    ((2, 64, 96, (6, 5), (3, 3)), {"pads_begin": (1, 1), "pads_end": (1, 1), "groups": 2, "stride": (1, 2)}),
    ((1, 1, 9, (8, 8), (3, 3)), {"pads_begin": (1, 1), "pads_end": (1, 1), "dilation": (1, 2)}),
    ((2, 6, 9, (1, 1), (3, 3)), {"pads_begin": (3, 3), "pads_end": (3, 3)}),
]


def convolution(
    types: ElementTypes,
    problem: ConvProblem,
    x: np.ndarray,
    w: np.ndarray,
    solver: Any = CONV,
    pages: GuardedPages | None = None,
    threads: int = 2,
    blocking: Blocking | None = None,
    around: tuple[int, int, int] | None = None,
) -> None:
    """Compare with NumPy; the result is written into a larger one that has so many lines, pixels and channels more."""
    rows = (problem.batch, *problem.out_lens)
    room = np.full((*rows, problem.out_channels), 77, problem.types.out)
    out = room
    if around:
        lines, pixels, channels = around
        room = np.full(np.add(room.shape, (0, 2 * lines, 2 * pixels, channels)), 77, problem.types.out)
        out = room[:, lines : lines + rows[1], pixels : pixels + rows[2], channels:]
        problem = dataclasses.replace(problem, out_strides=element_strides(out)[:-1])
    assert solver.refusal(problem) is None
    e = full_epilogue_arrays(np.random.default_rng(2), rows, problem.out_channels, types.out)
    packed = solver.pack_weights(problem, w)
    assert packed.shape == solver.packed_lens(problem)
    if pages:
        x, packed, out = (pages.place(array) for array in (x, packed, out))
    floating = types.out == "float32"
    epilogue = [full_epilogue("float32")] if floating else []
    plan = solver.plan(problem, *epilogue, threads=threads, blocking=blocking)
    run_plan(plan, {"x": x, "w": packed, "out": out, **e}, pages)
    with np.errstate(invalid="ignore"):
        sums = convolve(problem, seen(types, x), w)
    agree(out, apply_full_epilogue(sums, e) if floating else sums, types)
    out[...] = 77
    assert (room == 77).all()


@pytest.mark.parametrize("types", ALL, ids=str)
def test_convolutions(types: ElementTypes) -> None:
    rng = np.random.default_rng(1)
    for lens, options in CONVOLUTIONS[: None if types in (PARTS, UNSIGNED) else 5]:
        problem = ConvProblem(*lens, types=types, fast_math=True, **options)
        x = values(rng, types, (problem.batch, *problem.in_lens, problem.in_channels))
        convolution(types, problem, x, values(rng, types, problem.weight_lens, True))


def test_pixels_that_bfloat16_cannot_hold() -> None:
    rng = np.random.default_rng(6)
    for lens, options in (CONVOLUTIONS[0], CONVOLUTIONS[2]):
        problem = ConvProblem(*lens, types=PARTS, fast_math=True, **options)
        x = values(rng, PARTS, (problem.batch, *problem.in_lens, problem.in_channels))
        x[0, 3, 5, 1], x[0, 4, 2], x[-1, 0, 0], x[0, 6, 6, 0] = np.inf, np.nan, -np.inf, 3.4e38
        w = values(rng, PARTS, problem.weight_lens, True)
        w[:, 0] *= np.float32(0.01)  # so that no sum overflows
        convolution(PARTS, problem, x, w)


@pytest.mark.parametrize("types", [BFLOAT16, NARROW], ids=str)
def test_infinite_pixels_behind_a_tap_that_fills_no_step(types: ElementTypes) -> None:
    """Weights of zero multiply what is read there, the next pixel or the next group's channels."""
    rng = np.random.default_rng(19)
    for lens, options, blocking in (
        ((2, 3, 20, (7, 9), (3, 3)), {"pads_begin": (1, 1), "pads_end": (1, 1)}, None),
        ((1, 20, 20, (6, 11), (3, 3)), {"stride": (2, 2), "pads_begin": (1, 0)}, None),
        ((1, 48, 40, (40, 5), (3, 2)), {}, Blocking(256, 2, 2, 16)),
        ((1, 40, 40, (7, 9), (3, 3)), {"groups": 2, "dilation": (1, 2)}, Blocking(256, 1, 1, 16)),
        ((2, 7, 20, (40,), (3,)), {"pads_end": (2,)}, None),
    ):
        problem = ConvProblem(*lens, types=types, fast_math=True, **options)
        x = values(rng, types, (problem.batch, *problem.in_lens, problem.in_channels))
        pixels = x.reshape(-1, problem.in_channels)
        pixels[5, 0], pixels[len(pixels) // 2 + 1, -1], pixels[-1, 1] = np.inf, np.nan, -np.inf
        convolution(types, problem, x, values(rng, types, problem.weight_lens, True), blocking=blocking)


@pytest.mark.parametrize("blocking", [Blocking(256, 1, 2, 16), Blocking(256, 2, 2, 16)])
def test_rows_wait_while_none_of_a_block_exist(blocking: Blocking) -> None:
    """Of the 80 positions of a line, 64 are dropped, two blocks of rows; the first line's dropped rows are not
    multiplied."""
    rng = np.random.default_rng(6)
    problem = ConvProblem(1, 32, 40, (3, 80), (1, 2), dilation=(1, 64), types=PARTS, fast_math=True)
    x, w = values(rng, PARTS, (1, 3, 80, 32)), values(rng, PARTS, problem.weight_lens, True)
    x[0, 0, 5, 1] = np.inf
    convolution(PARTS, problem, x, w, threads=1, blocking=blocking)


def test_pixels_in_a_slice_of_channels() -> None:
    rng = np.random.default_rng(7)
    for types, channels in ((PARTS, 20), (UNSIGNED, 64)):
        room = values(rng, types, (2, 6, 5, 80))
        problem = ConvProblem(
            2, channels, 24, (6, 5), (3, 3), pads_begin=(1, 1), pads_end=(1, 1), types=types, fast_math=True,
            x_strides=(2400, 400, 80),
        )  # fmt: skip
        x = room[..., 7 : 7 + channels]
        convolution(types, problem, x, values(rng, types, problem.weight_lens, True))
        even = ConvProblem(2, channels, 24, (6, 5), (1, 1), types=types, fast_math=True, x_strides=(2400, 400, 80))
        convolution(types, even, x, values(rng, types, even.weight_lens, True), ConvPointwiseAmx())


@pytest.mark.parametrize("types", [PARTS, NARROW, UNSIGNED], ids=str)
def test_results_inside_of_a_padded_grid(types: ElementTypes) -> None:
    rng = np.random.default_rng(17)
    cases: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (CONV, (2, 12, 20, (7, 9), (3, 3)), {"stride": (1, 2), "pads_begin": (1, 0)}),
        (CONV, (1, 32, 33, (20, 3), (2, 2)), {}),
        (ConvPointwiseAmx(), (3, 40, 20, (5, 7), (1, 1)), {}),
        (ConvPointwiseAmx(), (1, 33, 17, (40, 1), (1, 1)), {}),
        (ConvPointwiseAmx(), (2, 20, 24, (6, 5), (1, 1)), {"x_strides": (3000, 400, 80)}),  # images are apart
        (ConvTransposedAmx(), (2, 7, 20, (3, 5), (2, 3)), {"stride": (2, 3), "transposed": True}),
    ]
    for solver, lens, options in cases:
        problem = ConvProblem(*lens, types=types, fast_math=True, **options)
        room = values(rng, types, (problem.batch, 10, *problem.in_lens[1:], 80))
        x = room[:, : problem.in_lens[0], ..., : problem.in_channels]
        if "x_strides" not in options:
            x = np.ascontiguousarray(values(rng, types, (problem.batch, *problem.in_lens, problem.in_channels)))
        else:
            problem = dataclasses.replace(problem, x_strides=element_strides(x)[:-1])
        w = values(rng, types, problem.weight_lens, True)
        for around in ((1, 1, 0), (0, 2, 3), (1, 0, 0)):
            convolution(types, problem, x, w, solver, around=around)


def test_lines_apart_are_left_to_solvers_that_write_them() -> None:
    problem = ConvProblem(1, 64, 64, (8, 8), (3, 3), types=PARTS, fast_math=True, out_strides=(9 * 640, 640, 64))
    assert ConvDirect().refusal(problem) == "lines of the result do not follow each other"
    assert select(problem).name == "conv_tiles"
    even = dataclasses.replace(problem, out_strides=(9 * 384, 384, 64))
    assert even.out_strides == (9 * 384, 64)
    assert even.line_gap == 0


@pytest.mark.parametrize("types", [PARTS, BFLOAT16, UNSIGNED], ids=str)
@pytest.mark.parametrize("given", [Blocking(64, 1, 9, 64), Blocking(32, 2, 3, 64), Blocking(32, 2, 1, 16, 2)], ids=str)
def test_images_share_a_block_of_panels(types: ElementTypes, given: Blocking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mgx_numba.codegen.cpu.contraction.blocking_search.PANEL_EIGHTHS", 0
    )  # weights count as too large for the cache
    rng = np.random.default_rng(18)
    problem = ConvProblem(3, 40, 130, (5, 11), (3, 3), pads_begin=(1, 1), pads_end=(1, 1), types=types, fast_math=True)
    x, w = values(rng, types, (3, 5, 11, 40)), values(rng, types, problem.weight_lens, True)
    grid = PaddedInput(problem, tile_of(types))
    depth = grid.tile.depth(grid.terms)
    fitted = fit(given, grid.tile, grid.rows, 130, depth, 9)
    assert groups_inside(fitted, grid.tile, grid.rows, 5, depth, 9, 3)
    if types.a == "float32":
        x[1, 2, 3, 4] = np.inf
    for threads in (1, 2):
        convolution(types, problem, x, w, threads=threads, blocking=given)


def test_weights_beyond_the_cache_are_read_once_for_all_images() -> None:
    tile = tile_of(NARROW)

    def inside(panels: int, images: int) -> bool:
        taken = cut(tile, 64, 32 * panels, 256, 9, images, 2, shared=True)
        return groups_inside(taken, tile, 64, panels, 256, 9, images)

    assert inside(16, 8)
    assert not inside(16, 1)  # nothing to share
    assert not inside(1, 8)  # they stay in the cache


IN_PLACE: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((2, 64, 40, (7, 9), (3, 3)), {}),
    ((1, 64, 33, (6, 8), (2, 3)), {"stride": (1, 2), "dilation": (2, 1)}),
    ((2, 128, 24, (5, 6), (3, 1)), {"groups": 2}),
    ((1, 64, 24, (30,), (5,)), {}),
]
"""Convolutions without padding whose input is a grid of pixels."""


@needs_page_protection
@pytest.mark.parametrize("types", [NARROW, UNSIGNED, SIGNED], ids=str)
def test_an_input_that_is_a_grid_is_read_where_it_lies(types: ElementTypes) -> None:
    rng = np.random.default_rng(13)
    for lens, options in IN_PLACE:
        problem = ConvProblem(*lens, types=types, fast_math=True, **options)
        x = values(rng, types, (problem.batch, *problem.in_lens, problem.in_channels))
        w = values(rng, types, problem.weight_lens, True)
        assert len(CONV.plan(problem).launches) == 1
        convolution(types, problem, x, w, pages=GuardedPages())


@needs_page_protection
@pytest.mark.parametrize("types", [UNSIGNED, SIGNED], ids=str)
def test_what_lies_behind_a_pixel_of_8_bits_counts_for_nothing(types: ElementTypes) -> None:
    """Taps of channels that do not fill a step are read where they lie if a cache line behind the last may be, too."""
    rng = np.random.default_rng(14)
    for lens, options in (
        ((2, 20, 40, (7, 9), (3, 3)), {}),
        ((1, 12, 33, (6, 8), (2, 3)), {"stride": (1, 2), "dilation": (2, 1)}),
        ((2, 8, 24, (5, 6), (3, 1)), {"groups": 2}),
        ((1, 40, 24, (4, 5), (2, 2)), {}),
    ):
        problem = ConvProblem(*lens, types=types, fast_math=True, line_behind=True, **options)
        size = math.prod((problem.batch, *problem.in_lens, problem.in_channels))
        room = GuardedPages().place(values(rng, types, (size + 64,)))
        x = room[:size].reshape(problem.batch, *problem.in_lens, problem.in_channels)
        w = values(rng, types, problem.weight_lens, True)
        assert len(CONV.plan(problem).launches) == 1
        assert len(CONV.plan(dataclasses.replace(problem, line_behind=False)).launches) == 2
        assert len(CONV.plan(dataclasses.replace(problem, types=NARROW)).launches) == 2
        convolution(types, problem, x, w)


TRANSPOSED: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1, 40, 33, (5, 7), (2, 2)), {}),
    ((2, 7, 40, (3, 5), (2, 3)), {}),
    ((1, 66, 5, (17,), (4,)), {}),
    ((1, 8, 9, (2, 3, 4), (2, 2, 2)), {}),
    ((2, 20, 24, (6, 5), (2, 2)), {"x_strides": (2400, 400, 80)}),
    ((1, 300, 450, (4, 4), (2, 2)), {}),  # more weights than stay in the cache
]


@pytest.mark.parametrize("types", ALL, ids=str)
def test_transposed_convolutions(types: ElementTypes) -> None:
    rng = np.random.default_rng(11)
    for (*lens, kernel), options in TRANSPOSED:
        problem = ConvProblem(*lens, kernel, stride=kernel, transposed=True, types=types, fast_math=True, **options)
        room = values(rng, types, (problem.batch, *problem.in_lens, 80 if options else problem.in_channels))
        x, w = room[..., : problem.in_channels], values(rng, types, problem.weight_lens, True)
        convolution(types, problem, x, w, ConvTransposedAmx())
    if types is PARTS:
        x[0, 1, 2], x[0, 3, 3, 0], x[0, 0, 0, 0] = np.nan, np.inf, 3.4e38
        convolution(types, problem, x, w * np.float32(0.01), ConvTransposedAmx())


def test_transposed_convolutions_that_are_left_to_others() -> None:
    solver = ConvTransposedAmx()

    def reason(**options: Any) -> str:
        given = {"transposed": True, "stride": (2, 2), "fast_math": True, **options}
        return solver.refusal(ConvProblem(1, 8, 8, (5, 5), (2, 2), **given)) or ""

    assert reason() == ""
    assert "fast_math is off" in reason(fast_math=False)
    assert "not transposed" in reason(transposed=False)
    for options in ({"stride": (1, 1)}, {"pads_begin": (1, 0)}, {"output_padding": (0, 1)}):
        assert "several taps or none" in reason(**options)
    assert "evenly spaced" in reason(x_strides=(800, 88, 8))
    assert reason(types=UNSIGNED) == ""
    large = ConvProblem(1, 256, 128, (64, 64), (2, 2), stride=(2, 2), transposed=True, fast_math=True)
    assert select(large).name == "conv_transposed_tiles"


@pytest.mark.parametrize("types", [PARTS, BFLOAT16], ids=str)
def test_rows_of_a_prologue_are_split_where_they_are_multiplied(types: ElementTypes) -> None:
    rng = np.random.default_rng(8)
    for channels, special in ((40, False), (1030, False), (67, types is PARTS)):  # 1030: steps of the sum
        problem = ConvProblem(
            2, channels, 70, (5, 7), (1, 1), types=types, fast_math=True, prologue=scale_add("float32", 2, channels)
        )
        x, w = values(rng, types, (2, 5, 7, channels)), values(rng, types, (70, channels, 1, 1), True)
        if special:
            x[0, 1, 2, :3], x[1, 4, 6, 5] = [np.nan, np.inf, -np.inf], 3.4e38
            w[:, 5] *= np.float32(0.01)
        a0 = rng.uniform(0.1, 1.0, (2, channels)).astype(np.float32)
        a1, a2 = values(rng, PARTS, (channels,)), np.array([-0.25], np.float32)
        solver, out = ConvPointwiseAmx(), np.zeros((2, 5, 7, 70), np.float32)
        assert solver.refusal(problem) is None
        plan = solver.plan(problem, threads=2)
        assert plan.scratch == 0
        run_plan(plan, {"x": x, "w": solver.pack_weights(problem, w), "out": out, "a0": a0, "a1": a1, "a2": a2})
        with np.errstate(invalid="ignore"):
            left = np.maximum(x * a0[:, None, None] + a1, a2)
            expected = seen(types, left) @ w[:, :, 0, 0].T.astype(np.float64)
        if types is PARTS:
            agree(out, expected, types)
        else:  # a term that rounds the other way is a unit of bfloat16 off
            assert np.abs(out - expected).max() <= 2e-4 * np.abs(expected).max()


def test_what_is_refused() -> None:
    assert "fast_math is off" in (GEMM.refusal(GemmProblem(64, 64, 64)) or "")
    assert GEMM.refusal(GemmProblem(64, 64, 64, types=UNSIGNED)) is None
    assert "not a constant" in (GEMM.refusal(GemmProblem(64, 64, 64, b_constant=False, fast_math=True)) or "")
    assert "empty" in (GEMM.refusal(GemmProblem(64, 64, 0, fast_math=True)) or "")
    assert "float64" in (GEMM.refusal(GemmProblem(4, 4, 4, types=element_types("float64"), fast_math=True)) or "")
    for why, options in (("transposed", {"transposed": True}), ("cropped", {"pads_begin": (-1, 0)})):
        assert why in (CONV.refusal(ConvProblem(1, 8, 8, (9, 9), (3, 3), fast_math=True, **options)) or "")
    assert "three spatial" in (CONV.refusal(ConvProblem(1, 8, 8, (4, 4, 4), (3, 3, 3), fast_math=True)) or "")
    assert "product of matrices" in (CONV.refusal(ConvProblem(1, 8, 8, (4, 4), (1, 1), fast_math=True)) or "")
    grouped = ConvProblem(1, 6, 6, (5, 5), (3, 3), groups=2, types=UNSIGNED)
    assert "whole words" in (CONV.refusal(grouped) or "")


def test_large_problems_take_them_and_weights_take_no_more_room() -> None:
    problem = GemmProblem(128, 768, 768, fast_math=True)
    assert select(problem).name == "gemm_tiles"
    assert GEMM.pack_weights(problem, np.ones((768, 768), np.float32)).nbytes == 4 * 768 * 768
    assert select(ConvProblem(1, 256, 256, (14, 14), (1, 1), fast_math=True)).name == "conv_1x1_tiles"
    assert select(dataclasses.replace(problem, fast_math=False)).name != "gemm_tiles"


def test_products_of_few_terms_are_left_to_vectors_that_keep_their_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_MACHINE", "znver5")  # a CPU with AMX and a record of its rates may choose otherwise
    for lens, name in (((32, 16, (112, 112)), "conv_1x1"), ((64, 256, (56, 56)), "conv_1x1_tiles")):
        assert select(ConvProblem(1, *lens, (1, 1), fast_math=True), 2).name == name
        narrow = ConvProblem(1, *lens, (1, 1), types=BFLOAT16, fast_math=True)
        assert select(narrow, 2).name == "conv_1x1_tiles"  # vectors of bfloat16 do not keep them either


def test_threads_wait_for_few_weights() -> None:
    """Only the first block's weights are loaded before multiplication begins; the others load meanwhile."""
    for types in ALL:
        tile = matrix_tile(types)
        assert tile is not None
        for m, n, k in ((128, 768, 768), (49, 2048, 512), (196, 256, 1024)):
            found = cut(tile, m, n, tile.depth(k), 1, 1, threads=2)
            assert found.panels * 2 * 2 <= n // tile.columns  # half of a thread's, at most
            assert cut(tile, m, n, tile.depth(k), 1, 1, threads=2, forming=True).panels >= found.panels


def test_rows_in_bfloat16_are_read_where_they_lie() -> None:
    """Rows of whole steps: the product is the one launch."""
    assert len(GEMM.plan(GemmProblem(70, 64, 96, types=NARROW)).launches) == 1
    assert len(GEMM.plan(GemmProblem(70, 64, 90, types=NARROW)).launches) == 2
    transposed = ConvProblem(1, 64, 48, (5, 7), (2, 2), stride=(2, 2), transposed=True, types=NARROW)
    assert len(ConvTransposedAmx().plan(transposed).launches) == 1


def test_the_system_is_asked_once_and_a_refusal_is_told(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    class Refusing:
        asked = 0

        def syscall(self, *words: int) -> int:
            Refusing.asked += 1
            assert words == (158, 0x1023, 18)
            return -1

    amx = dict.fromkeys(("amx-tile", "amx-bf16", "amx-int8"), True)
    fake = dataclasses.replace(platform(), features={**platform().features, **amx})
    monkeypatch.setenv("MGX_CPU_FEATURES", "")
    monkeypatch.setattr(host, "platform", lambda: fake)
    monkeypatch.setattr(host.ctypes, "CDLL", lambda *_, **__: Refusing())
    host.tiles_permitted.cache_clear()
    host.host_within.cache_clear()
    try:
        with caplog.at_level(logging.INFO, "mgx_numba"):
            for limits in ("", "avx512,-fma"):
                assert not any(name.startswith("amx") for name in host.host_within(limits).features)
                host.host_within.cache_clear()
        assert Refusing.asked == 1
        assert len(caplog.records) == 1 and "does not permit" in caplog.text
    finally:
        host.tiles_permitted.cache_clear()
        host.host_within.cache_clear()


@pytest.fixture
def sapphire_rapids(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels are made for Sapphire Rapids, whatever the CPU is: they can be read."""
    names = ("amx-tile", "amx-bf16", "amx-int8", "avx512bf16")
    fake = dataclasses.replace(
        platform(), cpu="sapphirerapids", features={**platform().features, **dict.fromkeys(names, True)}
    )
    monkeypatch.setenv("MGX_CPU_FEATURES", "")
    monkeypatch.setattr(host, "platform", lambda: fake)
    monkeypatch.setattr(host, "tiles_permitted", lambda: True)
    host.host_within.cache_clear()
    yield
    host.host_within.cache_clear()


def test_the_instructions_of_amx(sapphire_rapids: None) -> None:
    """Assembly of the tiles: three products per step for parts, with one load for each operand."""
    for types, product in ((PARTS, "tdpbf16ps"), (UNSIGNED, "tdpbusd"), (SIGNED, "tdpbssd")):
        plan = GEMM.plan(GemmProblem(64, 64, 64, types=types, fast_math=True))
        texts = {kernel.name: inspect(kernel).assembly for kernel in plan.kernels}
        (tile,) = (text for name, text in texts.items() if name.startswith("amx_"))
        whole = tile[tile.index(f"\n{_symbol(types)}:") :]
        whole = whole[: whole.index(".Lfunc_end")]
        steps, rest = divmod(whole.count(product), 12 if types is PARTS else 4)
        assert steps >= 1 and rest == 0
        # the first two operands, one between two products, and sums to add to
        assert whole.count("tileloadd") == (13 if types is PARTS else 5) * steps + 4
        assert "%tmm5" in whole and "%tmm6" not in whole and "%tmm7" not in whole
        assert whole.count("tilestored") == whole.count("tilezero") == 4
        assert "prefetcht1" in whole  # what is needed next
        (macro,) = (text for name, text in texts.items() if name.startswith("gemm_tiles"))
        assert macro.count("ldtilecfg") == macro.count("tilerelease") == 1


@pytest.mark.parametrize("alone", [True, False])
def test_lines_of_the_next_panel_are_asked_for(sapphire_rapids: None, alone: bool) -> None:
    """For each row of a panel, the lines of the results (float32 and parts) and of a residual are prefetched."""
    tile = matrix_tile(PARTS)
    assert tile is not None
    kernel = epilogue_kernel_source(tile, full_epilogue("float32").with_parts(alone))
    whole, narrow = kernel.text.split("    else:\n", 1)
    asked = [line.strip() for line in whole.splitlines() if "prefetch(" in line]
    assert len(asked) == 4 + (0 if alone else 2) and "prefetch(" not in narrow  # float32 has two lines
    assert [sum(f"({name}, " in line for line in asked) for name in ("e1_at", "e4_at", "e5_at")] == [2, 1, 1]


def test_16_bits_are_stored_in_whole_lines(sapphire_rapids: None) -> None:
    tile = matrix_tile(NARROW)
    assert tile is not None
    body = scalar_body(lambda s, acc: s.cast(acc, parse_type("bfloat16")), [parse_type("float32")])
    assembly = inspect(epilogue_kernel_source(tile, Epilogue((), body, name="convert"))).assembly
    rows = assembly.count("prefetcht0")  # one line of each
    assert rows >= 1 and len(re.findall(r"vmov\w+\s+%zmm\d+, -?\d*\((?!%rsp)", assembly)) == rows


def _symbol(types: ElementTypes) -> str:
    """The function of 32 rows by 32 columns."""
    tile = matrix_tile(types)
    assert tile is not None
    return f"{tile.intrinsic}_32_2_16_1_0"
