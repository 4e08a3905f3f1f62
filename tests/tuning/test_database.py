"""The SQLite database: best records, concurrent writers, damage, a killed writer."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mgx_numba.codegen.tuning.database import Database
from mgx_numba.codegen.tuning.files import read_records, write_records
from mgx_numba.errors import FormatError, MgxError

from .support import HERE, THERE, problem, record

WRITER = """
import sys
from mgx_numba.codegen.tuning.database import Database
from mgx_numba.codegen.tuning.record import DeviceFingerprint, Problem, TuningRecord

machine = DeviceFingerprint("znver4", ("avx2", "fma"), 8, 256, (("mgx_numba", "1"), ("numba", "1")))
database, number, count = Database(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
m = 0
while m != count:
    for own, seconds in ((m, 1.0 + number), (1000 * (number + 1) + m, 1.0)):
        problem = Problem.of("dot", 2, {"m": own, "n": 8, "dtype": "float32"})
        database.put([TuningRecord(problem, machine, "gemm", {"rows": number + 1}, seconds)])
    m += 1
    print(m, flush=True)
"""


def start_writer(path: Path, number: int, count: int) -> subprocess.Popen:
    command = [sys.executable, "-c", WRITER, str(path), str(number), str(count)]
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, text=True)


def test_best_record_wins(tmp_path: Path):
    database = Database(tmp_path / "folder" / "tuning.sqlite")
    assert database.records() == [] and database.exact(problem(), HERE) is None
    assert not database.path.exists()
    assert database.put([record(4, 2.0), record(4, 9.0, THERE)]) == 2
    assert database.put([record(4, 3.0, solver="slower")]) == 0
    assert database.exact(problem(), HERE) == record(4, 2.0)
    assert database.put([record(4, 1.0, solver="faster")]) == 1
    assert database.exact(problem(), HERE) == record(4, 1.0, solver="faster")
    assert database.exact(problem(threads=3), HERE) is None
    assert {r.fingerprint for r in database.similar(problem(threads=3))} == {HERE, THERE}


def test_records_of_a_file_are_put_and_pruned(tmp_path: Path):
    first, second = Database(tmp_path / "a"), Database(tmp_path / "b")
    old = record(6, date="2001-01-01T00:00:00Z")
    first.put([record(4), replace(record(5), date="2999-01-01T00:00:00Z"), old, record(7, fingerprint=THERE)])
    write_records(tmp_path / "all.json", first.records())
    assert second.put(read_records(tmp_path / "all.json")) == 4
    assert second.records() == first.records()
    assert second.put(read_records(tmp_path / "all.json")) == 0
    assert first.prune() == 0
    assert first.prune(keep=HERE) == 1
    assert second.prune(older_than_days=300 * 365) == 0
    assert second.prune(older_than_days=20 * 365) == 1
    assert old not in second.records() and len(second.records()) == 3


def test_four_processes_write_at_once(tmp_path: Path):
    path, count = tmp_path / "tuning.sqlite", 12
    writers = [start_writer(path, number, count) for number in range(4)]
    for writer in writers:
        writer.communicate(timeout=120)
        assert writer.returncode == 0
    records = Database(path).records()
    assert len(records) == 5 * count
    shared = [r for r in records if r.problem.fields["m"] < 1000]
    assert len(shared) == count and all(r.configuration == {"rows": 1} for r in shared)
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_killed_writer_leaves_the_database_usable(tmp_path: Path):
    path = tmp_path / "tuning.sqlite"
    writer = start_writer(path, 0, -1)
    assert writer.stdout is not None
    for _ in range(5):
        assert writer.stdout.readline()
    time.sleep(0.01)
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate(timeout=60)
    found = {r.problem.fields["m"] for r in Database(path).records()}
    assert {0, 1, 2, 3, 4, 1000, 1001, 1002, 1003, 1004} <= found
    assert Database(path).put([record(5000)]) == 1


def test_damaged_and_foreign_files_are_refused(tmp_path: Path):
    path = tmp_path / "tuning.sqlite"
    path.write_bytes(b"no database at all, but long enough to be looked at" * 20)
    for use in (Database(path).records, lambda: Database(path).put([record()])):
        with pytest.raises(FormatError, match=r"tuning\.sqlite"):
            use()
    foreign = tmp_path / "foreign"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE other (x)")
    connection.commit()
    for use in (Database(foreign).records, lambda: Database(foreign).put([record()])):
        with pytest.raises(FormatError, match="not a tuning database"):
            use()
    connection.execute("PRAGMA user_version = 7")
    connection.commit()
    connection.close()
    with pytest.raises(FormatError, match="version 7"):
        Database(foreign).records()
    with pytest.raises(MgxError, match="cannot be used"):
        Database(tmp_path / "tuning.sqlite" / "below").put([record()])


def test_damaged_row_is_refused(tmp_path: Path):
    database = Database(tmp_path / "tuning.sqlite")
    database.put([record()])
    connection = sqlite3.connect(database.path)
    connection.execute("UPDATE records SET configuration = '{'")
    connection.commit()
    connection.close()
    with pytest.raises(FormatError, match="a record is damaged"):
        database.records()
