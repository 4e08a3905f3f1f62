"""Work on several threads of Python."""

from __future__ import annotations

import threading

import pytest

from mgx_numba.parallel import on_threads


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_every_item_is_done_once(threads: int, count: int) -> None:
    done: list[int] = []
    on_threads(done.append, range(count), threads)
    assert sorted(done) == list(range(count))


@pytest.mark.parametrize("kind", [ValueError, IndexError, KeyboardInterrupt])
def test_the_first_error_ends_the_work(kind: type[BaseException]) -> None:
    before = threading.active_count()
    done: list[int] = []

    def work(item: int) -> None:
        if item == 5:
            raise kind("five")
        done.append(item)

    with pytest.raises(kind, match="five"):
        on_threads(work, range(10**6), 3)
    assert len(done) < 10**6 and threading.active_count() == before
