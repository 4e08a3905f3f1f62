"""Convolutions: every solver against a tap-by-tap convolution in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.contraction.conv import ConvDirect, ConvPointwise
from mgx_numba.codegen.cpu.contraction.conv_transposed import ConvTransposed
from mgx_numba.codegen.cpu.contraction.depthwise import ConvDepthwise
from mgx_numba.codegen.cpu.contraction.solvers import CONV_SOLVERS, select
from mgx_numba.codegen.cpu.contraction.winograd.form import Form
from mgx_numba.codegen.cpu.contraction.winograd.solver import ConvWinograd, ConvWinogradStrided
from mgx_numba.codegen.cpu.machine import machine, using
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.errors import ShapeError, UnsupportedError
from tests.values import element_strides

from .contracting import GuardedPages, convolve, needs_page_protection, run_conv, run_plan

TOLERANCE = 3e-5


@st.composite
def problems(draw: Callable[[Any], Any], transposed: bool = False, depthwise: bool = False) -> ConvProblem:
    """Small convolutions of any rank, stride, dilation, padding (cropping too) and number of groups."""
    rank = draw(st.integers(1, 3))

    def axes(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    groups = draw(st.sampled_from([1, 17, 32, 40])) if depthwise else draw(st.sampled_from([1, 1, 2, 3]))
    per_group = (1, 1) if depthwise else (draw(st.sampled_from([1, 2, 5, 16])), draw(st.sampled_from([1, 3, 17, 40])))
    stride, batch, lens, kernel, dilation = axes(1, 3), draw(st.integers(1, 2)), axes(1, 8), axes(1, 4), axes(1, 2)
    begin, end = axes(-1, 2), axes(-1, 2)
    more = tuple(draw(st.integers(0, s - 1)) for s in stride) if transposed else ()
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    if transposed:
        assume(all((n - 1) * s + r + m > b + e for n, s, r, m, b, e in zip(lens, stride, reach, more, begin, end)))
    else:
        assume(all(n + b + e >= r for n, r, b, e in zip(lens, reach, begin, end)))
    return ConvProblem(
        batch, groups * per_group[0], groups * per_group[1], lens, kernel, stride, dilation, begin, end, groups,
        transposed=transposed, output_padding=more,
    )  # fmt: skip


def quick(examples: int) -> Callable[[Any], Any]:
    return settings(max_examples=examples, deadline=None, derandomize=True)


@quick(60)
@given(problems(), st.integers(1, 3), st.sampled_from([0, 7]))
def test_direct(problem: ConvProblem, threads: int, gap: int) -> None:
    assert run_conv(ConvDirect(), problem, 1, threads, gap) < TOLERANCE


@quick(60)
@given(problems(), st.integers(1, 3), st.sampled_from([0, 7]))
def test_direct_with_copied_pixels(problem: ConvProblem, threads: int, gap: int) -> None:
    with using(dataclasses.replace(machine(), l1_sets=1, l1_ways=1)):
        assert run_conv(ConvDirect(), problem, 1, threads, gap) < TOLERANCE


def test_estimates_listed_the_taps_of_all_phases() -> None:
    """Sample lengths of an open kernel have 500 taps along each axis: 8 GB and a minute of compilation."""
    problem = ConvProblem(1, 3, 3, (600,) * 3, (500,) * 3, (2, 3, 1), transposed=True)
    assert ConvTransposed().estimate(problem) > ConvTransposed().estimate(dataclasses.replace(problem, kernel=(5,) * 3))


@quick(60)
@given(problems(transposed=True), st.integers(1, 3), st.sampled_from([0, 7]))
def test_transposed(problem: ConvProblem, threads: int, gap: int) -> None:
    assert run_conv(ConvTransposed(), problem, 2, threads, gap) < TOLERANCE


@pytest.mark.parametrize("gap", [0, 7])
@pytest.mark.parametrize(
    ("lens", "stride"), [((7,), (3,)), ((5, 6), (2, 2)), ((1, 9), (2, 3)), ((4, 1), (1, 2)), ((2, 3, 5), (2, 1, 3))]
)
@pytest.mark.parametrize("channels", [(5, 17), (16, 32), (3, 70)])
def test_phases(lens: tuple[int, ...], stride: tuple[int, ...], channels: tuple[int, int], gap: int) -> None:
    problem = ConvProblem(2, *channels, lens, stride, stride, transposed=True)
    assert run_conv(ConvTransposed(), problem, 9, 2, gap) < TOLERANCE
    assert len(ConvTransposed().plan(problem).launches) == 1


def test_phases_with_many_weights_are_launches_of_their_own() -> None:
    problem = ConvProblem(1, 192, 192, (3, 3), (2, 2), (2, 2), transposed=True)
    assert run_conv(ConvTransposed(), problem, 9) < TOLERANCE
    assert len(ConvTransposed().plan(problem).launches) == 4


@quick(40)
@given(problems(depthwise=True), st.integers(1, 3), st.sampled_from([0, 7]))
def test_depthwise(problem: ConvProblem, threads: int, gap: int) -> None:
    assert run_conv(ConvDepthwise(), problem, 3, threads, gap) < TOLERANCE


@pytest.mark.parametrize("lens", [(5, 7), (1, 1), (9,), (3, 1, 4), (1, 6)])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("copied", [False, True])
def test_pointwise(lens: tuple[int, ...], batch: int, copied: bool) -> None:
    problem = ConvProblem(batch, 20, 40, lens, (1,) * len(lens))
    with using(dataclasses.replace(machine(), l1_sets=1, l1_ways=1 if copied else 64)):
        assert run_conv(ConvPointwise(), problem, 4, 2) < TOLERANCE
        assert run_conv(ConvPointwise(), problem, 4, 2, gap=9) < TOLERANCE


def same(channels: int, outputs: int, size: int, kernel: int = 3, **options: Any) -> ConvProblem:
    """A square convolution whose padding keeps the size at stride 1."""
    pads = (kernel // 2,) * 2
    lens = (size, size)
    return ConvProblem(1, channels, outputs, lens, (kernel, kernel), pads_begin=pads, pads_end=pads, **options)


@pytest.mark.parametrize(
    "problem",
    [
        same(256, 70, 9),  # a step of several taps
        same(1500, 40, 6),  # a step of part of one tap
        same(4, 40, 19, kernel=11),  # more taps than one table holds
        same(3, 64, 40, kernel=7, stride=(2, 2)),  # few channels: contiguous taps run together
        same(8, 8, 30, groups=2),
        same(136, 136, 14, kernel=1, groups=4),  # rows lie evenly spaced
        dataclasses.replace(same(12, 72, 14, kernel=1, groups=3), batch=2),
        same(5, 33, 40, types=element_types("float64")),
    ],
)
@pytest.mark.parametrize("copied", [False, True])
def test_direct_blocks(problem: ConvProblem, copied: bool) -> None:
    with using(dataclasses.replace(machine(), l1_sets=1 if copied else 64, l1_ways=1 if copied else 64)):
        for threads in (1, 4):
            assert run_conv(ConvDirect(), problem, 5, threads) < TOLERANCE


@pytest.mark.parametrize(
    ("ceiling", "kernel", "stride"),
    [("", 3, 1), ("", 3, 2), ("", 5, 1), ("", 5, 2), ("", 7, 2), ("avx2", 3, 1), ("avx2", 5, 2)],
)
def test_depthwise_windows(monkeypatch: pytest.MonkeyPatch, ceiling: str, kernel: int, stride: int) -> None:
    """Every number of pixels in a run, lines narrower than the window, and channels that fill no vector."""
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    for width in (1, 2, 5, 6, 8, 13, 23):
        channels = (32, 40, 21)[width % 3]
        problem = ConvProblem(
            2, channels, channels, (5, width), (3, kernel), (stride, stride), pads_begin=(1, kernel // 2),
            pads_end=(0, kernel // 2), groups=channels, types=element_types("float64" if width == 13 else "float32"),
        )  # fmt: skip
        assert run_conv(ConvDepthwise(), problem, 8, 2, gap=3) < TOLERANCE


def test_depthwise_blocks() -> None:
    """Lines in several pieces, channels in several slices and parts; tasks that walk lines or channels first, and runs
    that follow each other along a line or over the channels of a slice."""
    for lens, channels in (((3, 150), 70), ((2, 3), 300), ((40, 9), 600), ((9, 40), 77)):
        problem = ConvProblem(1, channels, channels, lens, (3, 3), pads_begin=(1, 1), pads_end=(1, 1), groups=channels)
        for threads in (1, 2, 3):
            assert run_conv(ConvDepthwise(), problem, 9, threads) < TOLERANCE


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("channels", [3, 16])
def test_depthwise_not_a_number_reaches_only_its_window(channels: int, dilation: int) -> None:
    """Also from one end of a line to the other, where a run's first or last columns do not exist."""
    pads, size = (dilation, dilation), 11
    problem = ConvProblem(
        1, channels, channels, (size, size), (3, 3), dilation=pads, pads_begin=pads, pads_end=pads, groups=channels
    )
    x = np.ones((1, size, size, channels), np.float32)
    x[0, 4, 5, 1] = np.nan
    x[0, 0, size - 1, 0] = np.inf
    x[0, 8, 0, 2] = -np.inf
    w = np.ones(problem.weight_lens, np.float32)
    out = np.zeros((1, size, size, channels), np.float32)
    run_plan(ConvDepthwise().plan(problem), {"x": x, "w": ConvDepthwise().pack_weights(problem, w), "out": out})

    def window(row: int, column: int, channel: int) -> list[tuple[int, int, int]]:
        near = [(row + i * dilation, column + j * dilation) for i in (-1, 0, 1) for j in (-1, 0, 1)]
        return [(i, j, channel) for i, j in near if 0 <= i < size and 0 <= j < size]

    np.testing.assert_array_equal(np.argwhere(np.isnan(out[0])), window(4, 5, 1))
    np.testing.assert_array_equal(np.argwhere(np.isposinf(out[0])), window(0, size - 1, 0))
    np.testing.assert_array_equal(np.argwhere(np.isneginf(out[0])), window(8, 0, 2))


