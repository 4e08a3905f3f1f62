"""Race detection of the interpreter's memory against its definition, on random accesses."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mgx_numba.codegen.gpu.architecture import WARP

from ..interpreter.lanes import EPOCH, KernelFault, Lanes
from ..interpreter.memory import Allocation

SIZE, THREADS = 12, 3 * WARP
FIRST = 1024 - SIZE // 2  # so that some bytes lie on each side of a border of pages
_Access = tuple[bool, int, int, int]  # whether it writes, thread, block, epoch


def _races(earlier: list[_Access], now: _Access) -> bool:
    """Whether an access meets one of another thread, one of them writing, with no barrier of both between."""
    write, number, block, epoch = now
    return any(
        (write or wrote)
        and (number, block) != (other, of)
        and not (
            of == block and (at // EPOCH < epoch // EPOCH or (other // WARP == number // WARP and at < epoch))
        )
        for wrote, other, of, at in earlier
    )  # fmt: skip


def _touch(allocation: Allocation, start: int, size: int, who: Lanes, number: int, epoch: int, write: bool) -> None:
    """Access bytes as the thread ``number`` alone."""
    who.mask = who.numbers == number
    who.epochs = np.where(who.mask, epoch, -1)
    allocation.access(np.array([start]), size, who, np.zeros((1, size), np.uint8), write)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("seed", range(30))
def test_accesses_race_as_defined(shared: bool, seed: int) -> None:
    rng = random.Random(seed)
    some = rng.sample(range(THREADS), 5)
    allocation = Allocation(np.zeros(FIRST + SIZE, np.uint8), "m", shared)
    allocation.define(0, FIRST + SIZE)  # what is undefined is another matter
    earlier: list[list[_Access]] = [[] for _ in range(SIZE)]
    who, faults = Lanes(0, THREADS), 0
    for block in range(1 if shared else 3):
        epochs, barriers = [0] * (THREADS // WARP), 0
        for _ in range(80):
            if rng.random() < 0.2:
                barriers += 1
            if rng.random() < 0.3:
                epochs[rng.randrange(len(epochs))] += 1
            number, who.place = rng.choice(some), block
            epoch = barriers * EPOCH + epochs[number // WARP]
            start = rng.randrange(SIZE)
            size, write = rng.randint(0, min(4, SIZE - start)), rng.random() < 0.4
            access = write, number, block, epoch
            if any(_races(earlier[k], access) for k in range(start, start + size)):
                faults += 1
                with pytest.raises(KernelFault, match="without a barrier between"):
                    _touch(allocation, FIRST + start, size, who, number, epoch, write)
                allocation.forget()  # a kernel has ended there
                earlier = [[] for _ in range(SIZE)]
                continue
            _touch(allocation, FIRST + start, size, who, number, epoch, write)
            for k in range(start, start + size):
                earlier[k].append(access)
    assert faults


@pytest.mark.parametrize("kin", [(0, 1), (0, 2)])
def test_readers_of_one_number_in_two_blocks_are_two(kin: tuple[int, int]) -> None:
    allocation, who = Allocation(np.zeros(SIZE, np.uint8), "m"), Lanes(0, WARP)
    who.kin = kin
    for block in (0, 1):
        who.place = block
        _touch(allocation, 0, 4, who, 5, 0, write=False)
    with pytest.raises(KernelFault, match="which several threads of block -\\d read without a barrier between"):
        _touch(allocation, 2, 1, who, 5, 0, write=True)
