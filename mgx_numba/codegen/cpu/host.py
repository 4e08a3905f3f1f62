"""The CPU that kernels are compiled for: its LLVM name, features, vector width and target machine.

Only LLVM is loaded, for the target machine; never Numba. The environment variable ``MGX_CPU_FEATURES`` restricts the
features, to test or compare instruction sets, or to build a library for other CPUs. It is a comma-separated list of:

- ceilings: ``avx512``, ``avx2``, ``avx``, ``sse``, ``sve``, ``neon``
- levels: ``x86-64-v2``, ``x86-64-v3``, ``x86-64-v4``, which keep the features that all CPUs of the level have
- single features to switch off: ``-fma``
- ``amx-emulated``, which adds AMX tiles in vector code, slow and exact, to test code for them on any CPU

It is read at every call, so a test may set it.

Ask Linux for permission to use AMX tiles in this process; their state takes 8 KiB a thread.

A process without permission dies of an illegal instruction, whatever CPUID says. Threads and forks inherit permission;
after `exec` a process has to ask again.

CPU classes: the sets of CPU features that kernels are compiled for.

A class has the features that change generated code, and no others. CPUs of one class have equal kernels, so objects
travel between them: in a shared object store, and in the objects that ship with the package.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING

from ...dataclass import dataclass
from ...environment import environment_text
from ...errors import OptionError
from ...messages import INFO, tell
from ...nearest import did_you_mean
from .. import platform as platforms
from ..lang.target import itemsize
from ..platform import Platform, is_pretended, platform

if TYPE_CHECKING:
    import llvmlite.binding as llvm


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


_ARCH_PRCTL = 158
"""The number of the system call on x86-64 (Linux, arch/x86/entry/syscalls/syscall_64.tbl)."""
_REQUEST, _TILE_DATA = 0x1023, 18
"""ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA (Linux 5.16, Documentation/arch/x86/xstate.rst)."""


@functools.lru_cache(maxsize=1)
def tiles_permitted() -> bool:
    """Ask once and return whether tiles are permitted; a refusal is logged, and kernels are then generated without
    tiles."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0:
        return True
    error = ctypes.get_errno()
    reason = os.strerror(error)  # ENOSPC: a thread has a signal stack too small for the state
    tell("cpu", INFO, "the CPU has AMX, but the system does not permit it: %s; compiling without", reason)
    return False


ENVIRONMENT = "MGX_CPU_FEATURES"
CACHE_LINE = 64
"""Bytes of a cache line; streaming stores write whole lines."""
EMULATED_TILES = "amx-emulated"
"""The feature of a CPU whose AMX tiles are emulated in vector code. LLVM does not know it."""

_AVX2_FAMILY = ("avx2", "avxvnni", "avxifma", "avxneconvert", "fma", "fma4", "f16c", "bmi", "bmi2", "xop")
_CEILINGS: dict[str, tuple[str, ...]] = {
    # Ceiling -> prefixes of the LLVM features that lie above it.
    "avx512": ("amx", "avx10"),
    "avx2": ("avx512", "avx10", "amx", "evex512"),
    "avx": ("avx512", "avx10", "amx", "evex512", *_AVX2_FAMILY),
    "sse": ("avx", "amx", "evex512", "vaes", "vpclmulqdq", "sha512", "sm3", "sm4", *_AVX2_FAMILY),
    "sve": ("sme",),
    "neon": ("sve", "sme"),
}


@dataclass(frozen=True)
class Host:
    """The CPU that kernels are compiled for: the class of a CPU, or the CPU itself where it has no class.

    Attributes:
        name: LLVM's name of the CPU that a class is based on (``x86-64-v4``).
        triple: LLVM's target triple.
        feature_string: the ``+a,-b`` list for a target machine.
        features: LLVM's names of the features that kernels may use.
        emulates_tiles: whether `EMULATED_TILES` is among the features.
    """

    name: str
    triple: str
    feature_string: str
    features: frozenset[str] = field(compare=False)
    emulates_tiles: bool = False

    @property
    def vector_bits(self) -> int:
        """Return the width (bits) of the widest vector register that arithmetic should use: 512, 256 or 128."""
        if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= self.features:
            return 512
        return 256 if "avx" in self.features else 128