@needs_page_protection
@pytest.mark.parametrize(
    ("kernel", "inputs", "groups"), [(3, 16, 16), (5, 16, 16), (11, 16, 16), (3, 8, 8), (3, 20, 10)]
)
def test_depthwise_reads_nothing_outside(kernel: int, inputs: int, groups: int) -> None:
    """Nothing before the first column of a line, after the last, or past the last channel."""
    outputs = 16 if inputs < 20 else 10
    problem, pages = same(inputs, outputs, 9, kernel=kernel, groups=groups), GuardedPages()
    rng = np.random.default_rng(4)
    x = pages.place(rng.standard_normal((1, 9, 9, inputs)).astype(np.float32))
    w = rng.standard_normal(problem.weight_lens).astype(np.float32)
    out = pages.place(np.zeros((1, 9, 9, outputs), np.float32))
    solver = ConvDepthwise()
    run_plan(solver.plan(problem), {"x": x, "w": pages.place(solver.pack_weights(problem, w)), "out": out})
    np.testing.assert_allclose(out, convolve(problem, x, w), rtol=1e-4, atol=1e-4)


NARROW = [(1, 2), (2, 2), (4, 4), (8, 8), (3, 1), (16, 8), (8, 4), (1, 8)]
"""Input and output channels of groups that divide vectors of AVX2."""


