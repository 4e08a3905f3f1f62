"""Plans of programs that were saved compiled, in the cache folder: what makes loading one again a matter of reading.

``<cache folder>/plans/<key>.plan`` belongs to one ``.mxr`` content (told by its SHA-256), for one target on one machine
(devices of one model share it), and one state of this package and of the user's tuning records. The ``.mxr`` file
itself holds nothing of it and need not be decoded before somebody asks for the program.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from ..codegen.files import default_folder, make_folder, mark_used, open_trusted, package_state, replace_file
from ..codegen.kernel import KernelSource
from ..codegen.store import default_store
from ..errors import FormatError
from ..graph.content import FileContent
from ..messages import warn
from ..parallel import allowed_cpus, on_threads
from ..targets.base import Compiled, Kept
from ..targets.kept_file import KeptFile, kept_pieces
from ..targets.registry import Target, target, target_names

if TYPE_CHECKING:
    from ..codegen.store import Store

__all__ = ["find", "keep"]

LIMIT_BYTES = 4 << 30
"""Of all plans together; the least recently used go first."""

_PRUNE_TO = 0.75
"""Part of the limit that is left after plans went, so that the next save does not have to look again."""
_SAMPLES, _SAMPLE_BYTES = 64, 1024
"""Places and bytes of a file that say whether it is the one seen before: 64 KiB, however large it is."""
_PIECE_BYTES = 8 << 20
"""Hashed by one thread at a time: some milliseconds of work, so that threads end together."""
_ROOM_BYTES = 256 << 10
"""Read and hashed at a time: what stays in a core's own cache."""
_OF_RUNS = frozenset(
    f"MIGRAPHX_{name}"
    for name in ("DYNAMIC_SHAPE", "TRACE_EVAL", "LOG_LEVEL", "VERIFY_DUMP_DIFF", "VERIFY_ENABLE_ALLCLOSE")
)
"""Variables of MIGraphX that change nothing of how a program is compiled."""

T = TypeVar("T")
Build = Callable[[Kept, Mapping[str, Any], Callable[[], Any], "Store | None"], T]


def find(
    content: FileContent,
    decode: Callable[[], Any],
    build: Build[T],
    trust_objects: bool = False,
    device_id: int = 0,
) -> T | None:
    """The compiled program of an ``.mxr`` file's content, if its plan is kept.

    The content is hashed and the plan's constants are read by other threads while ``build`` loads the kernels.

    Args:
        content: the file's.
        decode: decodes it; called if the portable form is asked for.
        build: makes the program of a target, a plan of it, what was kept about it, what decodes the content (which
            must not have changed) and what the kernels are looked for in (None for the user's store).
        trust_objects: take kernels that the object store lacks from the content.
        device_id: the device that it shall run on, where its target has devices.
    """
    for name in target_names():
        if not _folder(name).is_dir():  # a target is not even asked what machine this is: a GPU's driver takes long
            continue
        try:
            path = _path(content, target(name), device_id)
        except FormatError:  # whoever reads all of it says so
            return None
        if path is None:
            continue
        try:
            with open_trusted(path) as file:
                reader = KeptFile(file)
                if reader.about["size"] != content.size or reader.about["with_code"] < trust_objects:
                    return None
                return _restored(reader, content, decode, build, _Embedded(content) if trust_objects else None)
        except FileNotFoundError:
            continue
        except (OSError, FormatError, KeyError, TypeError, ValueError):
            return None
        finally:
            mark_used(path)
    return None


def keep(
    content: FileContent,
    target_name: str,
    compiled: Compiled,
    about: Mapping[str, Any],
    with_code: bool = False,
    device_id: int = 0,
) -> None:
    """Keep the plan of a program that was compiled from, or saved as, this content; a failure to write is no error.

    Args:
        content: the file's.
        target_name: what it was compiled for.
        compiled: the program.
        about: what ``build`` of `find` needs beside the plan, as JSON values; ``told`` has warnings to give again.
        with_code: machine code in the content was written or read, and so is well formed.
        device_id: the device that it was compiled for, where its target has devices.
    """
    kept = compiled.kept_plan()
    try:
        path, digest = _path(content, target(target_name), device_id), _digest(content)
    except FormatError:  # it is changing
        return
    if path is None or kept is None:
        return
    whole = {"size": content.size, "with_code": with_code, "sha256": digest, "target": target_name, **about}
    pieces = kept_pieces(kept, whole)
    if pieces is None or sum(map(len, pieces)) > LIMIT_BYTES // 2:
        return
    with contextlib.suppress(OSError):
        make_folder(path.parent)
        replace_file(path, *pieces)
        _prune(path.parent.parent)


