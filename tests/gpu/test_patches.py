"""Convolutions from patches in shared memory, products of rows that are no whole vectors, and blocks of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.contraction import solvers, tensor_cores
from mgx_numba.codegen.gpu.contraction.gpu_contraction import GpuContraction
from mgx_numba.codegen.gpu.contraction.wgmma_operands import wgmma_refusal
from mgx_numba.codegen.gpu.machine import H200, planning_for
from mgx_numba.codegen.problems.attention import AttentionProblem
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import ElementTypes
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.problems.gemm import GemmProblem, packed_strides
from mgx_numba.codegen.tuning.request import Request
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import reference
from .programs import compiled

F16, BF16, F32, INT8 = Type.half_type, Type.bf16_type, Type.float_type, Type.int8_type
ALLOWED = {F16: 2e-3, BF16: 2e-2, F32: 2e-3}
"""Errors relative to the largest result: those of rounding it, and of TF32."""


@pytest.fixture(autouse=True)
def preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan for an H200, with estimates by which the tested kernels always win."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    seconds, estimate = solvers.patch_seconds, solvers.NarrowCores.estimate
    monkeypatch.setattr(solvers, "patch_seconds", lambda contraction, tile: 1e-6 * seconds(contraction, tile))
    monkeypatch.setattr(solvers.NarrowCores, "estimate", lambda self, *asked: 1e-6 * estimate(self, *asked))


def agrees(program: Program, inputs: dict[str, np.ndarray], allowed: float, on: Engine) -> list[str]:
    """Run and compare, NaN and infinities too; the steps' labels."""
    made = compiled(program, on, fast_math=True, float32_matmul_precision="medium")
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(wanted)
    assert np.array_equal(np.isnan(got), np.isnan(wanted)) and np.array_equal(np.isinf(got), np.isinf(wanted))
    assert np.abs(got[finite] - wanted[finite]).max() <= allowed * np.abs(wanted[finite]).max()
    assert made.executable is not None
    return [step.label for step in made.executable.plan.steps]


def drawn(type: Type, lens: tuple[int, ...], seed: int) -> Any:
    """Draw numbers around 0."""
    return np.random.default_rng(seed).standard_normal(lens).astype(type.numpy)


