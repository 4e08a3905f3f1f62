"""Load kernels: this process's cache, then the object store, then the compiler.

A stored kernel is loaded by the package's `linker`, or by LLVM if the linker does not support the system or the
instruction set. Numba is imported only to compile a missing kernel. Loaded code lives until the process ends, so an
address never becomes stale.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....core.pages import never_free
from ....errors import CompileError, FormatError
from ....interrupts import handlers_later
from ...backend import Progress
from ...elf import ElfObject, read_object
from ...kernel import KernelSource
from ...store import Store
from ...traces import dump_kernels
from ...workers.background import BackgroundCompilation
from ...workers.objects import objects_of
from .linker import link
from .symbols import address, unavailable

if TYPE_CHECKING:
    import llvmlite.binding as llvm

_addresses: dict[str, int] = {}
_read: dict[str, tuple[bytes, ElfObject]] = {}
"""Objects that `loadable` has parsed and that are not loaded yet, by symbol."""
_engine: llvm.ExecutionEngine | None = None
_lock = threading.RLock()
_placing = threading.Lock()


def load(
    sources: Sequence[KernelSource],
    progress: Progress | None = None,
    store: Store | None = None,
    workers: int | None = None,
    ahead: BackgroundCompilation | None = None,
) -> list[int]:
    """Return the addresses of kernels, ``void (*)(int64_t *args, int64_t begin, int64_t end)``, in the order of the
    sources.

    May be called from any thread.

    Args:
        progress: called as ``progress(done, total, name)`` for each kernel that had to be compiled.
        store: object store; by default `default_store()`.
        workers: processes to compile in; by default the number that pays.
        ahead: compilation that may have begun with some kernels.

    Raises:
        CompileError: a kernel cannot be compiled.
    """
    dump_kernels(sources, _assembly)
    try:
        return [_addresses[source.symbol] for source in sources]
    except KeyError:
        pass
    with _lock:
        wanted = {s.symbol: s for s in sources if s.symbol not in _addresses}
        if wanted:
            objects = objects_of(list(wanted.values()), progress, store, workers, ahead)
            with handlers_later():
                _add(objects)
    return [_addresses[source.symbol] for source in sources]


def _assembly(source: KernelSource) -> str:
    from .compiler import inspect  # lazy: a process whose kernels are all stored loads no LLVM

    return inspect(source).assembly


def loaded(source: KernelSource) -> bool:
    """Return whether this process has loaded a kernel."""
    return source.symbol in _addresses


def loadable(source: KernelSource, data: bytes) -> bool:
    """Return whether bytes are an object of this kernel that calls only functions that kernels may call."""
    try:
        found = read_object(data)
    except FormatError:
        return False
    fits = source.symbol in found.defined and not unavailable(found.undefined)
    if fits and source.symbol not in _addresses:
        _read[source.symbol] = data, found
    return fits


def _add(objects: dict[str, bytes]) -> None:
    with _placing:
        _place({symbol: data for symbol, data in objects.items() if symbol not in _addresses})


def _place(objects: dict[str, bytes]) -> None:
    found = {symbol: _object(symbol, data) for symbol, data in objects.items()}
    try:
        placed = link(list(found.values()))
    except OSError as error:
        raise CompileError(f"kernels cannot be loaded: {error}") from error
    if placed is None:
        wanted = set().union(*(one.undefined for one in found.values()))
        placed = _add_by_llvm(objects, wanted)
    for symbol in objects:
        if not placed.get(symbol):
            raise CompileError(f"the loaded object does not define {symbol}")
        _addresses[symbol] = placed[symbol]


def _object(symbol: str, data: bytes) -> ElfObject:
    """Return the object that `loadable` has parsed, and forget it, or parse it."""
    of, found = _read.pop(symbol, (None, None))
    return found if found is not None and of is data else read_object(data)


def _add_by_llvm(objects: dict[str, bytes], wanted: set[str]) -> dict[str, int]:
    """Load objects by LLVM and return their addresses; ``wanted`` are the C library functions that they call."""
    import llvmlite.binding as llvm

    engine = _get_engine()
    for name in wanted:
        llvm.add_symbol(name, address(name))
    for data in objects.values():
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    return {symbol: engine.get_function_address(symbol) for symbol in objects}


def _get_engine() -> llvm.ExecutionEngine:
    """Return the engine that owns all code loaded by LLVM; its memory manager keeps an object's sections together."""
    global _engine
    if _engine is None:
        import llvmlite.binding as llvm

        from .. import host

        machine = host.target_machine()
        module = llvm.parse_assembly("")
        module.triple = machine.triple
        _engine = llvm.create_mcjit_compiler(module, machine, use_lmm=True)
        never_free(_engine)
    return _engine


def _after_fork() -> None:
    """Recreate the locks in a forked child, where the thread that held them does not exist."""
    global _lock, _placing
    _lock, _placing = threading.RLock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
