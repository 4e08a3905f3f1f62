"""Programs that were saved compiled, as plans in the cache folder: what makes loading one again a matter of reading.

``<cache folder>/plans/<key>.plan`` belongs to one ``.mxr`` content (told by its SHA-256), on one machine, for one state
of this package and of the user's tuning records. The ``.mxr`` file itself holds nothing of it and need not be decoded
before somebody asks for the program.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from .. import __version__
from ..codegen.backend import backend
from ..codegen.files import default_folder, replace_file
from ..codegen.kernel import KernelSource
from ..codegen.store import default_store
from ..core.shape import Shape
from ..core.types import Type
from ..errors import FormatError
from ..graph.content import FileContent
from ..parallel import on_threads
from ..runtime.cpu.executor import Executable
from ..runtime.cpu.threads import default_num_threads
from ..runtime.plan_file import PlanReader, plan_pieces
from ..targets.cpu.compiled import LoweredProgram
from .program import program

if TYPE_CHECKING:
    from ..codegen.store import Store
    from ..graph.program import Program
    from ..runtime.plan import Plan

__all__ = ["find", "keep"]

LIMIT_BYTES = 4 << 30
"""Of all plans together; the least recently used go first."""

_PRUNE_TO = 0.75
_TOUCH_AFTER_SECONDS = 24 * 3600.0
_SAMPLES, _SAMPLE_BYTES = 64, 1024
_PIECE_BYTES = 8 << 20
_ROOM_BYTES = 256 << 10
"""Read and hashed at a time: what stays in a core's own cache."""
_PACKAGE = Path(__file__).resolve().parent.parent
_SEEN_AT_RUN_TIME = "MIGRAPHX_TRACE_EVAL"

T = TypeVar("T")
Decoded = Callable[[], "tuple[Program, dict[str, Any]]"]


def find(content: FileContent, decoded: Decoded, trust_objects: bool = False) -> program | None:
    """The compiled program of an ``.mxr`` file's content, if its plan is kept.

    Args:
        content: the file's.
        decoded: decodes it; called if the portable form is asked for.
        trust_objects: take kernels that the object store lacks from the content.
    """
    try:
        path = _path(content)
    except FormatError:  # whoever reads all of it says so
        return None
    if path is None:
        return None
    try:
        with path.open("rb", buffering=0) as file:
            reader = PlanReader(file)
            if reader.about["size"] != content.size or reader.about["with_code"] < trust_objects:
                return None
            return _restored(reader, content, decoded, _Embedded(content) if trust_objects else None)
    except (OSError, FormatError, KeyError, TypeError, ValueError):
        return None
    finally:
        _touch(path)


def keep(content: FileContent, loaded: program, with_code: bool = False) -> None:
    """Keep the plan of a program that was compiled from, or saved as, this content; a failure to write is no error.

    ``with_code`` says that machine code in the content was written or read, and so is well formed.
    """
    lowered = loaded._compiled
    try:
        path, digest = _path(content), _digest(content)
    except FormatError:  # it is changing
        return
    if path is None or not isinstance(lowered, LoweredProgram) or lowered.executable is None:
        return
    from .functions import saved_options

    about = {
        "size": content.size,
        "with_code": with_code,
        "sha256": digest,
        "saved": saved_options(loaded),
        "parameters": {name: _shape_to_json(s) for name, s in loaded._signature.items()},
        "results": [_shape_to_json(s) for s in loaded._results],
        "trees": lowered.trees,
        "told": loaded._told,
    }
    pieces = plan_pieces(lowered.executable.plan, about)
    if pieces is None or sum(map(len, pieces)) > LIMIT_BYTES // 2:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, *pieces)
        _prune(path.parent)


def _restored(reader: PlanReader, content: FileContent, decoded: Decoded, store: Store | None) -> program | None:
    """The program of an open plan file, unless it belongs to other content.

    The content is hashed and the constants are read by other threads while this one loads the kernels.
    """
    about = reader.about
    block = reader.allocate()

    def unchanged() -> tuple[Program, dict[str, Any]]:
        whole = content.whole()  # which is then hashed and decoded: it is in use until then
        if _digest(content) != about["sha256"]:
            raise FormatError(f"{os.fspath(content.path)}: the file has changed since it was loaded")
        found = decoded()
        del whole
        return found

    hashing, filling = _Beside(lambda e: _digest(content, e)), _Beside(lambda e: reader.fill(block, e))
    with hashing as digest, filling as filled:
        result = _program(reader.plan(block), about, unchanged, store)
        filled.result()
        if digest.result() != about["sha256"]:
            return None
    for text in about["told"]:
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    return result


