"""Files of shipped kernels: the objects of a machine's kernels, written and checked."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from mgx_numba.codegen.cpu.identity import environment_identity
from mgx_numba.codegen.cpu.kernel import NAME
from mgx_numba.codegen.cpu.toolchain.compiler import compile_object
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.shipped import NEUTRAL, ShippedKernels, ShippedSection, file_name, pack, text_key
from tools.prebuild.machines import MACHINES, Machine

__all__ = ["compiled", "differences", "files"]

Names = Mapping[str, Mapping[str, str]]

_ENTERED = contextlib.ExitStack()
"""What a compiling process has entered for its whole life."""
_CHUNK = 8  # kernels handed to a process at once


def files(
    machines: Sequence[Machine], names: Names, jobs: int, folder: Path | None = None
) -> Iterator[tuple[str, bytes, str]]:
    """Compile kernels, and return the name and the bytes of the file of each platform, with lines about its sections.

    Args:
        machines: the machines.
        names: for each machine, the names of kernels by their texts.
        jobs: processes; with 1 the kernels are compiled in this process.
        folder: a folder with earlier files; sections of `MACHINES` that are not given are taken from there.

    Raises:
        CompileError: a kernel cannot be compiled.
    """
    earlier = ShippedKernels(folder) if folder else None
    for triple in dict.fromkeys(machine.triple for machine in machines):
        sections, lines, before = [], [], 0
        for machine in dict.fromkeys((*MACHINES.values(), *machines)):
            if machine.triple != triple:
                continue
            with machine.pretended():
                identity = environment_identity()
            if machine in machines:
                objects = compiled(machine, names[machine.cpu], jobs)
            elif not (objects := earlier.objects(identity) if earlier else {}):
                continue
            sections.append(ShippedSection(identity, machine.cpu, objects))
            size = len(pack(sections))
            lines.append(
                f"{machine.cpu:16} {len(objects):5} kernels, {(size - before) / 1e6:5.2f} MB: {machine.covers}"
            )
            before = size
        yield file_name(identity), pack(sections), "\n".join(lines)


def compiled(machine: Machine, names: Mapping[str, str], jobs: int) -> dict[str, bytes]:
    """Compile kernels for a machine in some processes.

    Args:
        machine: the machine.
        names: names by texts.
        jobs: processes; with 1 the kernels are compiled in this process.

    Returns:
        Objects that export `NEUTRAL`, by `text_key`.

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


def differences(folder: Path, machines: Sequence[Machine], names: Names, jobs: int, whole: bool = True) -> list[str]:
    """Return a line for each kernel of a folder's files that is not what compiling gives now.

    Args:
        folder: the folder.
        machines: the machines whose kernels are compared.
        names: as for `files`.
        jobs: as for `files`.
        whole: whether the names are those of the whole corpus, so that a file may have no other kernel.
    """
    wrong = []
    for machine in machines:
        with machine.pretended():
            had = ShippedKernels(folder).objects(environment_identity())
        wanted, known = (
            compiled(machine, names[machine.cpu], jobs),
            {text_key(t): n for t, n in names[machine.cpu].items()},
        )
        for key in sorted(wanted.keys() | (had.keys() if whole else ()), key=lambda key: (known.get(key, ""), key)):
            if had.get(key) != wanted.get(key):
                how = "is missing" if key not in had else "differs" if key in wanted else "is no kernel of the corpus"
                wrong.append(f"{machine.cpu}: {known.get(key, 'kernel')} {key[:12]} {how}")
    return wrong


def _pretend(machine: Machine) -> None:
    _ENTERED.enter_context(machine.pretended())


def _compiled(kernel: tuple[str, str]) -> tuple[str, bytes]:
    name, text = kernel
    return text_key(text), compile_object(KernelSource(NAME, name, text), NEUTRAL)
