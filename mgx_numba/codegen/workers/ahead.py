"""Kernels that are compiled in other processes while the plan that needs them is still being made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from ..kernel import KernelSource

if TYPE_CHECKING:
    from .batch import Batch

__all__ = ["Ahead"]

_FEWEST = 12
"""Kernels of the plan of a small network with its executor."""


class Ahead:
    """A context in which kernels are added as they are found to be needed; `batch` has begun with them.

    A kernel that can be loaded without compiling is left out. A process without kernels to compile starts none.
    """

    def __init__(self, ready: Callable[[KernelSource], bool], always: Sequence[KernelSource]) -> None:
        """``ready`` tells whether a kernel need not be compiled; ``always`` are kernels that every plan needs: if they
        have to be compiled, so have the others, as a rule."""
        self.batch: Batch | None = None
        self._ready = ready
        self._always = always
        self._seen: set[KernelSource] = set()
        self._missing: list[KernelSource] = []

    def __enter__(self) -> Ahead:
        missing = [kernel for kernel in self._always[:1] if not self._ready(kernel)]
        if missing:
            self._begin([kernel for kernel in self._always if not self._ready(kernel)], _FEWEST)
        self._seen.update(self._always)
        return self

    def add(self, kernels: Sequence[KernelSource]) -> None:
        """Compile kernels, unless they are ready or known."""
        new = [kernel for kernel in kernels if kernel not in self._seen]
        if new:
            self._seen.update(new)
            self._begin([kernel for kernel in new if not self._ready(kernel)])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.batch is not None:
            (self.batch.close if kind is None else self.batch.cancel)()

    def _begin(self, missing: Sequence[KernelSource], more: int = 0) -> None:
        """Have kernels compiled, of which there will be ``more``, by all CPUs but the one that finds them."""
        self._missing += missing
        if not missing:
            return
        from .batch import Batch, worker_count  # late: a process whose kernels are all stored needs no workers

        workers = worker_count(len(self._missing) + more)
        if workers and self.batch is None:
            self.batch = Batch()
        if self.batch is not None:
            self.batch.add(self._missing)
            self.batch.hire(max(1, workers - 1))