def _program(plan: Plan, about: Mapping[str, Any], decoded: Decoded, store: Store | None) -> program:
    from .functions import compile_options_from, restore

    result = program()
    saved = about["saved"]
    options, chosen = compile_options_from(saved["compiled"])
    executable = Executable(plan, options.num_threads or None, store=store)
    result._decode = lambda: decoded()[0]
    result._read_records = lambda: _records(saved["tuning"])
    result._find_tuning = lambda: restore(*decoded())._tuning
    result._store = store
    result._disabled_passes = tuple(saved["disabled_passes"])
    result._told = about["told"]
    disabled = (*result._disabled_passes, *options.disabled_passes)

    def optimized() -> Program:
        from ..targets.cpu.target import optimize
        from ..targets.lowering.tuples import without_tuples
        from ..targets.options import TargetOptions

        whole, _ = without_tuples(result._portable)
        return optimize(whole, TargetOptions(fast_math=options.fast_math, disabled_passes=disabled))

    lowered = LoweredProgram(executable, about["trees"], optimized, store)
    parameters = {name: _shape_from_json(entry) for name, entry in about["parameters"].items()}
    results = [_shape_from_json(entry) for entry in about["results"]]
    result._set_compiled(lowered, options, chosen, parameters, results)
    return result


def _records(saved: list[Any]) -> list[Any]:
    from ..codegen.tuning.files import records_from

    return records_from(saved)


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


class _Beside(Generic[T]):
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

    def __enter__(self) -> _Beside[T]:
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

    on_threads(work, range(len(starts)), default_num_threads())
    return hashlib.sha256(b"".join(found)).hexdigest()


def _path(content: FileContent) -> Path | None:
    """Where the plan of this content is kept; None if none may be used, because what compiling does is to be seen.

    Raises:
        FormatError: the file has become shorter.
    """
    mine = {name: value for name, value in os.environ.items() if name.startswith(("MGX_", "MIGRAPHX_"))}
    mine.pop(_SEEN_AT_RUN_TIME, None)
    if any(name.startswith("MIGRAPHX_") for name in mine):
        return None
    step = max(1, (content.size - _SAMPLE_BYTES) // (_SAMPLES - 1))
    room = np.empty(_SAMPLE_BYTES, np.uint8)
    sizes = ((k * step, min(_SAMPLE_BYTES, content.size - k * step)) for k in range(_SAMPLES))
    samples = b"".join(bytes(piece) for at, size in sizes if size > 0 for piece in content.pieces(at, size, room))
    machine = {**backend("cpu").identity(), "package": _package_state(), "threads": str(default_num_threads()), **mine}
    machine["tuning"] = "\n".join(_state(default_folder() / f"tuning.sqlite{end}") for end in ("", "-wal"))
    text = "".join(f"{name}={value}\n" for name, value in sorted(machine.items()))
    key = hashlib.sha256(b"%d\n%s\n%s" % (content.size, text.encode(), samples)).hexdigest()
    return default_folder() / "plans" / f"{key[:32]}.plan"


@functools.lru_cache(maxsize=1)
def _package_state() -> str:
    """SHA-256 of the version, and of what the system says of every file of this package: sources and tuning records."""
    lines = [__version__]
    folders = [str(_PACKAGE)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    if entry.name != "__pycache__":
                        folders.append(entry.path)
                else:
                    status = entry.stat()
                    lines.append(f"{entry.path} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _state(path: Path) -> str:
    """Length and time of a file that was not opened; empty if it is empty or absent."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}" if status.st_size else ""


def _touch(path: Path) -> None:
    """Mark as used, at most once a day, so that a hit seldom writes."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _TOUCH_AFTER_SECONDS:
            os.utime(path)


def _prune(folder: Path) -> None:
    """Drop the least recently used plans if there are too many bytes of them."""
    found = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(folder))
    total = sum(size for _, size, _ in found)
    if total > LIMIT_BYTES:
        for _, size, path in found:
            if total <= LIMIT_BYTES * _PRUNE_TO:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size


def _shape_to_json(s: Shape) -> list[Any]:
    if s.sub_shapes:
        return [_shape_to_json(member) for member in s.sub_shapes]
    return [s.type.name, s.lens, s.strides]


def _shape_from_json(entry: list[Any]) -> Shape:
    if not entry or isinstance(entry[0], list):
        return Shape.tuple(_shape_from_json(member) for member in entry)
    return Shape(Type[entry[0]], entry[1], entry[2])
