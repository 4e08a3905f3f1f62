"""Memory pools: whole blocks of a driver, and pieces of slabs."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.gpu.driver.device import Device
from mgx_numba.errors import DeviceError
from mgx_numba.runtime.gpu.cuda import CudaEngine
from mgx_numba.runtime.gpu.device_allocator import DeviceBlock, KeptBlocks
from mgx_numba.runtime.gpu.driver_engine import SLAB, DriverNames, PinnedMemory
from mgx_numba.runtime.gpu.host_copies import LEAST_DONATED, _LargeResult

PAGE = 4096
"""Bytes that a driver's pinned memory begins at multiples of."""
NAMES = DriverNames("", "", "take", "give", *[""] * 9)


class Source:
    """An allocator of successive addresses; ``given`` lists the freed addresses."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.sizes: dict[int, int] = {}
        self.given: list[int] = []
        self.waits = 0
        self._next = 1 << 20
        self._room = room

    def allocate(self, size: int, name: str) -> int:
        if size > self._room:
            raise DeviceError(f"{name} of {size} bytes: there is no room")
        self._room -= size
        self.sizes[self._next] = size
        self._next += 2 * size
        return self._next - 2 * size

    def free(self, address: int) -> None:
        self._room += self.sizes.pop(address)
        self.given.append(address)

    def synchronize(self) -> None:
        self.waits += 1


def within(block: DeviceBlock, source: Source) -> bool:
    return any(a <= block.address and block.address + block.size <= a + size for a, size in source.sizes.items())


def test_pieces_of_slabs_are_apart_and_come_again() -> None:
    source, rng = Source(), random.Random(0)
    kept = KeptBlocks(source, slab=1 << 16)
    held: list[DeviceBlock] = []
    for _ in range(500):
        if held and rng.random() < 0.5:
            held.pop(rng.randrange(len(held)))
        else:
            held.append(kept.take(rng.choice((0, 1, 24, 600, 5000, 30000, 40000, 200000)), "some"))
        places = sorted((block.address, block.address + block.size) for block in held)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
        assert all(within(block, source) for block in held)
    sizes = list(source.sizes.values())
    held.clear()
    again = [kept.take(size, "some") for size in (24, 600, 5000, 30000)]
    assert list(source.sizes.values()) == sizes and all(within(block, source) for block in again)


def test_slabs_stay_where_all_else_is_given_back() -> None:
    source = Source(room=300_000)
    kept = KeptBlocks(source, slab=1 << 16)
    small, large = kept.take(100, "small"), kept.take(100_000, "large")
    place = small.address
    del small, large
    more = kept.take(200_000, "more")  # for which the large one goes
    assert more.size >= 200_000 and len(source.given) == 1 and not kept.release()
    assert kept.take(100, "small").address == place
    with pytest.raises(DeviceError, match="another of 327680 bytes: there is no room"):
        kept.take(299_000, "another")


def test_a_slab_had_no_room_while_memory_waited() -> None:
    source = Source(room=100_000)
    kept = KeptBlocks(source, slab=1 << 16)
    large = kept.take(90_000, "large")
    del large
    assert within(kept.take(100, "small"), source) and len(source.given) == 1


def test_what_may_still_be_copied_to_is_waited_for() -> None:
    source = Source()
    kept = KeptBlocks(source, slab=1 << 16)
    shown = kept.take(100, "some")
    shown.shown()
    address = shown.address
    del shown
    assert kept.take(100, "some").address == address and source.waits == 1


class Driver:
    """A driver whose pinned memory is NumPy's, and whose streams are numbers."""

    forked = False
    refused = ""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._arrays: list[np.ndarray] = []

    def call(self, name: str, *arguments: object) -> None:
        self.calls.append(name)
        if name == self.refused:
            raise DeviceError(name)
        if name in ("take", "cuMemHostAlloc"):
            self._arrays.append(np.zeros(arguments[1].value + PAGE, np.uint8))  # type: ignore[attr-defined]
            arguments[0]._obj.value = -(-self._arrays[-1].ctypes.data // PAGE) * PAGE  # type: ignore[attr-defined]
        elif name == "cuStreamCreate":
            arguments[0]._obj.value = 1000 + len(self.calls)  # type: ignore[attr-defined]

    def bound(self, name: str) -> object:
        def identity(stream: object, number: object) -> None:
            number._obj.value = stream.value  # type: ignore[attr-defined]

        return identity if name == "cuStreamGetId" else lambda *arguments: self.calls.append(name)


class Opened:
    """A device that does nothing."""

    number, name, names = 0, "none", NAMES

    def __init__(self) -> None:
        self.driver = Driver()

    def use(self) -> Opened:
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *what: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


def test_pinned_memory_is_taken_of_the_driver_once() -> None:
    on = Opened()
    pinned = PinnedMemory(on)  # type: ignore[arg-type]
    for size in (0, 3, 5000, 40_000, 5000, 3):
        array = pinned.staging(size)
        array[:] = 7
        other = pinned.staging(size)
        other[:] = 9
        assert array.shape == (size,) and (array == 7).all() and array.ctypes.data % 64 == 0
    assert on.driver.calls == ["take"]
    large = pinned.staging(SLAB)
    assert on.driver.calls == ["take"] * 2
    view = large[10:20]
    del large
    view[:] = 3
    assert pinned.staging(SLAB).ctypes.data != view.ctypes.data - 10  # as long as something sees it
    assert on.driver.calls == ["take"] * 3


def test_streams_that_nobody_has_are_those_of_the_next() -> None:
    on = CudaEngine(Opened())  # type: ignore[arg-type]
    first, second = on.queue(), on.queue()
    known = {first.identity, second.identity}
    assert len(known) == 2
    del first, second
    again = [on.queue() for _ in range(3)]
    assert {queue.identity for queue in again} > known
    assert on.driver.calls.count("cuStreamCreate") == 3  # type: ignore[attr-defined]
    assert "cuStreamDestroy_v2" not in on.driver.calls  # type: ignore[attr-defined]


def test_memory_that_the_driver_knows_is_given_up_when_nothing_sees_it() -> None:
    on = CudaEngine(Opened())  # type: ignore[arg-type]
    made = on.registered(3 << 20)
    assert made is not None and made.shape == (3 << 20,)
    view = made[5:9]
    del made
    view[:] = 7
    assert "cuMemHostUnregister" not in on.driver.calls
    del view
    calls = [name for name in on.driver.calls if name.startswith("cuMemHost")]  # type: ignore[attr-defined]
    assert calls == ["cuMemHostRegister_v2", "cuMemHostUnregister"]


def test_memory_that_the_driver_refuses_is_not_asked_for_again() -> None:
    on = CudaEngine(Opened())  # type: ignore[arg-type]
    on.driver.refused = "cuMemHostRegister_v2"
    large, queue = _LargeResult(on, LEAST_DONATED, 0), on.queue()
    for _ in range(3):
        pieces = large.copy_large(queue)
        assert sum(piece.other.size for piece in pieces) == large.made().size == LEAST_DONATED
    assert on.driver.calls.count("cuMemHostRegister_v2") == 1  # type: ignore[attr-defined]


def test_pinned_memory_is_one_piece_of_the_hosts() -> None:
    opened = Device.__new__(Device)
    known = {100: (1, 5), 199: (1, 5), 200: (1, 6), 300: (2, 7), 399: (2, 7)}

    def succeeds(name: str, place: Any, attribute: int, address: Any) -> bool:
        if address.value not in known:
            return False
        place._obj.value = known[address.value][attribute != 2]
        return True

    opened.driver = SimpleNamespace(succeeds=succeeds)  # type: ignore[assignment]
    assert opened.is_pinned(100, 100)
    assert not opened.is_pinned(100, 101)  # of two pieces
    assert not opened.is_pinned(300, 100)  # a device's
    assert not opened.is_pinned(500, 1) and not opened.is_pinned(100, 401)
