"""Objects kept between processes: round trip, damage, explanation, pruning, and loading without Numba."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.cpu.toolchain import loader
from mgx_numba.codegen.files import default_folder
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.store import ObjectStore
from mgx_numba.runtime.host.native import NativeKernel

from ..running import said

Make = Callable[[int], KernelSource]


def call(address: int) -> int:
    word = np.zeros(1, np.int64)
    args = np.array([word.ctypes.data], np.int64)
    NativeKernel(address)(args.ctypes.data, 0, 1)
    return int(word[0])


def test_round_trip(tmp_path: Path, distinct: Make) -> None:
    store = ObjectStore(tmp_path)
    source = distinct(1)
    assert store.get(source) is None
    store.put(source, b"object")
    assert ObjectStore(tmp_path).get(source) == b"object"
    assert {path.suffix for path in (tmp_path / "objects").iterdir()} == {".o", ".json"}


@pytest.mark.parametrize("damage", ["truncated object", "changed object", "no object", "bad record", "no record"])
def test_damaged_entry_counts_as_absent(tmp_path: Path, distinct: Make, damage: str) -> None:
    store, source = ObjectStore(tmp_path), distinct(1)
    store.put(source, b"the object")
    path = tmp_path / "objects" / (source.symbol + (".json" if "record" in damage else ".o"))
    if damage.startswith("no"):
        path.unlink()
    else:
        path.write_bytes({"truncated object": b"the obj", "changed object": b"THE object", "bad record": b"[]"}[damage])
    assert store.get(source) is None


def test_a_record_of_another_kernel_counts_as_absent(tmp_path: Path, distinct: Make) -> None:
    store, source, other = ObjectStore(tmp_path), distinct(1), distinct(2)
    store.put(other, b"another object")
    for end in (".o", ".json"):
        os.rename(tmp_path / "objects" / (other.symbol + end), tmp_path / "objects" / (source.symbol + end))
    assert store.get(source) is None


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("end", [".o", ".json"])
def test_files_of_other_users_count_as_absent(tmp_path: Path, distinct: Make, end: str) -> None:
    store, source = ObjectStore(tmp_path), distinct(1)
    store.put(source, b"object")
    os.chown(tmp_path / "objects" / (source.symbol + end), 12345, -1)
    assert store.get(source) is None


def test_offers_of_threads_may_overlap(tmp_path: Path, distinct: Make) -> None:
    """The context that ended last brought the other's objects back, and kept them for good."""
    store, (one, two) = ObjectStore(tmp_path), (distinct(1), distinct(2))
    first, second = (
        store.offering({source.symbol: np.frombuffer(data, np.uint8)}) for source, data in ((one, b"1"), (two, b"2"))
    )
    first.__enter__()
    second.__enter__()
    assert (store.get(one), store.get(two)) == (b"1", b"2")
    first.__exit__(None, None, None)
    assert (store.get(one), store.get(two)) == (None, b"2")
    second.__exit__(None, None, None)
    assert (store.get(one), store.get(two)) == (None, None)


def test_new_folders_are_for_the_user_alone(tmp_path: Path, distinct: Make) -> None:
    ObjectStore(tmp_path / "cache").put(distinct(1), b"object")
    for folder in (tmp_path / "cache", tmp_path / "cache" / "objects"):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_damaged_object_is_compiled_again(tmp_path: Path, distinct: Make) -> None:
    store, source = ObjectStore(tmp_path), distinct(1001)
    store.put(source, b"not an ELF object")  # a record that fits, around bytes that do not load
    (address,) = loader.load([source], store=store)
    assert call(address) == 1001
    assert store.get(source) != b"not an ELF object"


