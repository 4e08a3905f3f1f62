"""Float32 as three products of parts by warpgroups: within 1e-5 of exact results, also for numbers beyond the parts."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.contraction import right_columns, solvers, wgmma, wgmma_bf16_split
from mgx_numba.codegen.gpu.contraction.right_columns import halves_in_pieces, in_halves, place_in_slice
from mgx_numba.codegen.gpu.contraction.wgmma_tiles import TILES, TileQuestion, WarpgroupTile, weighed_tiles
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import reference
from .programs import compiled, interpreter, labels

F32 = Type.float_type
HALVING = "gpu::halves_in_slices_kernel"
LARGEST = np.finfo(np.float32).max


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use warpgroups for all problems that they support, even for small problems where others may be faster."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    monkeypatch.setattr(solvers, "SOLVERS", (solvers.WarpgroupBf16Split(), solvers.Tiles()))


TILINGS = [(WarpgroupTile(64, 64, 2, 1), 0), (WarpgroupTile(128, 128, 2, 1), 1), (WarpgroupTile(64, 128, 2, 1, 2), 2)]


def force(tiling: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a tile whose ring is shorter than sums, and in some cases so few blocks that each takes several tiles."""
    tile, cores = TILINGS[tiling]
    monkeypatch.setattr(solvers, "SOLVERS", (solvers.WarpgroupBf16Split(),))
    monkeypatch.setattr(wgmma, "chosen_tile", lambda *_: (tile, 1))
    if cores:
        monkeypatch.setattr(wgmma, "multiprocessors", lambda: cores)


def product(
    batch: tuple[int, ...], rows: int, columns: int, depth: int, right: str,
    spoil: Callable[[np.ndarray, np.ndarray], None] = lambda a, b: None,
) -> tuple[Program, dict[str, np.ndarray], np.ndarray]:  # fmt: skip
    """a b + residual, with b; ``right``: ``constant``, or which of its axes is contiguous, ``columns`` or ``depth``."""
    program, rng = Program(), np.random.default_rng(rows)
    m: Module = program.main
    inputs = {n: rng.standard_normal((*batch, rows, k)).astype(np.float32) for n, k in (("a", depth), ("r", columns))}
    values = rng.standard_normal((*batch, depth, columns)).astype(np.float32)
    spoil(inputs["a"], values)
    a = m.add_parameter("a", Shape(F32, inputs["a"].shape))
    if right == "constant":
        b = m.add_literal(values)
    elif right == "columns":
        inputs["b"] = values
        b = m.add_parameter("b", Shape(F32, values.shape))
    else:
        inputs["b"] = np.ascontiguousarray(values.swapaxes(-1, -2))
        b = m.add_parameter("b", Shape(F32, inputs["b"].shape))
        rank = len(batch)
        b = m.add_instruction("transpose", [b], permutation=(*range(rank), rank + 1, rank))
    sums = m.add_instruction("dot", [a, b])
    m.add_return([m.add_instruction("add", [sums, m.add_parameter("r", Shape(F32, inputs["r"].shape))])])
    return program, inputs, values


def agree(got: np.ndarray, wanted: np.ndarray) -> None:
    error = np.abs(got - wanted).max() / np.abs(wanted).max()
    assert error <= 1e-5, error


