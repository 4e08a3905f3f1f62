"""Memory colouring: buffers live at the same step never share bytes."""

from __future__ import annotations

import random

import pytest

from mgx_numba.runtime.plan import Region
from mgx_numba.targets.lowering.buffers import ALIGNMENT, GROWTH, Buffer, color


def random_buffers(seed: int, count: int) -> list[Buffer]:
    rng = random.Random(seed)
    buffers = []
    for _ in range(count):
        buffer = Buffer(Region.ARENA, 0, rng.choice([0, 1, 63, 64, 65, 1000, 4096, rng.randrange(1, 100000)]))
        first = rng.randrange(40)
        buffer.touch(first)
        buffer.touch(first + rng.randrange(6))
        buffers.append(buffer)
    return buffers


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shares", [1, 2, 5])
def test_buffers_alive_together_do_not_overlap(seed, reuse, shares):
    buffers = random_buffers(seed, 60)
    total = color(buffers, reuse, shares)
    for position, a in enumerate(buffers):
        assert a.offset % ALIGNMENT == 0 and a.offset + a.bytes <= total
        for b in buffers[:position]:
            if ((a.first <= b.last and b.first <= a.last) or not reuse) and a.bytes and b.bytes:
                assert a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset


def test_reuse_takes_less_memory():
    assert color(random_buffers(3, 60), reuse=True) < color(random_buffers(3, 60), reuse=False)


@pytest.mark.parametrize("seed", range(10))
def test_the_arena_grows_little_for_the_sake_of_shares(seed):
    assert color(random_buffers(seed, 60), shares=3) <= GROWTH * color(random_buffers(seed, 60))


def test_successive_buffers_are_divided_at_the_same_place():
    large, small, late = (Buffer(Region.ARENA, 0, size) for size in (1 << 20, 1 << 18, 1 << 19))
    for step, buffer in enumerate((large, small, late)):
        buffer.touch(2 * step)
    assert color([large, small, late], shares=2) == 1 << 20
    assert len({b.offset + b.bytes // 2 for b in (large, small, late)}) == 1


def test_no_buffers():
    assert color([], shares=2) == 0
