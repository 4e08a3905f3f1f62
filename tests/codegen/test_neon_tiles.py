"""Register tiles on ARM: one multiply-add per step and accumulator vector, all accumulators in registers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.contraction.bfloat16 import GemmBfloat16
from mgx_numba.codegen.cpu.contraction.gemm import GemmPacked
from mgx_numba.codegen.cpu.contraction.gemm_int8 import GemmInt8
from mgx_numba.codegen.cpu.contraction.solver import Solver
from mgx_numba.codegen.cpu.microkernels.tile_table import tile_for
from mgx_numba.codegen.cpu.toolchain.compiler import inspect
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.gemm import GemmProblem

FEATURES = ("neon", "fp-armv8", "fullfp16", "lse", "dotprod", "i8mm", "bf16")
UNSIGNED, SIGNED, BFLOAT16 = "uint8 int8 int32 int32", "int8 int8 int32 int32", "float32 bfloat16 float32 float32"


@pytest.fixture
def neoverse(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels are for a Neoverse N2, whose code LLVM writes on any machine."""
    monkeypatch.setenv("MGX_CPU_FEATURES", "")
    fake = dataclasses.replace(
        host.platform(),
        cpu="neoverse-n2",
        triple="aarch64-unknown-linux-gnu",
        features=dict.fromkeys(FEATURES, True),
    )
    with host.pretending(fake):
        yield


CASES = [
    ("float32", GemmPacked(), "neon_8x3", "fmla"),
    (UNSIGNED, GemmInt8(), "neondot_8x3", "usdot"),
    (SIGNED, GemmInt8(), "neondot_8x3", "sdot"),
    (BFLOAT16, GemmBfloat16(), "neonbf16_8x3", "bfdot"),
]


@pytest.mark.usefixtures("neoverse")
@pytest.mark.parametrize("types, solver, name, instruction", CASES)
def test_instructions(types: str, solver: Solver[GemmProblem], name: str, instruction: str) -> None:
    problem = GemmProblem(64, 96, 64, types=element_types(types))
    tile = tile_for(problem.types)
    assert tile.name == name and solver.refusal(problem) is None
    texts = [inspect(k).assembly for k in solver.plan(problem).kernels if k.name.startswith(f"{name}_")]
    products = [len(re.findall(rf"\t{instruction}\t", text)) for text in texts]
    assert max(products) >= tile.rows * tile.vectors
    for text, count in zip(texts, products, strict=True):
        assert count and not re.findall(r"\tst[rp]\tq\d+.*\[sp", text)


@pytest.mark.usefixtures("neoverse")
def test_without_these_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", "-dotprod,-i8mm,-bf16")
    for types in (UNSIGNED, SIGNED):
        assert tile_for(element_types(types)).name == "portable_4x2"
    refusal = GemmBfloat16().refusal(GemmProblem(4, 5, 6, types=element_types(BFLOAT16)))
    assert "no tile is declared" in (refusal or "")
