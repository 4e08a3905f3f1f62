"""CPU classes: the sets of CPU features that kernels are compiled for.

A class has the features that change generated code, and no others. CPUs of one class have equal kernels, so objects
travel between them: in a shared object store, and in the objects that ship with the package.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...dataclass import dataclass

_V2 = frozenset("64bit cmov crc32 cx16 cx8 fxsr mmx popcnt sahf sse sse2 sse3 sse4.1 sse4.2 ssse3".split())
_V3 = _V2 | frozenset("avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave".split())
_V4 = _V3 | frozenset("avx512f avx512bw avx512cd avx512dq avx512vl".split())
LEVELS = {"x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}
"""LLVM features by the micro-architecture levels of the System V ABI, AMD64 supplement, 3.1.1."""
_X86_EXTRAS = frozenset(
    # avx512vbmi and avx512vbmi2 permute bytes, which LLVM uses for shuffles; the code generator asks for the others
    "amx-bf16 amx-int8 amx-tile avx512bf16 avx512vbmi avx512vbmi2 avx512vnni avxvnni".split()
)
_X86 = _V4 | _X86_EXTRAS
_ARM = frozenset("bf16 dotprod fp-armv8 fullfp16 i8mm lse neon".split())


@dataclass(frozen=True)
class CpuClass:
    """One CPU class: LLVM's name of its base CPU, the enabled features, and the features that are switched off."""

    base: str
    features: frozenset[str]
    without: frozenset[str] = frozenset()

    @property
    def feature_string(self) -> str:
        """Return the ``+a,-b`` list for a target machine. Features that the class lacks but LLVM would infer from
        enabled features are switched off."""
        signs = {**dict.fromkeys(self.features, "+"), **dict.fromkeys(self.without, "-")}
        return ",".join(signs[name] + name for name in sorted(signs))


def class_of(triple: str, enabled: Iterable[str]) -> CpuClass | None:
    """Return the class of a CPU with these LLVM features, or None if its instruction set has no classes."""
    features = frozenset(enabled)
    if triple.startswith("x86_64"):
        base = next((name for name, level in reversed(LEVELS.items()) if level <= features), "x86-64")
        own = features & _X86
        if {"avx512vnni", "avx512vl"} <= own:
            own -= {"avxvnni"}  # the same products in another encoding, which LLVM never prefers
        return CpuClass(base, own, _X86 - own)
    if triple.startswith(("aarch64", "arm64")) and "neon" in features:
        return CpuClass("generic", features & _ARM)
    return None
