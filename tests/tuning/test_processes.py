"""Concurrent tuning by several processes, and processes killed while they tune or save."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.codegen.tuning.database import Database, default_path
from mgx_numba.codegen.tuning.files import merge_records, read_records
from mgx_numba.codegen.tuning.record import TuningRecord
from mgx_numba.graph.atomic_file import replace_file

from .support import product, record

fcntl = pytest.importorskip("fcntl")
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL and no flock here")

TUNER = """
import sys
from mgx_numba.targets.cpu.measuring import Bench
from tests.tuning.support import product

number, count, cache = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
Bench.sample = lambda self, candidate: 1e-3 * (1 + number)
step = 0
while step != count:
    step += 1
    product(m=100 * (1 + number) + step).compile(exhaustive_tune=True, num_threads=2, problem_cache=cache)
    print(step, flush=True)
product(m=7).compile(exhaustive_tune=True, num_threads=2, problem_cache=cache)
"""

SAVER = """
import os, sys, time
import numpy as np
import mgx_numba as migraphx

def stop(*arguments):
    print("there", flush=True)
    time.sleep(60)

net = migraphx.program()
main = net.get_main_module()
main.add_return([main.add_literal(np.full(1 << 20, 2, np.float32))])
if sys.argv[2] != "anywhere":
    setattr(os, sys.argv[2], stop)
print("ready", flush=True)
while True:
    migraphx.save(net, sys.argv[1])
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment, text=True)


def told(process: subprocess.Popen[str], lines: int) -> None:
    assert process.stdout is not None
    for _ in range(lines):
        assert process.stdout.readline()


