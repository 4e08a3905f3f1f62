"""Plan cache: stores plans of compiled programs in the cache folder, so that compiling a model again only reads a file.

``<cache folder>/plans/<target>/<key>.plan`` belongs to one lineage (a model's content and all calls since), and to one
target on one machine (devices of one model share it). It is valid for one state of this package and of the user's
tuning records. The portable form is made only when it is accessed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..codegen.files import make_folder, mark_used, open_trusted, replace_file
from ..codegen.kernel import KernelSource
from ..codegen.store import Store, default_store
from ..errors import FormatError
from ..graph.content import FileContent
from ..messages import repeat_messages
from ..targets.base import Compiled, Growing, KeepsObjects, Kept
from ..targets.kept_file import KeptFile, constant_bytes, kept_pieces
from ..targets.registry import target, target_names
from .digests import plans_folder
from .lineage import Background, Lineage

LIMIT_BYTES = 4 << 30
"""Largest total size of all plans; the least recently used are deleted first."""

_PRUNE_TO = 0.75
"""Fraction of the limit that pruning leaves, so that the next save does not prune again."""

_BEFORE = 10
"""Seconds by which a plan file's modification time is set back. A later write changes the time, which shows that the
file is not intact. The time is a whole, even number of seconds, which every file system can store."""

_AT_ONCE_BYTES = 16 << 20
"""Largest constants (bytes) that are written before `keep` returns, in some hundredths of a second. Writing 600 MB of
constants takes 0.5 to 2 s, in which the program already runs."""
_writing: list[threading.Thread] = []

T = TypeVar("T")
Build = Callable[[Kept, Mapping[str, Any], Callable[[], Any], "Store | None"], tuple[Compiled, T]]


def find(
    lineage: Lineage,
    build: Build[T],
    decode: Callable[[], Any],
    targets: Sequence[str] | None = None,
    device_id: int = 0,
    trust_objects: bool = False,
) -> T | None:
    """Return the result of ``build`` for the cached plan of a lineage; None if there is no plan.

    The constants of an intact plan are mapped: files in the cache folder are replaced, never written in place. The
    constants of a copied file are read and verified in another thread while ``build`` loads the kernels.

    Args:
        lineage: lineage of the program.
        build: makes the compiled program, and the result of this function, from a plan, its metadata, ``decode``, and
            the store of kernels (None for the user's store).
        decode: returns the source of the portable form; called on first access.
        targets: names of the targets that the program may have been compiled for; None for any.
        device_id: device that will run the program, if the target has devices.
        trust_objects: take kernels that the object store lacks from the ``.mxr`` file of the lineage.
    """
    finish_writing()
    for name in target_names() if targets is None else targets:
        try:
            if not _folder(name).is_dir():  # before `machine_key`: a GPU's driver takes long to load
                continue
            key = lineage.machine_key(target(name), device_id)
            if key is None:
                continue
            path = _folder(name) / f"{key}.plan"
            with open_trusted(path) as file:
                reader = KeptFile(file)
                intact = os.fstat(file.fileno()).st_mtime_ns == reader.about["written"] * 10**9
                if reader.about["with_code"] < trust_objects:
                    return None
                store = _Embedded(lineage.source.content) if trust_objects else None
                compiled, found = _restored(reader, build, decode, store, intact)
            if not intact:  # its checksums were verified: it was copied
                _set_time(path, reader.about["written"])
            mark_used(path)
            _keep_growth(compiled, path, reader.about)
            return found
        except FileNotFoundError:
            continue
        except (OSError, FormatError, KeyError, TypeError, ValueError):
            return None
    return None


def keep(
    lineage: Lineage,
    target_name: str,
    compiled: Compiled,
    about: Mapping[str, object],
    with_code: bool = False,
    device_id: int = 0,
    then: Callable[[], object] = lambda: None,
) -> None:
    """Store the plan of a program; a failure to write is not an error.

    A thread writes plans with large constants; `finish_writing` waits for it, as the end of the process does.

    Args:
        lineage: lineage of the program.
        target_name: target that the program was compiled for.
        compiled: compiled form of the program.
        about: metadata that ``build`` of `find` needs, as JSON values; ``messages`` holds the warnings to repeat.
        with_code: machine code in the lineage's file has been written or read, and so is well formed.
        device_id: device that the program was compiled for, if the target has devices.
        then: called once the plan is stored, possibly in another thread.
    """
    kept = compiled.kept_plan()
    try:
        key = lineage.machine_key(target(target_name), device_id)
    except (FormatError, OSError):  # the model's file is being written
        return
    if key is None:
        return
    path, about = _folder(target_name) / f"{key}.plan", {"with_code": with_code, **about}
    _keep_growth(compiled, path, about)
    if kept is None:
        return
    _write_kept(path, kept, compiled, about, then)


def _write_kept(
    path: Path, kept: Kept, compiled: Compiled, about: Mapping[str, object], then: Callable[[], object] = lambda: None
) -> None:
    """Write a plan file with the modification time that marks it as intact, then call ``then``; see `keep`."""

    def work() -> None:
        written = (int(time.time()) - _BEFORE) // 2 * 2
        objects = compiled.stored_objects() if isinstance(compiled, KeepsObjects) else {}
        pieces = kept_pieces(kept, {**about, "written": written}, objects)
        if pieces is not None and write(path, pieces):
            _set_time(path, written)
            then()

    finish_writing()  # of two plans for one path, the later must stay
    if constant_bytes(kept) <= _AT_ONCE_BYTES:
        work()
        return
    thread = threading.Thread(target=work, name="mgx-plan", daemon=False)
    try:
        thread.start()
    except RuntimeError:  # the process is ending, or may not have more threads
        work()
    else:
        _writing.append(thread)


def finish_writing() -> None:
    """Wait until the plans that other threads are writing are in the cache folder."""
    for thread in tuple(_writing):
        thread.join()
        with contextlib.suppress(ValueError):  # another thread has removed it
            _writing.remove(thread)


def _keep_growth(compiled: Compiled, path: Path, about: Mapping[str, object]) -> None:
    """Store the plan again whenever a run adds plans to the compiled program."""

    def keep_again(program: Compiled) -> None:
        kept = program.kept_plan()
        if kept is not None:
            _write_kept(path, kept, program, about)

    if isinstance(compiled, Growing):
        compiled.keep_growth(keep_again)


def write(path: Path, pieces: Sequence[bytes | memoryview]) -> bool:
    """Write a file of the plans folder, and delete old files if the total size exceeds the limit.

    Returns:
        Whether the file was written.
    """
    if sum(map(len, pieces)) > LIMIT_BYTES // 2:
        return False
    try:
        make_folder(path.parent)
        replace_file(path, *pieces)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        _prune(plans_folder())
    return True


def _restored(
    reader: KeptFile, build: Build[T], decode: Callable[[], object], store: Store | None, intact: bool
) -> tuple[Compiled, T]:
    """Return the result of ``build`` for an open plan file.

    Args:
        intact: the file has not been written to since it was stored, so it can be mapped.
    """
    about = reader.about
    block = _mapped(reader) if intact and reader.is_large else None
    if block is None and not reader.is_large:
        block = reader.allocate()
        reader.fill(block)
    if block is not None:
        with default_store().offering(reader.objects(block)):
            result = build(reader.kept(block), about, decode, store)
    else:
        block = reader.allocate()
        with Background(lambda ended: reader.fill(block, ended)) as filled:
            result = build(reader.kept(block), about, decode, store)
            filled.result()
    repeat_messages(about["told"])
    return result


def _mapped(reader: KeptFile) -> np.ndarray | None:
    """Return `KeptFile.mapped`; None on a file system that cannot map files."""
    with contextlib.suppress(OSError):
        return reader.mapped()
    return None


class _Embedded:
    """A store that looks for a kernel in the user's object store, then in the machine code of a program file."""

    def __init__(self, content: FileContent) -> None:
        self._content = content

    @functools.cached_property
    def _file(self) -> Store | None:
        from ..codegen.embedding import EmbeddedStore
        from ..graph.machine_code import load_objects

        found = load_objects(self._content.whole())
        return None if found is None else EmbeddedStore(found)

    def get(self, source: KernelSource) -> bytes | None:
        """Return the object code of a kernel, or None."""
        data = default_store().get(source)
        return data if data is not None or self._file is None else self._file.get(source)

    def put(self, source: KernelSource, data: bytes) -> None:
        """Store object code in the user's store."""
        default_store().put(source, data)


def _folder(target_name: str) -> Path:
    """Return the folder of a target's plans."""
    return plans_folder() / target_name


def _set_time(path: Path, seconds: int) -> None:
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), seconds * 10**9))


def _prune(folder: Path) -> None:
    """Delete the least recently used plans if the total size exceeds the limit."""
    files = (path for path in folder.rglob("*") if path.is_file())
    found = sorted((path.stat().st_atime, path.stat().st_size, path) for path in files)
    total = sum(size for _, size, _ in found)
    if total > LIMIT_BYTES:
        for _, size, path in found:
            if total <= LIMIT_BYTES * _PRUNE_TO:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
