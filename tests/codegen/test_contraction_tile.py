"""Every variant of every register tile against a reference of the same interface."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mgx_numba.codegen.cpu.contraction import gemm
from mgx_numba.codegen.cpu.contraction.gemm import GemmPacked
from mgx_numba.codegen.cpu.contraction.tile_source import tile_source
from mgx_numba.codegen.cpu.microkernels.register_tile import RegisterTile, TileState
from mgx_numba.codegen.cpu.microkernels.tile_table import (
    TILE_BLOCK,
    TILE_TABLE_ROWS,
    TILES,
    WIDE_INTEGERS,
    declared_tile,
    tile_for,
)
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.problems.element_types import ITEMSIZE, ElementTypes, element_types
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.errors import ShapeError, UnsupportedError

from ..features import ARM
from .contracting import run_plan
from .launching import call_kernel

TAPS, DEPTH, PANELS, X_STEP = 3, 7, 3, 2


class Case:
    """Operands of one call: panels 1 and 2 of three, the second with missing columns if ``masked``."""

    def __init__(self, tile: RegisterTile, rows: int, vectors: int, masked: bool) -> None:
        rng = np.random.default_rng(rows * 10 + vectors)
        self.rows, self.vectors = rows, vectors
        self.width, self.panel = vectors * tile.lanes, tile.columns
        self.columns = 2 * self.panel + (self.width - 1 if masked else self.width)
        self.x = _values(rng, tile.dtype, 4000)
        self.zero = np.zeros(max(self.panel, DEPTH * X_STEP), tile.dtype)
        self.offsets = rng.integers(0, 1000, (TAPS, TILE_TABLE_ROWS))
        self.offsets[1, rows // 2] = -1
        self.w = _values(rng, tile.dtype, PANELS, TAPS * DEPTH, self.panel)
        self.acc = _values(rng, tile.dtype, rows, PANELS * self.panel)

    def run(self, source: KernelSource, accumulate: int) -> np.ndarray:
        acc = self.acc.copy()
        arrays = {"x": self.x, "offsets": self.offsets, "zero": self.zero, "w": self.w, "acc": acc}
        fields = {name: array.ctypes.data for name, array in arrays.items()} | {
            "taps": TAPS, "depth": DEPTH, "x_step": X_STEP, "w_step": self.panel, "w_panel": self.w[0].size,
            "acc_row": acc.shape[1], "acc_panel": self.panel, "accumulate": accumulate, "rows": self.rows,
            "vectors": self.vectors, "columns": self.columns,
        }  # fmt: skip
        words = [0] * TILE_BLOCK.size
        for name, value in fields.items():
            words[TILE_BLOCK.number(name)] = value
        call_kernel(source, words, (1, 3))
        return acc

    def expected(self, accumulate: int) -> np.ndarray:
        """The sums that the interface promises, term by term; columns that do not exist are not compared.

        Sums of integers wrap around.
        """
        exact = np.float64 if self.acc.dtype.kind == "f" else self.acc.dtype
        result = self.acc.astype(exact)
        for panel in (1, 2):
            first = panel * self.panel
            for i in range(self.rows):
                sums = result[i, first : first + self.width] if accumulate else np.zeros(self.width, exact)
                for tap in range(TAPS):
                    offset = int(self.offsets[tap, i])
                    for k in range(DEPTH):
                        left = self.x[offset + k * X_STEP] if offset >= 0 else 0
                        sums = sums + left * self.w[panel, tap * DEPTH + k, : self.width].astype(exact)
                result[i, first : first + self.width] = sums
        return result


def _values(rng: np.random.Generator, dtype: str, *lens: int) -> np.ndarray:
    if dtype.startswith("float"):
        return rng.standard_normal(lens).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, lens, dtype, endpoint=True)


def check(tile: RegisterTile, source: KernelSource, masked: bool) -> None:
    for vectors in tile.widths():
        for rows in tile.heights if masked else tile.variants():
            name = f"{source.name} {rows}x{vectors}"
            case = Case(tile, rows, vectors, masked)
            for accumulate in (0, 1):
                got, expected = case.run(source, accumulate), case.expected(accumulate)
                tolerance = {"float32": 1e-4, "float64": 1e-12}.get(tile.dtype, 0)
                seen = slice(0, case.columns)
                np.testing.assert_allclose(got[:, seen], expected[:, seen], tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize("ceiling", ["", "avx2", "sse"])
@pytest.mark.parametrize("types", ["float32", "float64", *WIDE_INTEGERS])
def test_variants(monkeypatch: pytest.MonkeyPatch, ceiling: str, types: str) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    tile = tile_for(element_types(types))
    check(tile, tile_source(tile), masked=False)
    check(tile, tile_source(tile, masked=True), masked=True)


@pytest.mark.parametrize("depth", [7, 8, 29])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_contiguous_terms_give_the_same_bits_as_others(dtype: str, depth: int) -> None:
    """Loops over contiguous terms take several at once, in assembly on AVX2; others take one, as LLVM writes it."""
    tile, rng = tile_for(element_types(dtype)), np.random.default_rng(depth)
    x, panel = (rng.standard_normal(lens).astype(dtype) for lens in ((tile.rows, depth), (depth, tile.columns)))
    x[0, depth // 2], x[-1, 0], panel[1, 3], panel[2, 5] = np.inf, -0.0, np.nan, 1e38
    results = []
    for step in (1, 2):
        left, acc = np.repeat(x, step, axis=1), np.zeros((tile.rows, tile.columns), dtype)
        offsets = np.arange(TILE_TABLE_ROWS) * depth * step
        fields = {
            "x": left.ctypes.data, "offsets": offsets.ctypes.data, "zero": acc.ctypes.data, "w": panel.ctypes.data,
            "acc": acc.ctypes.data, "taps": 1, "depth": depth, "x_step": step, "w_step": tile.columns,
            "acc_row": tile.columns, "acc_panel": tile.columns, "rows": tile.rows, "vectors": tile.vectors,
        }  # fmt: skip
        words = [0] * TILE_BLOCK.size
        for name, value in fields.items():
            words[TILE_BLOCK.number(name)] = value
        call_kernel(tile_source(tile), words, (0, 1))
        results.append(acc)
    assert np.isfinite(results[0]).any()
    np.testing.assert_array_equal(*(acc.view(np.uint8) for acc in results))


FLOAT_TILES = [tile for tile in TILES if tile.types.uniform]


@pytest.mark.parametrize("tile", FLOAT_TILES, ids=lambda tile: f"{tile.name}-{tile.dtype}")
def test_declared_tiles_fit_their_registers_and_the_table(tile: RegisterTile) -> None:
    registers = 32 if tile.bits == 512 or tile.name.startswith("neon") else 16
    assert max(tile.variants()) * tile.vectors + tile.vectors + 1 <= registers
    assert max(tile.variants()) < TILE_TABLE_ROWS
    assert tile.heights[-1] == 1 and list(tile.heights) == sorted(tile.heights, reverse=True)
    assert tile.columns * ITEMSIZE[tile.dtype] == tile.vectors * tile.bits // 8


def test_tiles_of_other_registers_serve_this_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile is declared for registers that LLVM can split or widen: any of them is right on any machine."""
    monkeypatch.setenv("MGX_CPU_FEATURES", "")
    for tile in FLOAT_TILES:
        if tile.dtype == "float32":
            check(tile, tile_source(tile), masked=False)