@pytest.mark.parametrize(
    ("type", "lens", "outputs", "kernel", "attributes"),
    [
        (F16, (1, 9, 11, 16), 16, (3, 3), {"padding": (1, 1), "group": 2}),
        (F16, (2, 9, 11, 24), 20, (3, 3), {"padding": (1, 1), "group": 2}),  # groups of 12, padded to 16
        (F16, (1, 9, 12, 24), 12, (5, 5), {"padding": (2, 0, 1, 3), "stride": (2, 1), "group": 3}),
        (F16, (1, 9, 7, 88), 8, (3, 3), {"padding": (1, 1)}),  # an odd number of vectors of K
        (F16, (1, 5, 6, 320), 9, (1, 3), {"padding": (0, 1)}),  # chunks of channels
        (F16, (2, 6, 5, 25), 12, (1, 1), {}),
        (F16, (1, 9, 11, 3), 16, (3, 3), {"padding": (1, 1), "stride": (2, 2)}),  # part of a vector, in narrow loads
        (F32, (2, 9, 11, 3), 8, (3, 3), {"padding": (1, 1)}),
        (F16, (1, 6, 7, 31), 16, (3, 3), {"padding": (1, 1), "stride": (2, 2)}),  # and vectors before it
        (BF16, (1, 5, 6, 22), 9, (3, 3), {"padding": (2, 2), "dilation": (2, 2)}),
        (F16, (1, 4, 5, 293), 9, (3, 3), {"padding": (1, 1)}),  # and chunks
        (F32, (1, 5, 6, 6), 9, (3, 3), {"padding": (1, 1)}),
        (BF16, (2, 6, 5, 20), 12, (3, 3), {"padding": (2, 2), "dilation": (2, 2), "group": 2}),
        (F32, (1, 6, 5, 8), 72, (3, 3), {"padding": (1, 1)}),
        (F16, (1, 40, 6), 11, (5,), {"padding": (2,), "stride": (2,), "dilation": (1,)}),
    ],
)
def test_patches_of_images(
    type: Type, lens: tuple[int, ...], outputs: int, kernel: tuple[int, ...], attributes: dict[str, Any], on: Engine
) -> None:
    program = Program()
    m, rank = program.main, len(kernel)
    x = m.add_parameter("x", Shape(type, lens))
    x = m.add_instruction("transpose", [x], permutation=(0, rank + 1, *range(1, rank + 1)))
    weights = m.add_literal(drawn(type, (outputs, lens[-1] // attributes.get("group", 1), *kernel), 1))
    y = m.add_instruction("relu", [m.add_instruction("convolution", [x, weights], **attributes)])
    m.add_return([m.add_instruction("transpose", [y], permutation=(0, *range(2, rank + 2), 1))])
    inputs = {"x": drawn(type, lens, 2)}
    inputs["x"].reshape(-1)[[5, 77]] = np.nan, np.inf
    (label,) = agrees(program, inputs, ALLOWED[type], on)
    assert "convolution_patch" in label


@pytest.mark.parametrize(
    ("type", "rows", "depth", "columns", "right"),
    [
        (F16, 9, 37, 21, "rows"), (F16, 40, 70, 24, "columns"), (F16, 33, 131, 7, "columns"),
        (F16, 20, 75, 40, "constant"), (BF16, 33, 64, 13, "rows"), (F32, 20, 33, 9, "columns"),
        (F32, 20, 66, 9, "rows"), (F16, 5, 2, 3, "rows"), (F16, 70, 9, 19, "rows"), (F16, 40, 31, 9, "constant"),
        (BF16, 40, 13, 9, "columns"), (F16, 40, 16, 35, "rows"), (F16, 33, 15, 40, "rows"), (F32, 35, 7, 9, "columns"),
        (F16, 70, 28, 70, "columns"),
    ],
)  # fmt: skip
def test_products_of_rows_that_are_no_whole_vectors(
    type: Type, rows: int, depth: int, columns: int, right: str, on: Engine
) -> None:
    program = Program()
    m, lens = program.main, (depth, columns) if right != "columns" else (columns, depth)
    x, inputs = m.add_parameter("x", Shape(type, (rows, depth))), {"x": drawn(type, (rows, depth), 1)}
    if right == "constant":
        w = m.add_literal(drawn(type, lens, 2))
    else:
        w, inputs["w"] = m.add_parameter("w", Shape(type, lens)), drawn(type, lens, 2)
        w = m.add_instruction("transpose", [w], permutation=(1, 0)) if right == "columns" else w
    m.add_return([m.add_instruction("dot", [x, w])])
    inputs["x"].reshape(-1)[[0, -1]] = np.nan, np.inf
    (label,) = agrees(program, inputs, ALLOWED[type], on)
    assert "tensor_narrow" in label


def test_short_sums_have_short_slices() -> None:
    """1640 x 19 x 9 took 4.2 us, and 2.6 by cuBLASLt: threads loaded 64 terms of each row."""
    half = ElementTypes(*["float16"] * 4)
    for depth, words in ((9, 8), (16, 8), (31, 16), (33, 32), (200, 32)):
        problem = GemmProblem(100, 19, depth, b_strides=(19, 1), types=half)
        contraction = GpuContraction(Request(problem, Epilogue(), (), 1, False))
        assert tensor_cores.NarrowText.form_of(contraction).words == words


def test_groups_of_a_rectangle_are_neighbours() -> None:
    """16 images of 128 x 128 x 512 in 32 groups took 624 us by 3 x 3, and 423 where groups follow one another."""
    half = ElementTypes(*["float16"] * 4)
    problem = ConvProblem(2, 64, 64, (9, 20), (3, 3), pads_begin=(1, 1), pads_end=(1, 1), groups=4, types=half)
    contraction = GpuContraction(Request(problem, Epilogue(), (), 1, False), constant=True)
    (launch,) = solvers.Patches().plan(contraction).launches
    assert launch.geometry.blocks[0] % 4 == 0 and launch.geometry.blocks[1:] == (1, 1)


def test_two_blocks_of_256_threads_have_registers() -> None:
    """Tiles of 128 columns took 145 to 168 registers, so that one block was alone on its multiprocessor."""
    types = ElementTypes(*["float16"] * 4)
    image = ConvProblem(8, 16, 216, (67, 67), (5, 5), pads_begin=(2, 2), pads_end=(2, 2), types=types)
    for solver in (solvers.Patches(), solvers.TensorCores()):
        contraction = GpuContraction(Request(image, Epilogue(), (), 1, False), constant=True)
        (tiling,) = (t for t in solver.tilings(contraction) if (t.rows, t.columns, t.splits) == (128, 128, 1))
        (launch,) = solver.plan(contraction, tiling).launches
        assert "THREADS = 256" in launch.kernel.text and "BLOCKS = 2" in launch.kernel.text


def test_a_single_row_of_odd_length_is_read_by_warpgroups() -> None:
    """Its stride, which nothing walks, was refused: 1 x 201 x 7135 took 12 us instead of 4."""
    types = ElementTypes(*["float16"] * 4)
    for rows, reads in ((1, True), (2, False)):
        problem = GemmProblem(rows, 40, 711, a_strides=(711, 1), b_strides=(1, 712), types=types)
        assert (not wgmma_refusal(GpuContraction(Request(problem, Epilogue(), (), 1, False)))) is reads


def attention(queries: int, keys: int, depth: int, heads: int, causal: bool) -> Callable[[], Any]:
    """Return a function that makes the text of attention in float16."""
    from mgx_numba.codegen.gpu.attention.warpgroups import WarpgroupAttentionText

    own, theirs = (packed_strides((1, heads, n, depth)) for n in (queries, keys))
    problem = AttentionProblem(
        1, heads, heads, queries, keys, depth, depth, own, theirs, theirs, own, "float16", 0.1, causal
    )
    return lambda: WarpgroupAttentionText(problem, True)


def test_causal_blocks_come_longest_first_over_all_heads() -> None:
    with planning_for(H200):
        assert attention(2340, 2340, 128, 14, True)().blocks == (14, 1, 19)
        assert attention(2340, 2340, 128, 14, False)().blocks[0] == 19
        assert attention(16384, 16384, 128, 32, True)().blocks[0] == 128  # keys and values exceed L2


def test_keys_are_split_where_the_last_round_of_blocks_is_half_empty() -> None:
    with planning_for(H200):
        assert attention(2368, 3648, 128, 10, False)().splits == 2  # 190 blocks of 132
        assert attention(2368, 3648, 128, 13, False)().splits == 1  # 247 blocks
