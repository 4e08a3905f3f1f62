"""Each solver adapts any blocking of a record and computes the same result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.contraction.blocking import Blocking, fit
from mgx_numba.codegen.cpu.contraction.solver import NO_EPILOGUE
from mgx_numba.codegen.cpu.contraction.solvers import CONV_SOLVERS, GEMM_SOLVERS
from mgx_numba.codegen.cpu.contraction.tuning_candidates import SOLVERS
from mgx_numba.codegen.cpu.microkernels.int8_table import has_dot4
from mgx_numba.codegen.cpu.microkernels.tile_table import TILES, tile_for
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.request import Candidate, Request
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type, from_numpy
from mgx_numba.graph.program import Program
from mgx_numba.targets.cpu.measuring import Bench
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.registry import compile_for

BLOCKINGS = [
    Blocking(1, 1, 1, 1),
    Blocking(1 << 39, 1 << 39, 1 << 39, 1 << 39),
    Blocking(13, 2, 2, 1 << 20),
    Blocking(24, 3, 5, 8),
    Blocking(1 << 20, 1, 1, 16),
    Blocking(7, 1 << 20, 64, 1 << 20),
    Blocking(12, 2, 1, 1 << 20, 3),
    Blocking(1, 1, 1, 16, 1 << 39),
]


TILE = tile_for(element_types("float32"))


class Fixed:
    """Chooses one solver with one blocking wherever the solver applies."""

    exhaustive = False

    def __init__(self, solver: Any, blocking: Blocking | None) -> None:
        self.solver, self.blocking = solver, blocking
        self.chosen = 0

    def choose(self, request: Request) -> Candidate:
        assert self.solver.refusal(request.problem) is None
        self.chosen += 1
        return Candidate(self.solver, self.blocking)

    def note_instruction(self, request: Request, instruction: str, taken: Candidate) -> None:
        assert taken.solver is self.solver

    def tell(self) -> None:
        pass


class Proposed(Fixed):
    """Notes which blockings tuning would try besides the solver's own, which it chooses."""

    def __init__(self, solver: Any) -> None:
        super().__init__(solver, None)
        self.proposals: list[Blocking] = []

    def choose(self, request: Request) -> Candidate:
        own = super().choose(request)
        self.proposals = [c.blocking for c in SOLVERS.refinements(request, own)]
        return own


def product(
    constant: bool, batch: tuple[int, ...] = (2,), rows: int = 29, depth: int = 53, columns: int = 70
) -> tuple[Program, dict[str, np.ndarray]]:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((*batch, *lens)).astype(np.float32) for lens in ((rows, depth), (depth, columns)))
    program = Program()
    x = program.main.add_parameter("a", Shape(Type.float_type, a.shape))
    if constant:
        y = program.main.add_literal(b)
    else:
        y = program.main.add_parameter("b", Shape(Type.float_type, b.shape))
    program.main.add_return([program.main.add_instruction("dot", [x, y])])
    return program, {"a": a} if constant else {"a": a, "b": b}


def product_by_rows() -> tuple[Program, dict[str, np.ndarray]]:
    rng = np.random.default_rng(7)
    feeds = {name: rng.standard_normal(lens).astype(np.float32) for name, lens in (("a", (9, 53)), ("b", (70, 53)))}
    program = Program()
    a, b = (program.main.add_parameter(name, Shape(Type.float_type, v.shape)) for name, v in feeds.items())
    turned = program.main.add_instruction("transpose", [b], permutation=(1, 0))
    program.main.add_return([program.main.add_instruction("dot", [a, turned])])
    return program, feeds


def product_of_blocks(rows: int, **options: Any) -> tuple[Program, dict[str, np.ndarray]]:
    rng = np.random.default_rng(6)
    a = rng.standard_normal((rows, 300)).astype(np.float32)
    codes = rng.integers(0, 256, (70, 10, 16)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, (70, 10)).astype(np.float32)
    program = Program()
    x = program.main.add_parameter("a", Shape(Type.float_type, a.shape))
    inputs = [x, program.main.add_literal(codes), program.main.add_literal(scales)]
    program.main.add_return([program.main.add_instruction("matmul_nbits", inputs, **options)])
    return program, {"a": a}


