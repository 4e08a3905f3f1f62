"""How a C program tests an x86-64 CPU for the features that LLVM knows by name.

CPUID bits are those of Intel's and AMD's manuals (Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix E), and names
those of LLVM's ``getHostCPUFeatures``.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....dataclass import dataclass
from ....errors import UnsupportedError

_A, _B, _C, _D = range(4)


@dataclass(frozen=True)
class FeatureBit:
    """One bit of a register (0 to 3: a to d) of a CPUID result; ``state``: bits of XCR0 that the operating system must
    set."""

    name: str
    leaf: int
    subleaf: int
    register: int
    bit: int
    state: int


# From the manuals named above.
_BITS: dict[tuple[int, int, int], dict[str, int]] = {
    (1, 0, _C): {
        "sse3": 0,
        "pclmul": 1,
        "ssse3": 9,
        "fma": 12,
        "cx16": 13,
        "sse4.1": 19,
        "sse4.2": 20,
        "crc32": 20,
        "movbe": 22,
        "popcnt": 23,
        "aes": 25,
        "avx": 28,
        "f16c": 29,
    },
    (1, 0, _D): {"cx8": 8, "cmov": 15, "mmx": 23, "fxsr": 24, "sse": 25, "sse2": 26},
    (7, 0, _B): {
        "bmi": 3,
        "avx2": 5,
        "bmi2": 8,
        "avx512f": 16,
        "avx512dq": 17,
        "adx": 19,
        "avx512ifma": 21,
        "avx512cd": 28,
        "sha": 29,
        "avx512bw": 30,
        "avx512vl": 31,
    },
    (7, 0, _C): {
        "avx512vbmi": 1,
        "avx512vbmi2": 6,
        "gfni": 8,
        "vaes": 9,
        "vpclmulqdq": 10,
        "avx512vnni": 11,
        "avx512bitalg": 12,
        "avx512vpopcntdq": 14,
    },
    (7, 0, _D): {"avx512vp2intersect": 8, "amx-bf16": 22, "avx512fp16": 23, "amx-tile": 24, "amx-int8": 25},
    (7, 1, _A): {
        "sha512": 0,
        "sm3": 1,
        "sm4": 2,
        "avxvnni": 4,
        "avx512bf16": 5,
        "amx-fp16": 21,
        "avxifma": 23,
    },
    (7, 1, _D): {
        "avxvnniint8": 4,
        "avxneconvert": 5,
        "amx-complex": 8,
        "avxvnniint16": 10,
        "avx10.1": 19,
        "avx10.1-256": 19,
        "avx10.1-512": 19,
    },
    (0x80000001, 0, _C): {"sahf": 0, "lzcnt": 5, "sse4a": 6, "prfchw": 8, "xop": 11, "fma4": 16, "tbm": 21},
    (0x80000001, 0, _D): {"64bit": 29},
}
_NEVER = frozenset(
    "clflushopt clwb clzero cldemote cmpccxadd enqcmd fsgsbase hreset invpcid kl lwp movdir64b movdiri movrs mwaitx "
    "pconfig pku prefetchi ptwrite raoint rdpid rdpru rdrnd rdseed rtm serialize sgx shstk tsxldtrk uintr usermsr "
    "waitpkg wbnoinvd widekl xsave xsavec xsaveopt xsaves".split()
)
"""Features that no kernel uses: LLVM emits their instructions only where a program names them."""

_YMM, _ZMM, _TILES = 0x6, 0xE6, 0x60000  # bits of XCR0: vectors of 256 bits, of 512, tiles


def needed_bits(features: Iterable[str]) -> list[FeatureBit]:
    """Return the CPUID bits that a CPU must have to run code compiled with these LLVM features.

    Raises:
        UnsupportedError: the CPUID bit of a feature is not known.
    """
    found, known = [], {name: place for place, names in _BITS.items() for name in names}
    unknown = sorted(set(features) - known.keys() - _NEVER)
    if unknown:
        without = ",".join(f"-{name}" for name in unknown)
        raise UnsupportedError(
            f"export_library: a library could not find out whether a CPU has {', '.join(unknown)}; compile without, by "
            f"MGX_CPU_FEATURES={without}"
        )
    for name in sorted(set(features) & known.keys()):
        leaf, subleaf, register = known[name]
        found.append(FeatureBit(name, leaf, subleaf, register, _BITS[known[name]][name], _state(name)))
    return found


def _state(name: str) -> int:
    if name.startswith(("avx512", "avx10")):
        return _ZMM
    if name.startswith("amx"):
        return _ZMM | _TILES
    return _YMM if name.startswith("avx") or name in ("fma", "fma4", "f16c", "xop", "vaes", "vpclmulqdq") else 0
