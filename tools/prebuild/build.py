"""Files of shipped kernels: the objects of a machine's kernels, written and checked."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from mgx_numba.codegen.cpu.identity import environment_identity
from mgx_numba.codegen.cpu.kernel import NAME
from mgx_numba.codegen.cpu.toolchain.compiler import compile_object
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.shipped import NEUTRAL, TOOLCHAIN, environment_of, file_name, pack_kernels
from tools.prebuild.machines import Machine

__all__ = ["compiled", "differences", "packed"]

_ENTERED = contextlib.ExitStack()
"""What a compiling process has entered for its whole life."""
_CHUNK = 8  # kernels handed to a process at once


def packed(machine: Machine, objects: Mapping[str, bytes]) -> tuple[str, bytes]:
    """Return the name and the bytes of a machine's file; objects are by the digest of the text."""
    with machine.pretended():
        identity = environment_identity()
    environment = environment_of(identity)
    toolchain = {field: identity[field] for field in TOOLCHAIN}
    header = {"identity": environment, "toolchain": toolchain, "cpu": machine.cpu}
    return file_name(environment), pack_kernels(header, objects)


def compiled(machine: Machine, names: Mapping[str, str], jobs: int) -> dict[str, bytes]:
    """Compile kernels for a machine in some processes.

    Args:
        machine: the machine.
        names: names by texts.
        jobs: processes; with 1 the kernels are compiled in this process.

    Returns:
        Objects that export `NEUTRAL`, by the digest of the text.

    Raises:
        CompileError: a kernel cannot be compiled.
    """
    ordered = sorted((name, text) for text, name in names.items())
    if jobs == 1:
        with machine.pretended():
            return dict(map(_compiled, ordered))
    fork = multiprocessing.get_context("fork")  # children have Numba already
    with ProcessPoolExecutor(jobs, fork, _pretend, (machine,)) as pool:
        return dict(pool.map(_compiled, ordered, chunksize=_CHUNK))


def differences(folder: Path, machine: Machine, names: Mapping[str, str], jobs: int) -> Iterable[str]:
    """Return what is wrong with a machine's file, beside what compiling gives now; nothing if all is well."""
    name, wanted = packed(machine, compiled(machine, names, jobs))
    path = folder / name
    if not path.exists():
        return [f"{machine.cpu}: there is no file {name}"]
    found = path.read_bytes()
    return [] if found == wanted else [f"{machine.cpu}: {name} is not what compiling gives now"]


def _pretend(machine: Machine) -> None:
    _ENTERED.enter_context(machine.pretended())


def _compiled(kernel: tuple[str, str]) -> tuple[str, bytes]:
    name, text = kernel
    return hashlib.sha256(text.encode()).hexdigest(), compile_object(KernelSource(NAME, name, text), NEUTRAL)
