"""Tuning records in an SQLite database that any number of processes may read and write concurrently.

The user's database is ``<cache folder>/tuning.sqlite``, in the folder of the object store. It keeps the fastest record
for each problem and machine. Writes are transactions in write-ahead mode, so a process that dies leaves the file
intact.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from ...errors import FormatError, MgxError, OptionError
from ..files import default_folder, make_folder
from .record import DeviceFingerprint, Problem, TuningRecord

SCHEMA = 1  # raised with each change of the tables
_DAY_SECONDS = 24 * 3600.0  # by definition
_RETRY_SECONDS = 0.01  # about as long as a transaction takes
_BUSY_SECONDS = 30.0
"""Time (s) to wait for transactions of other processes, which take milliseconds; beyond it, a process hangs."""
_TABLE = """
CREATE TABLE IF NOT EXISTS records (
    problem TEXT NOT NULL, fingerprint TEXT NOT NULL, work TEXT NOT NULL, solver TEXT NOT NULL,
    configuration TEXT NOT NULL, seconds REAL NOT NULL, noise REAL NOT NULL, date TEXT NOT NULL,
    PRIMARY KEY (problem, fingerprint)
)"""
_INDEX = "CREATE INDEX IF NOT EXISTS by_work ON records (work)"
_UPSERT = """
INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (problem, fingerprint) DO UPDATE SET
    solver = excluded.solver, configuration = excluded.configuration, seconds = excluded.seconds,
    noise = excluded.noise, date = excluded.date