def test_loading_is_by_symbol_and_reports_progress(tmp_path: Path, distinct: Make) -> None:
    sources = [distinct(1010), distinct(1011), distinct(1010)]
    seen: list[tuple[int, int, str]] = []
    addresses = loader.load(sources, lambda *report: seen.append(report), ObjectStore(tmp_path))
    assert addresses[0] == addresses[2] != addresses[1]
    assert [call(address) for address in addresses] == [1010, 1011, 1010]
    assert seen == [(1, 2, "set_1010_kernel"), (2, 2, "set_1011_kernel")]
    assert loader.load(sources) == addresses and len(seen) == 2


def test_many_objects_with_library_calls_load(tmp_path: Path) -> None:
    body = "def kernel(args, begin, end):\n    args[0] = {0}\n    copy_bytes(words_at(args, 1), args, begin)\n"
    sources = [cpu_kernel(f"copy_{i}_kernel", body.format(i)) for i in range(12)]
    for source in sources:
        (address,) = loader.load([source], store=ObjectStore(tmp_path))
        target = np.zeros(8, np.int64)
        args = np.array([0, target.ctypes.data], np.int64)
        NativeKernel(address)(args.ctypes.data, 8, 1)
        assert target[0] == args[0] == sources.index(source)


def test_pruning_drops_the_least_recently_used(tmp_path: Path, distinct: Make) -> None:
    store = ObjectStore(tmp_path, limit=2500)
    sources = [distinct(i) for i in range(4)]
    for age, source in enumerate(sources):
        store.put(source, bytes(1000))
        os.utime(tmp_path / "objects" / f"{source.symbol}.o", (1e9 - age, 1e9 - age))
    assert store.prune() == 3000
    assert [store.get(source) is not None for source in sources] == [True, False, False, False]


def test_folder_that_cannot_be_written_warns_once(tmp_path: Path, distinct: Make) -> None:
    (tmp_path / "file").write_text("in the way")
    store = ObjectStore(tmp_path / "file")
    with pytest.warns(RuntimeWarning, match="MGX_CACHE_DIR"):
        store.put(distinct(1), b"object")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put(distinct(2), b"object")
    assert store.get(distinct(1)) is None


@pytest.mark.parametrize("system", ["win32", "linux"])
def test_an_object_that_another_process_read_on_windows_ended_the_store(
    system: str, tmp_path: Path, distinct: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, store = distinct(1), ObjectStore(tmp_path)
    store.put(source, b"object")

    def refused(*given: object) -> None:
        raise PermissionError(13, "Access is denied")

    with monkeypatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys, "platform", system)
        patch.setattr("mgx_numba.codegen.store.replace_file", refused)
        warnings.simplefilter("ignore")
        store.put(source, b"object")
    store.put(distinct(2), b"other")
    assert (store.get(distinct(2)) is not None) == (system == "win32")


def test_default_folder_is_the_environment_or_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert default_folder() == Path(os.environ["MGX_CACHE_DIR"])
    monkeypatch.delenv("MGX_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert default_folder() == tmp_path / "mgx_numba"


PROGRAM = """
import sys
import numpy as np
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.launch import TaskRange
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.runtime.plan import ParameterSpec, Plan, Pointer, Region, Step, TensorSpec

kernel = cpu_kernel("stored_kernel", '''
def kernel(args, begin, end):
    x, y = words_at(args, 0), words_at(args, 1)
    for i in range(begin, end):
        y[i] = x[i] * 3
''')
args = (Pointer(Region.PARAMETER, 0), Pointer(Region.OUTPUT, 0))
lens = (64,)
plan = Plan(
    [Step(kernel, args, TaskRange(64))], 0, [], [ParameterSpec("x", "int64", lens)], [TensorSpec("int64", lens)]
)
compiled = []
executable = Executable(plan, 2, lambda done, total, name: compiled.append(name))
x = np.arange(64)
assert (executable.run([x])[0] == 3 * x).all()
print("numba" in sys.modules, "stored_kernel" in compiled)
"""


def test_second_process_loads_without_numba(tmp_path: Path) -> None:
    outputs = [said(PROGRAM, MGX_CACHE_DIR=tmp_path).split() for _ in range(2)]
    assert outputs == [["True", "True"], ["False", "False"]]
