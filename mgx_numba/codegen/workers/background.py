"""Compilation of kernels in worker processes while the plan that needs them is still being built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from ..backend import backend
from ..kernel import KernelSource
from ..store import Store, default_store, look_up

if TYPE_CHECKING:
    from .batch import ObjectBatch

_FEWEST = 12
"""Kernels for which workers are started: the plan of a small network with its executor."""


class BackgroundCompilation:
    """A context that starts compiling kernels as soon as they are known to be needed.

    Loaded and stored kernels are not compiled. A process without kernels to compile starts no worker.

    Attributes:
        store: the object store.
        stored: objects found in the store, by symbol.
        batch: the running compilation of the other kernels; None if there are too few.
    """

    def __init__(
        self, loaded: Callable[[KernelSource], bool], store: Store | None, always: Sequence[KernelSource]
    ) -> None:
        """Create the context.

        Args:
            loaded: returns whether a kernel needs no object.
            store: the object store, or None.
            always: kernels that every plan needs. If they must be compiled, most other kernels must be, too.
        """
        self.stored: dict[str, bytes] = {}
        self.batch: ObjectBatch | None = None
        self._loaded = loaded
        self.store = store or default_store()
        self._always = always
        self._seen: set[KernelSource] = set()
        self._missing: list[KernelSource] = []

    def __enter__(self) -> BackgroundCompilation:
        first = self._lacking(self._always[:1])
        if first:
            self._begin([*first, *self._lacking(self._always)], _FEWEST)
        return self

    def add(self, kernels: Sequence[KernelSource]) -> None:
        """Start compiling kernels that are not loaded, stored or already added."""
        missing = self._lacking(kernels)
        if missing:
            self._begin(missing)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.batch is not None:
            (self.batch.close if kind is None else self.batch.cancel)()

    def _lacking(self, kernels: Sequence[KernelSource]) -> list[KernelSource]:
        new = [kernel for kernel in kernels if kernel not in self._seen]
        self._seen.update(new)
        wanted = [kernel for kernel in new if not self._loaded(kernel)]
        if not wanted:
            return []
        stored, missing = look_up(self.store, wanted, backend(wanted[0].backend).loadable)
        self.stored.update(stored)
        return missing

    def _begin(self, missing: Sequence[KernelSource], more: int = 0) -> None:
        """Compile kernels with all CPUs except the one that builds the plan; about ``more`` further kernels will
        follow."""
        from .batch import ObjectBatch, worker_count  # late: a process whose kernels are all stored needs no workers

        self._missing += missing
        workers = worker_count(len(self._missing) + more)
        if workers and self.batch is None:
            self.batch = ObjectBatch()
        if self.batch is not None:
            self.batch.add(self._missing)
            self.batch.hire(max(1, workers - 1))
