"""Files of shipped kernels: the objects of a machine's kernels, written and checked."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from mgx_numba.codegen.cpu.identity import environment_identity
from mgx_numba.codegen.cpu.kernel import NAME
from mgx_numba.codegen.cpu.toolchain.compiler import compile_object
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.shipped import NEUTRAL, ShippedSection, file_name, pack
from tools.prebuild.machines import Machine

__all__ = ["compiled", "differences", "files"]

Names = Mapping[str, Mapping[str, str]]

_ENTERED = contextlib.ExitStack()
"""What a compiling process has entered for its whole life."""
_CHUNK = 8  # kernels handed to a process at once


def files(machines: Sequence[Machine], names: Names, jobs: int) -> Iterator[tuple[str, bytes, str]]:
    """Compile kernels, and return the name and the bytes of the file of each platform, with lines about its sections.

    Args:
        machines: the machines.
        names: for each machine, the names of kernels by their texts.
        jobs: processes; with 1 the kernels are compiled in this process.

    Raises:
        CompileError: a kernel cannot be compiled.
    """
    for triple in dict.fromkeys(machine.triple for machine in machines):
        sections, lines, before = [], [], 0
        for machine in machines:
            if machine.triple == triple:
                with machine.pretended():
                    identity = environment_identity()
                sections.append(ShippedSection(identity, machine.cpu, compiled(machine, names[machine.cpu], jobs)))
                size, count = len(pack(sections)), len(sections[-1].objects)
                lines.append(f"{machine.cpu:16} {count:5} kernels, {(size - before) / 1e6:5.2f} MB: {machine.covers}")
                before = size
        yield file_name(identity), pack(sections), "\n".join(lines)


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


def differences(folder: Path, machines: Sequence[Machine], names: Names, jobs: int) -> list[str]:
    """Return the files of the folder that are not what compiling gives now, a line for each."""
    wrong = []
    for name, wanted, _ in files(machines, names, jobs):
        path = folder / name
        if not path.exists():
            wrong.append(f"there is no file {name}")
        elif path.read_bytes() != wanted:
            wrong.append(f"{name} is not what compiling gives now")
    return wrong


def _pretend(machine: Machine) -> None:
    _ENTERED.enter_context(machine.pretended())


def _compiled(kernel: tuple[str, str]) -> tuple[str, bytes]:
    name, text = kernel
    return hashlib.sha256(text.encode()).hexdigest(), compile_object(KernelSource(NAME, name, text), NEUTRAL)
