"""The CPU description and its narrowing by MGX_CPU_FEATURES."""

from __future__ import annotations

import platform
import sys
from dataclasses import replace
from typing import Any

import pytest

from mgx_numba.codegen import platform as platform_module
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.host import LEVELS
from mgx_numba.codegen.platform import _ask
from mgx_numba.codegen.platform import platform as platform_here
from mgx_numba.errors import CompileError, OptionError

x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="x86-64 feature names")


def test_lanes_fill_a_vector_register() -> None:
    assert host.vector_bits() in (128, 256, 512)
    assert host.lanes() * 32 == host.vector_bits()
    assert host.lanes("int8") == 4 * host.lanes("float32") == 8 * host.lanes("float64")


@x86
def test_avx2_ceiling_removes_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", "avx2")
    assert host.vector_bits() <= 256
    assert not any(name.startswith("avx512") for name in host.features())
    assert "+avx512" not in host.host().feature_string


@x86
def test_sse_ceiling_and_single_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", "sse,-popcnt")
    assert host.vector_bits() == 128
    assert not host.has("avx") and not host.has("fma") and not host.has("popcnt")
    assert host.has("sse2")


@x86
def test_levels_hold_nothing_but_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MGX_CPU_FEATURES", raising=False)
    everything = host.features()
    found = []
    for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4"):
        monkeypatch.setenv("MGX_CPU_FEATURES", level)
        assert host.features() <= everything and not host.has("sse4a") and not host.has("sha")
        assert "+sse2" in host.host().feature_string and "-amx-tile" in host.host().feature_string
        found.append(host.features())
    assert found[0] <= found[1] <= found[2]
    assert "avx" not in found[0] and not any(name.startswith("avx512") for name in found[1])
    if {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"} <= everything:
        assert host.vector_bits() == 512 and "avx512vnni" not in found[2]


@pytest.mark.parametrize("package", ["numba", "llvmlite"])
def test_missing_compiler_gave_a_traceback(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "version", "3.13.9 free-threading build (main) [GCC]")
    with pytest.raises(CompileError, match=rf"3.13.9 free-threading.* cannot compile kernels: {package} is not inst"):
        _ask()


def _class(*features: str, cpu: str = "znver5", triple: str = "x86_64-unknown-linux-gnu") -> host.Host:
    """The class of a pretended CPU that has x86-64-v4 or NEON, and these features."""
    every = {*features, *(LEVELS["x86-64-v4"] if triple.startswith("x86_64") else ("neon", "fp-armv8"))}
    other = replace(platform_here(), cpu=cpu, triple=triple, features=dict.fromkeys(every, True))
    with host.pretending(other) as found:
        return found


def test_machines_of_one_class_had_kernels_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MGX_CPU_FEATURES", raising=False)
    zen4 = _class("avx512vnni", "avx512bf16", "sse4a", "gfni", "clzero", cpu="znver4")
    assert zen4 == _class("avx512vnni", "avx512bf16", "avxvnni", "movdir64b", "avx512vp2intersect")
    assert zen4.name == "x86-64-v4" and zen4 != _class("avx512vnni") != _class()
    arm = "aarch64-unknown-linux-gnu"
    assert _class("sve", "dotprod", triple=arm) == _class("dotprod", "rng", cpu="neoverse-n1", triple=arm)
    assert _class("dotprod", triple=arm).name == "generic" and _class(triple=arm) != _class("i8mm", triple=arm)


def test_a_cpu_without_a_level_keeps_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", "-fma")
    found = _class()
    assert found.name == "x86-64-v2" and {"avx2", "f16c"} <= found.features and "-fma" in found.feature_string


def test_a_level_of_x86_switched_neon_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", "x86-64-v3")
    with pytest.raises(OptionError, match="a level of x86-64"):
        _class(triple="aarch64-unknown-linux-gnu")


def test_unknown_ceiling_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", "mmx3")
    with pytest.raises(OptionError, match="mmx3"):
        host.features()


@x86
def test_unknown_features_narrowed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", "avx2,-avx512")
    with pytest.raises(OptionError, match="no CPU has 'avx512'; did you mean avx512"):
        host.features()


class _SystemOfGraviton3:
    """The functions by which Linux, macOS and Windows list the features of a CPU with I8MM and without BF16."""

    @staticmethod
    def getauxval(entry: int) -> int:
        return {16: 1 << 1 | 1 << 20, 26: 1 << 13}[entry]

    @staticmethod
    def sysctlbyname(name: bytes, value: Any, size: Any, new: None, length: Any) -> int:
        value._obj.value = 1
        known = ("AdvSIMD", "arm.FEAT_DotProd", "arm.FEAT_I8MM")
        return 0 if name.decode() in [f"hw.optional.{key}" for key in known] else -1

    @staticmethod
    def IsProcessorFeaturePresent(number: int) -> int:
        return int(number in (19, 43, 66))


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_llvm_missed_dot_products_of_arm_cpus(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM 22 reports none of them, so that no ARM machine ran the tiles made for it."""
    monkeypatch.setattr(platform_module.sys, "platform", system)
    monkeypatch.setattr(platform_module.ctypes, "CDLL", lambda name: _SystemOfGraviton3)
    found = platform_module.system_features()
    assert {name for name, present in found.items() if present} == {"neon", "dotprod", "i8mm"}
    assert {"bf16", "fullfp16", "lse", "sme"} <= set(found)
