"""The garbage collector is paused on request, and its state is restored afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from mgx_numba import garbage
from mgx_numba.garbage import uncollected


@pytest.mark.parametrize("enabled", [True, False])
def test_it_is_as_it_was_afterwards(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ValueError, match="inside"), uncollected():
            with uncollected():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise ValueError("inside")
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


class Watched:
    """An object that supports weak references."""


def test_what_was_made_meanwhile_is_old_afterwards_and_garbage_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first search after the block does not look at it."""
    before = gc.get_freeze_count()
    monkeypatch.setattr(garbage, "_frozen", False)
    gc.unfreeze()
    try:
        with uncollected():
            cycle: list[object] = []
            cycle.append(cycle)
            watched = Watched()
            cycle.append(watched)
            found = weakref.ref(watched)
        assert gc.isenabled() and not gc.get_freeze_count()
        assert not any(one is cycle for generation in (0, 1) for one in gc.get_objects(generation))
        del cycle, watched
        gc.collect(1)
        assert found() is not None
        gc.collect()
        assert found() is None
    finally:
        if before:
            gc.freeze()


def test_what_others_have_frozen_stays_so() -> None:
    before = gc.get_freeze_count()
    gc.freeze()
    try:
        with uncollected():
            pass
        assert gc.get_freeze_count() > before
    finally:
        if not before:
            gc.unfreeze()


def test_it_begins_again_when_the_last_thread_leaves() -> None:
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with uncollected():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    assert entered.wait(60)
    with uncollected():
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


_EXIT = """
import atexit, gc, sys
atexit.register(lambda: print("frozen", gc.get_freeze_count() > 0, flush=True))  # runs after the package's function
import mgx_numba.garbage

class Cycle:
    def __init__(self):
        self.itself = self

kept = Cycle()
"""


_LAST = """
class Last:
    def __del__(self):
        print("finalised", flush=True)
last = Last()
"""
_FOREIGN = """
from importlib.machinery import ExtensionFileLoader, ModuleSpec
sys.modules["foreign.part"] = type(sys)("foreign.part")
sys.modules["foreign.part"].__spec__ = ModuleSpec("foreign.part", ExtensionFileLoader("foreign.part", "part.so"))
"""


@pytest.mark.parametrize(
    ("text", "frozen", "printed"),
    [
        ("kept.file = open(sys.argv[1]); closed = open(sys.argv[1] + '2', 'w'); closed.close()", True, ""),
        ("kept.file = open(sys.argv[1], 'w'); kept.file.write('last words')", False, ""),
        ("Cycle.__del__ = lambda self: print('finalised', flush=True)", False, "finalised"),
        (_LAST, False, "finalised"),
        (_FOREIGN, False, ""),
    ],
)
def test_an_exit_without_a_search_for_garbage_loses_no_work(
    text: str, frozen: bool, printed: str, tmp_path: Path
) -> None:
    """A file in a cycle is written, and objects are finalised, as without the package."""
    path = tmp_path / "file"
    path.write_text("last words")
    command = [sys.executable, "-c", _EXIT + text, str(path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.split() == ["frozen", str(frozen), *printed.split()]
    assert path.read_text() == "last words"
