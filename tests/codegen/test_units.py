"""Functional units that multiply in a kernel, as reports name them, and their attainable rates."""

from __future__ import annotations

import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.contraction.gemm import GemmPacked
from mgx_numba.codegen.cpu.contraction.gemm_amx import GemmAmx
from mgx_numba.codegen.cpu.contraction.gemm_int8 import GemmInt8
from mgx_numba.codegen.cpu.units import tile_of_unit, unit_of
from mgx_numba.codegen.gpu import units as gpu_units
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.runtime.cpu import limits

from ..features import ARM

WIDE = host.host().vector_bits >= 512


def unit(solver: object, types: str, features: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    problem = GemmProblem(64, 64, 64, types=element_types(types), fast_math=True)
    (launch,) = solver.plan(problem).launches[-1:]  # type: ignore[attr-defined]
    return unit_of(launch.kernels)


@pytest.mark.skipif(not WIDE, reason="the CPU has no AVX-512")
def test_units_of_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    emulated, tiles = host.EMULATED_TILES, GemmAmx()
    assert unit(tiles, "float32", emulated, monkeypatch) == "AMX in vector code float32 in parts"
    assert unit(tiles, "float32 bfloat16 float32 float32", emulated, monkeypatch) == "AMX in vector code bfloat16"
    assert unit(tiles, "uint8 int8 int32 int32", emulated, monkeypatch) == "AMX in vector code int8"


def test_units_of_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unit(GemmPacked(), "float32", "", monkeypatch) == ""
    none = "-i8mm,-dotprod" if ARM else "sse"
    assert unit(GemmInt8(), "uint8 int8 int32 int32", none, monkeypatch) == "vectors of 128 bits int8 as int16"
    if host.has("i8mm"):
        assert unit(GemmInt8(), "uint8 int8 int32 int32", "", monkeypatch) == "NEON I8MM int8"
    if host.has("avx2"):
        assert unit(GemmInt8(), "uint8 int8 int32 int32", "avx2,-avxvnni", monkeypatch) == "AVX2 int8 as int16"
    monkeypatch.setenv("MGX_CPU_FEATURES", "")
    if host.has("avx512vnni", "avx512bw"):
        assert unit(GemmInt8(), "uint8 int8 int32 int32", "avx512", monkeypatch) == "VNNI int8, 512 bits"


def test_a_unit_has_a_rate_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    name = unit(GemmInt8(), "uint8 int8 int32 int32", host.EMULATED_TILES if WIDE else "", monkeypatch)
    assert tile_of_unit(name).types.a == "uint8"
    names = [name, *(["AMX in vector code float32 in parts"] if WIDE else [])]
    monkeypatch.setattr(limits, "_TILE_ROUNDS", 2)  # of emulated tiles 100 take seconds
    monkeypatch.setattr(limits, "_SECONDS", 0.01)
    found = limits.measure_limits(1, names)
    assert set(found.units) == set(names) and all(0.1 < rate < 1e5 for rate in found.units.values())


def test_units_of_a_gpu() -> None:
    def named(line: str) -> str:
        return gpu_units.unit_of([KernelSource("gpu", "k", f"def kernel(args):\n    {line}\n")])

    assert named("sums = wgmma_float16(sums, own, theirs, 0, 4)") == "float16 on tensor cores"
    assert named("c = mma_bfloat16(c, a, b)") == "bfloat16 on tensor cores"
    assert named("c = mma_float32(c, a, b)") == "TF32"
    assert named("c = mfma_32x32x8_float16(c, a, b)") == named("c = wmma_16x16x16_float16_both(c, a, b)")
    assert named("c = mfma_32x32x8_float16(c, a, b)") == "float16 on tensor cores"
    assert named("c = mfma_32x32x4_float32(c, a, b)") == "TF32"
    assert named("c = mfma_32x32x2_float32(c, a, b)") == "float32 on tensor cores"
    assert named("c = wmma_16x16x16_uint8_int8(c, a, b)") == "uint8_int8 on tensor cores"
    assert named("sums = wgmma_int8(sums, own, theirs, 0, 4)") == "int8 on tensor cores"
    assert named("sums = wgmma_bfloat16_held(sums, words, b, 0)") == "bfloat16 on tensor cores"
    assert named("sums = wgmma_zero(64)") == named("c = fma(a, b, c)") == ""
