"""From kernel sources to addresses of machine code: this process's cache, then the object store, then the
compiler.

A kernel that the store holds is loaded by llvmlite alone; Numba is imported only to compile one that is
missing. Loaded code lives until the process ends, so an address never becomes stale.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

import llvmlite.binding as llvm

from ..errors import CompileError, FormatError
from .cpu import host
from .elf import read_symbols
from .kernel import KernelSource
from .store import Store, default_store
from .symbols import provide, unavailable

__all__ = ["Progress", "load", "loadable", "objects_of"]

Progress = Callable[[int, int, str], None]

_addresses: dict[str, int] = {}
_engine: llvm.ExecutionEngine | None = None
_lock = threading.RLock()


def load(
    sources: Sequence[KernelSource],
    progress: Progress | None = None,
    store: Store | None = None,
    workers: int | None = None,
) -> list[int]:
    """Addresses of kernels, ``void (*)(int64_t *args, int64_t begin, int64_t end)``, in the order of the
    sources.

    ``progress(done, total, name)`` is called for each kernel that had to be compiled. ``store`` defaults to
    `default_store()`, ``workers`` (processes to compile in) to what pays off. May be called from any thread.

    Raises:
        CompileError: a kernel cannot be compiled.
    """
    try:
        return [_addresses[source.symbol] for source in sources]
    except KeyError:
        pass
    with _lock:
        wanted = {s.symbol: s for s in sources if s.symbol not in _addresses}
        if wanted:
            _add(objects_of(list(wanted.values()), progress, store, workers))
    return [_addresses[source.symbol] for source in sources]


def objects_of(
    sources: Sequence[KernelSource],
    progress: Progress | None = None,
    store: Store | None = None,
    workers: int | None = None,
) -> dict[str, bytes]:
    """Objects of distinct kernels by symbol; arguments and errors are those of `load`.

    What the store lacks, or holds for another C library, is compiled and kept.
    """
    store = store or default_store()
    objects: dict[str, bytes] = {}
    missing = []
    for source in sources:
        data = store.get(source)
        if data is None or not loadable(source, data):
            missing.append(source)
        else:
            objects[source.symbol] = data
    if missing:
        from .batch import compile_objects

        def finished(source: KernelSource, data: bytes) -> None:
            objects[source.symbol] = data
            store.put(source, data)
            if progress is not None:
                progress(len(objects) - hits, len(missing), source.name)

        hits = len(objects)
        compile_objects(missing, workers, finished)
    return objects


def loadable(source: KernelSource, data: bytes) -> bool:
    """Whether bytes are an object of this kernel that wants nothing which kernels may not call."""
    try:
        symbols = read_symbols(data)
    except FormatError:
        return False
    return source.symbol in symbols.defined and not unavailable(symbols.undefined)


def _add(objects: dict[str, bytes]) -> None:
    engine = _get_engine()
    for data in objects.values():
        provide(read_symbols(data).undefined)
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    for symbol in objects:
        address = engine.get_function_address(symbol)
        if not address:
            raise CompileError(f"the loaded object does not define {symbol}")
        _addresses[symbol] = address


def _get_engine() -> llvm.ExecutionEngine:
    """The engine that owns all loaded code; its memory manager keeps an object's sections together."""
    global _engine
    if _engine is None:
        machine = host.target_machine()
        module = llvm.parse_assembly("")
        module.triple = machine.triple
        _engine = llvm.create_mcjit_compiler(module, machine, use_lmm=True)
    return _engine


def _after_fork() -> None:
    """Another thread may have held the lock at the fork, and does not exist in the child."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