@pytest.mark.skipif(ARM, reason="the ceiling is of x86-64")
def test_a_tile_is_found_by_the_types_of_operands_and_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", "sse")
    assert tile_for(element_types("float64")).name == "portable_4x2"
    assert tile_for(element_types("float32 float32 float32 float16")) is tile_for(element_types("float32"))
    assert declared_tile(element_types("float32 float16 float32 float32")) is None
    with pytest.raises(UnsupportedError, match="no tile is declared for float32 times float16 in float32"):
        tile_for(element_types("float32 float16 float32 float32"))


def test_a_tile_is_run_in_the_state_that_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state in which the first weight is another one."""
    state = TileState(("scale = load_scalar(w, 0)", "store_scalar(w, 0, 2)"), ("store_scalar(w, 0, scale)",))
    tile = dataclasses.replace(tile_for(element_types("float32")), state=state)
    monkeypatch.setattr(gemm, "tile_for", lambda types: tile)
    a, b = np.ones((40, 1), np.float32), np.ones((1, 70), np.float32)
    problem = GemmProblem(40, 70, 1)
    packed, out = GemmPacked().pack_weights(problem, b), np.zeros((40, 70), np.float32)
    run_plan(GemmPacked().plan(problem, threads=2), {"x": a, "w": packed, "out": out})
    expected = np.ones((40, 70), np.float32)
    expected[:, 0] = 2
    np.testing.assert_array_equal(out, expected)
    assert packed.flat[0] == 1


def test_element_types_name_each_side() -> None:
    mixed = element_types("uint8 int8 int32 int32")
    assert mixed == ElementTypes("uint8", "int8", "int32", "int32") == element_types(str(mixed))
    assert str(element_types("float32")) == "float32" and mixed.uniform is None
    problem = GemmProblem(2, 3, 4, types=mixed)
    with pytest.raises(ShapeError, match="uint8 int8 int32 int32; expected one for all sides"):
        _ = problem.dtype
    with pytest.raises(ShapeError, match="accumulator of dtype 'int33'; expected a type of numbers"):
        ElementTypes("int8", "int8", "int33", "int32")
    with pytest.raises(ShapeError, match="expected one dtype or four"):
        element_types("int8 int8")
