"""Facts about machine, Python, packages, targets, cache folder and environment, each with what is wrong about it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ..._version import __version__
from ...codegen import store
from ...codegen.files import ENVIRONMENT as CACHE_VARIABLE
from ...codegen.files import default_folder, make_folder
from ...codegen.platform import cpu_model
from ...errors import MgxError
from ...targets.registry import DEFAULT, missing, target
from ..cache_files import content
from ..variables import PREFIXES, VARIABLES

Facts = dict[str, str]

LEAST_FREE = 200e6
"""Free bytes of the cache folder's disk below which the user is told: kernels of some hundred models take that."""
_MODULES = {"protobuf": "google.protobuf"}
"""Modules of required packages whose name is not that of the package."""
_OTHER_PREFIXES = ("CUDA_", "GOMP_", "HIP_", "KMP_", "LD_", "NUMBA_", "NVIDIA_", "OMP_", "PYTHON", "ROCR_")
"""Prefixes of variables of others that change how programs are compiled or run."""
_TOLD_VALUES = re.compile(r"[\w.,:+\-/=~ ]*")
"""Values of variables that are shown; others may hold text that is nobody's business."""


class Findings:
    """Problems found, in words.

    Attributes:
        problems: keep models from being compiled or run.
        notes: cost time, or switch something off.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []


def facts(found: Findings) -> Iterator[tuple[str, Facts]]:
    """Yield titles of sections with their facts; add what is wrong to ``found``."""
    sections: dict[str, Callable[[Findings], Facts]] = {
        "machine": _machine,
        "python": _python,
        "packages": _packages,
        "optional packages": _optional,
        "target cpu": _cpu,
        "target gpu": _gpu,
        "cache folder": _cache,
        "environment": _environment,
    }
    for title, section in sections.items():
        try:
            yield title, section(found)
        except Exception as error:  # a section that fails is a finding, and the others are still told
            found.problems.append(f"{title}: {type(error).__name__}: {error}")
            yield title, {"error": str(error)}


def _machine(found: Findings) -> Facts:
    logical = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    told = {"system": platform.platform(), "cpu": cpu_model(), "hardware threads": str(logical)}
    with contextlib.suppress(OSError, ValueError, AttributeError):
        told["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.1f} GB"
    return told


def _python(found: Findings) -> Facts:
    told = {
        "version": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": _at_home(sys.executable),
    }
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        locked = getattr(sys, "_is_gil_enabled", lambda: True)()
        told["build"] = f"free-threaded, GIL {'on' if locked else 'off'}"
        found.notes.append("free-threaded builds of Python are not tested")
    return told


def _packages(found: Findings) -> Facts:
    """Return the versions of this package and of the packages that it requires, each imported."""
    told = {"mgx_numba": f"{__version__}, in {_at_home(str(Path(__file__).parents[2]))}"}
    for requirement in _requirements():
        name, least = requirement
        try:
            importlib.import_module(_MODULES.get(name, name))
            version = importlib.metadata.version(name)
        except Exception as error:  # an extension module may raise anything
            told[name] = f"cannot be imported: {error}"
            found.problems.append(f"{name} cannot be imported ({error}); pip install '{name}>={least}'")
            continue
        told[name] = version
        if _numbers(version) < _numbers(least):
            found.problems.append(f"{name} {version} is too old; pip install '{name}>={least}'")
    return told


def _requirements() -> list[tuple[str, str]]:
    """Return the required packages with their least versions; empty for a source tree that is not installed."""
    try:
        listed = importlib.metadata.requires("mgx_numba") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    matches = (re.match(r"([\w-]+)[^;]*>=\s*([\d.]+)[^;]*$", one) for one in listed)  # an upper bound may be there
    return [(match[1], match[2]) for match in matches if match]


def _numbers(version: str) -> list[int]:
    return [int(one) for one in re.findall(r"\d+", version)[:3]]


def _optional(found: Findings) -> Facts:
    """Return the packages of the extras for users, by extra, with versions."""
    try:
        listed = importlib.metadata.requires("mgx_numba") or []
    except importlib.metadata.PackageNotFoundError:
        return {"error": "the package is not installed, so that its extras are not known"}
    extras: dict[str, list[str]] = {}
    for one in listed:
        match = re.match(r"([\w-]+).*extra\s*==\s*['\"](\w+)['\"]", one)
        if match and match[2] not in ("bench", "docs", "test"):
            extras.setdefault(match[2], []).append(match[1])
    return {extra: _installed(names) for extra, names in extras.items()}


def _installed(names: list[str]) -> str:
    """Return the installed packages with versions, then the missing packages."""
    installed, absent = [], []
    for name in names:
        try:
            installed.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            absent.append(name)
    return "; ".join([", ".join(installed)] * bool(installed) + [f"not installed: {', '.join(absent)}"] * bool(absent))


def _cpu(found: Findings) -> Facts:
    from ...codegen.cpu import host
    from ...codegen.cpu.identity import environment_identity
    from ...codegen.cpu.units import units
    from ...codegen.platform import platform as of_llvm

    cpu, llvm, threads = host.host(), of_llvm(), target(DEFAULT).machine()
    assert threads is not None
    told = {
        "cpu, as LLVM names it": llvm.cpu,
        "class": cpu.name + (f", narrowed by {host.ENVIRONMENT}" if os.environ.get(host.ENVIRONMENT) else ""),
        "vectors": f"{cpu.vector_bits} bits",
        "units": "; ".join(units()),
        "threads": threads["threads"],
        "machine record": threads["record"],
        "toolchain": f"Numba {llvm.numba}, llvmlite {llvm.llvmlite}, LLVM {llvm.llvm}",
        "shipped kernels": _shipped(environment_identity()),
    }
    if cpu.features and cpu.vector_bits == 128 and llvm.triple.startswith("x86_64"):
        found.notes.append("kernels have vectors of 128 bits: the CPU has no AVX, or is narrowed")
    if llvm.features.get("amx-tile") and "amx-tile" not in cpu.features:
        found.notes.append("the CPU has AMX, but it is not used: the system does not permit it, or it is narrowed")
    return told


def _shipped(identity: dict[str, str]) -> str:
    """Return how many kernels for this CPU come with the package."""
    folder = store.shipped_folder()
    if folder is None:
        return f"not used, by {store.SHIPPED_ENVIRONMENT}"
    count = store.ShippedKernels(folder).count(identity)
    if count is None:
        return "none in this wheel: each kernel is compiled once"
    return f"{count} for this CPU" if count else "none for this CPU and version: each kernel is compiled once"


def _gpu(found: Findings) -> Facts:
    from ...codegen.gpu.driver import device, hip, library
    from ...codegen.gpu.toolchain.choice import toolchain_identity

    told = {"toolchain": toolchain_identity()}
    lacks = missing("gpu")
    if lacks:
        return {"devices": f"none: {lacks}", **told}
    if hip.uses_hip():
        count, told["driver"] = hip.hip_runtime().device_count(), "HIP"
        found.notes.append("no kernel has run on an AMD GPU yet")
    else:
        count = device.device_count()
        version = library.driver().version
        told["driver"] = f"CUDA {version // 1000}.{version % 1000 // 10}"
        for title, probe in (("cuBLASLt", "cublaslt"), ("cuDNN", "cudnn")):
            told[title] = _library(probe)
    names = [f"{device.model_of(number)}, {_architecture(number)}" for number in range(count)]
    return {"devices": "; ".join(names), **told}


def _architecture(number: int) -> str:
    from ...codegen.gpu.driver import device, hip

    try:
        return (hip.hip_architecture(number) if hip.uses_hip() else device.architecture_of(number)).name
    except MgxError as error:
        return str(error)


def _library(name: str) -> str:
    """Return the version of one of NVIDIA's libraries, or why it is not used."""
    try:
        module = importlib.import_module(f"mgx_numba.codegen.gpu.libraries.{name}")
        return str(getattr(module, name)().version)
    except MgxError as error:
        return f"not used: {error}"