def _restored(
    reader: KeptFile, content: FileContent, decode: Callable[[], Any], build: Build[T], store: Store | None
) -> T | None:
    """The program of an open plan file, unless it belongs to other content."""
    about = reader.about
    block = reader.allocate()

    def unchanged() -> Any:
        whole = content.whole()  # which is then hashed and decoded: it is in use until then
        if _digest(content) != about["sha256"]:
            raise FormatError(f"{os.fspath(content.path)}: the file has changed since it was loaded")
        found = decode()
        del whole
        return found

    hashing, filling = _Background(lambda e: _digest(content, e)), _Background(lambda e: reader.fill(block, e))
    with hashing as digest, filling as filled:
        result = build(reader.kept(block), about, unchanged, store)
        filled.result()
        if digest.result() != about["sha256"]:
            return None
    for text in about["told"]:
        warn(text, RuntimeWarning)
    return result


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


class _Background(Generic[T]):
    """A function that runs in a thread of its own; leaving the ``with`` waits for it. It is given an event, and ends
    soon once that is set: the ``with`` has ended early."""

    def __init__(self, function: Callable[[threading.Event], T]) -> None:
        self._function = function
        self._ended = threading.Event()
        self._outcome: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._outcome.append(self._function(self._ended))
        except BaseException as error:  # handed to whoever asks for the result
            self._error = error

    def __enter__(self) -> _Background[T]:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._ended.set()
        self._thread.join()

    def result(self) -> T:
        """What the function gave; what it raised is raised here."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._outcome[0]


def _digest(content: FileContent, ended: threading.Event | None = None) -> str:
    """SHA-256 of the SHA-256 of each piece of the content, on all cores; not of all of it once ``ended`` is set.

    Raises:
        FormatError: the file has become shorter.
    """
    starts = range(0, content.size, _PIECE_BYTES)
    found: list[bytes] = [b""] * len(starts)

    def work(number: int) -> None:
        digest = hashlib.sha256()
        if ended is None or not ended.is_set():
            size = min(_PIECE_BYTES, content.size - starts[number])
            for piece in content.pieces(starts[number], size, np.empty(min(size, _ROOM_BYTES), np.uint8)):
                digest.update(piece)
        found[number] = digest.digest()

    on_threads(work, range(len(starts)), allowed_cpus())
    return hashlib.sha256(b"".join(found)).hexdigest()


def _path(content: FileContent, for_target: Target, device_id: int = 0) -> Path | None:
    """Where this content's plan for a target's device is kept; None if the target has none that can be kept, or none
    may be used, because what compiling does is to be seen.

    Raises:
        FormatError: the file has become shorter.
    """
    named = {name: value for name, value in os.environ.items() if name.startswith(("MGX_", "MIGRAPHX_"))}
    mine = {name: value for name, value in named.items() if name not in _OF_RUNS}
    if any(name.startswith("MIGRAPHX_") for name in mine):
        return None
    of_target = for_target.machine(device_id)
    if of_target is None:
        return None
    step = max(1, (content.size - _SAMPLE_BYTES) // (_SAMPLES - 1))
    room = np.empty(_SAMPLE_BYTES, np.uint8)
    sizes = ((k * step, min(_SAMPLE_BYTES, content.size - k * step)) for k in range(_SAMPLES))
    samples = b"".join(bytes(piece) for at, size in sizes if size > 0 for piece in content.pieces(at, size, room))
    machine = {**of_target, "target": for_target.name, "package": package_state(), **mine}
    machine["tuning"] = "\n".join(_state(default_folder() / f"tuning.sqlite{end}") for end in ("", "-wal"))
    text = "".join(f"{name}={value}\n" for name, value in sorted(machine.items()))
    key = hashlib.sha256(b"%d\n%s\n%s" % (content.size, text.encode(), samples)).hexdigest()
    return _folder(for_target.name) / f"{key[:32]}.plan"


def _folder(target_name: str) -> Path:
    """Where plans for a target are kept."""
    return default_folder() / "plans" / target_name


def _state(path: Path) -> str:
    """Length and time of a file that was not opened; empty if it is empty or absent."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}" if status.st_size else ""


def _prune(folder: Path) -> None:
    """Drop the least recently used plans if there are too many bytes of them."""
    files = (path for path in folder.rglob("*") if path.is_file())
    found = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in files)
    total = sum(size for _, size, _ in found)
    if total > LIMIT_BYTES:
        for _, size, path in found:
            if total <= LIMIT_BYTES * _PRUNE_TO:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