def initialize() -> None:
    """Initialise LLVM's code generator for this machine, or for the pretended machine; cheap when repeated."""
    _initialize_once(is_pretended())


@functools.lru_cache(maxsize=2)
def _initialize_once(every: bool) -> None:
    import llvmlite.binding as llvm

    if every:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    else:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()


def has_assembler() -> bool:
    """Return whether kernels may contain assembly: LLVM here parses that of this machine's architecture only."""
    import llvmlite.binding as llvm

    architectures = [name.partition("-")[0] for name in (triple(), llvm.get_process_triple())]
    return architectures[0] == architectures[1]


@contextlib.contextmanager
def pretending(other: Platform) -> Iterator[Host]:
    """Plan and compile in this context, in any thread of this process, for another platform's CPU.

    Kernels for that CPU may not run here. Worker processes still compile for the CPU of this machine.
    """
    with platforms.pretending(other):
        host_within.cache_clear()
        try:
            yield host()
        finally:
            host_within.cache_clear()


def host() -> Host:
    """Return the CPU of this process, restricted by ``MGX_CPU_FEATURES``.

    Raises:
        OptionError: the variable names an unknown ceiling, level or feature.
    """
    return host_within(environment_text(ENVIRONMENT))


@functools.lru_cache(maxsize=8)
def host_within(limits: str) -> Host:
    table, emulated = dict(platform().features), False
    for item in filter(None, (part.strip() for part in limits.split(","))):
        if item == EMULATED_TILES:
            emulated = True
        elif item.startswith("-"):
            if item[1:] not in table and platform().triple.startswith("x86_64"):  # LLVM lists all there
                raise OptionError(f"{ENVIRONMENT}={limits!r}: no CPU has {item[1:]!r}{did_you_mean(item[1:], table)}")
            table[item[1:]] = False
        elif item in _CEILINGS:
            above = _CEILINGS[item]
            table.update({name: False for name in table if name != item and name.startswith(above)})
        elif item in LEVELS:
            if not platform().triple.startswith("x86_64"):
                raise OptionError(f"{ENVIRONMENT}={limits!r}: {item} is a level of x86-64, which this CPU is not")
            table.update({name: False for name in table if name not in LEVELS[item]})
        else:
            known = ", ".join((*_CEILINGS, *LEVELS, EMULATED_TILES))
            raise OptionError(
                f"{ENVIRONMENT}={limits!r}: unknown item {item!r}; expected one of {known}, or -<feature>"
            )
    if emulated or (table.get("amx-tile") and not is_pretended() and not tiles_permitted()):
        table.update({name: False for name in table if name.startswith("amx")})
    enabled = {name for name, on in table.items() if on}
    found = class_of(platform().triple, enabled)
    if found is None:
        name = platform().cpu
        flags = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(table.items()))
    else:
        name, flags, enabled = found.base, found.feature_string, set(found.features)
    if emulated:
        enabled.add(EMULATED_TILES)
    return Host(name, platform().triple, flags, frozenset(enabled), emulated)


def triple() -> str:
    """Return the LLVM target triple of the objects."""
    return host().triple


def features() -> frozenset[str]:
    """Return the LLVM names of the CPU features that kernels may use."""
    return host().features


def has(*names: str) -> bool:
    """Return whether kernels may use every named LLVM feature."""
    return host().features.issuperset(names)


def vector_bits() -> int:
    """Return the width (bits) of the vector registers that kernels should use: 512, 256 or 128."""
    return host().vector_bits


def lanes(dtype: str = "float32") -> int:
    """Return the elements of ``dtype`` in one vector register."""
    return vector_bits() // (8 * itemsize(dtype))


def target_machine() -> llvm.TargetMachine:
    """Return a new LLVM target machine for `host()`: position-independent, small code model."""
    import llvmlite.binding as llvm

    initialize()
    cpu = host()
    target = llvm.Target.from_triple(cpu.triple)
    return target.create_target_machine(
        cpu=cpu.name, features=cpu.feature_string, opt=3, reloc="pic", codemodel="small"
    )
