"""The kernels that models need on pretended machines. They are collected where the object store is asked for them.

The run time's own kernels are loaded for the true CPU, for planning calls them. All others are replaced by a kernel
that does nothing, so models may run, with results that mean nothing.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from typing import Any
from unittest import mock

import numpy as np

from mgx_numba.codegen import store
from mgx_numba.codegen.cpu.contraction.panels import aligned_zeros
from mgx_numba.codegen.cpu.contraction.winograd.solver import ConvWinograd
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.cpu.machine import machine, using
from mgx_numba.codegen.cpu.microkernels.tile_table import tile_for
from mgx_numba.codegen.cpu.toolchain import loader
from mgx_numba.codegen.files import ENVIRONMENT
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.shipped import NEUTRAL
from mgx_numba.codegen.workers.objects import objects_of
from mgx_numba.errors import MgxError
from mgx_numba.runtime.cpu.executor import EXECUTOR_KERNELS
from mgx_numba.runtime.cpu.rates import measure_machine
from tools.prebuild.corpus import corpus
from tools.prebuild.corpus.item import Item
from tools.prebuild.machines import MACHINES, Machine

__all__ = ["Collector", "collected"]

LAST_CACHE = 32 << 20
"""Bytes of the last cache of the pretended machines: no text depends on it, but plans do."""
_SMALL_ITEMS = 50
"""Items without a family, which are small, that a process plans together."""
_TOGETHER = 5
"""Machines that a process plans a family of networks for. A family may take a minute for all machines, so that one
process would work at the end; its weights and calibrations are made again by each process."""
_TOLD = 20  # parts between two lines of progress


class Collector:
    """Plans models for machines. Meanwhile it stands for the object store, which is asked for each kernel.

    Attributes:
        names: for each machine, the names of kernels by their texts.
        failed: the error of each model that cannot be compiled, by name.
    """

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.names: dict[str, dict[str, str]] = {m.cpu: {k.text: k.name for k in EXECUTOR_KERNELS} for m in machines}
        self.failed: dict[str, str] = {}
        self._machines = machines
        self._found: dict[str, str] = {}
        self._addresses: dict[str, dict[str, int]] = {m.cpu: {} for m in machines}
        own = [cpu_kernel("idle_kernel", "def kernel(args, begin, end):\n    pass\n"), *EXECUTOR_KERNELS]
        found = objects_of(own)
        self._objects = {kernel.text: found[kernel.symbol].replace(*_names(kernel.symbol, NEUTRAL)) for kernel in own}
        self._idle = self._objects[own[0].text]

    def collect(self, items: Iterable[Item]) -> None:
        """Plan all items for all machines."""
        for number, item in enumerate(items):
            if item.family or number % _SMALL_ITEMS == 0:
                gc.collect()  # programs hold their weights in cycles
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                try:
                    program = item.make()
                    for one in self._machines:
                        for ways in one.l1_ways or (None,):
                            with self._collecting(one, ways):
                                self._plan(item, program)
                except MgxError as error:
                    self.failed[item.name] = f"{type(error).__name__}: {error}"

    def collect_rates(self) -> None:
        """Plan the measurement of a machine record for all machines."""
        for one in self._machines:
            with self._collecting(one):
                measure_machine(0.0)

    def _plan(self, item: Item, program: Any) -> None:
        for threads in item.threads:
            compiled = program.clone().compile("cpu", num_threads=threads, **item.options)
            if item.feeds is not None:
                # lengths that depend on data come from kernels that do nothing
                with contextlib.suppress(MgxError, ValueError, MemoryError, IndexError):
                    compiled.run(dict(item.feeds))

    def get(self, source: KernelSource) -> bytes:
        """Note a kernel, and return an object of it: the kernel of the run time, or one that does nothing."""
        self._found[source.text] = source.name
        return self._objects.get(source.text, self._idle).replace(*_names(NEUTRAL, source.symbol))

    def put(self, source: KernelSource, data: bytes) -> None:
        """Keep nothing: as a store of all kernels this has each already."""

    @contextlib.contextmanager
    def _collecting(self, one: Machine, l1_ways: int | None = None) -> Iterator[None]:
        self._found = self.names[one.cpu]
        with (
            one.pretended(),
            mock.patch.object(store, "_store", lambda *folders: self),
            # half of the time of planning convolution nets, and no text depends on the values
            mock.patch.object(ConvWinograd, "pack_weights", _unfilled),
            # the true machine may have kernels of the same symbols, and runs them to calibrate
            mock.patch.object(loader, "_addresses", self._addresses[one.cpu]),
            mock.patch.object(loader, "_read", {}),
            using(replace(machine(), last_cache_bytes=LAST_CACHE, l1_ways=l1_ways or machine().l1_ways)),
        ):
            yield


def collected(
    machines: Sequence[Machine], groups: Sequence[str], jobs: int, only: tuple[str, ...] = ("",)
) -> dict[str, dict[str, str]]:
    """Return the names of the corpus's kernels by their texts, for each machine and those that it is `like`.

    Args:
        machines: the machines.
        groups: parts of the corpus.
        jobs: processes.
        only: beginnings of the names of the items that are planned.
    """
    every = [*machines, *dict.fromkeys(MACHINES[one.like] for one in machines if one.like)]
    names: dict[str, dict[str, str]] = {one.cpu: {} for one in every}
    failed: dict[str, str] = {}
    tasks = _tasks(list(map(MACHINES.__getitem__, names)), groups, only)
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_start, initargs=(folder,)) as pool,
    ):
        parts = {pool.submit(_part, groups, numbers, cpus): shared for numbers, cpus, shared in tasks}
        for number, part in enumerate(as_completed(parts), 1):
            found, errors = part.result()
            failed.update(errors)
            for cpu in names:
                like = MACHINES[cpu].like or cpu
                names[cpu].update(found.get(like if parts[part] else cpu, {}))
            if number % _TOLD == 0:
                print(f"{number} of {len(parts)} parts planned", file=sys.stderr, flush=True)
    for name, error in failed.items():
        print(f"left out: {name}: {error[:200]}", file=sys.stderr)
    return names


Task = tuple[Sequence[int], Sequence[str], bool]
"""Numbers of items of the corpus, which are planned together; names of machines; and whether the kernels are those of
the machines that are `like` these, too. No item: `Collector.collect_rates`."""


def _tasks(machines: Sequence[Machine], groups: Sequence[str], only: tuple[str, ...]) -> list[Task]:
    """Return the tasks of planning the corpus, families first, since they take longest."""
    families: dict[tuple[str, bool], list[int]] = {}
    small: dict[bool, list[int]] = {False: [], True: []}
    for number, item in enumerate(_items(tuple(groups))):
        if item.name.startswith(only):
            wide = not item.narrow
            (families.setdefault((item.family, wide), []) if item.family else small[wide]).append(number)
    every = [one.cpu for one in machines]
    cpus = {False: every, True: list(dict.fromkeys(one.like or one.cpu for one in machines))}
    tasks: list[Task] = [([], every, False)]
    for (_, wide), numbers in families.items():
        tasks += [(numbers, cpus[wide][k : k + _TOGETHER], wide) for k in range(0, len(cpus[wide]), _TOGETHER)]
    for wide, numbers in small.items():
        tasks += [(numbers[k : k + _SMALL_ITEMS], cpus[wide], wide) for k in range(0, len(numbers), _SMALL_ITEMS)]
    return tasks


@functools.lru_cache(maxsize=1)
def _items(groups: tuple[str, ...]) -> list[Item]:
    return list(corpus(groups))


def _start(folder: str) -> None:
    """Enter a process that plans, with an empty cache folder: plans and tuning records of others have no say."""
    os.environ.update({ENVIRONMENT: folder, "MGX_PLAN_CACHE": "0", "MGX_SHIPPED_KERNELS": "0"})


def _part(
    groups: Sequence[str], numbers: Sequence[int], cpus: Sequence[str]
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    collector = Collector([MACHINES[cpu] for cpu in cpus])
    if not numbers:
        collector.collect_rates()
    items = _items(tuple(groups))
    collector.collect(items[number] for number in numbers)
    return collector.names, collector.failed


def _unfilled(solver: ConvWinograd, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
    """Return zeros in the place of packed weights."""
    return aligned_zeros(solver.packed_lens(problem), tile_for(problem.types).right_word)


def _names(old: str, new: str) -> tuple[bytes, bytes]:
    return old.encode(), new.encode()
