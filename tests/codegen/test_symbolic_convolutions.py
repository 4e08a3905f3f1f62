"""Convolutions of symbolic batch and image sizes: planned once, correct for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.alternatives import at_lengths
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.contraction.solvers import CONV_SOLVERS
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.core.dim import Dim, known_equal

from .contracting import apply_full_epilogue, convolve, full_epilogue, full_epilogue_arrays
from .symbolic_contracting import NO_EPILOGUE, Planned, some, some_weights, symbols

SHAPES: list[dict[str, Any]] = [
    {"kernel": (1, 1), "in_channels": 20, "out_channels": 33},
    {"kernel": (3, 3), "in_channels": 16, "out_channels": 32, "pads": 1},
    {"kernel": (3, 3), "in_channels": 3, "out_channels": 17, "pads": 1, "stride": (2, 2)},
    {"kernel": (3, 3), "in_channels": 24, "out_channels": 24, "pads": 1, "groups": 24},
    {"kernel": (5, 3), "in_channels": 18, "out_channels": 18, "groups": 18, "stride": (2, 2), "pads": 1},
    {"kernel": (3, 2), "in_channels": 8, "out_channels": 12, "groups": 4, "dilation": (2, 1)},
    {"kernel": (2, 2), "in_channels": 6, "out_channels": 9, "stride": (2, 2), "transposed": True},
    {"kernel": (3, 3), "in_channels": 8, "out_channels": 5, "stride": (2, 2), "pads": 1, "transposed": True},
    {"kernel": (7, 7), "in_channels": 4, "out_channels": 16, "stride": (2, 2), "pads": 3},
    {"kernel": (5,), "in_channels": 12, "out_channels": 20, "pads": 2},
    {"kernel": (3,), "in_channels": 16, "out_channels": 16, "groups": 16, "pads": 1, "stride": (2,)},
]


def problem_of(batch: Any, lens: tuple[Any, ...], shape: dict[str, Any], types: str) -> ConvProblem:
    shape = dict(shape)
    pads = (shape.pop("pads", 0),) * len(lens)
    return ConvProblem(
        batch=batch, in_lens=lens, pads_begin=pads, pads_end=pads, types=element_types(types), fast_math=True, **shape
    )  # fmt: skip


def check(problem: ConvProblem, samples: list[dict[Dim, int]], only: str = "") -> set[str]:
    """Check results for all samples; return the solvers that computed them."""
    rng = np.random.default_rng(problem.taps)
    types = problem.types
    float32 = types.uniform == "float32"
    plain = at_lengths(problem, samples[0])
    w = some_weights(rng, types.b, plain.weight_lens)
    epilogue = full_epilogue("float32") if float32 else NO_EPILOGUE
    planned = Planned(problem, epilogue, only=only)
    assert known_equal(planned.served, 1), (only, planned.served)
    found = set()
    for sample in samples:
        own = at_lengths(problem, sample)
        x = some(rng, types.a, (own.batch, *own.in_lens, own.in_channels))
        rows = (own.batch, *own.out_lens)
        e = full_epilogue_arrays(rng, rows, own.out_channels, "float32") if float32 else {}
        out = np.full((*rows, own.out_channels), 77, types.out)
        (taken,) = planned.run(sample, w, {"x": x, "out": out, **e})
        found.add(taken)
        left = x.astype(w.dtype) if taken == "conv_bfloat16" or (types.b == "bfloat16" and "tiles" in taken) else x
        right = convolve(own, left, w)
        right = apply_full_epilogue(right, e) if float32 else right
        tolerance = 0 if types.out == "int32" else 1e-4 if "tiles" in taken or "winograd" in taken else 2e-5
        assert np.abs(out - right).max() <= tolerance * max(np.abs(right).max(), 1), (taken, sample)
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_images_by_every_solver(shape: dict[str, Any]) -> None:
    _, (batch,) = symbols("batch")
    lens = (11, 13)[: len(shape["kernel"])]
    samples = [{batch: n} for n in (1, 2, 5, 17)]
    problem = problem_of(batch, lens, shape, "float32")
    every(problem, samples)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lengths_of_images_by_every_solver(shape: dict[str, Any]) -> None:
    _, (batch, height, width) = symbols("batch", "height", "width")
    lens = (height, width)[: len(shape["kernel"])]
    sizes = ((1, 9, 8), (2, 12, 5), (1, 17, 64), (3, 8, 31))
    samples = [dict(zip((batch, height, width), size)) for size in sizes]
    every(problem_of(batch, lens, shape, "float32"), samples)


def every(problem: ConvProblem, samples: list[dict[Dim, int]]) -> None:
    """The choice among solvers, and each of those that apply to a problem of symbolic lengths."""
    assert check(problem, samples)
    plain = at_lengths(problem, samples[0])
    for solver in CONV_SOLVERS:
        if solver.refused_symbols(problem) is None and solver.refusal(plain) is None:
            assert check(problem, samples, solver.name) == {solver.name}


FEW_OUTPUTS = {"kernel": (1, 1), "in_channels": 32, "out_channels": 5}
WINOGRAD = {"kernel": (3, 3), "in_channels": 32, "out_channels": 40, "pads": 1}
TYPED = [
    ("", "uint8 int8 int32 int32"),
    ("avx2,-avxvnni", "uint8 int8 int32 int32"),
    ("avx2", "int8 int8 int32 int32"),
    ("avx2", "float32 float16 float32 float32"),
    ("", "float32 bfloat16 float32 float32"),
    (host.EMULATED_TILES, "float32"),
    (host.EMULATED_TILES, "uint8 int8 int32 int32"),
    (host.EMULATED_TILES, "bfloat16 bfloat16 float32 float32"),
]


@pytest.mark.parametrize("ceiling, types", TYPED)
@pytest.mark.parametrize("shape", [WINOGRAD, FEW_OUTPUTS, SHAPES[2], SHAPES[3], SHAPES[6]], ids=str)
def test_other_types_by_every_solver(
    ceiling: str, types: str, shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if ceiling == host.EMULATED_TILES and host.host().vector_bits < 512:
        pytest.skip("the CPU has no AVX-512")
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    _, (batch, height, width) = symbols("batch", "height", "width")
    shape = {**shape, "in_channels": max(shape["in_channels"], 4 if shape.get("transposed") else 1)}
    problem = problem_of(batch, (height, width), shape, types)
    plain = at_lengths(problem, {batch: 1, height: 8, width: 8})
    if all(solver.refusal(plain) for solver in CONV_SOLVERS):
        pytest.skip("no solver is for these")
    sizes = ((1, 9, 8), (2, 12, 6), (3, 8, 31))
    every(problem, [dict(zip((batch, height, width), size)) for size in sizes])
