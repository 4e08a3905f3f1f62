"""LLVM's description of this CPU and the versions of code generators, cached in the cache folder.

LLVM takes tens of milliseconds and megabytes to load. A process whose kernels are all in the object store needs only
LLVM's name of the CPU. The name cannot change while the CPU, its features as the system lists them, and the packages'
version files stay the same: these form the key of the cache entry.

The features of an ARM CPU come from the operating system (`system_features`), by LLVM's names. LLVM 22 reads
``/proc/cpuinfo`` on Linux, and reports neither ``dotprod`` nor ``i8mm``, ``bf16`` and ``fullfp16`` of a
Neoverse V1.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from ..dataclass import dataclass
from ..digest import text_digest
from ..errors import CompileError
from ..interrupts import whole_module
from .files import default_folder, make_folder, read_trusted, replace_file

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


FORMAT = 3  # version of the cache file; raised with each change of its fields
_CPU_FIELDS = frozenset(
    (
        "vendor_id",
        "cpu family",
        "model",
        "model name",
        "stepping",
        "flags",
        "Features",
        "CPU implementer",
        "CPU architecture",
        "CPU variant",
        "CPU part",
        "CPU revision",
    )
)


@dataclass(frozen=True)
class Platform:
    """LLVM's name, features and triple of this process's CPU, and versions ("unknown" where not installed)."""

    cpu: str
    features: dict[str, bool]
    triple: str
    numba: str
    llvmlite: str
    llvm: str


_pretended: list[Platform] = []


def platform() -> Platform:
    """Return this process's platform, or the pretended one; LLVM is not loaded if the cache folder has the answer."""
    return _pretended[-1] if _pretended else _platform()


def is_pretended() -> bool:
    """Return whether `platform` returns another platform than this process's."""
    return bool(_pretended)


@contextlib.contextmanager
def pretending(other: Platform) -> Iterator[None]:
    """Let `platform` return ``other`` inside a ``with`` block, in all threads. CPU code also needs
    `host.pretending`."""
    _pretended.append(other)
    try:
        yield
    finally:
        _pretended.pop()


@functools.lru_cache(maxsize=1)
def _platform() -> Platform:
    key = _key()
    path = default_folder() / f"platform-{key[:24]}.json" if key else None
    found = _recall(path, key) if path else None
    if found is None:
        found = _ask()
        if path:
            _remember(path, key, found)
    return found


def _key() -> str:
    """Return a digest of everything that the cached facts depend on; empty if the system does not provide all of
    it."""
    try:
        cpu = {line.strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if _is_lasting(line)}
        versions = [_version_file(name) for name in ("numba", "llvmlite")]
    except (OSError, ValueError, ImportError):
        return ""
    if not cpu:
        return ""
    machine = os.uname().machine  # there is /proc/cpuinfo, so this is Linux
    system = sorted(name for name, present in system_features().items() if present) if _is_arm(machine) else []
    text = "\n".join([str(FORMAT), sys.platform, str(sys.maxsize), machine, *system, *sorted(cpu), *versions])
    return text_digest(text)


def _is_arm(machine: str) -> bool:
    """Return whether a machine's name, or a target triple, is of 64-bit ARM."""
    return machine.startswith(("aarch64", "arm64"))


def _is_lasting(line: str) -> bool:
    return line.partition(":")[0].strip() in _CPU_FIELDS


def _version_file(package: str) -> str:
    """Return the text of a package's version file, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    return f"{spec.origin}\n{Path(spec.origin).with_name('_version.py').read_text()}"


def _recall(path: Path, key: str) -> Platform | None:
    try:
        stored = json.loads(read_trusted(path))
        found = Platform(**stored["platform"]) if stored["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found is not None and _is_sound(found) else None


def _is_sound(found: Platform) -> bool:
    texts = (found.cpu, found.triple, found.numba, found.llvmlite, found.llvm)
    features: object = found.features
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(features, dict)
        and all(isinstance(on, bool) for on in features.values())
    )


def _remember(path: Path, key: str, found: Platform) -> None:
    try:
        make_folder(path.parent)
        replace_file(path, json.dumps({"key": key, "platform": asdict(found)}).encode())
    except OSError:
        pass  # the object store warns about an unwritable folder


def _ask() -> Platform:
    """Return what LLVM says.

    Raises:
        CompileError: Numba or llvmlite is not installed, or LLVM cannot be loaded.
    """
    try:
        for name in ("numba", "llvmlite"):
            if importlib.util.find_spec(name) is None:
                raise ImportError(f"{name} is not installed")
        llvm = whole_module("llvmlite.binding")
    except (ImportError, OSError) as error:  # OSError: LLVM's library needs another C library
        raise CompileError(
            f"{sys.executable} (Python {sys.version.partition(' [')[0]}) cannot compile kernels: {error}. "
            "docs/platforms.md lists the versions of Python, free-threaded too, for which Numba has wheels; "
            "the target ref needs no compiler"
        ) from error
    triple = _triple(llvm.get_process_triple())
    return Platform(
        cpu=llvm.get_host_cpu_name(),
        features=dict(llvm.get_host_cpu_features()) | (system_features() if _is_arm(triple) else {}),
        triple=triple,
        numba=_distribution_version("numba"),
        llvmlite=_distribution_version("llvmlite"),
        llvm=".".join(map(str, llvm.llvm_version_info)),
    )


def _triple(default: str) -> str:
    """Return the target triple of the objects. The vendor differs between builds of LLVM and is dropped on Linux."""
    architecture, _, system = default.partition("-")
    if system.endswith(("linux-gnu", "linux-musl")):
        return f"{architecture}-unknown-linux-gnu"
    # object format ELF, which MCJIT loads on every system
    return default if "linux" in default else default + "-elf"


def cpu_model() -> str:
    """Return the name of the CPU as the system states it; the architecture if it states none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    import platform as system  # slow to import

    return system.processor() or system.machine()


def _distribution_version(name: str) -> str:
    import importlib.metadata  # slow to import

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
