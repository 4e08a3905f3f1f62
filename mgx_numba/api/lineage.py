"""Lineage of a program: the content of its model and all calls that made the program from it; the cache's key.

A `ModelSource` is the content: the digest of a file or of bytes, and of the external data files. A `Lineage` is a
source with the options and calls that made a program from it. Two programs of equal lineage are equal.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from ..codegen.files import NOT_OF_CPU, default_folder, package_state
from ..digest import text_digest
from ..environment import environment_flag
from ..errors import FormatError
from ..graph.content import FileContent
from ..targets.registry import DEFAULT, REFERENCE, Target
from .digests import content_digest, file_digest, may_have_changed, state_of

PLAN_CACHE = "MGX_PLAN_CACHE"

_AT_ONCE_BYTES = 512 << 10
"""Largest content (bytes) that the caller's thread hashes: a third of a millisecond, about the cost of starting
threads."""
_HELD_BYTES = 64 << 20
"""Largest content (bytes) that is read into memory, so that a program can be decoded after its file has changed.
Reading 64 MiB takes 10 ms."""
_HASHED_BYTES = 1 << 30
"""Total size (bytes) of external data above which files are identified by size, times and inode instead of a hash.
Hashing 1 GiB takes half a second on a CPU with SHA instructions."""
_OF_RUNS = frozenset(
    f"MIGRAPHX_{name}"
    for name in ("DYNAMIC_SHAPE", "TRACE_EVAL", "LOG_LEVEL", "VERIFY_DUMP_DIFF", "VERIFY_ENABLE_ALLCLOSE")
)
"""Environment variables of MIGraphX that do not affect compilation."""
_OF_PLACES = frozenset((PLAN_CACHE, "MGX_CACHE_DIR"))
"""Environment variables of this package that do not affect compilation."""

T = TypeVar("T")


class ModelSource:
    """The content of a model, hashed in the background from the moment it is opened.

    Attributes:
        content: the model's own file or bytes.
        external: path of each external data file, by location; empty until the files have been found.
    """

    def __init__(self, content: FileContent, hold: bool = False) -> None:
        """Open a content; ``hold`` reads up to 64 MiB into memory."""
        self.content = content
        self._hold = hold and content.size <= _HELD_BYTES
        self.external: dict[str, Path] = {}
        self._states: dict[str, str] = {}
        self._opened = time.time_ns()
        self._status = None if content.held else content.status()
        self._hashing = Background(self._hash)
        if content.size > _AT_ONCE_BYTES:
            self._hashing.start()

    def _hash(self, ended: threading.Event) -> str:
        if self._hold:
            self.content.hold()
        return file_digest(self.content, self._status, ended)

    @property
    def own_digest(self) -> str:
        """Return the digest of the model's own content.

        Raises:
            FormatError: the file has become shorter.
        """
        return self._hashing.result()

    def digest(self) -> str:
        """Return the digest of the whole content, including external data.

        Raises:
            FormatError: a file has become shorter.
        """
        parts = [self.own_digest, *(f"{name}\n{state}" for name, state in sorted(self.external_states().items()))]
        return text_digest("\n".join(parts)) if len(parts) > 1 else parts[0]

    def external_states(self) -> dict[str, str]:
        """Return the digest of each external data file, by location.

        Above 1 GiB in total, each file's size, times and inode take the place of its digest.

        Raises:
            FormatError, OSError: a file has become shorter, or does not exist.
        """
        if self._states.keys() != self.external.keys():
            self._states = _states_of(self.external)
        return self._states

    def find_external(self, locations: Sequence[str], folders: Sequence[Path]) -> bool:
        """Locate the external data files, each in the first folder that contains it.

        Returns:
            Whether all files exist.
        """
        roots = [folder.resolve() for folder in folders]
        found = {}
        for location in locations:
            paths = ((root / location).resolve() for root in roots)
            path = next((p for p in paths if p.is_file()), None)
            if path is None or not any(path.is_relative_to(root) for root in roots):
                return False
            found[location] = path
        self.external = found
        return True

    def take_external(self, read: Mapping[str, tuple[Path, os.stat_result]]) -> bool:
        """Record the external data files that a parser has read.

        Args:
            read: path by location, and the file's status before it was read.

        Returns:
            Whether the files still have the content that the parser read.
        """
        self.external = {location: path for location, (path, _) in read.items()}
        self.external_states()
        return all(
            state_of(path.stat()) == state_of(status) and not may_have_changed(status, self._opened)
            for path, status in read.values()
        )

    def is_at(self, path: Any) -> bool:
        """Return whether the file at ``path``, which a parser has read, still has the content that was opened."""
        if self._status is None:
            return True
        status = os.stat(path)
        if state_of(status) != state_of(self._status):
            return False
        return not may_have_changed(status, self._opened) or content_digest(FileContent(path)) == self.own_digest

    def whole(self) -> tuple[memoryview, dict[str, memoryview]]:
        """Return the model's bytes, and the bytes of its external data by location.

        Raises:
            FormatError: a file has changed since it was opened, or does not exist.
        """
        try:
            return self._whole()
        except OSError as error:
            raise FormatError(f"{error.filename}: the file is gone since the model was loaded") from None

    def _whole(self) -> tuple[memoryview, dict[str, memoryview]]:
        found = self.content.whole()
        external = {location: FileContent(path).whole() for location, path in self.external.items()}
        known, states = self.own_digest, self.external_states()
        changed = not self.content.held and content_digest(self.content) != known
        if changed or _states_of(self.external) != states:
            raise FormatError(f"{os.fspath(self.content.path)}: the file has changed since it was loaded")
        return found, external


class Lineage:
    """A source, and the calls that made a program from it, as text.

    The first line is the parser with its options; each later line is a call.
    """

    def __init__(self, source: ModelSource, requested: str = "") -> None:
        self.source, self.requested = source, requested

    def after(self, call: str) -> Lineage:
        """Return the lineage of the program that results from applying ``call``."""
        return Lineage(self.source, f"{self.requested}\n{call}")

    def key(self, of: str, whole: bool = True) -> str | None:
        """Return the base name of this lineage's file in the cache folder; None if the program may not be cached.

        Args:
            of: everything else that the file depends on, such as target and machine.
            whole: include external data, not only the model's own content.

        Raises:
            FormatError: a file has become shorter.
        """
        common = environment()
        if common is None:
            return None
        digest = self.source.digest() if whole else self.source.own_digest
        text = "\n".join((digest, str(self.source.content.size), common, of, self.requested))
        return text_digest(text)[:32]

    def machine_key(self, target: Target, device_id: int) -> str | None:
        """Return `key` for plans of a device of a target; None also if the target's plans cannot be cached.

        Raises:
            FormatError: a file has become shorter.
        """
        of_target = target.machine(device_id)
        if of_target is None:
            return None
        machine = {**of_target, "target": target.name}
        if target.name not in (DEFAULT, REFERENCE):
            machine["package"] = package_state()
        machine["tuning"] = "\n".join(_file_state(default_folder() / f"tuning.sqlite{end}") for end in ("", "-wal"))
        return self.key("".join(f"{name}={value}\n" for name, value in sorted(machine.items())))


def environment() -> str | None:
    """Return, as text, the state of this process that compilation depends on, besides model, options and machine.

    None if the cache may not be used: the user disabled it, a ``MIGRAPHX_`` variable asks to see or change compilation,
    or custom operators, whose code is in no file, are registered.
    """
    if not environment_flag(PLAN_CACHE, True):
        return None
    named = {name: value for name, value in os.environ.items() if name.startswith(("MGX_", "MIGRAPHX_"))}
    mine = {name: value for name, value in named.items() if name not in _OF_RUNS and name not in _OF_PLACES}
    if any(name.startswith("MIGRAPHX_") for name in mine):
        return None
    custom = sys.modules.get("mgx_numba.ops.custom")  # not imported: there are no custom operators
    if custom is not None and custom.custom_domains():
        return None
    mine |= {"package": package_state(NOT_OF_CPU), "numpy": np.__version__, "onnx": _onnx_state()}
    return "".join(f"{name}={value}\n" for name, value in sorted(mine.items()))


def open_source(given: object) -> ModelSource | None:
    """Return the source of a model's path or bytes; None if its programs cannot be cached."""
    if environment() is None:
        return None
    if isinstance(given, bytes):
        return ModelSource(FileContent.of_bytes(given)) if given else None
    try:
        if not isinstance(given, (str, os.PathLike)) or not os.path.isfile(given) or not os.path.getsize(given):
            return None
        return ModelSource(FileContent(given), hold=True)
    except (OSError, ValueError):
        return None


