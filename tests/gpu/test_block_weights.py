"""Products with low-bit block weights have the values of ref: few rows on packed weights, more rows on unpacked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.contraction import block_quant, block_quant_mma
from mgx_numba.codegen.gpu.contraction.block_quant import codes_of_vector, pack_codes
from mgx_numba.codegen.gpu.contraction.block_quant_mma import CODE_WORDS, EXPONENTS, chunk_words, pack_chunks
from mgx_numba.codegen.gpu.contraction.gpu_contraction import GpuContraction
from mgx_numba.codegen.gpu.lang.codes import codes_float16
from mgx_numba.codegen.gpu.toolchain.compiler import compile_object
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.lang.target import with_features
from mgx_numba.codegen.lang.values import extract, splat
from mgx_numba.codegen.problems.element_types import ElementTypes
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.problems.gemm import BlockFormat, GemmProblem
from mgx_numba.codegen.tuning.request import Request
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.runtime.plan import Step

from ..cpu.agreement import reference, run
from ..interpreter.lanes import KernelFault
from .operators import hosted
from .programs import compiled, interpreter

F32, F16, BF16 = Type.float_type, Type.half_type, Type.bf16_type
ALLOWED = {F32: 2e-6, F16: 1e-3, BF16: 8e-3}
"""Errors relative to the largest result: those of rounding it."""


def product(
    type: Type,
    lens: tuple[int, ...],
    depth: int,
    columns: int,
    bits: int,
    size: int,
    points: bool,
    special: bool = False,
    stored: str = "float32",
) -> tuple[Program, dict[str, np.ndarray]]:
    """relu(x w + bias), with scales that are numbers of the type ``stored``."""
    program, rng = Program(), np.random.default_rng(depth + columns)
    m, blocks = program.main, -(-depth // size)
    x = m.add_parameter("x", Shape(type, (*lens, depth)))
    literals = [
        rng.integers(0, 256, (columns, blocks, size * bits // 8)).astype(np.uint8),
        rng.uniform(0.001, 0.1, (columns, blocks)).astype(stored).astype(np.float32),
    ]
    if points:
        literals.append(rng.integers(0, 1 << bits, (columns, blocks)).astype(np.uint8))
    y = m.add_instruction("matmul_nbits", [x, *map(m.add_literal, literals)], bits=bits, block_size=size)
    bias = m.add_literal(rng.standard_normal(columns).astype(type.numpy))
    added = m.add_instruction("add", [y, m.add_instruction("multibroadcast", [bias], out_lens=y.shape.lens)])
    m.add_return([m.add_instruction("relu", [added])])
    values = rng.standard_normal((*lens, depth)).astype(type.numpy)
    if special:
        values[0, 3], values[1, 5] = np.nan, np.inf
    return program, {"x": values}


CASES = [
    (F16, (1,), 1280, 19, 4, 32, True),
    (F16, (8,), 2304, 33, 4, 32, False),
    (BF16, (3,), 256, 16, 4, 64, True),
    (BF16, (2, 2), 384, 40, 4, 128, False),
    (F16, (5,), 512, 7, 4, 256, True),
    (F16, (9,), 256, 24, 4, 64, True),
    (F16, (1,), 1088, 9, 4, 32, True),
    (BF16, (9,), 384, 18, 4, 32, True),
    (F16, (9,), 512, 7, 4, 256, True),
    (F16, (32,), 640, 35, 4, 32, False),
    (BF16, (17,), 256, 16, 4, 32, True),
    (F16, (33,), 256, 24, 4, 64, True),
    (BF16, (40,), 384, 18, 4, 32, True),
    (F32, (1,), 64, 5, 4, 64, False),
    (BF16, (3,), 160, 7, 4, 32, True),
    (F16, (2, 2), 96, 6, 4, 32, False),
    (F32, (4,), 112, 3, 8, 16, True),
    (F16, (1,), 256, 4, 8, 128, False),
    (F16, (1,), 40, 5, 4, 16, True),
    (F32, (1,), 37, 5, 8, 32, True),
    (F16, (9,), 72, 24, 4, 32, True),
    (BF16, (2, 7), 48, 16, 8, 16, False),
]


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")


@pytest.mark.parametrize(("type", "lens", "depth", "columns", "bits", "size", "points"), CASES)
def test_products(
    type: Type, lens: tuple[int, ...], depth: int, columns: int, bits: int, size: int, points: bool, on: Engine
) -> None:
    program, inputs = product(type, lens, depth, columns, bits, size, points)
    made = compiled(program, on, fast_math=True)
    assert made.executable is not None and not hosted(made), made.fallback_reasons()
    cores = type is not F32 and bits == 4 and size >= 32 and depth % max(128, size) == 0
    whole = depth % codes_of_vector(BlockFormat(bits, size, points)) == 0 and (bits, size) != (4, 16)
    few = lens[-1] <= 32 if cores else lens[-1] <= 4 and whole
    labels = [step.label for step in made.executable.plan.steps]
    assert any(f"gemm_{bits}bits" in label for label in labels) == few, labels
    assert any(f"unpack_{bits}bits" in label for label in labels) == (not few)
    assert any("cores" in label for label in labels) == (cores and few)
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    error = np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max() / np.abs(wanted.astype(np.float64)).max()
    assert error <= ALLOWED[type], error


@pytest.mark.parametrize("case", [0, 4, 5])
def test_scales_that_float16_holds_are_stored_so(case: int, on: Engine) -> None:
    (type, lens, depth, columns, bits, size, points), sizes = CASES[case], []
    for stored in ("float32", "float16"):
        program, inputs = product(type, lens, depth, columns, bits, size, points, stored=stored)
        made = compiled(program, on, fast_math=True)
        (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
        wide, exact = got.astype(np.float64), wanted.astype(np.float64)
        assert np.abs(wide - exact).max() <= ALLOWED[type] * np.abs(exact).max()
        sizes.append(sum(array.nbytes for array in made.executable.plan.constants if array.dtype == np.int32))
    assert sizes[0] - sizes[1] == 2 * (-(-columns // 16) * 16) * -(-depth // min(size, 128))


@pytest.mark.parametrize("type", [F16, F32])
@pytest.mark.parametrize(("lens", "depth", "columns"), [((3,), 32, 0), ((2, 3), 0, 16), ((0,), 40, 5), ((0,), 0, 0)])
def test_products_of_nothing_failed(type: Type, lens: tuple[int, ...], depth: int, columns: int, on: Engine) -> None:
    """Where columns or blocks are none; sums of none are zero, on every target."""
    program, inputs = product(type, lens, depth, columns, 4, 32, True)
    (wanted,) = reference(program, inputs).results
    assert wanted.shape == (*lens, columns)
    ((on_cpu,),) = run(program, [inputs])
    for got in (compiled(program, on).run(inputs)[0], on_cpu):
        np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.parametrize(("rows", "points"), [(1, False), (8, True), (20, False)])
def test_blocks_take_tile_after_tile(rows: int, points: bool, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer multiprocessors than tiles, and a last tile that is no whole one."""
    monkeypatch.setattr(block_quant_mma, "multiprocessors", lambda: 1)
    program, inputs = product(F16, (rows,), 1152, 16 * 7 + 5, 4, 32, points)
    made = compiled(program, on, fast_math=True)
    assert made.executable is not None
    (step,) = (s for s in made.executable.plan.steps if isinstance(s, Step))
    assert step.geometry.blocks == (1, 1, 1)
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    error = np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max() / np.abs(wanted.astype(np.float64)).max()
    assert error <= ALLOWED[F16], error