def kill(process: subprocess.Popen[str]) -> int:
    """End a process without warning; how many lines it had still written."""
    os.kill(process.pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    return output.count("\n")


def lengths(records: list[TuningRecord]) -> set[int]:
    return {r.problem.fields["m"] for r in records}


@pytest.mark.parametrize("place", ["user", "records.sqlite", "records.json"])
def test_four_processes_tune_at_once(tmp_path: Path, place: str) -> None:
    cache = [] if place == "user" else [tmp_path / place]
    processes = [start(TUNER, number, 5, *cache) for number in range(4)]
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    path = cache[0] if cache else default_path()
    records = read_records(path) if place.endswith("json") else Database(path).records()
    wanted = {100 * (1 + number) + step for number in range(4) for step in range(1, 6)}
    assert lengths(records) == wanted | {7} and len(records) == 21
    if not place.endswith("json"):
        assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("place", ["user", "records.json"])
def test_killed_tuners_lose_nothing_that_was_done(tmp_path: Path, place: str) -> None:
    cache = [] if place == "user" else [tmp_path / place]
    processes = [start(TUNER, number, -1, *cache) for number in range(3)]
    done = {}
    for number, process in enumerate(processes):
        told(process, 3)
        time.sleep(0.01 * number)
        done[number] = 3 + kill(process)
    path = cache[0] if cache else default_path()
    records = read_records(path) if cache else Database(path).records()
    assert {100 * (1 + n) + step for n, steps in done.items() for step in range(1, 1 + steps)} <= lengths(records)
    product(m=9).compile(exhaustive_tune=True, num_threads=2, problem_cache=cache)
    assert 9 in lengths(read_records(path) if cache else Database(path).records())


def test_merging_into_an_empty_or_absent_file(tmp_path: Path) -> None:
    (tmp_path / "empty.json").touch()
    for name in ("empty.json", "absent.json"):
        merge_records(tmp_path / name, [record(4, 2.0)])
        merge_records(tmp_path / name, [record(4, 1.0), record(5)])
        assert read_records(tmp_path / name) == [record(4, 1.0), record(5)]
    assert sorted(p.name for p in tmp_path.glob("*.json*")) == ["absent.json", "empty.json"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder, which the cache is not in."""
    path = tmp_path / "files"
    path.mkdir()
    return path


@pytest.mark.parametrize("moment", ["fsync", "replace", "anywhere", "anywhere", "anywhere"])
def test_killed_save_leaves_the_old_file_or_the_new_one(folder: Path, moment: str) -> None:
    path = folder / "net.mxr"
    net = migraphx.program()
    main = net.get_main_module()
    main.add_return([main.add_literal(np.full(1 << 20, 1, np.float32))])
    migraphx.save(net, path)
    process = start(SAVER, path, moment)
    told(process, 1)
    if moment == "anywhere":
        time.sleep(float(np.random.default_rng().uniform(0, 0.02)))
    else:
        told(process, 1)
    if moment == "fsync" and has_unnamed_files(folder):
        assert os.listdir(folder) == ["net.mxr"]
    kill(process)
    (literal,) = [i.literal.numpy() for i in migraphx.load(path).portable.main if i.literal is not None]
    assert literal.shape == (1 << 20,) and literal.min() == literal.max()
    assert literal[0] == 1 if moment != "anywhere" else literal[0] in (1, 2)
    for left in folder.glob(".*"):
        os.utime(left, (0, 0))
    migraphx.save(net, path)
    assert migraphx.load(path) == net
    assert os.listdir(folder) == ["net.mxr"]


def has_unnamed_files(folder: Path) -> bool:
    try:
        os.close(os.open(folder, os.O_WRONLY | os.O_TMPFILE))
    except (AttributeError, OSError):
        return False
    return True


@pytest.mark.parametrize("named", [False, True])
def test_a_temporary_file_that_another_process_may_be_writing_stays(
    folder: Path, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    target = folder / "file"
    new, locked, abandoned = (f".file.{digit * 16}.tmp" for digit in "0af")
    others = [f".file2.{'0' * 16}.tmp", ".file.mine.tmp", f".file.txt.{'0' * 16}.tmp"]
    (folder / new).touch()
    for name in (locked, abandoned, *others):
        (folder / name).touch()
        os.utime(folder / name, (0, 0))
    with open(folder / locked, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        replace_file(target, lambda write: write(b"content"), durable=True)
    assert target.read_bytes() == b"content"
    assert set(os.listdir(folder)) == {"file", new, locked, *others}


@pytest.mark.parametrize("named", [False, True])
def test_a_failed_write_leaves_the_old_file_alone(folder: Path, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if named:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    target = folder / "file"
    target.write_bytes(b"old")
    for error in (OSError("full"), ValueError("no value"), KeyboardInterrupt()):

        def fill(write: Callable[[bytes], int], error: BaseException = error) -> None:
            write(b"new")
            raise error

        with pytest.raises(type(error)):
            replace_file(target, fill)
        assert target.read_bytes() == b"old" and os.listdir(folder) == ["file"]


@pytest.mark.parametrize("named", [False, True])
def test_an_error_names_the_file_or_its_missing_folder(
    folder: Path, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    (folder / "folder").mkdir()
    for target, message in (
        (folder / "absent" / "file", f"there is no folder {folder / 'absent'}"),
        (folder / "folder", "Is a directory"),
    ):
        with pytest.raises(OSError, match=re.escape(message)) as caught:
            replace_file(target, lambda write: write(b"content"))
        assert caught.value.filename == str(target) and ".tmp" not in str(caught.value)


def test_a_file_that_cannot_get_a_name_is_written_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refused)
    replace_file(folder / "file", lambda write: write(b"content"), mode=0o640)
    assert (folder / "file").read_bytes() == b"content" and os.listdir(folder) == ["file"]


@pytest.mark.parametrize("named", [False, True])
def test_permissions_of_the_replaced_file_came_after_the_content(
    folder: Path, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    target = folder / "file"
    target.touch(mode=0o600)
    seen = []

    def fill(write: Callable[[bytes], int]) -> None:
        write(b"content")
        seen.extend(path.stat().st_mode & 0o777 for path in folder.glob(".file.*"))

    replace_file(target, fill, mode=0o644)
    assert seen == [0o600] * named and target.stat().st_mode & 0o777 == 0o600
    replace_file(folder / "other", fill, mode=0o640)
    assert (folder / "other").stat().st_mode & 0o777 == 0o640


def test_a_pipe_was_replaced_by_a_file(folder: Path) -> None:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        replace_file(pipe, lambda write: write(b"content"), durable=True)
        assert os.read(reader, 64) == b"content" and pipe.is_fifo() and os.listdir(folder) == ["pipe"]
    finally:
        os.close(reader)


def test_a_compiled_program_is_saved_to_a_pipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    net = product(m=3).compile()
    with monkeypatch.context() as patch, open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        patch.setattr("mgx_numba.graph.content.open_content", lambda path: pytest.fail("read again"))
        migraphx.save(net, pipe)
        content = reader.read()
    assert content == migraphx.save_buffer(net)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    "name", ["\N{GRINNING FACE}" * 63, "n" * 255, "\udcff\udcfe.mxr"], ids=["wide", "long", "no text"]
)
def test_names_that_were_too_long_with_what_temporary_files_add(
    folder: Path, name: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    replace_file(folder / name, lambda write: write(b"content"), durable=True)
    assert (folder / name).read_bytes() == b"content" and os.listdir(folder) == [name]
