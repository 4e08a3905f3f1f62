"""Matrix products of symbolic lengths: planned once, correct for every length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.alternatives import at_lengths
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.contraction.blocking import cut
from mgx_numba.codegen.cpu.contraction.blocking_search import BlockSizes, Steps, makespan
from mgx_numba.codegen.cpu.contraction.solvers import GEMM_SOLVERS
from mgx_numba.codegen.cpu.microkernels.int8_table import has_dot4
from mgx_numba.codegen.cpu.microkernels.tile_table import tile_for
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.gemm import BlockFormat, GemmProblem
from mgx_numba.core.dim import Dim, known_equal

from ..features import ARM
from .contracting import apply_full_epilogue, full_epilogue, full_epilogue_arrays
from .symbolic_contracting import LENGTHS, NO_EPILOGUE, Planned, packed, some, some_weights, symbols
from .test_contraction_block_quant import expected, weights

TOLERANCE = {"float32": 2e-5, "float64": 1e-13}


def error(
    planned: Planned, sample: dict[Dim, int], a: np.ndarray, b: np.ndarray, weights: Any
) -> tuple[float, list[str]]:
    """Largest error of a product with `full_epilogue`, relative to the largest result, and who computed it."""
    rng = np.random.default_rng(len(a.shape))
    sums = a.astype(np.float64) @ b.astype(np.float64)
    e = full_epilogue_arrays(rng, sums.shape[:-1], sums.shape[-1], a.dtype.name)
    expected = apply_full_epilogue(sums, e)
    out = np.full(sums.shape, np.nan, a.dtype)
    taken = planned.run(sample, weights, {"x": a, "out": out, **e})
    assert taken
    return float(np.abs(out - expected).max() / max(np.abs(expected).max(), 1)), taken


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n, k", [(70, 33), (16, 1200)])
def test_rows_of_constant_weights(n: int, k: int, dtype: str) -> None:
    _, (rows,) = symbols("rows")
    rng = np.random.default_rng(n)
    b = rng.standard_normal((k, n)).astype(dtype)
    problem = GemmProblem(rows, n, k, types=element_types(dtype))
    planned = Planned(problem, full_epilogue(dtype))
    assert known_equal(planned.served, 1) and planned.names == ["gemv", "gemm"]
    for m in (*LENGTHS, 1000):
        a = rng.standard_normal((m, k)).astype(dtype)
        found, taken = error(planned, {rows: m}, a, b, b)
        assert found < TOLERANCE[dtype] * k**0.5, (m, taken)
        assert taken == (["gemv"] if m <= 4 else ["gemm"])


def test_batches_that_share_weights_are_rows() -> None:
    _, (batch, seq) = symbols("batch", "seq")
    rng = np.random.default_rng(5)
    b = rng.standard_normal((24, 40)).astype(np.float32)
    lens = (batch, seq)
    problem = GemmProblem(seq, 40, 24, (batch,), packed((*lens, 24)), (0, 40, 1))
    planned = Planned(problem, full_epilogue("float32"), ((), packed((*lens, 40))[:-1], packed((*lens, 1))[:-1], ()))
    assert planned.request.problem.m is batch * seq
    for rows in ((1, 1), (4, 1), (1, 3), (3, 17), (2, 200)):
        a = rng.standard_normal((*rows, 24)).astype(np.float32)
        found, taken = error(planned, dict(zip((batch, seq), rows)), a, np.broadcast_to(b, (rows[0], 24, 40)), b)
        assert found < 1e-4 and taken == (["gemv"] if rows[0] * rows[1] <= 4 else ["gemm"])


def heads(rng: np.random.Generator, lens: tuple[int, ...], turned: bool) -> np.ndarray:
    """Return values [batch, heads, rows, columns], stored by [batch, rows, heads, columns], or ``turned``."""
    batch, count, rows, columns = lens
    if turned:
        return rng.standard_normal((batch, rows, count, columns)).astype(np.float32).transpose(0, 2, 3, 1)
    return rng.standard_normal((batch, rows, count, columns)).astype(np.float32).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("turned", [False, True])
def test_products_of_activations(turned: bool) -> None:
    """Scores and values of attention: any length is symbolic."""
    _, (batch, queries, keys) = symbols("batch", "queries", "keys")
    count, width = 3, 8
    if turned:  # scores: columns are keys
        m, n, k = queries, keys, width
        b_strides: tuple[Any, ...] = (keys * count * width, width, 1, count * width)
    else:  # values: terms are keys
        m, n, k = queries, width, keys
        b_strides = (keys * count * width, width, count * width, 1)
    a_strides = (queries * count * k, k, count * k, 1)
    problem = GemmProblem(m, n, k, (batch, count), a_strides, b_strides, b_constant=False)
    lens = (batch, count, queries)
    strides = ((), packed((*lens, n))[:-1], packed((*lens, 1))[:-1], ())
    planned = Planned(problem, full_epilogue("float32"), strides)
    assert known_equal(planned.served, 1)
    rng = np.random.default_rng(8)
    for sample in ((1, 1, 1), (1, 1, 65), (2, 3, 1), (1, 200, 17), (3, 17, 200), (1, 4, 1100)):
        values = dict(zip((batch, queries, keys), sample))
        own = [n if isinstance(n, int) else values[n] for n in (m, n, k)]
        a = heads(rng, (sample[0], count, own[0], own[2]), False)
        b = heads(rng, (sample[0], count, own[1], own[2]) if turned else (sample[0], count, own[2], own[1]), turned)
        found, taken = error(planned, values, a, b, b)
        assert found < TOLERANCE["float32"] * own[2] ** 0.5, (sample, taken)


@pytest.mark.parametrize(
    "form", [BlockFormat(4, 32, True), BlockFormat(8, 16, False), BlockFormat(4, 64, False, int8_rows=True)]
)
@pytest.mark.parametrize("ceiling", ["", "avx2"])
def test_rows_of_weights_in_blocks(form: BlockFormat, ceiling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    _, (batch, seq) = symbols("batch", "seq")
    n, k = 70, 200
    lens = (batch, seq)
    w = weights(form, n, k)
    problem = GemmProblem(seq, n, k, (batch,), packed((*lens, k)), (0, n, 1), blocks=form, fast_math=True)
    strides = ((), packed((*lens, n))[:-1], packed((*lens, 1))[:-1], ())
    planned = Planned(problem, full_epilogue("float32"), strides)
    many = "gemm_nbits_bytes" if form.int8_rows and has_dot4(host.host(), host.host().vector_bits) else "gemm_nbits"
    assert known_equal(planned.served, 1) and (ARM or planned.names == ["gemv_nbits", many])
    rng = np.random.default_rng(11)
    for count in ((1, 1), (4, 1), (1, 3), (2, 5), (1, 16), (2, 17), (1, 200)):
        a = rng.standard_normal((*count, k)).astype(np.float32)
        e = full_epilogue_arrays(rng, count, n, "float32")
        sums = expected(form, a, w)
        right = apply_full_epilogue(sums, e)
        out = np.full(right.shape, np.nan, np.float32)
        taken = planned.run(dict(zip(lens, count)), w, {"x": a, "out": out, **e})
        rows = count[0] * count[1]
        # from how many rows on the other solver is taken is a matter of the CPU's rates
        assert ARM or taken in (["gemv_nbits"] * (rows <= 16), [many] * (rows > 1))
        assert np.abs(out - right).max() < (2e-2 if form.int8_rows else 5e-5) * np.abs(right).max()


CASES = [
    ("", "uint8 int8 int32 int32"),
    ("sse", "int8 int8 int32 int32"),
    ("avx2", "float32 float16 float32 float32"),
    ("-avx512bf16", "float32 bfloat16 float32 float32"),
    ("", "float32 bfloat16 float32 float32"),
    (host.EMULATED_TILES, "float32"),
    (host.EMULATED_TILES, "uint8 int8 int32 int32"),
    (host.EMULATED_TILES, "bfloat16 bfloat16 float32 float32"),
]


@pytest.mark.parametrize("ceiling, types", CASES)
def test_rows_by_every_solver(ceiling: str, types: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each solver for constant weights that applies to these types, and the choice among them."""
    if ceiling == host.EMULATED_TILES and host.host().vector_bits < 512:
        pytest.skip("the CPU has no AVX-512")
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    own = element_types(types)
    _, (batch, seq) = symbols("batch", "seq")
    rng = np.random.default_rng(3)
    tried = 0
    for n, k in ((33, 70), (16, 64)):
        problem = GemmProblem(
            seq, n, k, (batch,), packed((batch, seq, k)), (0, n, 1), types=own, fast_math=True
        )  # fmt: skip
        plain = at_lengths(problem, {batch: 2, seq: 7})
        b = some_weights(rng, own.b, (k, n))
        for solver in [None, *GEMM_SOLVERS]:
            if solver and (solver.refused_symbols(problem) or solver.refusal(plain)):
                continue
            planned = Planned(problem, NO_EPILOGUE, only=solver.name if solver else "")
            tried += 1
            assert known_equal(planned.served, 1)
            for lens in ((1, 1), (3, 1), (1, 5), (2, 17), (1, 200)):
                a = some(rng, own.a, (*lens, k))
                out = np.full((*lens, n), 77, own.out)
                (taken,) = planned.run(dict(zip((batch, seq), lens)), b, {"x": a, "out": out})
                rounds = own.b == "bfloat16" and taken in ("gemm_bfloat16", "gemm_tiles")
                left = (a.astype(b.dtype) if rounds else a).astype(np.float64)
                right = left @ b.astype(np.float64)
                tolerance = 0 if own.out == "int32" else 5e-5
                assert np.abs(out - right).max() <= tolerance * np.abs(right).max(), (taken, n, lens)
    assert tried > 2


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("n, k, step", [(768, 768, 1), (64, 64, 1), (768, 3072, 1), (768, 3072, 320), (64, 64, 320)])
def test_blocks_are_nearly_as_good_as_those_for_one_length(n: int, k: int, step: int, threads: int) -> None:
    """By the costs that blocks are chosen by: on average 1.1 of the least, and twice at most; of rows that are frames
    of so many samples, too."""
    tile = tile_for(element_types("float32"))
    _, (rows,) = symbols("rows")
    open_ = cut(tile, rows // step, n, k, 1, 1, threads)
    losses = []
    for m in (1, 2, 5, 12, 13, 33, 50, 100, 197, 400, 777, 3000):
        costs = [
            makespan(tile, m, -(-n // tile.columns), Steps(blocks.taps, blocks.depth, 1), k, 1, 1, threads)(
                BlockSizes(blocks.parts, blocks.rows, blocks.panels), 1
            )
            for blocks in (at_lengths(open_, {rows: m * step}), cut(tile, m, n, k, 1, 1, threads))
        ]
        losses.append(costs[0] / costs[1])
    assert max(losses) < 2 and sum(losses) / len(losses) < 1.1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("turned", [False, True])
def test_one_row_reads_a_right_hand_side_of_any_lengths_where_it_lies(turned: bool, dtype: str) -> None:
    """It was packed or read by tiles: 1x1024 by 1024x4096 took four times as long as with known lengths."""
    _, (n, k) = symbols("n", "k")
    rng = np.random.default_rng(3)
    b_strides = (1, k) if turned else (n, 1)
    problem = GemmProblem(1, n, k, (), (k, 1), b_strides, b_constant=False, types=element_types(dtype))
    planned = Planned(problem, full_epilogue(dtype), threads=2)
    own = "gemv_rows" if turned else "gemv_columns"
    assert known_equal(planned.served, 1) and own in planned.names
    for columns, depth in ((1, 1), (3, 50), (31, 4), (64, 64), (257, 3), (300, 33), (1040, 70)):
        a, b = rng.standard_normal((1, depth)).astype(dtype), rng.standard_normal((depth, columns)).astype(dtype)
        b = np.asfortranarray(b) if turned else b
        found, taken = error(planned, {n: columns, k: depth}, a, b, b)
        assert found < TOLERANCE[dtype] * depth**0.5, (columns, depth, taken)
        assert columns < 64 or taken == [own]
