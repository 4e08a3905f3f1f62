"""Sources of records (the caller, the model's file, the user's database, the package), and destinations of new
records."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ...dataclass import dataclass
from ...errors import FormatError, MgxError, OptionError
from ...messages import warn
from ..files import default_folder
from .files import best, merge_records, read_records
from .record import DeviceFingerprint, Extents, Problem, TuningRecord, extents_of

ENVIRONMENT = "MIGRAPHX_PROBLEM_CACHE"
SHIPPED = Path(__file__).parent / "shipped"
"""Folder of records that come with the package, one file for each `Backend.family`."""
_SQLITE_MAGIC = b"SQLite format 3\0"


class RecordLayer(Protocol):
    """One source of records."""

    origin: str

    def exact(self, problem: Problem, fingerprint: DeviceFingerprint) -> TuningRecord | None:
        """Return the record of this problem on this machine, or None."""

    def similar(self, problem: Problem) -> list[TuningRecord]:
        """Return the records of the same work on any machine and any number of threads."""

    def records(self) -> list[TuningRecord]:
        """Return all records."""

    def extents(self) -> Collection[Extents]:
        """Return the extents of all problems with records."""


class MemoryLayer:
    """Records that are held in memory."""

    def __init__(self, origin: str, records: Iterable[TuningRecord]) -> None:
        self.origin = origin
        self._exact: dict[tuple[str, str], TuningRecord] = {}
        self._similar: dict[str, list[TuningRecord]] = {}
        for record in best(records):
            self._exact[record.problem.key, record.fingerprint.key] = record
            self._similar.setdefault(record.problem.work, []).append(record)

    def exact(self, problem: Problem, fingerprint: DeviceFingerprint) -> TuningRecord | None:
        return self._exact.get((problem.key, fingerprint.key))

    def similar(self, problem: Problem) -> list[TuningRecord]:
        return self._similar.get(problem.work, [])

    def records(self) -> list[TuningRecord]:
        return list(self._exact.values())

    def extents(self) -> Collection[Extents]:
        return self._extents

    @functools.cached_property
    def _extents(self) -> Collection[Extents]:
        return {extents_of(record.problem.fields) for record in self.records()}


class UserLayer:
    """The user's database, read on first use; if it cannot be read, it is reported once and ignored."""

    origin = "user database"

    def __init__(self) -> None:
        self._usable = True
        self._rows: dict[str, list[Any]] | None = None

    def exact(self, problem: Problem, fingerprint: DeviceFingerprint) -> TuningRecord | None:
        return next((r for r in self._records(problem, fingerprint) if r.problem == problem), None)

    def similar(self, problem: Problem) -> list[TuningRecord]:
        return self._records(problem, None)

    def put(self, records: Sequence[TuningRecord]) -> None:
        """Store records; a failure is reported once."""
        self._ask(lambda database: database.put(records))

    def records(self) -> list[TuningRecord]:
        return self._read([row for rows in self._all().values() for row in rows])

    def extents(self) -> Collection[Extents]:
        return set(map(_extents_of_work, self._all()))

    def _records(self, problem: Problem, fingerprint: DeviceFingerprint | None) -> list[TuningRecord]:
        """Return the records of the same work, of one machine or of all machines (None)."""
        rows = self._all().get(problem.work, ())
        return self._read([row for row in rows if fingerprint is None or row[1] == fingerprint.key])

    def _all(self) -> dict[str, list[Any]]:
        """Return all rows by `Problem.work`."""
        if self._rows is None:
            # Without a file, SQLite need not be imported.
            exists = os.path.exists(default_folder() / "tuning.sqlite")
            self._rows = (self._ask(lambda database: database.rows()) if exists else None) or {}
        return self._rows

    def _read(self, rows: Sequence[object]) -> list[TuningRecord]:
        return (self._ask(lambda database: [database.record(row) for row in rows]) or []) if rows else []

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        if not self._usable:
            return None
        try:
            from .database import Database, default_path

            return question(Database(default_path()))
        except (MgxError, ImportError) as error:
            self._usable = False
            warn(f"the user's tuning records are ignored: {error}", RuntimeWarning)
            return None


@functools.lru_cache(maxsize=4096)
def _extents_of_work(work: str) -> Extents:
    """Return the extents of a problem's ``work``: a text that each compilation meets again."""
    return extents_of(json.loads(work))


