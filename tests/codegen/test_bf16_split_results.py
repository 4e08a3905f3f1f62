"""Results in parts, written by their producers and read by products."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.contraction.conv_amx import ConvAmx
from mgx_numba.codegen.cpu.contraction.conv_transposed import ConvTransposedAmx
from mgx_numba.codegen.cpu.contraction.depthwise import ConvDepthwise
from mgx_numba.codegen.cpu.contraction.gemm_amx import ConvPointwiseAmx, GemmAmx
from mgx_numba.codegen.cpu.contraction.solvers import select
from mgx_numba.codegen.cpu.planning import plan
from mgx_numba.codegen.launch import Solution
from mgx_numba.codegen.problems.cluster import PointwiseProblem, ReductionProblem
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.epilogue import Epilogue, EpilogueOperand
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.request import Request, extents
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.graph.module import Module
from tests.values import element_strides

from ..features import features
from .bf16_split_form import joined_parts, room_for_parts, split_parts
from .contracting import full_epilogue, full_epilogue_arrays, run_plan
from .launching import run_launch, tensor_of

GEMM = GemmAmx()
pytestmark = pytest.mark.skipif(host.host().vector_bits < 512, reason="the CPU has no AVX-512")
form = features([host.EMULATED_TILES], autouse=True)


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    """Check that parts hold the information of float32, and that padding columns are zero."""
    high, low = found
    columns = wanted.shape[-1]
    np.testing.assert_array_equal(
        joined_parts(high[..., :columns], low[..., :columns]), joined_parts(*split_parts(wanted))
    )
    assert not high[..., columns:].any() and not low[..., columns:].any()


def written(solver: Any, problem: Any, lens: tuple[int, ...], x: np.ndarray, w: np.ndarray, **how: Any) -> None:
    """A result with `full_epilogue` is stored in parts as it would be stored, alone and besides."""
    *rows, columns = lens
    assert solver.refusal(problem) is None and solver.writes_bf16_split(problem)
    arrays = {"x": x, "w": solver.pack_weights(problem, w)}
    arrays |= full_epilogue_arrays(np.random.default_rng(2), tuple(rows), columns, "float32")
    wanted = np.zeros(lens, np.float32)
    run_plan(solver.plan(problem, full_epilogue("float32"), **how), {**arrays, "out": wanted})
    for alone in (False, True):
        epilogue, out = full_epilogue("float32").with_parts(alone), np.full(lens, 77, np.float32)
        room, high, low = room_for_parts(lens)
        strides = element_strides(room[0])[:-1]
        if isinstance(problem, ConvProblem):
            strides = strides[0], strides[-1]
        places = ((), (), (), (), strides, strides)
        solution = solver.plan(problem, epilogue, places, **how)
        run_plan(solution, {**arrays, "out": out, "e4": room[0], "e5": room[1]})
        same(np.stack([high, low]), wanted)
        np.testing.assert_array_equal(out, np.full_like(out, 77) if alone else wanted)
        assert np.isnan(room[..., high.shape[-1] :].astype(np.float32)).all()


@pytest.mark.parametrize("columns", [7, 16, 24, 40, 64])
def test_products_write_parts(columns: int) -> None:
    rng = np.random.default_rng(columns)
    a, b = rng.standard_normal((37, 70)).astype(np.float32), rng.standard_normal((70, columns)).astype(np.float32)
    a[3, 1], a[5, 2], a[8], a[9] = np.inf, np.nan, a[8] * np.float32(1e-42), a[9] * np.float32(1e-30)
    with np.errstate(all="ignore"):
        written(GEMM, GemmProblem(37, columns, 70, fast_math=True), (37, columns), a, b, threads=2)


CONVOLUTIONS: list[tuple[Any, ConvProblem]] = [
    (ConvPointwiseAmx(), ConvProblem(2, 40, 72, (5, 7), (1, 1), fast_math=True)),
    (ConvAmx(), ConvProblem(2, 20, 50, (5, 7), (3, 3), pads_begin=(1, 1), pads_end=(1, 1), fast_math=True)),
    (
        ConvTransposedAmx(),
        ConvProblem(2, 20, 50, (5, 7), (2, 2), stride=(2, 2), transposed=True, fast_math=True),
    ),
    (
        ConvDepthwise(),
        ConvProblem(2, 96, 96, (9, 7), (3, 3), pads_begin=(1, 1), pads_end=(1, 1), groups=96, fast_math=True),
    ),
    (
        select(ConvProblem(1, 256, 256, (28, 28), (3, 3), pads_begin=(1, 1), pads_end=(1, 1), fast_math=True)),
        ConvProblem(1, 32, 64, (9, 7), (3, 3), pads_begin=(1, 1), pads_end=(1, 1), fast_math=True),
    ),
]


@pytest.mark.parametrize(("solver", "problem"), CONVOLUTIONS, ids=lambda own: getattr(own, "name", ""))
def test_convolutions_write_parts(solver: Any, problem: ConvProblem) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((problem.batch, *problem.in_lens, problem.in_channels)).astype(np.float32)
    w = rng.standard_normal(problem.weight_lens).astype(np.float32)
    written(solver, problem, (problem.batch, *problem.out_lens, problem.out_channels), x, w)


def test_depthwise_channels_that_fill_no_lines_are_written_as_they_are() -> None:
    assert not ConvDepthwise().writes_bf16_split(ConvProblem(1, 48, 48, (9, 9), (3, 3), groups=48))


@pytest.mark.parametrize("k", [5, 32, 70, 1100])
def test_products_read_parts(k: int) -> None:
    """Any numbers; rows of only small numbers, not all zero, are multiplied in float32."""
    rng = np.random.default_rng(k)
    a, b = rng.standard_normal((70, k)).astype(np.float32), rng.standard_normal((k, 50)).astype(np.float32)
    a[3, 1], a[5, 2], a[7, 4], b[4] = np.inf, np.nan, 3.4e38, b[4] * np.float32(0.01)
    a[40:43] *= np.array([[1e-42], [1e-38], [1e-30]], np.float32)
    a[44], a[66:] = 0, 0
    a[45, 1:] = 0
    a[46, : k - 1] = 0
    a[68, -1] = 1e-44
    problem = GemmProblem(70, 50, k, fast_math=True)
    out, plain = np.zeros((70, 50), np.float32), np.zeros((70, 50), np.float32)
    packed = GEMM.pack_weights(problem, b)
    run_plan(GEMM.plan(problem), {"x": a, "w": packed, "out": plain})
    room, high, low = room_for_parts(a.shape)
    high[...], low[...] = 0, 0
    high[:, :k], low[:, :k] = split_parts(a)
    pitch = room.shape[-1]
    own = GemmProblem(70, 50, k, a_strides=(pitch, 1), fast_math=True, low_parts=70 * pitch)
    assert GEMM.refusal(own) is None and select(own).name == "gemm_tiles"
    solution = GEMM.plan(own)
    assert len(solution.launches) == 1 and solution.scratch == 0
    assert GEMM.estimate(own) < GEMM.estimate(problem)
    run_plan(solution, {"x": room, "w": packed, "out": out})
    with np.errstate(all="ignore"):
        wanted = a.astype(np.float64) @ b
    for row in range(70):
        scale = np.abs(wanted[row][np.isfinite(wanted[row])]).max(initial=0)
        finite = np.isfinite(wanted[row])
        np.testing.assert_array_equal(out[row][~finite], wanted[row][~finite].astype(np.float32))
        error = np.abs(out[row][finite] - wanted[row][finite]).max(initial=0)
        assert error <= 2.0**-15 * scale + 2.0**-145 * np.sqrt(k)


def test_transposed_convolutions_read_parts() -> None:
    rng, solver = np.random.default_rng(4), ConvTransposedAmx()
    x, w = rng.standard_normal((2, 5, 7, 40)).astype(np.float32), rng.standard_normal((40, 24, 2, 2)).astype(np.float32)
    options: dict[str, Any] = {"stride": (2, 2), "transposed": True, "fast_math": True}
    problem = ConvProblem(2, 40, 24, (5, 7), (2, 2), **options)
    packed, plain, out = solver.pack_weights(problem, w), *(np.zeros((2, 10, 14, 24), np.float32) for _ in range(2))
    run_plan(solver.plan(problem), {"x": x, "w": packed, "out": plain})
    room, high, low = room_for_parts(x.shape)
    high[...], low[...] = 0, 0
    high[..., :40], low[..., :40] = split_parts(x)
    own = dataclasses.replace(problem, low_parts=room[0].size, x_strides=element_strides(room[0])[:-1])
    assert solver.refusal(own) is None and solver.estimate(own) < solver.estimate(problem)
    run_plan(solver.plan(own), {"x": room, "w": packed, "out": out})
    np.testing.assert_array_equal(out, plain)
    apart = dataclasses.replace(own, x_strides=(2 * own.x_strides[0], *own.x_strides[1:]))
    assert "do not follow one another" in (solver.refusal(apart) or "")


def test_what_reads_no_parts_refuses_them() -> None:
    problem = GemmProblem(70, 64, 64, fast_math=True, low_parts=70 * 96, a_strides=(96, 1))
    assert "comes in parts" in (
        ConvAmx().refusal(ConvProblem(1, 64, 8, (9, 9), (3, 3), fast_math=True, low_parts=64)) or ""
    )
    request = Request(problem, Epilogue(), (), 1, True)
    assert (
        request.fields()["low_parts"] == 70 * 96
        and "low_parts" not in Request(GemmProblem(2, 2, 2), Epilogue(), (), 1, True).fields()
    )
    assert 4 * extents(request)[0] >= 2 * (70 * 96 + 69 * 96 + 64)
    ends = dataclasses.replace(problem, k=65)
    assert 4 * extents(dataclasses.replace(request, problem=ends))[0] >= 2 * (70 * 96 + 70 * 96)


def test_epilogues_that_store_parts_have_them_last() -> None:
    high, low = (EpilogueOperand("bfloat16", access) for access in ("high", "low"))
    assert Epilogue((high, low)).in_parts and Epilogue().with_parts(True).parts_alone
    for operands in ((high,), (low, high), (high, low, high, low)):
        with pytest.raises(ShapeError, match="expected high and low last"):
            Epilogue(operands)
    with pytest.raises(ShapeError, match="stores parts alone"):
        Epilogue(parts_alone=True)


def normalised(lens: tuple[int, ...]) -> Module:
    """Return a cluster of a sum of two inputs, and the sum less its row means."""
    module = Module("cluster")
    x, y = (module.add_parameter(name, Shape(Type.float_type, lens)) for name in ("x0", "x1"))
    both = module.add_instruction("add", [x, y])
    mean = module.add_instruction("reduce_mean", [both], axes=[len(lens) - 1])
    wide = module.add_instruction("multibroadcast", [mean], out_lens=lens)
    module.add_return([both, module.add_instruction("sub", [both, wide])])
    return module


def pointwise(lens: tuple[int, ...]) -> Module:
    module = Module("pointwise")
    x, y = (module.add_parameter(name, Shape(Type.float_type)) for name in ("x0", "x1"))
    both = module.add_instruction("add", [x, y])
    module.add_return([both, module.add_instruction("mul", [both, x])])
    return module


@pytest.mark.parametrize("columns", [32, 96, 768, 2048])
@pytest.mark.parametrize("build", [normalised, pointwise])
@pytest.mark.parametrize("past_caches", [False, True])
def test_clusters_write_parts(build: Any, columns: int, past_caches: bool, given_machine: Any) -> None:
    given_machine(last_cache_bytes=0 if past_caches else 1 << 40)
    rng, lens = np.random.default_rng(columns), (3, 7, columns)
    x, y = (rng.standard_normal(lens).astype(np.float32) for _ in range(2))
    x[0, 1, 5], x[1, 2, 3], x[2, 0] = np.inf, np.nan, x[2, 0] * np.float32(1e-30)
    y[2, 0] = 0
    first, second = np.zeros(lens, np.float32), np.zeros(lens, np.float32)
    kind: Any = PointwiseProblem if build is pointwise else lambda module, *rest: ReductionProblem(module, (2,), *rest)
    inputs, module = (tensor_of(x), tensor_of(y)), build(lens)
    problem = kind(module, inputs, (tensor_of(first), tensor_of(second)))
    run_solution(plan(problem), {"x0": x, "x1": y, "out0": first, "out1": second})
    for alone in (False, True):
        room, high, low = room_for_parts(lens)
        parts = [tensor_of(part) for part in (high, low)]
        outs = [
            np.zeros(lens, np.float32),
            high if alone else np.zeros(lens, np.float32),
            *([] if alone else [high]),
            low,
        ]
        tensors = [tensor_of(outs[0]), *([] if alone else [tensor_of(outs[1])]), *parts]
        again = (1,) if alone else (1, 1)
        own = dataclasses.replace(problem, outputs=tuple(tensors), again=again)
        run_solution(plan(own), {"x0": x, "x1": y, **{f"out{k}": out for k, out in enumerate(outs)}})
        made = joined_parts(high, low) if alone else outs[1]  # sums may be of another order
        same(np.stack([high, low]), made)
        np.testing.assert_array_equal(outs[0], first)
        np.testing.assert_allclose(made, second, 2.0**-16, 1e-6)
        assert np.isnan(room[..., columns:].astype(np.float32)).all()


def run_solution(solution: Solution, arrays: dict[str, np.ndarray]) -> None:
    for launch in solution.launches:
        run_launch(launch, arrays)
