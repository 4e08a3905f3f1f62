"""Work on several Python threads."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import pytest

from mgx_numba.parallel import PART_BYTES, Helpers, KeptThreads, in_parts, on_threads, run_all


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


@pytest.mark.parametrize("length", [0, 1, 2, 7])
@pytest.mark.parametrize("nbytes", [0, 100, 3 * PART_BYTES, 64 * PART_BYTES])
def test_parts_make_up_the_whole(length: int, nbytes: int) -> None:
    found: list[int] = []
    in_parts(lambda part: found.extend(range(part.start, part.stop)), length, nbytes)
    assert sorted(found) == list(range(length))


def test_an_error_of_a_part_is_raised() -> None:
    def fail(part: slice) -> None:
        raise ValueError(str(part))

    with pytest.raises(ValueError, match="slice"):
        in_parts(fail, 4, 8 * PART_BYTES)


def test_all_functions_are_called() -> None:
    done: list[int] = []
    run_all(partial(done.append, k) for k in range(50))
    run_all([])
    assert sorted(done) == list(range(50))
    with pytest.raises(ZeroDivisionError):
        run_all([lambda: 1 / 0])


def test_kept_threads_do_every_item_and_are_there_again() -> None:
    kept, seen = KeptThreads(4), set[int]()

    def work(item: int) -> None:
        seen.add(threading.get_ident())
        time.sleep(1e-4)
        done.append(item)

    for count in (0, 1, 2, 50, 50, 50):
        done: list[int] = []
        on_threads(work, range(count), 3, kept.helper)
        assert sorted(done) == list(range(count))
    assert len(seen) <= 3


def test_kept_threads_serve_callers_at_once_and_within_their_work() -> None:
    kept = KeptThreads(4)
    done: list[tuple[int, int]] = []

    def outer(k: int) -> None:
        on_threads(lambda item: done.append((k, item)), range(20), 3, kept.helper)

    on_threads(outer, range(5), 5, kept.helper)
    assert sorted(done) == [(k, item) for k in range(5) for item in range(20)]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_kept_threads_tell_errors_and_work_again(kind: type[BaseException]) -> None:
    kept = KeptThreads(4)

    def fail(item: int) -> None:
        if item == 5:
            raise kind("five")

    for _ in range(3):
        with pytest.raises(kind, match="five"):
            on_threads(fail, range(1000), 3, kept.helper)
    done: list[int] = []
    on_threads(done.append, range(100), 3, kept.helper)
    assert sorted(done) == list(range(100))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_has_no_kept_threads_and_makes_its_own() -> None:
    kept = KeptThreads(4)
    on_threads(lambda item: time.sleep(1e-3), range(20), 3, kept.helper)
    child = os.fork()
    if not child:
        done: list[int] = []
        on_threads(done.append, range(20), 3, kept.helper)
        os._exit(len(done))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 20


def test_kept_threads_beyond_the_most_end() -> None:
    kept, before = KeptThreads(2), set(threading.enumerate())
    together = threading.Barrier(12)
    for _ in range(3):
        on_threads(lambda item: together.wait(60), range(12), 12, kept.helper)
    end = time.monotonic() + 10
    while len(set(threading.enumerate()) - before) > 6 and time.monotonic() < end:
        time.sleep(1e-3)
    assert len(set(threading.enumerate()) - before) <= 6


@pytest.mark.parametrize("kept", [False, True])
def test_an_interrupt_while_others_work_is_raised_when_they_have_ended(kept: bool) -> None:
    """An interrupted caller may reuse the memory that the other threads write."""
    begun, sent, done = threading.Event(), threading.Event(), []

    def item(slow: bool) -> None:
        if slow:
            begun.set()
            assert sent.wait(10)  # however long the sender has no turn: afterwards the signal would meet nobody
            time.sleep(0.1)
            done.append(threading.get_ident())
        else:
            assert begun.wait(10)

    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    def interrupt() -> None:
        if begun.wait(10):  # else nobody waits for the signal, which would meet pytest
            time.sleep(0.03)
            os.kill(os.getpid(), signal.SIGALRM)
            sent.set()

    main = threading.get_ident()
    former = signal.signal(signal.SIGALRM, handler)
    sender = threading.Thread(target=interrupt)

    def work(other: bool) -> None:
        item(threading.get_ident() != main)

    sender.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            if kept:
                on_threads(work, [False, True], 2, KeptThreads(2).helper)
            else:
                on_threads(work, [False, True], 2)
        assert len(done) == 1
    finally:
        sender.join()
        signal.signal(signal.SIGALRM, former)


def test_helpers_were_left_to_work_after_an_interrupt() -> None:
    helpers, begun, done = Helpers(KeptThreads(2)), threading.Semaphore(0), []

    def work() -> None:
        begun.release()
        time.sleep(0.2)
        done.append(threading.get_ident())

    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, handler)
    try:
        for one in [helpers.helper(work) for _ in range(3)]:
            one.start()
        assert all(begun.acquire(timeout=10) for _ in range(3))
        signal.setitimer(signal.ITIMER_REAL, 0.03)
        with pytest.raises(KeyboardInterrupt):
            helpers.end()
        assert len(done) == 3
    finally:
        signal.signal(signal.SIGALRM, former)
    assert helpers.end() and not helpers.end()
