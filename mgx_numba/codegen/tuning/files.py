"""Tuning records as a JSON file: ``{"format": "mgx_numba tuning", "version": 1, "records": [...]}``."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...errors import FormatError
from ...graph.atomic_file import replace_file
from .record import TuningRecord

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = "mgx_numba tuning"
VERSION = 1  # raised with each change of a record's form


def read_records(path: str | os.PathLike[str]) -> list[TuningRecord]:
    """Return the records in a file.

    Raises:
        FormatError: the file is damaged or holds no tuning records.
        OSError: the file cannot be read.
    """
    data = Path(path).read_bytes()
    try:
        root = json.loads(data)
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not a file of tuning records: expected .mxr, JSON or an SQLite database") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not a JSON file of tuning records: {error}") from None
    if not isinstance(root, dict) or root.get("format") != FORMAT:
        raise FormatError(f"{path}: not a file of tuning records: 'format' must be {FORMAT!r}")
    if root.get("version") != VERSION:
        raise FormatError(f"{path}: version is {str(root.get('version'))[:40]}, expected {VERSION}")
    try:
        return records_from(root.get("records"))
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def records_from(values: object) -> list[TuningRecord]:
    """Convert JSON values to records.

    Raises:
        FormatError: a value is malformed; the message has its number.
    """
    if not isinstance(values, (list, tuple)):
        raise FormatError("tuning records must be an array")
    records = []
    for number, value in enumerate(values):
        try:
            records.append(TuningRecord.from_json(value))
        except FormatError as error:
            raise FormatError(f"record {number}: {error}") from None
    return records


def write_records(path: str | os.PathLike[str], records: Iterable[TuningRecord]) -> None:
    """Replace a file atomically; each record takes one line."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(record.to_json(), separators=(",", ":")) for record in records)
    text = f'{{"format": {json.dumps(FORMAT)}, "version": {VERSION}, "records": [\n{lines}\n]}}\n'
    replace_file(target, lambda write: write(text.encode()))


def merge_records(path: str | os.PathLike[str], records: Iterable[TuningRecord]) -> None:
    """Add records to a file, which may be absent or empty, and keep the fastest of each problem and machine.

    Concurrent calls wait for one another where the system has ``flock``; elsewhere the last one wins.

    Raises:
        FormatError: the file holds other data.
        OSError: the file cannot be read or written.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target):
        known = read_records(target) if target.exists() and target.stat().st_size else []
        write_records(target, best([*known, *records]))


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Hold the lock of a file, which is created if absent.

    Writing replaces the file, so the awaited lock may belong to a deleted file; then the new file is locked instead.
    The lock ends with the process.
    """
    if fcntl is None:
        yield
        return
    while True:
        handle = os.open(target, os.O_RDONLY | os.O_CREAT, 0o666)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            if target.exists() and os.path.samestat(os.fstat(handle), os.stat(target)):
                yield
                return
        finally:
            os.close(handle)


def best(records: Iterable[TuningRecord]) -> list[TuningRecord]:
    """Return the fastest record of each problem and machine, in order of first appearance."""
    found: dict[tuple[str, str], TuningRecord] = {}
    for record in records:
        place = record.problem.key, record.fingerprint.key
        if place not in found or record.seconds < found[place].seconds:
            found[place] = record
    return list(found.values())
