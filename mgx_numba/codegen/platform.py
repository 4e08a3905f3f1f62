"""What LLVM says of this CPU and which code generators are installed, remembered in the cache folder.

LLVM takes tens of milliseconds and megabytes to load. A process whose kernels are all in the object store needs only
its name of the CPU, which cannot change while the CPU, its features as the system lists them, and the packages' own
version files stay the same: these are the key of what is remembered.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..dataclass import dataclass
from ..interrupts import whole_module
from .files import default_folder, make_folder, read_trusted, replace_file

__all__ = ["Platform", "platform"]

FORMAT = 1  # of the file that remembers the answers; raised with each change of its fields
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


@functools.lru_cache(maxsize=1)
def platform() -> Platform:
    """This process's, without loading LLVM if an earlier process has left it in the cache folder."""
    key = _key()
    path = default_folder() / f"platform-{key[:24]}.json" if key else None
    found = _recall(path, key) if path else None
    if found is None:
        found = _ask()
        if path:
            _remember(path, key, found)
    return found


def _key() -> str:
    """SHA-256 of what the facts depend on; empty if the system does not tell all of it."""
    try:
        cpu = {line.strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if _is_lasting(line)}
        versions = [_version_file(name) for name in ("numba", "llvmlite")]
    except (OSError, ValueError, ImportError):
        return ""
    if not cpu:
        return ""
    text = "\n".join([str(FORMAT), sys.platform, str(sys.maxsize), *sorted(cpu), *versions])
    return hashlib.sha256(text.encode()).hexdigest()


def _is_lasting(line: str) -> bool:
    return line.partition(":")[0].strip() in _CPU_FIELDS


def _version_file(package: str) -> str:
    """The text that tells a package's version; the package is not imported."""
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
    features: Any = found.features
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
        pass  # the object store tells of a folder that cannot be written


def _ask() -> Platform:
    llvm = whole_module("llvmlite.binding")
    default = llvm.get_process_triple()
    return Platform(
        cpu=llvm.get_host_cpu_name(),
        features=dict(llvm.get_host_cpu_features()),
        # ELF as the object format, which MCJIT loads on every system
        triple=default if "linux" in default else default + "-elf",
        numba=_distribution_version("numba"),
        llvmlite=_distribution_version("llvmlite"),
        llvm=".".join(map(str, llvm.llvm_version_info)),
    )


def _distribution_version(name: str) -> str:
    import importlib.metadata  # slow to import

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