@pytest.mark.parametrize(
    ("ceiling", "inner", "outer"), [*(("", *group) for group in NARROW), ("avx2", 4, 4), ("avx2", 2, 1), ("avx2", 1, 8)]
)
def test_groups_of_few_channels(monkeypatch: pytest.MonkeyPatch, ceiling: str, inner: int, outer: int) -> None:
    """Groups that fill vectors and that do not, whose taps share inputs or are computed one by one, in one to three
    dimensions."""
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    for k, groups in enumerate((1 if inner <= 4 else 2, 5, 32)):
        lens, kernel = (((9,), (3,)), ((6, 7), (3, 2)), ((2, 3, 9), (1, 3, 5)))[k]
        stride, rank = 1 + groups % 2, len(lens)
        for dilation in (1, 2):
            problem = ConvProblem(
                2, groups * inner, groups * outer, lens, kernel, (stride,) * rank, (dilation,) * rank,
                (dilation,) * rank, (4,) * rank, groups,
                types=element_types("float64" if groups == 5 and outer < 8 else "float32"),
            )  # fmt: skip
            assert run_conv(ConvDepthwise(), problem, 11, 2, gap=3 * k) < TOLERANCE
            problem = dataclasses.replace(problem, transposed=True, pads_end=(-1,) * rank, out_strides=())
            assert run_conv(ConvTransposed(), problem, 11, 2, gap=3 * k) < TOLERANCE


