"""A 1x1 convolution and the following depthwise convolution in one launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu.contraction.conv import ConvPointwise
from mgx_numba.codegen.cpu.contraction.depthwise import ConvDepthwise
from mgx_numba.codegen.cpu.contraction.pointwise_depthwise import BEFORE, PointwiseDepthwise
from mgx_numba.codegen.cpu.machine import machine, using
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.epilogue import Epilogue

from .contracting import (
    GuardedPages,
    apply_full_epilogue,
    convolve,
    epilogue_of,
    full_epilogue,
    full_epilogue_arrays,
    needs_page_protection,
    run_plan,
)

NOTHING = Epilogue()
THREADS = (1, 2, 5)


def problems(
    batch: int, inputs: int, channels: int, lens: tuple[int, int], **how: Any
) -> tuple[ConvProblem, ConvProblem]:
    pointwise = ConvProblem(batch, inputs, channels, lens, (1, 1))
    return pointwise, ConvProblem(batch, channels, channels, lens, groups=channels, **how)


def run(
    pointwise: ConvProblem,
    depthwise: ConvProblem,
    threads: int,
    pages: GuardedPages | None = None,
    special: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """The result, and that of both in float64; each has `full_epilogue`."""
    rng = np.random.default_rng(0)
    types, channels, batch = "float32", pointwise.out_channels, pointwise.batch
    x = rng.standard_normal((batch, *pointwise.in_lens, pointwise.in_channels)).astype(types)
    if special:
        x.ravel()[rng.choice(x.size, 3, replace=False)] = (np.nan, np.inf, -np.inf)
    weights = [rng.standard_normal(p.weight_lens).astype(types) for p in (pointwise, depthwise)]
    first = full_epilogue_arrays(rng, (batch, *pointwise.out_lens), channels, types)
    second = full_epilogue_arrays(rng, (batch, *depthwise.out_lens), channels, types)
    out = np.full((batch, *depthwise.out_lens, channels), 77, types)
    packed = ConvPointwise().pack_weights(pointwise, weights[0]), ConvDepthwise().pack_weights(depthwise, weights[1])
    arrays = {"x": x, f"{BEFORE}w": packed[0], "w": packed[1], "out": out, **second}
    arrays |= {f"{BEFORE}{name}": array for name, array in first.items()}
    if pages:
        arrays = {name: pages.place(array) for name, array in arrays.items()}
    solver = PointwiseDepthwise(pointwise, full_epilogue(types), ())
    assert solver.refusal(depthwise) is None
    assert solver.estimate(depthwise, threads) > 0
    run_plan(solver.plan(depthwise, full_epilogue(types), (), threads), arrays, pages)
    with np.errstate(all="ignore"):
        between = apply_full_epilogue(convolve(pointwise, x, weights[0]), first)
        return arrays["out"], apply_full_epilogue(convolve(depthwise, between, weights[1]), second)


CASES: dict[str, tuple[tuple[int, int, int, tuple[int, int]], dict[str, Any]]] = {
    "one element": ((1, 1, 1, (1, 1)), {"kernel": (1, 1)}),
    "odd": ((1, 5, 20, (9, 7)), {"kernel": (3, 3), "pads_begin": (1, 1), "pads_end": (1, 1)}),
    "strided": ((1, 16, 96, (23, 30)), {"kernel": (3, 3), "stride": (2, 2), "pads_begin": (1, 1), "pads_end": (1, 1)}),
    "images": ((3, 7, 33, (5, 6)), {"kernel": (5, 5), "stride": (2, 1), "pads_begin": (2, 2), "pads_end": (2, 2)}),
    "dilated": ((2, 4, 40, (11, 9)), {"kernel": (3, 2), "dilation": (3, 2), "pads_begin": (3, 0), "pads_end": (2, 1)}),
    "skipping": ((2, 3, 17, (10, 4)), {"kernel": (2, 2), "stride": (4, 3)}),
    "in padding": ((1, 3, 17, (4, 4)), {"kernel": (3, 3), "stride": (3, 3), "pads_begin": (7, 1), "pads_end": (5, 0)}),
    "cropped": ((2, 3, 70, (9, 8)), {"kernel": (3, 3), "pads_begin": (-2, -1), "pads_end": (1, -3)}),
    "many channels": ((1, 9, 530, (7, 7)), {"kernel": (3, 3), "pads_begin": (1, 1), "pads_end": (1, 1)}),
    "a line": ((1, 3, 130, (1, 40)), {"kernel": (1, 5), "pads_begin": (0, 2), "pads_end": (0, 2)}),
}  # fmt: skip


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("case", CASES)
def test_both_are_computed(case: str, threads: int) -> None:
    lens, how = CASES[case]
    found, expected = run(*problems(*lens, **how), threads)
    assert np.abs(found - expected).max() <= 3e-6 * np.abs(expected).max()


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("stride", [1, 2])
def test_bands_follow_each_other_where_the_cache_is_small(threads: int, stride: int) -> None:
    pair = problems(2, 6, 40, (19, 13), kernel=(4, 3), stride=(stride, 1), pads_begin=(2, 1), pads_end=(1, 1))
    with using(replace(machine(), l2_bytes=1 << 14)):
        found, expected = run(*pair, threads)
    assert np.abs(found - expected).max() <= 3e-6 * np.abs(expected).max()


@pytest.mark.parametrize("threads", THREADS)
def test_what_is_not_finite_is_found_where_it_belongs(threads: int) -> None:
    pair = problems(1, 4, 36, (12, 10), kernel=(3, 3), stride=(2, 2), pads_begin=(1, 1), pads_end=(1, 1))
    found, expected = run(*pair, threads, special=True)
    finite = np.isfinite(expected)
    assert finite.any() and not finite.all()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found[finite], expected[finite], rtol=1e-4, atol=1e-4)


@needs_page_protection
@pytest.mark.parametrize("case", ["odd", "strided", "images", "many channels"])
def test_nothing_is_read_or_written_past_the_end(case: str) -> None:
    lens, how = CASES[case]
    found, expected = run(*problems(*lens, **how), 2, GuardedPages())
    assert np.abs(found - expected).max() <= 3e-6 * np.abs(expected).max()


def test_a_slice_of_channels_is_read_and_written() -> None:
    pointwise, depthwise = problems(2, 5, 24, (6, 7), kernel=(3, 3), pads_begin=(1, 1), pads_end=(1, 1))
    rng = np.random.default_rng(1)
    whole = rng.standard_normal((2, 6, 7, 9)).astype(np.float32)
    room = np.full((2, 6, 7, 30), 77, np.float32)
    pointwise = replace(pointwise, x_strides=(6 * 7 * 9, 7 * 9, 9))
    depthwise = replace(depthwise, out_strides=(6 * 7 * 30, 30))
    weights = [rng.standard_normal(p.weight_lens).astype(np.float32) for p in (pointwise, depthwise)]
    solver = PointwiseDepthwise(pointwise, NOTHING, ())
    packed = ConvPointwise().pack_weights(pointwise, weights[0]), ConvDepthwise().pack_weights(depthwise, weights[1])
    arrays = {"x": whole[..., 2:7], f"{BEFORE}w": packed[0], "w": packed[1], "out": room[..., 3:27]}
    run_plan(solver.plan(depthwise, threads=2), arrays)
    expected = convolve(depthwise, convolve(pointwise, whole[..., 2:7], weights[0]), weights[1])
    assert np.abs(room[..., 3:27] - expected).max() <= 3e-6 * np.abs(expected).max()
    assert (room[..., :3] == 77).all() and (room[..., 27:] == 77).all()


def test_others_are_refused() -> None:
    pointwise, depthwise = problems(2, 8, 32, (6, 6), kernel=(3, 3))
    gated = epilogue_of(lambda s, a, b: s.mul(a, b), "per_n")
    int8 = element_types("uint8 int8 int32 int32")
    between = replace(depthwise, x_strides=(6 * 6 * 40, 6 * 40, 40))
    refused = [
        (replace(pointwise, kernel=(3, 3), pads_begin=(1, 1), pads_end=(1, 1)), NOTHING, depthwise),
        (pointwise, NOTHING, replace(depthwise, groups=1)),
        (pointwise, NOTHING, between),
        (replace(pointwise, out_strides=(36 * 40, 40)), NOTHING, depthwise),
        (replace(pointwise, x_strides=(999, 48, 8)), NOTHING, depthwise),
        (pointwise, replace(gated, operands=(), gated=True), depthwise),
        (pointwise, NOTHING.with_parts(alone=True), depthwise),
        (pointwise, NOTHING, replace(depthwise, types=int8)),
        (replace(pointwise, batch=1), NOTHING, depthwise),
    ]  # fmt: skip
    for first, epilogue, second in refused:
        assert PointwiseDepthwise(first, epilogue, ()).refusal(second) is not None
    line = ConvProblem(1, 8, 32, (6,), (1,)), ConvProblem(1, 32, 32, (6,), (3,), groups=32)
    assert PointwiseDepthwise(line[0], NOTHING, ()).refusal(line[1]) == "there are not two spatial dimensions"
