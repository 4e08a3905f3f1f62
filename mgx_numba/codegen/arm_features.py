"""The features of this process's ARM CPU as the operating system lists them, by LLVM's names.

LLVM 22 reads ``/proc/cpuinfo`` on Linux, and reports neither ``dotprod`` nor ``i8mm``, ``bf16`` and ``fullfp16`` of a
Neoverse V1.
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["system_features"]

_AT_HWCAP, _AT_HWCAP2 = 16, 26
"""Types of the auxiliary vector's entries (Linux, include/uapi/linux/auxvec.h)."""
_LINUX = {
    "fp-armv8": (_AT_HWCAP, 0), "neon": (_AT_HWCAP, 1), "lse": (_AT_HWCAP, 8), "fullfp16": (_AT_HWCAP, 10),
    "dotprod": (_AT_HWCAP, 20), "sve": (_AT_HWCAP, 22), "fp16fml": (_AT_HWCAP, 23), "sve2": (_AT_HWCAP2, 1),
    "i8mm": (_AT_HWCAP2, 13), "bf16": (_AT_HWCAP2, 14), "sme": (_AT_HWCAP2, 23),
}  # fmt: skip
"""Entry and bit of each feature (Linux, arch/arm64/include/uapi/asm/hwcap.h)."""
_DARWIN = {
    "fp-armv8": "floatingpoint", "neon": "AdvSIMD", "lse": "arm.FEAT_LSE", "fullfp16": "arm.FEAT_FP16",
    "dotprod": "arm.FEAT_DotProd", "fp16fml": "arm.FEAT_FHM", "i8mm": "arm.FEAT_I8MM", "bf16": "arm.FEAT_BF16",
    "sme": "arm.FEAT_SME",
}  # fmt: skip
"""Names below ``hw.optional`` (Apple, "Determining Instruction Set Characteristics")."""
_WINDOWS = {
    "fp-armv8": 18,
    "neon": 19,
    "lse": 34,
    "dotprod": 43,
    "sve": 46,
    "sve2": 47,
    "i8mm": 66,
    "fullfp16": 67,
    "bf16": 68,
    "sme": 70,
}
"""Arguments of IsProcessorFeaturePresent (Windows SDK, winnt.h: ``PF_ARM_*_INSTRUCTIONS_AVAILABLE``)."""


def system_features() -> dict[str, bool]:
    """Return for each feature that the operating system knows whether the CPU has it.

    Call it on 64-bit ARM only.
    """
    if sys.platform == "win32":
        present = ctypes.CDLL("kernel32").IsProcessorFeaturePresent
        return {name: bool(present(number)) for name, number in _WINDOWS.items()}
    if sys.platform == "darwin":
        return {name: _sysctl(f"hw.optional.{key}") for name, key in _DARWIN.items()}
    read = ctypes.CDLL(None).getauxval
    read.restype, read.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
    return {name: bool(read(entry) >> bit & 1) for name, (entry, bit) in _LINUX.items()}


def _sysctl(name: str) -> bool:
    """Return whether an integer of the system is present and not 0."""
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    read = ctypes.CDLL(None).sysctlbyname
    return (
        read(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)) == 0 and value.value != 0
    )
