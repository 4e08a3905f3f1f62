"""The kernels that models need on pretended machines. They are collected where the object store is asked for them.

The run time's own kernels are loaded for the true CPU, for planning calls them. All others are replaced by a kernel
that does nothing, so models may run, with results that mean nothing.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any
from unittest import mock

import numpy as np

from mgx_numba.codegen import store
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.cpu.machine import machine, using
from mgx_numba.codegen.cpu.toolchain import loader
from mgx_numba.codegen.files import ENVIRONMENT
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.shipped import NEUTRAL
from mgx_numba.codegen.workers.objects import objects_of
from mgx_numba.errors import MgxError
from mgx_numba.runtime.cpu.executor import EXECUTOR_KERNELS
from mgx_numba.runtime.cpu.machine_rates import measure_machine
from tools.prebuild.corpus import corpus
from tools.prebuild.corpus.item import Item
from tools.prebuild.machines import Machine

__all__ = ["Collector", "collected"]

LAST_CACHE = 32 << 20
"""Bytes of the last cache of the pretended machines: no text depends on it, but plans do."""


_SMALL_ITEMS = 50
"""Items without a family, which are small, between two searches for garbage."""
_TOLD = 100  # items between two lines of progress


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
                        with self._collecting(one):
                            self._plan(item, program)
                except MgxError as error:
                    self.failed[item.name] = f"{type(error).__name__}: {error}"

    def collect_rates(self) -> None:
        """Plan the measurement of a machine record for all machines."""
        for one in self._machines:
            with self._collecting(one):
                measure_machine(0.0, strict=False)

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
    def _collecting(self, one: Machine) -> Iterator[None]:
        self._found = self.names[one.cpu]
        with (
            one.pretended(),
            mock.patch.object(store, "_store", lambda *folders: self),
            # the true machine may have kernels of the same symbols, and runs them to calibrate
            mock.patch.object(loader, "_addresses", self._addresses[one.cpu]),
            mock.patch.object(loader, "_read", {}),
            using(replace(machine(), last_cache_bytes=LAST_CACHE)),
        ):
            yield


def collected(
    machines: Sequence[Machine], groups: Sequence[str], jobs: int, only: tuple[str, ...] = ("",)
) -> dict[str, dict[str, str]]:
    """Return the names of the corpus's kernels by their texts, for each machine.

    Args:
        machines: the machines.
        groups: parts of the corpus.
        jobs: processes.
        only: beginnings of the names of the items that are planned.
    """
    names: dict[str, dict[str, str]] = {one.cpu: {} for one in machines}
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        parts = [pool.submit(_part, machines, groups, number, jobs, only) for number in range(jobs)]
        for part in parts:
            for cpu, found in part.result().items():
                names[cpu].update(found)
    return names


def _part(
    machines: Sequence[Machine], groups: Sequence[str], number: int, parts: int, only: tuple[str, ...]
) -> dict[str, dict[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        # plans and tuning records of earlier processes have no say
        os.environ.update({ENVIRONMENT: folder, "MGX_PLAN_CACHE": "0", "MGX_SHIPPED_KERNELS": "0"})
        collector = Collector(machines)
        if number == 0:
            collector.collect_rates()
        items = (item for item in corpus(groups) if item.part(parts) == number and item.name.startswith(only))
        collector.collect(_counted(items, f"part {number + 1} of {parts}"))
    for name, error in collector.failed.items():
        print(f"left out: {name}: {error[:200]}", file=sys.stderr)
    return collector.names


def _counted(items: Iterable[Item], title: str) -> Iterator[Item]:
    """Yield items, and print now and then how many were planned."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _TOLD == 0:
            print(f"{title}: {number} items planned", file=sys.stderr, flush=True)


def _names(old: str, new: str) -> tuple[bytes, bytes]:
    return old.encode(), new.encode()
