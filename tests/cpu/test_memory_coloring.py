"""Memory colouring: buffers that are alive at one step never share bytes."""

from __future__ import annotations

import random

import pytest

from mgx_numba.runtime.plan import Region
from mgx_numba.targets.cpu.buffers import ALIGNMENT, Buffer, color


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
def test_buffers_alive_together_do_not_overlap(seed, reuse):
    buffers = random_buffers(seed, 60)
    total = color(buffers, reuse)
    for position, a in enumerate(buffers):
        assert a.offset % ALIGNMENT == 0 and a.offset + a.bytes <= total
        for b in buffers[:position]:
            if (a.overlaps(b) or not reuse) and a.bytes and b.bytes:
                assert a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset


def test_reuse_takes_less_memory():
    assert color(random_buffers(3, 60), reuse=True) < color(random_buffers(3, 60), reuse=False)
