"""The garbage collector is paused on request, and its state is restored afterwards."""

from __future__ import annotations

import gc
import threading
import weakref

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
