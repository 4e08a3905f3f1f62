"""Plans of compiled programs in the cache folder: what makes compiling a model again a matter of reading.

``<cache folder>/plans/<target>/<key>.plan`` belongs to one lineage, which is the content of a model and all that was
asked of it. It is for one target on one machine (devices of one model share it), and for one state of this package and
of the user's tuning records. The portable form need not be made before somebody asks for it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..codegen.files import make_folder, mark_used, open_trusted, replace_file
from ..codegen.kernel import KernelSource
from ..codegen.store import default_store
from ..errors import FormatError
from ..graph.content import FileContent
from ..messages import tell_again
from ..targets.base import Compiled, Growing, Kept
from ..targets.kept_file import KeptFile, kept_pieces
from ..targets.registry import target, target_names
from .digests import plans_folder
from .lineage import Background, Lineage

if TYPE_CHECKING:
    from ..codegen.store import Store

__all__ = ["find", "keep", "write"]

LIMIT_BYTES = 4 << 30
"""Of all plans together; the least recently used go first."""

_PRUNE_TO = 0.75
"""Part of the limit that is left after plans went, so that the next save does not have to look again."""

_BEFORE = 10
"""Seconds before a plan was kept that its file says it was written. Whoever writes to it later gives it another time;
whole even seconds are what every file system keeps."""

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
    """Return the compiled program of a lineage, if its plan is kept.

    The plan's constants are mapped, since files in the cache folder are replaced, never written to in place. Those of a
    file that was copied are read by another thread while ``build`` loads the kernels, and checked.

    Args:
        lineage: the program's.
        build: makes the compiled program, and the result of this function, of a plan, what was kept about it,
            ``decode``, and what the kernels are looked for in (None for the user's store).
        decode: gives what the program is decoded of; called when somebody looks at the program.
        targets: names of targets that it may have been compiled for; None for any.
        device_id: the device that it shall run on, where its target has devices.
        trust_objects: take kernels that the object store lacks from the content, an ``.mxr`` file's.
    """
    for name in target_names() if targets is None else targets:
        try:
            if not _folder(name).is_dir():  # a target is not even asked what machine this is: a GPU's driver takes long
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
            if not intact:  # it was copied, since it is not damaged
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
    about: Mapping[str, Any],
    with_code: bool = False,
    device_id: int = 0,
) -> bool:
    """Keep the plan of a program of a lineage; a failure to write is no error.

    Args:
        lineage: the program's.
        target_name: what it was compiled for.
        compiled: the program.
        about: what ``build`` of `find` needs beside the plan, as JSON values; ``told`` has warnings to give again.
        with_code: machine code in the content was written or read, and so is well formed.
        device_id: the device that it was compiled for, where its target has devices.

    Returns:
        Whether it is kept now.
    """
    kept = compiled.kept_plan()
    try:
        key = lineage.machine_key(target(target_name), device_id)
    except (FormatError, OSError):  # it is changing
        return False
    if key is None or kept is None:
        return False
    path, about = _folder(target_name) / f"{key}.plan", {"with_code": with_code, **about}
    _keep_growth(compiled, path, about)
    return _write_kept(path, kept, about)


def _write_kept(path: Path, kept: Kept, about: Mapping[str, Any]) -> bool:
    """Write a plan file whose modification time shows that nobody has written to it since; return whether it was
    written."""
    written = (int(time.time()) - _BEFORE) // 2 * 2
    pieces = kept_pieces(kept, {**about, "written": written})
    if pieces is None or not write(path, pieces):
        return False
    _set_time(path, written)
    return True


def _keep_growth(compiled: Compiled, path: Path, about: Mapping[str, Any]) -> None:
    """Keep the plans that a program makes in runs, too."""

    def keep_again(program: Compiled) -> None:
        kept = program.kept_plan()
        if kept is not None:
            _write_kept(path, kept, about)

    if isinstance(compiled, Growing):
        compiled.keep_growth(keep_again)


def write(path: Path, pieces: Sequence[bytes | memoryview]) -> bool:
    """Write a file of the folder of plans, and drop others if there are too many bytes of them.

    Returns:
        Whether it could be written.
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
    reader: KeptFile, build: Build[T], decode: Callable[[], Any], store: Store | None, intact: bool
) -> tuple[Compiled, T]:
    """Return what ``build`` makes of an open plan file.

    Args:
        intact: nobody has written to the file since it was kept, so that it can be mapped.
    """
    about = reader.about
    block = _mapped(reader) if intact and reader.is_large else None
    if block is not None:
        result = build(reader.kept(block), about, decode, store)
    elif not reader.is_large:
        block = reader.allocate()
        reader.fill(block)
        result = build(reader.kept(block), about, decode, store)
    else:
        block = reader.allocate()
        with Background(lambda ended: reader.fill(block, ended)) as filled:
            result = build(reader.kept(block), about, decode, store)
            filled.result()
    tell_again(about["told"])
    return result


def _mapped(reader: KeptFile) -> np.ndarray | None:
    """Return `KeptFile.mapped`; None on a file system that maps no files."""
    with contextlib.suppress(OSError):
        return reader.mapped()
    return None


class _Embedded:
    """The user's object store, then the machine code in a file's content, which is read if that lacks a kernel."""

    def __init__(self, content: FileContent) -> None:
        self._content = content

    @functools.cached_property
    def _file(self) -> Store | None:
        from ..codegen.embedding import EmbeddedStore
        from ..graph.machine_code import load_objects

        found = load_objects(self._content.whole())
        return None if found is None else EmbeddedStore(found)

    def get(self, source: KernelSource) -> bytes | None:
        """The object of a kernel."""
        data = default_store().get(source)
        return data if data is not None or self._file is None else self._file.get(source)

    def put(self, source: KernelSource, data: bytes) -> None:
        """Keep an object in the user's store."""
        default_store().put(source, data)


def _folder(target_name: str) -> Path:
    """Where plans for a target are kept."""
    return plans_folder() / target_name


def _set_time(path: Path, seconds: int) -> None:
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), seconds * 10**9))


def _prune(folder: Path) -> None:
    """Drop the least recently used plans if there are too many bytes of them."""
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