def test_values_of_a_group_reach_no_other_group() -> None:
    """Changed numbers and infinities in a group's input leave the outputs of other groups unchanged."""
    problem = same(32, 32, 9, groups=8)
    rng = np.random.default_rng(12)
    x = rng.standard_normal((1, 9, 9, 32)).astype(np.float32)
    w = ConvDepthwise().pack_weights(problem, rng.standard_normal(problem.weight_lens).astype(np.float32))
    results = []
    for value in (1.0, np.inf, np.nan):
        x[..., 13] = value
        results.append(np.zeros((1, 9, 9, 32), np.float32))
        run_plan(ConvDepthwise().plan(problem), {"x": x, "w": w, "out": results[-1]})
    others = [k for k in range(32) if k // 4 != 3]
    for result in results[1:]:
        np.testing.assert_array_equal(result[..., others], results[0][..., others])
        assert not np.isfinite(result[..., 12:16]).any()


def test_narrow_groups_are_computed_in_whole_vectors() -> None:
    """Groups of four channels (ResNeXt) and several outputs for each channel took the tile of a matrix product."""
    assert select(same(128, 128, 14, groups=32)).name == "conv_depthwise"
    assert select(same(64, 128, 14, groups=64, fast_math=True)).name == "conv_depthwise"
    assert select(same(96, 96, 14, groups=32)).name == "conv_direct"  # three channels divide no vector
    lanes = host.lanes("float32")
    assert select(same(3, lanes, 112, stride=(2, 2))).name == "conv_depthwise"  # one group that fills a vector
    assert select(same(16, lanes // 2, 56)).name == "conv_direct"


def test_depthwise_with_many_taps() -> None:
    assert run_conv(ConvDepthwise(), ConvProblem(1, 4, 4, (600, 1), (513, 1), groups=4), 6) < TOLERANCE
    assert run_conv(ConvDepthwise(), same(70, 70, 19, kernel=11, groups=70), 6) < TOLERANCE
    assert run_conv(ConvDepthwise(), same(40, 40, 9, groups=40, types=element_types("float64")), 6) < 1e-12


@pytest.mark.parametrize("ceiling", ["avx2", "sse"])
def test_other_instruction_sets(monkeypatch: pytest.MonkeyPatch, ceiling: str) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    assert run_conv(ConvDirect(), same(5, 33, 12), 7) < TOLERANCE
    assert run_conv(ConvDepthwise(), same(21, 21, 12, groups=21), 7) < TOLERANCE
    assert run_conv(ConvWinograd(Form(4, 3)), same(12, 21, 12, fast_math=True), 7) < 1e-4
    stem = same(3, 21, 12, kernel=7, stride=(2, 2), fast_math=True)
    assert run_conv(ConvWinogradStrided(Form(3, 4)), stem, 7) < 1e-4


FORMS = [Form(out, taps, stored) for out, taps in ((2, 3), (4, 3), (2, 5)) for stored in (False, True)]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("lens", [(1, 1), (4, 4), (5, 11), (14, 14), (19, 3)])
@pytest.mark.parametrize("channels", [(4, 1), (12, 17), (24, 30), (64, 33), (16, 100)])
def test_winograd(form: Form, lens: tuple[int, int], channels: tuple[int, int]) -> None:
    solver, pad, kernel = ConvWinograd(form), form.taps // 2, (form.taps,) * 2
    for pads, threads, gap in (((pad, pad), 1, 0), ((pad + 1, pad), 3, 7)):
        problem = ConvProblem(2, *channels, lens, kernel, pads_begin=pads, pads_end=(pad, pad), fast_math=True)
        assert run_conv(solver, problem, 8, threads, gap) < 1e-4
    problem = dataclasses.replace(problem, types=element_types("float64"))
    assert run_conv(solver, problem, 8, 2) < 1e-12


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_winograd_groups(form: Form) -> None:
    for threads, gap in ((1, 0), (3, 9)):
        for problem in (
            same(24, 80, 13, kernel=form.taps, groups=2, fast_math=True),
            same(12, 51, 7, kernel=form.taps, groups=3, fast_math=True),
        ):
            assert run_conv(ConvWinograd(form), problem, 8, threads, gap) < 1e-4


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_winograd_without_padding_and_with_cropping(form: Form) -> None:
    for begin, end in (((0, 0), (0, 0)), ((-1, 2), (1, -1))):
        problem = ConvProblem(
            1, 16, 20, (9, 10), (form.taps,) * 2, pads_begin=begin, pads_end=end, fast_math=True
        )  # fmt: skip
        assert run_conv(ConvWinograd(form), problem, 9) < 1e-4


@pytest.mark.parametrize("stored", [False, True])
def test_winograd_filters_of_many_channels_in_steps(stored: bool) -> None:
    for form, bound in ((Form(2, 3, stored), 1e-5), (Form(4, 3, stored), 3e-5), (Form(2, 5, stored), 3e-5)):
        for problem in (
            same(256, 64, 14, kernel=form.taps, fast_math=True),
            same(700, 90, 5, kernel=form.taps, fast_math=True),
            dataclasses.replace(same(300, 17, 9, kernel=form.taps, fast_math=True), types=element_types("float64")),
        ):
            assert run_conv(ConvWinograd(form), problem, 10, 2) < bound


STRIDED = [Form(out, taps) for out, taps in ((4, 3), (3, 4))]


@pytest.mark.parametrize("form", STRIDED, ids=str)
@pytest.mark.parametrize("lens", [(12, 12), (13, 9), (27, 16), (7, 31)])
@pytest.mark.parametrize("channels", [(3, 40), (4, 17), (16, 32), (5, 1)])
def test_winograd_strided(form: Form, lens: tuple[int, int], channels: tuple[int, int]) -> None:
    """Kernels of any length and padding (cropping too) whose taps lie in the form's number of blocks."""
    solver, found = ConvWinogradStrided(form), 0
    for kernel, stride, begin, end in (
        (5, 2, 0, 0), (5, 2, 2, 1), (6, 2, 2, 2), (7, 2, 3, 3), (7, 2, 1, -1), (8, 2, 2, 3), (7, 3, 0, 2), (9, 3, 3, 0),
        (10, 3, 4, 4), (11, 4, 0, 3), (12, 4, 4, 4), (4, 2, 1, 1), (7, 2, -1, 2),
    ):  # fmt: skip
        if min(lens) + begin + end < kernel:  # no output
            continue
        problem = ConvProblem(
            2, *channels, lens, (kernel,) * 2, (stride,) * 2, pads_begin=(begin,) * 2, pads_end=(end,) * 2,
            fast_math=True,
        )  # fmt: skip
        if solver.refusal(problem) is None:
            found += 1
            assert run_conv(solver, problem, kernel, 1 + found % 3, 7 * (found % 2)) < 1e-4
            assert run_conv(solver, dataclasses.replace(problem, types=element_types("float64")), kernel, 2) < 1e-12
    assert found >= (2 if channels[0] == 4 or channels[0] == 16 else 1)


@pytest.mark.parametrize("form", STRIDED, ids=str)
def test_winograd_strided_with_a_stride_for_each_axis(form: Form) -> None:
    kernel = (7, 11) if form.taps == 4 else (5, 8)
    problem = ConvProblem(1, 6, 19, (18, 33), kernel, (2, 3), pads_begin=(2, 3), pads_end=(1, 0), fast_math=True)
    assert run_conv(ConvWinogradStrided(form), problem, 4, 2) < 1e-4


def test_winograd_strided_reads_inside_a_larger_tensor() -> None:
    problem = ConvProblem(2, 6, 20, (15, 14), (7, 7), (2, 2), pads_begin=(3, 3), pads_end=(3, 3), fast_math=True)
    rng = np.random.default_rng(6)
    whole = np.full((2, 17, 16, 11), np.nan, np.float32)
    x = whole[:, 1:16, 1:15, 2:8]
    x[...] = rng.standard_normal(x.shape)
    w = rng.standard_normal(problem.weight_lens).astype(np.float32)
    sliced = dataclasses.replace(problem, x_strides=element_strides(x)[:-1])
    out = np.zeros((2, *problem.out_lens, 20), np.float32)
    solver = ConvWinogradStrided(Form(3, 4))
    run_plan(solver.plan(sliced), {"x": x, "w": solver.pack_weights(sliced, w), "out": out})
    expected = convolve(problem, np.ascontiguousarray(x), w)
    assert np.abs(out - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_a_number_reaches_only_the_tiles_that_read_it_by_strides(value: float) -> None:
    problem = same(3, 40, 40, kernel=7, stride=(2, 2), fast_math=True)
    rng = np.random.default_rng(15)
    x = rng.standard_normal((1, 40, 40, 3)).astype(np.float32)
    w = rng.standard_normal(problem.weight_lens).astype(np.float32)
    x[0, 3, 3, 1] = value
    out = np.zeros((1, 20, 20, 40), np.float32)
    solver = ConvWinogradStrided(Form(3, 4))
    run_plan(solver.plan(problem), {"x": x, "w": solver.pack_weights(problem, w), "out": out})
    assert not np.isfinite(out[0, :4, :4]).any()
    assert np.isfinite(out[0, 9:]).all() and np.isfinite(out[0, :, 9:]).all()


@pytest.mark.usefixtures("vector_code")
def test_stems_with_fast_math_take_winograd_by_strides() -> None:
    stem = ConvProblem(1, 3, 64, (224, 224), (7, 7), (2, 2), pads_begin=(3, 3), pads_end=(3, 3))
    assert select(stem, 1).name == "conv_direct"
    assert select(dataclasses.replace(stem, fast_math=True), 1).name.endswith("strided")


@pytest.mark.parametrize(
    "problem",
    [
        same(8, 8, 16, kernel=7, fast_math=True),
        same(8, 8, 16, kernel=3, stride=(2, 2), fast_math=True),
        same(8, 8, 16, kernel=7, stride=(2, 2), dilation=(2, 1), fast_math=True),
        same(8, 8, 16, kernel=7, stride=(2, 2), groups=2, fast_math=True),
        same(3, 8, 16, kernel=7, stride=(2, 2)),
        ConvProblem(1, 8, 8, (16,), (7,), (2,), fast_math=True),
        ConvProblem(1, 8, 8, (16, 16), (7, 7), (2, 2), transposed=True, fast_math=True),
    ],
)
def test_winograd_strided_refuses_what_it_cannot_do(problem: ConvProblem) -> None:
    for form in STRIDED:
        assert ConvWinogradStrided(form).refusal(problem)


@pytest.mark.usefixtures("vector_code")
def test_winograd_only_with_fast_math() -> None:
    for groups, kernel in ((1, 3), (2, 3), (1, 5)):
        problem = same(64, 64, 56, kernel=kernel, groups=groups)
        assert "fast_math" in (ConvWinograd(Form(4, 3)).refusal(problem) or "")
        assert not select(problem, 2).name.startswith("conv_winograd")
        assert select(dataclasses.replace(problem, fast_math=True), 2).name.startswith("conv_winograd")


@pytest.mark.usefixtures("vector_code")
def test_without_room_for_transformed_weights_they_are_transformed_at_run_time() -> None:
    problem = same(256, 256, 14, fast_math=True)
    solver = select(problem, 2, 0)
    assert solver.name.startswith("conv_winograd") and solver.packing_growth(problem) == 0
    growth = ConvWinograd(Form(4, 3, True)).packing_growth(problem)
    assert 256 * 256 * 27 * 4 <= growth <= 256 * 256 * 28 * 4
    assert ConvDirect().packing_growth(problem) == 0
    few = same(8, 3, 6)  # panels are mostly padding: no reason to refuse
    assert select(few, 2, 0).refusal(few) is None


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_a_number_reaches_only_the_tiles_that_read_it(form: Form, value: float) -> None:
    problem = same(8, 40, 12, kernel=form.taps, fast_math=True)
    rng = np.random.default_rng(15)
    x = rng.standard_normal((1, 12, 12, 8)).astype(np.float32)
    w = rng.standard_normal(problem.weight_lens).astype(np.float32)
    x[0, 1, 1, 3] = value
    out = np.zeros((1, 12, 12, 40), np.float32)
    solver = ConvWinograd(form)
    run_plan(solver.plan(problem), {"x": x, "w": solver.pack_weights(problem, w), "out": out})
    reach = form.taps // 2 + 2
    assert not np.isfinite(out[0, :reach, :reach]).any()
    assert np.isfinite(out[0, 8:]).all() and np.isfinite(out[0, :, 8:]).all()


@pytest.mark.parametrize(
    "problem",
    [
        same(8, 8, 6, stride=(2, 2), fast_math=True),
        same(8, 8, 6, dilation=(2, 1), fast_math=True),
        same(8, 8, 6, kernel=5, fast_math=True),
        same(6, 8, 6, fast_math=True),
        same(12, 12, 6, groups=2, fast_math=True),
        ConvProblem(1, 8, 8, (4, 6, 6), (1, 3, 3), fast_math=True),
        ConvProblem(1, 8, 8, (6,), (3,), fast_math=True),
    ],
)
def test_winograd_refuses_what_it_cannot_do(problem: ConvProblem) -> None:
    assert ConvWinograd(Form(2, 3)).refusal(problem)
    assert run_conv(ConvDirect(), problem, 11) < TOLERANCE


@pytest.mark.parametrize("solver", [ConvPointwise(), ConvDirect(), ConvDepthwise(), ConvWinograd(Form(2, 3))])
def test_input_inside_a_larger_tensor(solver: Any) -> None:
    rng = np.random.default_rng(12)
    kernel = 1 if isinstance(solver, ConvPointwise) else 3
    groups = 12 if isinstance(solver, ConvDepthwise) else 1
    room = rng.standard_normal((2, 9, 9, 20)).astype(np.float32)
    x = room[:, :, :, 5:17] if kernel == 1 else room[:, 1:8, 2:8, 5:17]
    w = rng.standard_normal((12, 12 // groups, kernel, kernel)).astype(np.float32)
    strides = element_strides(x)[:-1]
    problem = ConvProblem(
        2, 12, 12, x.shape[1:3], (kernel, kernel), pads_begin=(kernel // 2,) * 2, pads_end=(kernel // 2,) * 2,
        groups=groups, x_strides=strides, fast_math=True,
    )  # fmt: skip
    assert solver.refusal(problem) is None
    out = np.zeros((2, *problem.out_lens, 12), np.float32)
    run_plan(solver.plan(problem), {"x": x, "w": solver.pack_weights(problem, w), "out": out})
    np.testing.assert_allclose(out, convolve(problem, x, w), rtol=1e-3, atol=1e-4)


def test_grouped_rows_that_lie_unevenly() -> None:
    rng = np.random.default_rng(15)
    room = rng.standard_normal((2, 9, 9, 20)).astype(np.float32)
    w = rng.standard_normal((18, 4, 1, 1)).astype(np.float32)
    for x in (room[:, :, :, 5:17], room[:, 1:8, 2:8, 5:17], room[:1, :, 3:4, 5:17], room[:, :1, :, 5:17]):
        lens = x.shape[1:3]
        problem = ConvProblem(x.shape[0], 12, 18, lens, (1, 1), groups=3, x_strides=element_strides(x)[:-1])
        out = np.zeros((x.shape[0], *problem.out_lens, 18), np.float32)
        run_plan(ConvDirect().plan(problem), {"x": x, "w": ConvDirect().pack_weights(problem, w), "out": out})
        np.testing.assert_allclose(out, convolve(problem, x, w), rtol=1e-3, atol=1e-4)


def test_pointwise_refuses_pixels_that_are_not_evenly_spaced() -> None:
    problem = ConvProblem(1, 4, 8, (5, 5), (1, 1), x_strides=(400, 40, 4))
    assert "evenly" in (ConvPointwise().refusal(problem) or "")


def test_not_a_number_reaches_only_its_window() -> None:
    problem = same(8, 40, 9)
    rng = np.random.default_rng(13)
    x = rng.standard_normal((1, 9, 9, 8)).astype(np.float32)
    w = rng.standard_normal(problem.weight_lens).astype(np.float32)
    x[0, 4, 4, 3] = np.nan
    out = np.zeros((1, 9, 9, 40), np.float32)
    solver = ConvDirect()
    run_plan(solver.plan(problem), {"x": x, "w": solver.pack_weights(problem, w), "out": out})
    expected = np.zeros((9, 9), bool)
    expected[3:6, 3:6] = True
    np.testing.assert_array_equal(np.isnan(out[0]).all(axis=-1), expected)
    np.testing.assert_array_equal(np.isnan(out[0]).any(axis=-1), expected)


def test_weights_may_be_a_broadcast_view() -> None:
    for solver, problem in (
        (ConvDirect(), same(6, 40, 5)),
        (ConvWinograd(Form(4, 3)), same(8, 40, 5, fast_math=True)),
        (ConvDepthwise(), same(6, 6, 5, groups=6)),
        (ConvTransposed(), dataclasses.replace(same(6, 40, 5), transposed=True)),
    ):
        view = np.broadcast_to(np.float32(0.25), problem.weight_lens)
        copied = solver.pack_weights(problem, view.copy())
        np.testing.assert_array_equal(solver.pack_weights(problem, view), copied)
        assert copied.ctypes.data % 64 == 0


def test_kernels_do_not_depend_on_sizes() -> None:
    sizes = [same(8, 8, 6), same(64, 16, 30, kernel=5, stride=(2, 2), groups=2)]
    assert len({ConvDirect().plan(p, threads=t).kernels for t, p in enumerate(sizes, 1)}) == 1
    even = [same(8, 8, 6, kernel=1, groups=2), same(136, 400, 30, kernel=1, groups=4)]  # 4 columns in the last panel
    assert len({ConvDirect().plan(p, threads=t).kernels for t, p in enumerate(even, 1)}) == 1
    depthwise = [same(n, n, size, groups=n) for n, size in ((40, 16), (24, 56))]  # lines of which runs of 8 are made
    assert len({ConvDepthwise().plan(p, threads=t).kernels for t, p in enumerate(depthwise, 1)}) == 1
    winograd = [same(64, 8, 6, fast_math=True), same(32, 40, 30, fast_math=True)]
    assert len({ConvWinograd(Form(4, 3)).plan(p, threads=t).kernels for t, p in enumerate(winograd, 1)}) == 1


def test_estimates_are_positive_for_every_solver() -> None:
    for problem in (same(64, 64, 20, fast_math=True), same(8, 8, 3, groups=8), same(3, 32, 50, kernel=7)):
        for solver in CONV_SOLVERS:
            if solver.refusal(problem) is None:
                assert 0 < solver.estimate(problem, 2) <= solver.estimate(problem, 1) < 1


def test_problems_that_make_no_sense_are_errors() -> None:
    with pytest.raises(ShapeError, match="does not divide into 3 groups"):
        ConvProblem(1, 4, 6, (5,), (1,), groups=3)
    with pytest.raises(ShapeError, match="at least 1"):
        ConvProblem(1, 4, 6, (2,), (3,))
    with pytest.raises(UnsupportedError, match="1 to 3"):
        ConvProblem(1, 4, 6, (2, 2, 2, 2), (1, 1, 1, 1))


@needs_page_protection
@pytest.mark.parametrize("ceiling", ["", "avx2"])
def test_nothing_past_the_end_is_read(monkeypatch: pytest.MonkeyPatch, ceiling: str) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    rng = np.random.default_rng(14)
    for solver, problem in (
        (ConvDirect(), same(5, 33, 7)),
        (ConvPointwise(), same(5, 33, 7, kernel=1)),
        (ConvDepthwise(), same(21, 21, 7, groups=21)),
        (ConvTransposed(), dataclasses.replace(same(5, 17, 7), transposed=True)),
        (ConvWinograd(Form(4, 3)), same(12, 21, 7, fast_math=True)),
    ):
        guard = GuardedPages()
        x = guard.place(rng.standard_normal((1, *problem.in_lens, problem.in_channels)).astype(np.float32))
        w = rng.standard_normal(problem.weight_lens).astype(np.float32)
        packed = guard.place(solver.pack_weights(problem, w))
        out = guard.place(np.zeros((1, *problem.out_lens, problem.out_channels), np.float32))
        run_plan(solver.plan(problem), {"x": x, "w": packed, "out": out})
        np.testing.assert_allclose(out, convolve(problem, x, w), rtol=1e-3, atol=1e-3)


@needs_page_protection
@pytest.mark.parametrize(
    ("width", "kernel", "pads"), [(11, 7, (6, 0)), (57, 5, (2, 2)), (17, 3, (9, 1)), (1, 3, (5, -3))]
)
def test_runs_that_overlap_at_the_ends_of_a_line(width: int, kernel: int, pads: tuple[int, int]) -> None:
    """Columns that a run other than the first or the last one lacks, and lines that are all padding."""
    solver = ConvDepthwise()
    problem = ConvProblem(1, 16, 16, (1, width), (1, kernel), pads_begin=(0, pads[0]), pads_end=(0, pads[1]), groups=16)
    assert run_conv(solver, problem, 5) < TOLERANCE
    rng, pages = np.random.default_rng(5), GuardedPages()
    x = pages.place(rng.standard_normal((1, 1, width, 16)).astype(np.float32))
    w = rng.standard_normal(problem.weight_lens).astype(np.float32)
    out = np.zeros((1, *problem.out_lens, 16), np.float32)
    run_plan(solver.plan(problem), {"x": x, "w": solver.pack_weights(problem, w), "out": out})
    np.testing.assert_allclose(out, convolve(problem, x, w), rtol=1e-4, atol=1e-4)


@needs_page_protection
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_winograd_reads_nothing_past_a_slice_of_channels(form: Form) -> None:
    problem = same(12, 21, 7, kernel=form.taps, fast_math=True)
    rng, pages = np.random.default_rng(6), GuardedPages()
    x = pages.place(rng.standard_normal((1, 7, 7, 20)).astype(np.float32))[..., 8:]
    problem = dataclasses.replace(problem, x_strides=element_strides(x)[:-1])
    w = rng.standard_normal(problem.weight_lens).astype(np.float32)
    out, solver = np.zeros((1, 7, 7, 21), np.float32), ConvWinograd(form)
    run_plan(solver.plan(problem), {"x": x, "w": pages.place(solver.pack_weights(problem, w)), "out": out})
    np.testing.assert_allclose(out, convolve(problem, np.ascontiguousarray(x), w), rtol=1e-3, atol=1e-3)
