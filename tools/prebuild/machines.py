"""The machines for which kernels ship: one CPU of each class, which is pretended when the corpus is planned.

Tuning records that ship are of CPUs by LLVM's name (`codegen/tuning/shipped`); each of those CPUs stands for its class.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.host import LEVELS
from mgx_numba.codegen.platform import platform

__all__ = ["MACHINES", "Machine"]

_X86, _ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
_V3, _V4 = LEVELS["x86-64-v3"], LEVELS["x86-64-v4"]
_VNNI = _V4 | {"avx512vnni"}
_VBMI = _VNNI | {"avx512vbmi", "avx512vbmi2"}
_BF16 = _VBMI | {"avx512bf16"}
_NEON = frozenset({"neon", "fp-armv8"})
_NEON_DOT = _NEON | {"lse", "fullfp16", "dotprod"}


@dataclass(frozen=True)
class Machine:
    """A CPU.

    Attributes:
        cpu: LLVM's name.
        triple: LLVM's target triple.
        features: the features of its class.
        covers: other CPUs of the class, for readers.
        like: the machine of `MACHINES`, with no feature that this one lacks, whose kernels of wider elements than 16
            bits serve this one too: plans differ only by instructions for narrow elements.
        l1_ways: lines of a set of the L1 data caches of these CPUs and of those that are `like` them, by which tiles
            copy rows that evict each other; empty for the one of the CPU's record.
    """

    cpu: str
    triple: str
    features: frozenset[str]
    covers: str
    like: str = ""
    l1_ways: tuple[int, ...] = ()

    @contextlib.contextmanager
    def pretended(self) -> Iterator[None]:
        """Plan and compile for this machine meanwhile."""
        features = dict.fromkeys(self.features, True)
        with host.pretending(replace(platform(), cpu=self.cpu, triple=self.triple, features=features)):
            yield


MACHINES = {
    one.cpu: one
    for one in (
        Machine("haswell", _X86, _V3, "x86-64-v3: Intel from Haswell, AMD Zen 1 to 3", l1_ways=(8, 12)),
        Machine(
            "alderlake", _X86, _V3 | {"avxvnni"}, "x86-64-v3 with VNNI: Intel's clients from Alder Lake", "haswell"
        ),
        Machine("skylake-avx512", _X86, _V4, "x86-64-v4: Skylake servers", l1_ways=(8, 12)),
        Machine("cascadelake", _X86, _VNNI, "x86-64-v4 with VNNI: Cascade Lake", "skylake-avx512"),
        Machine(
            "icelake-server", _X86, _VBMI, "and byte permutations: Ice Lake, Tiger Lake, Rocket Lake", "skylake-avx512"
        ),
        Machine(
            "znver5",
            _X86,
            _BF16,
            "and bfloat16: AMD Zen 4 and 5; Sapphire Rapids where AMX is hidden",
            l1_ways=(8, 12),
        ),
        Machine("emeraldrapids", _X86, _BF16 | {"amx-tile", "amx-int8", "amx-bf16"}, "AMX: Xeons from Sapphire Rapids"),
        Machine("cortex-a72", _ARM, _NEON, "Armv8.0"),
        Machine("neoverse-n1", _ARM, _NEON_DOT, "Armv8.2 with dot products: Graviton 2, Ampere Altra", "cortex-a72"),
        Machine(
            "neoverse-v1",
            _ARM,
            _NEON_DOT | {"i8mm", "bf16"},
            "and I8MM and bfloat16: Graviton 3 and 4, Grace",
        ),
    )
}
"""By LLVM's name of the CPU."""
