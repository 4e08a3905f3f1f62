"""Convolutions of 8-bit integers: exact in int32, for every instruction set of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from mgx_numba.codegen.body import scalar_body
from mgx_numba.codegen.cpu.contraction.conv_int8 import ConvInt8, join_taps
from mgx_numba.codegen.cpu.contraction.conv_transposed import ConvTransposed
from mgx_numba.codegen.cpu.contraction.solvers import CONV_SOLVERS, select
from mgx_numba.codegen.cpu.microkernels.tile_table import tile_for
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.epilogue import Epilogue, EpilogueOperand
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError

from ..features import VNNI, choosing_for, features
from .contracting import GuardedPages, convolve, needs_page_protection, run_plan
from .test_contraction_int8 import FORMS

SOLVER = ConvInt8()


@st.composite
def problems(draw: Callable[[Any], Any], transposed: bool = False) -> ConvProblem:
    """Small convolutions of any rank, stride, dilation, padding and number of groups."""
    rank = draw(st.integers(1, 3))

    def axes(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    groups = draw(st.sampled_from([1, 1, 2, 3, 8]))
    inner = draw(st.sampled_from([8, 16] if transposed and groups > 1 else [1, 2, 3, 4, 5, 8, 16, 33]))
    outer = draw(st.sampled_from([1, 3, 17, 40, 50]))
    types = element_types(draw(st.sampled_from(["uint8", "int8"])) + " int8 int32 int32")
    stride = axes(1, 3)
    more = tuple(draw(st.integers(0, s - 1)) for s in stride) if transposed else ()
    try:
        return ConvProblem(
            draw(st.integers(1, 2)), groups * inner, groups * outer, axes(1, 8), axes(1, 4), stride, axes(1, 2),
            axes(-1, 2), axes(-1, 2), groups, types, transposed=transposed, output_padding=more,
        )  # fmt: skip
    except ShapeError:
        reject()


def random_arrays(problem: ConvProblem, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    limits = np.iinfo(problem.types.a)
    x = rng.integers(limits.min, limits.max + 1, (problem.batch, *problem.in_lens, problem.in_channels))
    return x.astype(problem.types.a), rng.integers(-128, 128, problem.weight_lens).astype(np.int8)


def check(
    problem: ConvProblem,
    threads: int = 1,
    pages: GuardedPages | None = None,
    blocking: Any = None,
    solver: Any = SOLVER,
    arrays: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    """A solver's results of these values, by default random ones, are NumPy's."""
    assert solver.refusal(problem) is None
    x, w = arrays or random_arrays(problem)
    packed = solver.pack_weights(problem, w)
    assert packed.shape == solver.packed_lens(problem)
    out = np.full((problem.batch, *problem.out_lens, problem.out_channels), 77, np.int32)
    expected = convolve(problem, x, w).astype(np.int64)
    if pages:
        x, packed, out = (pages.place(array) for array in (x, packed, out))
    for fill in (0x00, 0xFF):
        plan = solver.plan(problem, threads=threads, blocking=blocking)
        run_plan(plan, {"x": x, "w": packed, "out": out}, pages, fill)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=problems(), threads=st.integers(1, 3))
def test_any(form: str, problem: ConvProblem, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as context:
        context.setenv("MGX_CPU_FEATURES", form)
        check(problem, threads)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=problems(transposed=True), threads=st.integers(1, 3))
def test_transposed(form: str, problem: ConvProblem, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as context:
        context.setenv("MGX_CPU_FEATURES", form)
        check(problem, threads, solver=ConvTransposed())


form = features(FORMS, arm=FORMS)


@needs_page_protection
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_phases(form: str, dtype: str) -> None:
    """Kernels as large as their strides are one launch beside that which brings channels into words."""
    types = element_types(f"{dtype} int8 int32 int32")
    for channels, lens, stride in (((16, 33), (5, 6), (2, 2)), ((5, 17), (7,), (3,)), ((4, 70), (2, 3, 5), (2, 1, 3))):
        problem = ConvProblem(2, *channels, lens, stride, stride, types=types, transposed=True)
        check(problem, 2, solver=ConvTransposed())
        check(problem, pages=GuardedPages(), solver=ConvTransposed())
        assert len(ConvTransposed().plan(problem).launches) <= 2
    check(ConvProblem(1, 640, 416, (3, 2), (2, 2), (2, 2), types=types, transposed=True), solver=ConvTransposed())


def square(channels: int, outputs: int, size: int, kernel: int, dtype: str = "uint8", **options: Any) -> ConvProblem:
    pads = (kernel // 2,) * 2
    types = element_types(f"{dtype} int8 int32 int32")
    return ConvProblem(1, channels, outputs, (size,) * 2, (kernel,) * 2, pads_begin=pads, pads_end=pads, types=types,
                       **options)  # fmt: skip


def test_layers_of_networks(form: str) -> None:
    for dtype in ("uint8", "int8"):
        check(square(3, 64, 23, 7, dtype, stride=(2, 2)), 2)
        check(square(64, 64, 9, 1, dtype), 2)
        check(square(96, 40, 7, 3, dtype), 2)
        check(square(600, 40, 5, 3, dtype), 2)  # steps of the sum


@needs_page_protection
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_taps_of_few_channels_are_joined(form: str, dtype: str) -> None:
    """ResNet's first layer after its padding, patches of a vision transformer, a waveform, a video."""
    types = element_types(f"{dtype} int8 int32 int32")
    cases: list[tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
        (3, (19, 23), (7, 7), (2, 2), (0, 0)), (3, (18, 19), (7, 6), (1, 4), (2, 0)),
        (3, (16, 16), (8, 8), (8, 8), (0, 0)), (1, (45,), (10,), (4,), (0,)),
        (3, (3, 5, 9), (2, 3, 3), (1, 2, 2), (0, 1, 0)),
    ]  # fmt: skip
    for channels, lens, kernel, stride, pads in cases:
        problem = ConvProblem(2, channels, 20, lens, kernel, stride, pads_begin=pads, pads_end=pads, types=types)
        assert join_taps(problem, tile_for(types)) or form != "avx2,-avxvnni"
        check(problem, 2)
        check(problem, pages=GuardedPages())