WHERE excluded.seconds < records.seconds"""
Row: TypeAlias = "tuple[Any, ...]"
_COLUMNS = "problem, fingerprint, solver, configuration, seconds, noise, date"


def default_path() -> Path:
    """Return the path of the user's database: ``tuning.sqlite`` in ``MGX_CACHE_DIR`` or the platform's cache folder."""
    return default_folder() / "tuning.sqlite"


class Database:
    """Tuning records in one file, which the first write creates. Every call opens its own connection.

    Methods raise `FormatError` if the file is damaged or not a tuning database, and `MgxError` if it cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def exact(self, problem: Problem, fingerprint: DeviceFingerprint) -> TuningRecord | None:
        """Return the record of this problem on this machine, or None."""
        found = self._select("problem = ? AND fingerprint = ?", (problem.key, fingerprint.key))
        return found[0] if found else None

    def similar(self, problem: Problem) -> list[TuningRecord]:
        """Return the records of the same work on any machine and any number of threads."""
        return self._select("work = ?", (problem.work,))

    def records(self) -> list[TuningRecord]:
        """Return all records, ordered by problem."""
        return self._select("1", (), " ORDER BY problem, fingerprint")

    def rows(self) -> dict[str, list[Row]]:
        """Return all rows by `Problem.work`, for bulk look-ups; `record` converts a row."""
        found: dict[str, list[Row]] = {}
        with self._opened(create=False) as connection:
            if connection is not None:
                for work, *row in connection.execute(f"SELECT work, {_COLUMNS} FROM records"):
                    found.setdefault(work, []).append(tuple(row))
        return found

    def put(self, records: Iterable[TuningRecord]) -> int:
        """Insert records in one transaction, except records slower than the stored ones; return the number of
        changes."""
        rows = [
            (
                r.problem.key, r.fingerprint.key, r.problem.work, r.solver, json.dumps(dict(r.configuration)),
                r.seconds, r.noise, r.date,
            )
            for r in records
        ]  # fmt: skip
        with self._opened(create=True) as connection:
            assert connection is not None
            before = connection.total_changes
            connection.executemany(_UPSERT, rows)
            return connection.total_changes - before

    def prune(self, keep: DeviceFingerprint | None = None, older_than_days: float | None = None) -> int:
        """Delete records of machines other than ``keep``, and records older than ``older_than_days``; return their
        number.

        Revisions of solvers do not count as a difference of machines.

        Raises:
            OptionError: the number of days is negative, which would delete all.
        """
        if older_than_days is not None and not older_than_days >= 0:
            raise OptionError(f"records older than {older_than_days:g} days are no part of them: expected 0 or more")
        clauses: list[str] = []
        values: list[str] = []
        machine = None if keep is None else keep.machine
        if machine is not None:
            clauses.append("NOT of_machine(fingerprint)")
        if older_than_days is not None:
            limit = time.gmtime(max(0.0, time.time() - older_than_days * _DAY_SECONDS))
            clauses.append("date < ?")
            values.append(time.strftime("%Y-%m-%dT%H:%M:%SZ", limit))
        if not clauses or not os.path.exists(self.path):
            return 0
        with self._opened(create=True) as connection:
            assert connection is not None
            connection.create_function("of_machine", 1, lambda key: _machine_of(key) == machine)
            return connection.execute(f"DELETE FROM records WHERE {' OR '.join(clauses)}", values).rowcount

    def _select(self, condition: str, values: tuple[str, ...], order: str = "") -> list[TuningRecord]:
        with self._opened(create=False) as connection:
            if connection is None:
                return []
            rows = connection.execute(f"SELECT {_COLUMNS} FROM records WHERE {condition}{order}", values).fetchall()
        return [self.record(row) for row in rows]

    def record(self, row: Row) -> TuningRecord:
        """Return the record in a row."""
        problem, fingerprint, solver, configuration, seconds, noise, date = row
        try:
            tree = {
                "problem": json.loads(problem), "fingerprint": json.loads(fingerprint), "solver": solver,
                "configuration": json.loads(configuration), "seconds": seconds, "noise": noise, "date": date,
            }  # fmt: skip
        except (TypeError, ValueError, RecursionError) as error:
            raise FormatError(f"{self.path}: a record is damaged: {error}") from None
        try:
            return TuningRecord.from_json(tree)
        except FormatError as error:
            raise FormatError(f"{self.path}: {error}") from None

    @contextlib.contextmanager
    def _opened(self, create: bool) -> Iterator[sqlite3.Connection | None]:
        """Open a connection inside a transaction; None if the file does not exist and ``create`` is false."""
        if not create and not os.path.exists(self.path):
            yield None
            return
        connection: sqlite3.Connection | None = None
        try:
            if create:
                if self.path == default_path():
                    make_folder(self.path.parent)
                self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
            if create:
                self._prepare(connection)
                connection.execute("BEGIN IMMEDIATE")
            elif not self._has_schema(connection):
                yield None
                return
            yield connection
            if create:
                connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise MgxError(f"{self.path}: the tuning database cannot be used: {error}") from None
        except sqlite3.DatabaseError as error:
            raise FormatError(f"{self.path}: not a tuning database, or damaged: {error}") from None
        except OSError as error:
            raise MgxError(f"{self.path}: the tuning database cannot be used: {error.strerror or error}") from None
        finally:
            if connection is not None:
                connection.close()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Create the tables; retry while the file is locked, since SQLite does not wait when it changes the journal
        mode."""
        deadline = time.monotonic() + _BUSY_SECONDS
        while not self._has_schema(connection):
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)
                continue
            connection.execute(_TABLE)
            connection.execute(_INDEX)
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
            connection.execute("COMMIT")

    def _has_schema(self, connection: sqlite3.Connection) -> bool:
        # Tables and version are created in one transaction. The count is read first: another process may create them.
        (count,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, SCHEMA):
            raise FormatError(f"{self.path}: the database has version {version}, expected {SCHEMA}")
        if version == 0 and count:
            raise FormatError(f"{self.path}: an SQLite file, but not a tuning database")
        return version == SCHEMA


def _machine_of(key: str) -> DeviceFingerprint | None:
    """Return the machine of a stored fingerprint; None if the fingerprint is damaged."""
    try:
        return DeviceFingerprint.from_json(json.loads(key)).machine
    except (MgxError, TypeError, ValueError, RecursionError):
        return None