def quantized_product(divisor: int = 1) -> tuple[Program, dict[str, np.ndarray]]:
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-128, 128, lens).astype(np.int8) for lens in ((2, 29, 531), (2, 531, 70)))
    b //= divisor
    program = Program()
    x = program.main.add_parameter("a", Shape(Type.int8_type, a.shape))
    program.main.add_return([program.main.add_instruction("quant_dot", [x, program.main.add_literal(b)])])
    return program, {"a": a}


def quantized_activations() -> tuple[Program, dict[str, np.ndarray]]:
    rng = np.random.default_rng(4)
    a = rng.integers(0, 256, (2, 29, 531)).astype(np.uint8)
    b = rng.integers(-128, 128, (2, 531, 70)).astype(np.int8)
    program = Program()
    inputs = [program.main.add_parameter(name, Shape(from_numpy(v.dtype), v.shape)) for name, v in zip("ab", (a, b))]
    program.main.add_return([program.main.add_instruction("quant_dot", inputs)])
    return program, {"a": a, "b": b}


def quantized_depthwise() -> tuple[Program, dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    x = rng.integers(0, 256, (2, 24, 11, 13)).astype(np.uint8)
    program = Program()
    data = program.main.add_parameter("x", Shape(Type.uint8_type, x.shape))
    weights = program.main.add_literal(rng.integers(-128, 128, (24, 1, 3, 3)).astype(np.int8))
    program.main.add_return(
        [program.main.add_instruction("quant_convolution", [data, weights], padding=(1, 1), group=24)]
    )
    return program, {"x": x}


def quantized_convolution(
    channels: int = 24, out: int = 40, taps: int = 3, divisor: int = 1
) -> tuple[Program, dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    x = rng.integers(0, 256, (2, channels, 11, 13)).astype(np.uint8)
    program = Program()
    data = program.main.add_parameter("x", Shape(Type.uint8_type, x.shape))
    weights = program.main.add_literal(rng.integers(-128, 128, (out, channels, taps, taps)).astype(np.int8) // divisor)
    result = program.main.add_instruction("quant_convolution", [data, weights], padding=(taps // 2,) * 2)
    program.main.add_return([result])
    return program, {"x": x}


def convolution(kind: str) -> tuple[Program, dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    transposed = kind.startswith("transposed")
    channels = {"few": 3, "32 channels": 32}.get(kind, 24)
    name = "convolution_backwards" if transposed else "convolution"
    kernel = {"1x1": 1, "5x5": 5, "5x5 by 2": 5, "7x7 by 2": 7, "transposed 2x2 by 2": 2}.get(kind, 3)
    stride = (2, 2) if kind.endswith("by 2") else (1, 1)
    groups = {"grouped": 2, "depthwise": channels}.get(kind, 1)
    x = rng.standard_normal((2, channels, 11, 13)).astype(np.float32)
    out = channels if kind == "depthwise" else 40
    lens = (channels, out) if transposed else (out, channels // groups)
    w = rng.standard_normal((*lens, kernel, kernel)).astype(np.float32)
    program = Program()
    data = program.main.add_parameter("x", Shape(Type.float_type, x.shape))
    weights = program.main.add_literal(w)
    pad = ((kernel - 1) // 2,) * 2
    result = program.main.add_instruction(name, [data, weights], padding=pad, stride=stride, group=groups)
    program.main.add_return([result])
    return program, {"x": x}


CASES = {
    "gemm": lambda: product(True),
    "gemv": lambda: product(True, (), 3),
    "gemv_int16": lambda: product(True, (), 3),
    "gemv_rows": product_by_rows,
    "gemv_columns": lambda: product(False, (), 1),
    "gemm_strassen_1": lambda: product(True, (), 101, 512, 330),
    "gemm_strassen_2": lambda: product(True, (), 101, 512, 330),
    "gemm_in_place": lambda: product(False),
    "gemm_int8": quantized_product,
    "gemm_int8_residual": lambda: quantized_product(2),
    "gemm_packing_int8": quantized_activations,
    "gemm_nbits": lambda: product_of_blocks(29),
    "gemm_nbits_bytes": lambda: product_of_blocks(29, accuracy_level=4),
    "gemv_nbits": lambda: product_of_blocks(3),
    "gemm_packing": lambda: product(False),
    "gemm_tiles": lambda: product(True, (2,), 70, 530, 70),
    "conv_1x1": lambda: convolution("1x1"),
    "conv_1x1_tiles": lambda: convolution("1x1"),
    "conv_tiles": lambda: convolution("grouped"),
    "conv_direct": lambda: convolution("grouped"),
    "conv_depthwise": lambda: convolution("depthwise"),
    "conv_depthwise_any": quantized_depthwise,
    "conv_int8": quantized_convolution,
    "conv_int8_residual": lambda: quantized_convolution(divisor=2),
    "conv_transposed": lambda: convolution("transposed"),
    "conv_transposed_tiles": lambda: convolution("transposed 2x2 by 2"),
    "conv_winograd_2x2_int8": quantized_convolution,
    "conv_winograd_2x2": lambda: convolution("plain"),
    "conv_winograd_4x4": lambda: convolution("grouped"),
    "conv_winograd_2x2_5x5": lambda: convolution("5x5"),
}
BYTES = GemmProblem(1, 1, 1, types=element_types("uint8 int8 int32 int32"))
CASES |= {f"{name}_stored": case for name, case in CASES.items() if "winograd" in name}
CASES["conv_winograd_2x2_tiles"] = lambda: convolution("32 channels")
CASES["conv_winograd_4x4_strided"] = lambda: convolution("5x5 by 2")
CASES["conv_winograd_3x3_4x4_strided"] = lambda: convolution("7x7 by 2")


@pytest.mark.parametrize("solver", [*GEMM_SOLVERS, *CONV_SOLVERS], ids=lambda s: s.name)
def test_any_blocking_is_safe_and_exact(solver: Any, monkeypatch: pytest.MonkeyPatch):
    if solver.name.endswith("_bfloat16"):
        pytest.skip("no program here has weights in bfloat16: codegen/test_contraction_bfloat16.py")
    if solver.name.endswith("_tiles"):
        if host.host().vector_bits < 512:
            pytest.skip("no tile of whole matrices")
        monkeypatch.setenv("MGX_CPU_FEATURES", host.EMULATED_TILES)
    if solver.name.endswith("_residual") and solver.refused_types(BYTES):
        pytest.skip("no use of residuals")
    if solver.name.startswith("conv_winograd_2x2_int8"):
        monkeypatch.setenv("MGX_CPU_FEATURES", "-avx512vnni,-avxvnni")
    if solver.name == "gemm_nbits_bytes" and not has_dot4(host.host(), host.host().vector_bits):
        pytest.skip("no products of four bytes")
    if solver.name.startswith("gemm_strassen") and max(TILE.variants()) > TILE.lanes:
        pytest.skip("no tile of Strassen's product")
    program, feeds = CASES[solver.name]()
    (wanted,) = compile_for("cpu", program, TargetOptions(num_threads=2, tuning=Fixed(solver, None))).run(feeds)  # type: ignore[arg-type]
    for blocking in BLOCKINGS:
        fixed = Fixed(solver, blocking)
        (got,) = compile_for("cpu", program, TargetOptions(num_threads=2, tuning=fixed)).run(feeds)  # type: ignore[arg-type]
        assert fixed.chosen == 1
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max(), err_msg=str(blocking))


@pytest.mark.skipif(host.host().vector_bits < 512, reason="no tile of whole matrices")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", sorted(name for name in CASES if name.endswith("_tiles")))
def test_what_is_proposed_for_tiles_of_whole_matrices_is_exact(
    name: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", host.EMULATED_TILES)
    (solver,) = (s for s in (*GEMM_SOLVERS, *CONV_SOLVERS) if s.name == name)
    program, feeds = CASES[name]()
    first = Proposed(solver)
    (wanted,) = compile_for("cpu", program, TargetOptions(num_threads=threads, tuning=first)).run(feeds)  # type: ignore[arg-type]
    assert 0 < len(first.proposals) <= 10
    for blocking in first.proposals:
        fixed = Fixed(solver, blocking)
        (got,) = compile_for("cpu", program, TargetOptions(num_threads=threads, tuning=fixed)).run(feeds)  # type: ignore[arg-type]
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max(), err_msg=str(blocking))


@pytest.mark.skipif(host.host().vector_bits < 512, reason="no tile of whole matrices")
def test_tiles_of_whole_matrices_are_tried_with_shorter_steps_and_with_threads_by_columns_and_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", host.EMULATED_TILES)
    narrow = element_types("bfloat16 bfloat16 float32 float32")
    problem = ConvProblem(1, 512, 512, (7, 7), (3, 3), pads_begin=(1, 1), pads_end=(1, 1), types=narrow)
    request = Request(problem, NO_EPILOGUE, (), 2, True)
    (winner,) = (c for c in SOLVERS.candidates(request) if c.solver.name == "conv_tiles")
    tried = [c.blocking for c in SOLVERS.refinements(request, winner)]
    assert {1, 2} <= {b.parts for b in tried} and {256, 512} <= {b.taps * b.depth for b in tried}


@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t.name}_{t.types.a}")
def test_fitted_blocking_is_stable_and_within_the_problem(tile: Any):
    for m, n, depth, taps in ((1, 1, 1, 1), (7, 33, 5, 9), (3000, 4000, 2000, 1), (50, 100_000, 300, 49)):
        for blocking in BLOCKINGS:
            fitted = fit(blocking, tile, m, n, depth, taps)
            assert fit(fitted, tile, m, n, depth, taps) == fitted
            assert fitted.rows % tile.rows == 0 and 1 <= fitted.depth <= depth and 1 <= fitted.taps <= taps
            assert fitted.taps == 1 or fitted.depth == depth


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(128, 768, 3072),
        GemmProblem(1024, 768, 768, fast_math=True),
        GemmProblem(64, 64, 64, (12,), b_constant=False),
        ConvProblem(1, 64, 64, (56, 56), (3, 3), pads_begin=(1, 1), pads_end=(1, 1), fast_math=True),
        ConvProblem(1, 96, 96, (14, 14), (3, 3), groups=96),
        ConvProblem(1, 16, 16, (9, 9), (3, 3), transposed=True),
    ],
)
def test_candidates_are_few_and_distinct(problem: Any):
    request = Request(problem, NO_EPILOGUE, (), 2, True)
    solvers = SOLVERS.candidates(request)
    assert solvers and all(c.blocking is None for c in solvers)
    for winner in solvers:
        near = SOLVERS.refinements(request, winner)
        assert len(set(near)) == len(near) <= winner.solver.most_blockings and winner not in near
        for candidate in near:
            candidate.solver.plan(problem, threads=2, blocking=candidate.blocking)


@pytest.mark.parametrize("left", ["uint8", "int8"])
def test_a_product_of_several_element_types_is_measured(left: str):
    problem = GemmProblem(20, 70, 530, types=element_types(f"{left} int8 int32 int32"))
    request = Request(problem, NO_EPILOGUE, (), 1, False)
    found = SOLVERS.candidates(request)
    assert {c.solver.name for c in found} - {"gemm_tiles", "gemm_int8_residual"} == {"gemm_int8"}
    bench = Bench(request)
    assert all(
        bench.sample(candidate) > 0 for own in found for candidate in (own, *SOLVERS.refinements(request, own)[:2])
    )