@pytest.mark.parametrize(
    ("batch", "rows", "columns", "depth", "right", "tiling"),
    [  # each tile with each kind of right-hand side
        ((), 70, 72, 128, "constant", 0),
        ((), 70, 72, 128, "constant", 1),
        ((), 70, 64, 136, "constant", 2),
        ((), 130, 136, 100, "columns", 1),
        ((), 130, 136, 100, "columns", 2),
        *(((), 5, 24, 8, "depth", tiling) for tiling in range(len(TILINGS))),
        ((2, 2), 33, 40, 72, "columns", 0),
        ((2, 2), 33, 40, 72, "columns", 1),
        ((3,), 9, 40, 64, "constant", 2),
    ],
)
def test_products(
    batch: tuple[int, ...], rows: int, columns: int, depth: int, right: str, tiling: int, on: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    force(tiling, monkeypatch)
    program, inputs, values = product(batch, rows, columns, depth, right)
    made = compiled(program, on, fast_math=True)
    assert labels(made) == [HALVING] * (right != "constant") + ["gpu::gemm_warpgroup_parts_float32_add_kernel"]
    (got,) = made.run(inputs)
    agree(got, inputs["a"].astype(np.float64) @ values + inputs["r"])


@pytest.mark.parametrize("splits", [1, 2])
def test_long_sums_are_added_in_turns(splits: int, monkeypatch: pytest.MonkeyPatch, on: Engine) -> None:
    monkeypatch.setattr(wgmma_bf16_split, "PART_SLICES", 3)
    monkeypatch.setattr(wgmma, "chosen_tile", lambda *_: (WarpgroupTile(64, 64, 2, 1), splits))
    program, inputs, values = product((), 20, 40, 456, "constant")
    made = compiled(program, on, fast_math=True)
    assert any("add_sums" in kernel.text for kernel in made.kernels())
    (got,) = made.run(inputs)
    agree(got, inputs["a"].astype(np.float64) @ values + inputs["r"])


IMAGES = {
    (2, (7, 5), 64, 40, 3, 1, 1, 1): (1, 2),
    (1, (9, 8), 40, 72, 3, 2, 1, 1): (0, 2),
    (1, (6, 6), 64, 64, 1, 1, 0, 2): (0, 1),
}
"""Arguments of `convolution`, and the tiles that compute it."""


@pytest.mark.parametrize(("lens", "tiling"), [(lens, tiling) for lens, own in IMAGES.items() for tiling in own])
def test_convolutions(lens: tuple[Any, ...], tiling: int, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    force(tiling, monkeypatch)
    program, inputs = convolution(*lens)
    made = compiled(program, on, fast_math=True)
    assert "gpu::convolution_warpgroup_parts_float32_relu_kernel" in labels(made)
    assert HALVING not in labels(made)
    (got,), (wanted,) = made.run(inputs), reference(program, inputs).results
    agree(got, wanted)


def convolution(
    batch: int, lens: tuple[int, ...], channels: int, out: int, kernel: int, stride: int, pad: int, group: int
) -> tuple[Program, dict[str, np.ndarray]]:
    program, rng, axes = Program(), np.random.default_rng(channels), len(lens)
    m: Module = program.main
    x = m.add_parameter("x", Shape(F32, (batch, *lens, channels)))
    x = m.add_instruction("transpose", [x], permutation=(0, axes + 1, *range(1, axes + 1)))
    weights = rng.standard_normal((out, channels // group, *[kernel] * axes)).astype(np.float32)
    attributes = {"padding": (pad,) * axes, "stride": (stride,) * axes, "group": group}
    y = m.add_instruction("convolution", [x, m.add_literal(weights)], **attributes)
    m.add_return([m.add_instruction("relu", [y])])
    return program, {"x": rng.standard_normal((batch, *lens, channels)).astype(np.float32)}


@pytest.mark.parametrize(
    ("right", "columns", "depth", "splits"),
    [("constant", 64, 32, 1), ("constant", 40, 32, 1), ("columns", 24, 40, 1), ("constant", 32, 128, 2)],
)
def test_what_halves_do_not_have_is_what_float32_gives(
    right: str, columns: int, depth: int, splits: int, monkeypatch: pytest.MonkeyPatch, on: Engine
) -> None:
    """Infinities, NaN, and numbers beyond the largest bfloat16, on either side; elsewhere nothing changes."""
    monkeypatch.setattr(wgmma, "chosen_tile", lambda *_: (WarpgroupTile(64, 64, 2, 1), splits))

    def spoil(a: np.ndarray, b: np.ndarray) -> None:
        a[12], a[13], a[:, 9], b[7] = 0, 0, 0.125, 0.5
        a[3, 5], a[4, 0], a[12, 7], a[19, 1] = np.inf, np.nan, LARGEST, -np.inf
        b[5, 3], b[7, :9] = 0, (0, 1, -1, 2**-20, 2, -4, 8, -0.5, -0.0)
        b[2, 11], b[9, 12], b[1, 13] = np.inf, LARGEST, np.nan

    program, inputs, values = product((), 20, columns, depth, right, spoil)
    a = inputs["a"]
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) @ values + inputs["r"]
        wanted = exact.astype(np.float32)
    (got,) = compiled(program, on, fast_math=True).run(inputs)
    for found in (np.isnan, np.isposinf, np.isneginf):
        assert np.array_equal(found(got), found(wanted))
    finite = np.isfinite(wanted)
    with np.errstate(all="ignore"):
        scale = np.nan_to_num(np.abs(a.astype(np.float64)) @ np.abs(values) + np.abs(inputs["r"]), nan=np.inf)
    assert (np.abs(got[finite] - exact[finite]) <= 2e-5 * scale[finite]).all()


def test_a_convolution_at_the_edge_of_infinity(on: Engine) -> None:
    program, inputs = convolution(1, (6, 5), 32, 64, 3, 1, 1, 1)
    inputs["x"][0, 5, 4, 3] = np.inf
    (got,), (wanted,) = compiled(program, on, fast_math=True).run(inputs), reference(program, inputs).results
    for found in (np.isnan, np.isposinf):
        assert np.array_equal(found(got), found(wanted))
    finite = np.isfinite(wanted)
    agree(got[finite], wanted[finite])


@pytest.mark.parametrize("right", ["columns", "depth"])
def test_halves_of_constants_are_those_that_a_launch_makes(right: str, on: Engine) -> None:
    """Numbers of columns that are no multiple of a block; results are bit-identical."""

    def spoil(a: np.ndarray, b: np.ndarray) -> None:
        b[:7, 5] = np.inf, -np.inf, LARGEST, -LARGEST, 1e-40, 0, np.nan
        b[2:4, 6], b[40, 7] = (LARGEST, -LARGEST), np.inf

    results = []
    for way in (right, "constant"):
        program, inputs, _ = product((), 8, 72, 64, way, spoil)
        results.append(np.asarray(compiled(program, on, fast_math=True).run(inputs)[0]).view(np.int32))
    np.testing.assert_array_equal(*results)


def test_halves_are_what_bfloat16_has_of_numbers() -> None:
    rng = np.random.default_rng(0)
    values = np.array([*rng.standard_normal(50), np.inf, -np.inf, LARGEST, -LARGEST, 1e-40, 0], np.float32)
    given = rng.choice(values, (7, 40))
    halves = in_halves(given)
    assert halves.shape == (7, 128)
    high, low = (halves.reshape(7, 2, 2, 32)[:, :, k].astype(np.float64) for k in (0, 1))
    order = [place_in_slice(k) for k in range(32)]
    assert sorted(order) == list(range(32))
    assert (low[~np.isfinite(high)] == 0).all()
    together = (high + low)[:, :, order].reshape(7, 64)
    np.testing.assert_allclose(together[:, :40], given, rtol=2**-16, atol=2**-133)
    assert (together[:, 40:] == 0).all()


@pytest.mark.parametrize("lens", [(1, 3, 9, 64), (2, 70, 33), (5, 1), (0, 64), (4, 0), (9000, 96)])
def test_halves_are_those_of_one_number_after_the_other(lens: tuple[int, ...]) -> None:
    """Compare with ml_dtypes' conversions: every exponent, ties, NaN and infinities, views, and several threads."""
    rng, largest, rest_of_it = np.random.default_rng(sum(lens)), right_columns.LARGEST, right_columns.LARGEST_REST
    bits = rng.integers(0, 1 << 32, prod(lens), np.uint32)
    bits[::7] &= 0xFFFF8000  # ties
    given = bits.view(np.float32).reshape(lens)
    for columns in (given, np.ascontiguousarray(given.T).T):
        halves = in_halves(columns)
        finite = np.isfinite(given)
        with np.errstate(all="ignore"):
            high = np.where(finite, np.clip(given, -largest, largest), given).astype(ml_dtypes.bfloat16)
            rest = np.where(finite, given - np.where(finite, high, 0).astype(np.float32), 0)
            low = np.clip(rest, -rest_of_it, rest_of_it).astype(ml_dtypes.bfloat16)
        slices = -(-lens[-1] // 32)
        assert halves.shape == (*lens[:-1], 64 * slices) and halves.flags.c_contiguous
        places = [64 * (k // 32) + place_in_slice(k % 32) for k in range(lens[-1])]
        for wanted, found in ((high, halves[..., places]), (low, halves[..., [p + 32 for p in places]])):
            np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("lens", [(1, 48, 3, 40), (2, 16, 1), (32, 96), (2, 140_000), (4096, 160)])
def test_halves_of_columns_in_another_order_are_the_same(lens: tuple[int, ...]) -> None:
    """Views too; the functions that fill them may be called in any order, and are needed for all of them."""
    rng, count = np.random.default_rng(sum(lens)), prod(lens[:-1])
    given = rng.standard_normal(lens).astype(np.float32)
    given.reshape(-1)[::11] = np.inf
    order = rng.permutation(count)
    for columns in (given, np.ascontiguousarray(given.T).T):
        halves, pieces = halves_in_pieces(columns, order)
        for k in rng.permutation(len(pieces)):
            pieces[k]()
        wanted = in_halves(np.ascontiguousarray(columns).reshape(count, -1)[order]).reshape(halves.shape)
        np.testing.assert_array_equal(halves.view(np.uint16), wanted.view(np.uint16))


def test_positions_of_a_slice_are_read_as_vectors() -> None:
    """Thread c of four multiplies places 2 c, 2 c + 1, 2 c + 8 and 2 c + 9 of each sixteen: 8 c to 8 c + 7."""
    values = np.arange(64, dtype=np.float32)
    halves = in_halves(values).astype(np.float32)
    for slice in (0, 1):
        high = halves[64 * slice : 64 * slice + 32]
        for c in range(4):
            own = [high[16 * step + place] for step in (0, 1) for place in (2 * c, 2 * c + 1, 2 * c + 8, 2 * c + 9)]
            assert own == [32 * slice + 8 * c + k for k in range(8)]


def test_the_instructions_are_those_of_warpgroups() -> None:
    program, _, _ = product((), 256, 256, 256, "constant")
    made = compiled(program, interpreter(), fast_math=True)
    (kernel,) = (k for k in made.kernels() if "warpgroup_parts" in k.name)  # others add the sums of split K
    text = assembly(kernel, ARCHITECTURES["sm_90a"])
    for wanted in ("k16.f32.bf16.bf16", "cvt.rn.bf16x2.f32", "ld.shared.v4", "st.global.v4"):
        assert wanted in text, wanted
    assert ".local" not in text
    halving = compiled(product((), 64, 64, 64, "depth")[0], interpreter(), fast_math=True).kernels()[0]
    assert "st.global.v4" in assembly(halving, ARCHITECTURES["sm_90a"])


def test_no_call_keeps_products_of_images_from_running_beside_other_work() -> None:
    """64-bit divisions would be calls."""
    program, _ = convolution(2, (7, 5), 64, 40, 3, 2, 1, 1)
    made = compiled(program, interpreter(), fast_math=True)
    (kernel,) = (k for k in made.kernels() if "warpgroup_parts" in k.name)
    text = assembly(kernel, ARCHITECTURES["sm_90a"])
    assert "wgmma.mma_async" in text and "div.u32" in text
    assert not [line for line in text.splitlines() if any(f"{n}.{t}64" in line for n in ("div", "rem") for t in "su")]


def test_tiles_have_the_registers_of_what_they_hold() -> None:
    for slices in (1, 32, 33, 1000):
        found = weighed_tiles(TileQuestion(4096, 4096, slices, 1, parts=True), 132)
        assert {tile.rows for _, tile, _ in found} == {64, 128, 192}
        for _, tile, splits in found:
            twice = -(-slices // splits) > 32
            assert tile.columns // 2 * twice < tile.spare_registers
    assert len(TILES) > len({tile for _, tile, _ in found})