@pytest.mark.parametrize(
    ("line", "depth", "said"),
    [
        ("copy_wait(0)", 16384, "which nobody has written"),
        ("copy_wait(1)", 2304, "which nobody has written"),
        ("warp_barrier()", 2304, "without a barrier between|which nobody has written"),
        ("barrier()", 2304, "without a barrier between|which nobody has written"),
    ],
)
def test_chunks_are_waited_for(line: str, depth: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter reports a missing wait."""
    written = block_quant.gpu_kernel

    def wrong(name: str, lines: list[str], *rest: Any, **options: Any) -> KernelSource:
        assert any(text.strip() == line for text in lines)
        left = [text.replace(line, "pass") if text.strip() == line else text for text in lines]
        return written(name, left, *rest, **options)

    monkeypatch.setattr(block_quant, "gpu_kernel", wrong)
    program, inputs = product(F16, (2,), depth, 33, 4, 64, True)
    with pytest.raises(KernelFault, match=said):
        compiled(program, interpreter()).run(inputs)


@pytest.mark.parametrize(
    ("rows", "depth", "kept"),
    [(1, 14336, True), (8, 4096, True), (8, 14336, False), (16, 4096, True), (32, 4096, False)],
)
def test_rows_are_kept_where_shared_memory_has_room(rows: int, depth: int, kept: bool) -> None:
    types = ElementTypes(*["float16"] * 4)
    problem = GemmProblem(rows, 640, depth, types=types, blocks=BlockFormat(4, 32, True))
    (launch,) = block_quant_mma.block_quant_mma_solution(
        GpuContraction(Request(problem, Epilogue(), (), 1, True))
    ).launches
    assert launch.geometry.shared_bytes <= 227 << 10
    assert ("row0_0" in launch.kernel.text) == kept


def test_a_tile_whose_sums_do_not_fit_is_refused() -> None:
    types = ElementTypes(*["float16"] * 4)
    problem = GemmProblem(8, 640, 1 << 17, types=types, blocks=BlockFormat(4, 32, True))
    contraction = GpuContraction(Request(problem, Epilogue(), (), 1, True))
    assert "do not fit" in block_quant_mma.block_quant_mma_refusal(contraction)


@pytest.mark.parametrize("depth", [96, 128])
def test_infinities_and_nan_stay_in_their_rows(depth: int, on: Engine) -> None:
    program, inputs = product(F16, (3,), depth, 6, 4, 32, True, special=True)
    (got,) = compiled(program, on).run(inputs)
    assert np.isnan(got[0]).all() and not np.isfinite(got[1]).all() and np.isfinite(got[2]).all()


@pytest.mark.parametrize(("bits", "size"), [(4, 32), (4, 16), (8, 16), (8, 64)])
def test_codes_keep_their_number_of_bytes(bits: int, size: int) -> None:
    form = BlockFormat(bits, size, False)
    codes = np.random.default_rng(bits).integers(0, 256, (3, 5, size * bits // 8)).astype(np.uint8)
    packed = pack_codes(form, codes)
    assert packed.nbytes == codes.nbytes
    count = codes_of_vector(form)
    lanes = count * bits // 32
    words = packed.view(np.uint32).reshape(3, -1, 1, lanes)
    steps = np.arange(count // lanes, dtype=np.uint32)[:, None] * np.uint32(bits)
    found = (words >> steps & np.uint32((1 << bits) - 1)).reshape(3, -1)
    flat = codes.reshape(3, -1)
    wanted = flat if bits == 8 else np.stack([flat & 15, flat >> 4], -1).reshape(3, -1)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("size", "points"), [(32, True), (64, False), (64, True), (128, True), (256, False)])
def test_chunks_keep_all_codes_scales_and_points(size: int, points: bool) -> None:
    form, rng = BlockFormat(4, size, points), np.random.default_rng(size)
    blocks, inside = 256 // size, max(1, 128 // size)
    codes = rng.integers(0, 256, (18, blocks, size // 2)).astype(np.uint8)
    scales = rng.standard_normal((18, blocks)).astype(np.float32)
    zeros = rng.integers(0, 16, (18, blocks)).astype(np.uint8) if points else None
    packed = pack_chunks(form, codes, scales, zeros)
    assert packed.shape == (2, 2, chunk_words(form)) and chunk_words(form) % 4 == 0

    def columns(first: int, last: int, dtype: type) -> np.ndarray:
        found = np.ascontiguousarray(packed[:, :, first:last]).view(dtype)  # tile, chunk, of 16 columns
        flat = found.reshape(2, 2, 16, -1).swapaxes(1, 2).reshape(32, -1)
        assert not flat[18:].any()
        return flat[:18]

    words = columns(0, CODE_WORDS, np.uint32).reshape(18, 2, 4, 4)
    flat = np.stack([codes.reshape(18, -1) & 15, codes.reshape(18, -1) >> 4], -1).reshape(18, 2, 128)
    for thread, part, k in np.ndindex(4, 4, 8):
        found = words[:, :, thread, part] >> (4 * (k // 2) + 16 * (k % 2)) & 15
        np.testing.assert_array_equal(found, flat[:, :, 32 * part + 8 * thread + k])
    behind = CODE_WORDS + 16 * inside
    repeats = max(1, size // 128)
    np.testing.assert_array_equal(columns(CODE_WORDS, behind, np.float32), scales.repeat(repeats, 1))
    if zeros is not None:
        np.testing.assert_array_equal(columns(behind, chunk_words(form), np.uint8), zeros.repeat(repeats, 1))


def test_products_of_the_same_codes_keep_their_scales(on: Engine) -> None:
    """Codes are packed with their scales, so products with equal codes and different scales share no packed weights."""
    program, rng = Program(), np.random.default_rng(3)
    m = program.main
    x = m.add_parameter("x", Shape(F16, (1, 128)))
    codes = m.add_literal(rng.integers(0, 256, (16, 4, 16)).astype(np.uint8))
    scales = rng.uniform(0.001, 0.1, (2, 16, 4)).astype(np.float32)
    made = [m.add_instruction("matmul_nbits", [x, codes, m.add_literal(own)], bits=4, block_size=32) for own in scales]
    m.add_return(made)
    inputs = {"x": rng.standard_normal((1, 128)).astype(np.float16)}
    for got, wanted in zip(compiled(program, on).run(inputs), reference(program, inputs).results):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=ALLOWED[F16] * np.abs(wanted).max())


def test_what_the_language_makes_of_codes_is_exact() -> None:
    """The LLVM IR, which is the same on every device, run by this machine's CPU."""

    @njit
    def each(words: Any, point: Any, exponents: Any, out: Any) -> None:
        for k in range(words.size):
            u, v = splat(words[k], 4), splat(words[-1 - k], 4)
            for pair in (0, 1):
                points = splat(point[k], 2)
                if pair == 0:
                    found = codes_float16(u, v, 2, 0, points, exponents)
                else:
                    found = codes_float16(u, v, 2, 1, points, exponents)
                for j in range(4):
                    out[k, pair, j] = extract(found, j)

    rng = np.random.default_rng(0)
    words = rng.integers(-(1 << 31), 1 << 31, 64).astype(np.int32)
    points = rng.integers(0, 16, words.size).astype(np.int32)
    out = np.empty((words.size, 2, 4), np.int32)
    with with_features(frozenset(("f16c", "fma"))):
        each(words, points, EXPONENTS["float16"], out)
    got = out.view(np.float16).reshape(words.size, 2, 2, 2, 2)  # pair, step, side, upper half
    codes = words.view(np.uint32)[:, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    sides = np.stack([codes, codes[::-1]], 1).reshape(words.size, 2, 2, 2, 2)  # side, upper half, pair, step
    np.testing.assert_array_equal(
        got, sides.transpose(0, 3, 4, 1, 2).astype(np.float16) - points[:, None, None, None, None]
    )


@pytest.mark.parametrize("name", ["sm_75", "sm_80", "sm_90a", "gfx90a", "gfx1201"])
@pytest.mark.parametrize("rows", [1, 9, 32, 33])
@pytest.mark.parametrize("type", [F16, BF16])
def test_kernels_compile(type: Type, rows: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    program, _ = product(type, (rows,), 128, 8, 4, 32, True)
    for kernel in compiled(program, interpreter()).kernels():
        assert kernel.symbol.encode() in compile_object(kernel, ARCHITECTURES[name])