class ShippedLayer:
    """Records that come with the package, for classes of devices, where the cost model misses the best choice.

    None is exact: they were measured on another machine with such a device.
    """

    origin = "shipped"

    def __init__(self, family: str, folder: Path = SHIPPED) -> None:
        self._path = folder / f"{family}.json"

    def exact(self, problem: Problem, fingerprint: DeviceFingerprint) -> TuningRecord | None:
        return None

    def similar(self, problem: Problem) -> list[TuningRecord]:
        return [record for record in self._layer().similar(problem) if record.problem == problem]

    def records(self) -> list[TuningRecord]:
        return self._layer().records()

    def extents(self) -> Collection[Extents]:
        return self._layer().extents()

    def _layer(self) -> MemoryLayer:
        return _shipped(self._path)


@functools.cache
def _shipped(path: Path) -> MemoryLayer:
    """Read a file of shipped records, once per process."""
    return MemoryLayer(ShippedLayer.origin, read_records(path) if path.exists() else ())


@dataclass(frozen=True)
class RecordHit:
    """A record, the layer that it came from, and whether it was measured for this problem on this machine."""

    record: TuningRecord
    origin: str
    exact: bool

    @property
    def is_hint(self) -> bool:
        """Whether to warn the user that the record comes from a different machine."""
        return not self.exact and self.origin != ShippedLayer.origin


class Sources:
    """Layers of records in order of precedence."""

    def __init__(self, layers: Sequence[RecordLayer]) -> None:
        self._layers = tuple(layers)

    @functools.cached_property
    def extents(self) -> Collection[Extents]:
        """Extents of all problems with records; problems with other extents need no look-up."""
        return frozenset(one for layer in self._layers for one in layer.extents())

    def records(self) -> list[TuningRecord]:
        """Return the records of all layers except the package's own."""
        own = [layer for layer in self._layers if layer.origin != ShippedLayer.origin]
        return [record for layer in own for record in layer.records()]

    def find(self, problem: Problem, fingerprint: DeviceFingerprint) -> RecordHit | None:
        """Return the first layer's exact record, else the first layer's best record measured elsewhere.

        Records of the same number of threads and the same CPU are preferred, then newer records.
        """
        for layer in self._layers:
            record = layer.exact(problem, fingerprint)
            if record is not None:
                return RecordHit(record, layer.origin, True)
        for layer in self._layers:
            records = layer.similar(problem)
            if records:
                here = fingerprint.cpu
                nearest = max(records, key=lambda r: (r.problem == problem, r.fingerprint.cpu == here, r.date))
                return RecordHit(nearest, layer.origin, False)
        return None


def given_layer(path: str | os.PathLike[str], may_be_new: bool) -> MemoryLayer:
    """Return the records of a JSON file or SQLite database that the caller names.

    Raises:
        OptionError: the file does not exist, unless it ``may_be_new``.
        FormatError: the file holds other data.
    """
    target = Path(path).expanduser()
    if not target.exists():
        if may_be_new:
            return MemoryLayer(str(path), ())
        raise OptionError(f"problem_cache: there is no file {path}")
    try:
        return MemoryLayer(str(path), read_file(target))
    except OSError as error:
        raise OptionError(f"problem_cache {path}: {error.strerror or error}") from None


def read_file(path: Path) -> list[TuningRecord]:
    """Return the records of a JSON file or SQLite database; an empty file has none.

    Raises:
        FormatError: the file holds other data.
        OSError: the file cannot be read.
    """
    if path.exists() and not path.is_file():  # a pipe would wait for a writer
        raise FormatError(f"{path}: not a regular file, expected tuning records (.mxr, JSON or an SQLite database)")
    with open(path, "rb") as file:
        start = file.read(len(_SQLITE_MAGIC))
    if start == _SQLITE_MAGIC:
        from .database import Database

        return Database(path).records()
    return read_records(path) if start else []


def keep_in_file(path: str | os.PathLike[str], records: Sequence[TuningRecord]) -> None:
    """Add records to a JSON file or an SQLite database; concurrent calls are safe.

    An existing file keeps its format. A new file is JSON if its name ends in ``.json``, else a database.

    Raises:
        FormatError: the file holds other data, or cannot be written.
    """
    target = Path(path).expanduser()
    empty = not target.exists() or target.stat().st_size == 0
    is_json = target.suffix.lower() == ".json" if empty else target.read_bytes()[:16] != _SQLITE_MAGIC
    if is_json:
        try:
            merge_records(target, records)
        except OSError as error:
            raise FormatError(f"{path}: {error.strerror or error}") from None
    else:
        from .database import Database

        Database(target).put(records)
