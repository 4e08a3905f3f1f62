"""Files of shipped kernels: the objects of a machine's kernels, written and checked."""

from __future__ import annotations

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
    made = compiled(machines, names, jobs)
    for triple in dict.fromkeys(machine.triple for machine in machines):
        sections, lines = [], []
        stored: set[bytes] = set()
        for machine in dict.fromkeys((*MACHINES.values(), *machines)):
            if machine.triple != triple:
                continue
            with machine.pretended():
                identity = environment_identity()
            objects = made[machine.cpu] if machine in machines else earlier.objects(identity) if earlier else {}
            if objects:
                sections.append(ShippedSection(identity, machine.cpu, objects))
                new = set(objects.values()) - stored
                stored |= new
                lines.append(f"{machine.cpu:16} {len(objects):5} kernels, {len(new):5} more objects: {machine.covers}")
        yield file_name(identity), pack(sections), "\n".join(lines)


def compiled(machines: Sequence[Machine], names: Names, jobs: int) -> dict[str, dict[str, bytes]]:
    """Compile kernels for machines in some processes.

    A kernel that the machine has of which it is `like` is compiled once, for that machine, and serves both.

    Args:
        machines: the machines.
        names: for each machine, names by texts.
        jobs: processes; with 1 the kernels are compiled in this process.

    Returns:
        For each machine, objects that export `NEUTRAL`, by `text_key`.

    Raises:
        CompileError: a kernel cannot be compiled.
    """
    by_machine: dict[Machine, dict[str, str]] = {}
    for machine in machines:
        for text, name in names[machine.cpu].items():
            maker = MACHINES[machine.like] if text in names.get(machine.like, ()) else machine
            by_machine.setdefault(maker, {})[text] = name
    chunks = []
    for maker, kernels in by_machine.items():
        ordered = sorted((name, text) for text, name in kernels.items())
        chunks += [(maker, ordered[k : k + _CHUNK]) for k in range(0, len(ordered), _CHUNK)]
    if jobs == 1:
        results = list(map(_compiled, *zip(*chunks, strict=True)))
    else:
        fork = multiprocessing.get_context("fork")  # children have Numba already
        with ProcessPoolExecutor(jobs, fork) as pool:
            results = list(pool.map(_compiled, *zip(*chunks, strict=True)))
    made: dict[Machine, dict[str, bytes]] = {}
    for (maker, _), objects in zip(chunks, results, strict=True):
        made.setdefault(maker, {}).update(objects)
    found = {}
    for machine in machines:
        ready = {**made.get(machine, {}), **made.get(MACHINES[machine.like], {})} if machine.like else made[machine]
        found[machine.cpu] = {key: ready[key] for key in map(text_key, names[machine.cpu])}
    return found


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
    for machine, wanted in zip(machines, compiled(machines, names, jobs).values(), strict=True):
        with machine.pretended():
            had = ShippedKernels(folder).objects(environment_identity())
        known = {text_key(text): name for text, name in names[machine.cpu].items()}
        for key in sorted(wanted.keys() | (had.keys() if whole else ()), key=lambda key: (known.get(key, ""), key)):
            if had.get(key) != wanted.get(key):
                how = "is missing" if key not in had else "differs" if key in wanted else "is no kernel of the corpus"
                wrong.append(f"{machine.cpu}: {known.get(key, 'kernel')} {key[:12]} {how}")
    return wrong


def _compiled(machine: Machine, kernels: Sequence[tuple[str, str]]) -> dict[str, bytes]:
    """Compile kernels, given as names and texts, for a machine."""
    with machine.pretended():
        return {text_key(text): compile_object(KernelSource(NAME, name, text), NEUTRAL) for name, text in kernels}