class Background(Generic[T]):
    """A function that runs in a thread of its own, or in the caller's thread if `result` is called without `start`.

    The function receives an event and should return soon after the event is set. A ``with`` block waits for the
    function; if the block raises, it sets the event.
    """

    def __init__(self, function: Callable[[threading.Event], T]) -> None:
        self._function = function
        self._ended = threading.Event()
        self._outcome: list[T] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._function(self._ended))
        except BaseException as error:  # raised by `result`
            self._error = error

    def __enter__(self) -> Background[T]:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def result(self) -> T:
        """Return the function's result, or raise its error."""
        if self._thread is not None:
            self._thread.join()
        elif not self._outcome and self._error is None:
            self._run()
        if self._error is not None:
            raise self._error
        return self._outcome[0]


def _states_of(external: Mapping[str, Path]) -> dict[str, str]:
    found = {name: path.stat() for name, path in external.items()}
    if sum(status.st_size for status in found.values()) > _HASHED_BYTES:
        return {name: state_of(status) for name, status in found.items()}
    contents = ((name, FileContent(path)) for name, path in external.items())  # opens one file at a time
    return {name: file_digest(content, content.status()) for name, content in contents}


def _file_state(path: Path) -> str:
    """Return size and modification time of a file as text; empty if the file is empty or absent."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}" if status.st_size else ""


@functools.lru_cache(maxsize=1)
def _onnx_state() -> str:
    """Return size and time of the installed ``onnx`` package's version file, without importing ``onnx``."""
    for folder in sys.path:
        found = _file_state(Path(folder or ".", "onnx", "version.py"))
        if found:
            return found
    return ""
