"""The search for garbage stands still where it is put off, and is afterwards as it was."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from mgx_numba import garbage
from mgx_numba.api.program import program as public_program
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.garbage import uncollected
from mgx_numba.graph.copies import Numbered
from mgx_numba.graph.program import Program
from mgx_numba.graph.settling import Lens, Settled


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
    """What a weak reference may look at."""


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


def test_programs_that_plans_are_made_of_are_freed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those for lengths and what passes made of them, without a search, or they are those for the next lengths; asked
    for, they are made again."""
    made: list[weakref.ref[object]] = []
    settled = Settled.of

    def noted(self: Settled, lens: Lens) -> Numbered:
        found = settled(self, lens)
        made.extend(weakref.ref(ins.op) for ins in found.program.main if ins.name == "multibroadcast")
        return found

    program = Program()
    x = program.main.add_parameter("x", Shape.dynamic(Type.float_type, [DynamicDimension(1, 64), 3]))
    row = program.main.add_literal(np.arange(3, dtype=np.float32))
    wide = program.main.add_instruction("multibroadcast", [row, x])
    program.main.add_return([program.main.add_instruction("add", [x, wide])])
    net = public_program.wrap(program).compile("cpu")
    monkeypatch.setattr(Settled, "of", noted)
    gc.collect()
    gc.disable()
    try:
        for n in (5, 6, 7):
            values = np.full((n, 3), n, np.float32)
            np.testing.assert_array_equal(np.asarray(net.run({"x": values})[0]), values + np.arange(3))
        assert len(made) == 3 and not any(op() is not None for op in made[:-1])
    finally:
        gc.enable()
    shown = net._compiled.resolve({"x": values})  # type: ignore[union-attr]
    assert shown.main.parameters()[0].shape.lens == (7, 3)