def _cache(found: Findings) -> Facts:
    folder = default_folder()
    told = {"folder": _at_home(str(folder))}
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            told["writable"] = "yes"
        free = shutil.disk_usage(folder).free
        told["free"] = f"{free / 1e9:.1f} GB"
        if free < LEAST_FREE:
            found.notes.append(f"the disk of {told['folder']} is nearly full: {free / 1e6:.0f} MB")
    except OSError as error:
        told["writable"] = f"no: {error.strerror or error}"
        found.notes.append(
            f"the cache folder {told['folder']} cannot be written, so that each process compiles what is not in it; "
            f"set {CACHE_VARIABLE} to a folder that can"
        )
    return told | content(folder)


def _environment(found: Findings) -> Facts:
    told = {}
    for name, value in sorted(os.environ.items()):
        if not name.startswith((*PREFIXES, *_OTHER_PREFIXES)):
            continue
        shown = _at_home(value) if _TOLD_VALUES.fullmatch(value) else "(not shown)"
        known = VARIABLES.get(name)
        if name.startswith(PREFIXES) and (known is None or not known.works):
            shown += " (no effect)"
        told[name] = shown
    return told


def _at_home(text: str) -> str:
    """Replace the user's home folder, whose name is often that of a person."""
    home = os.path.expanduser("~")
    return text.replace(home, "~") if len(home) > 1 else text