@needs_page_protection
def test_nothing_past_the_end_is_read(form: str) -> None:
    for channels in (1, 3, 4, 8):
        for kernel in (1, 3):
            check(square(channels, 17, 5, kernel), pages=GuardedPages())


def test_strided_pixels_are_read_where_they_lie() -> None:
    problem = square(8, 20, 6, 3)
    x, w = random_arrays(problem)
    for channels, launches in ((16, 1), (11, 2)):
        room = np.full((1, 6, 6, channels), 99, np.uint8)
        room[..., 3 - 3 * (channels == 16) :][..., :8] = x
        inner = room[..., 3 - 3 * (channels == 16) :][..., :8]
        strided = ConvProblem(**{
            **{k: v for k, v in vars(problem).items() if k != "out_lens"},
            "x_strides": (36 * channels, 6 * channels, channels),
        })  # fmt: skip
        out = np.zeros((1, 6, 6, 20), np.int32)
        plan = SOLVER.plan(strided)
        packs = tile_packs_always()
        assert packs or len(plan.launches) == launches
        flat = inner.reshape(-1)[:0] if not inner.size else np.lib.stride_tricks.as_strided(inner, inner.shape)
        run_plan(plan, {"x": flat, "w": SOLVER.pack_weights(strided, w), "out": out})
        np.testing.assert_array_equal(out, convolve(problem, x, w).astype(np.int64))


def tile_packs_always() -> bool:
    """Whether this CPU's tile has the left-hand side in other elements than the problem."""
    return tile_for(element_types("uint8 int8 int32 int32")).packing.a not in ("", "uint8")


def test_an_epilogue_requantises_the_sums(form: str) -> None:
    problem = square(12, 33, 7, 3)
    x, w = random_arrays(problem)
    scales = np.linspace(1e-4, 1e-3, 33).astype(np.float32)

    def body(s: Any, total: Any, scale: Any) -> Any:
        value = s.nearbyint(s.mul(s.cast(total, Type.float_type), scale))
        return s.cast(s.add(value, s.const(7, Type.float_type)), Type.uint8_type)

    epilogue = Epilogue(
        (EpilogueOperand("float32", "per_n"),), scalar_body(body, (Type.int32_type, Type.float_type)), name="requantize"
    )
    out = np.zeros((1, 7, 7, 33), np.uint8)
    run_plan(SOLVER.plan(problem, epilogue), {"x": x, "w": SOLVER.pack_weights(problem, w), "out": out, "e0": scales})
    sums = convolve(problem, x, w).astype(np.float32)
    np.testing.assert_array_equal(out, np.clip(np.rint(sums * scales) + 7, 0, 255).astype(np.uint8))


def test_blockings_of_tuning_compute_the_same() -> None:
    problem = square(160, 70, 8, 3)
    tried = SOLVER.blockings(problem, 2)
    assert tried
    for blocking in tried:
        check(problem, 2, blocking=blocking)


@pytest.mark.parametrize("more", [frozenset(), VNNI], ids=["avx512", "vnni"])
def test_what_is_refused(more: frozenset[str]) -> None:
    with choosing_for("x86-64-v4", more):
        transposed = ConvProblem(1, 4, 4, (5,), (3,), types=element_types("uint8 int8 int32 int32"), transposed=True)
        assert "transposed" in (SOLVER.refusal(transposed) or "")
        assert SOLVER.refusal(square(6, 6, 5, 3, groups=2)) is None  # groups that are no whole words are packed
        assert "the operands are float32" in (SOLVER.refusal(ConvProblem(1, 4, 4, (5,), (3,))) or "")
        own = "conv_int8" if more else "conv_int8_residual"
        assert select(square(8, 8, 5, 3)).name == own


def test_nothing_else_multiplies_bytes_with_vnni() -> None:
    with choosing_for("x86-64-v4", VNNI):
        for solver in CONV_SOLVERS:
            assert solver.name == "conv_int8" or solver.refusal(square(8, 8, 5, 3))
