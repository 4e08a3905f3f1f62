"""Compiled objects of kernels, from the store or by compilation, for any back end."""

from __future__ import annotations

from collections.abc import Sequence

from ..backend import Progress, backend
from ..kernel import KernelSource
from ..store import Store, default_store, look_up
from ..traces import show_kernels
from .background import BackgroundCompilation


def objects_of(
    sources: Sequence[KernelSource],
    progress: Progress | None = None,
    store: Store | None = None,
    workers: int | None = None,
    ahead: BackgroundCompilation | None = None,
) -> dict[str, bytes]:
    """Return the objects of distinct kernels of one back end by symbol.

    Kernels that the store lacks, or holds for another system, are compiled and stored.

    Args:
        sources: the kernels.
        progress: ``progress(done, total, name)`` is called for each compiled kernel.
        store: the object store (None: `default_store()`).
        workers: number of worker processes (None: as many as pay off).
        ahead: a context that may have begun to compile kernels.

    Raises:
        CompileError: a kernel cannot be compiled.
    """
    if not sources:
        return {}
    store = store or default_store()
    known = {} if ahead is None else ahead.stored
    objects = {source.symbol: known[source.symbol] for source in sources if source.symbol in known}
    wanted = [source for source in sources if source.symbol not in known]
    stored, missing = look_up(store, wanted, backend(sources[0].backend).loadable)
    objects.update(stored)
    show_kernels(sources, missing)
    if missing:
        from .batch import compile_objects  # late: a process whose kernels are all stored needs no workers

        def finished(source: KernelSource, data: bytes) -> None:
            objects[source.symbol] = data
            store.put(source, data)
            if progress is not None:
                progress(len(objects) - hits, len(missing), source.name)

        hits = len(objects)
        begun = {"batch": ahead.batch} if ahead is not None and ahead.batch is not None else {}
        compile_objects(missing, workers, finished, **begun)
    return objects
