"""Work that NumPy, the file system or a hash does without the interpreter's lock, on several threads."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["Helpers", "KeptThreads", "allowed_cpus", "in_parts", "on_threads", "run_all"]

PART_BYTES = 2 << 20
"""Of a thread's part at least, half a millisecond of copying or more: until a thread has begun the caller waits for a
quarter of one on the 16 CPUs beside an H200, so that many threads for small parts take longer than few."""

T = TypeVar("T")


def allowed_cpus() -> int:
    """CPUs that the calling thread may use now."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class KeptThreads:
    """Threads for `on_threads` that wait for more work when they have done some: one is there in 15 us, a new one in 60
    to 110, measured on the 16 CPUs beside an H200. About ``most`` wait, others end. May be used from any thread; a
    fork begins with none."""

    def __init__(self, most: int) -> None:
        self._idle: deque[_KeptThread] = deque()
        self._most = most
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._idle.clear)

    def helper(self, work: Callable[[], None]) -> _Errand:
        """What does some work, which raises nothing, on one of them."""
        return _Errand(self.ask, work)

    def ask(self, errand: _Errand) -> None:
        """Let one that waits do it, or a new one."""
        try:
            one = self._idle.pop()
        except IndexError:
            _KeptThread(self._idle, self._most, errand)
        else:
            one.ask(errand)


class _KeptThread:
    """One of `KeptThreads`, which begins with an errand. It puts itself among the ``idle`` ones when it has done what
    it was asked, or ends if about ``most`` are there."""

    def __init__(self, idle: deque[_KeptThread], most: int, errand: _Errand) -> None:
        self._idle, self._most = idle, most
        self._errand: _Errand | None = errand  # at once: who is interrupted here leaves no thread that waits for it
        self._asked = threading.Lock()
        threading.Thread(target=self._go, daemon=True).start()

    def ask(self, errand: _Errand) -> None:
        """Let it do that."""
        self._errand = errand
        self._asked.release()

    def _go(self) -> None:
        while True:
            self._asked.acquire()
            errand, self._errand = self._errand, None
            assert errand is not None
            done = errand.go()
            del errand  # and what it refers to
            kept = len(self._idle) < self._most
            if kept:
                self._idle.append(self)
            done.release()
            if not kept:
                return


class _Errand:
    """Some work beside the caller: ``ask`` finds who does it. Unlike `threading.Thread` it can be waited for again
    after an interrupt: before Python 3.13 that takes an interrupted `join` for the thread's end.

    Attributes:
        ident: the thread's; None until it has begun.
    """

    def __init__(self, ask: Callable[[_Errand], None], work: Callable[[], None]) -> None:
        self.ident: int | None = None
        self._ask, self._work = ask, work
        self._over = self._unwanted = False
        self._done = threading.Lock()
        self._done.acquire()

    def start(self) -> None:
        """Let it be done."""
        self._ask(self)

    def go(self) -> threading.Lock:
        """Do it; who waits for it wants this released."""
        self.ident = threading.get_ident()
        if not self._unwanted:
            self._work()
        self._over = True
        return self._done

    def end(self) -> None:
        """Wait until it is done, or do not let it begin."""
        self._unwanted = True
        while self.ident is not None and not self._over:  # if an interrupt came when the lock was taken, it is
            self._done.acquire()


class Helpers:
    """Those of one caller, by kept threads, so that it can make sure that none is left: an interrupt that comes just
    when `on_threads` begins to wait for them leaves some that go on."""

    def __init__(self, threads: KeptThreads) -> None:
        self._threads = threads
        self._errands: list[_Errand] = []

    def helper(self, work: Callable[[], None]) -> _Errand:
        """For `on_threads`."""
        errand = self._threads.helper(work)
        self._errands.append(errand)
        return errand

    def end(self) -> bool:
        """Wait for those that work, and refer to no work any more. Whether there were any since the last time."""
        some = bool(self._errands)
        _end(self._errands)
        self._errands.clear()
        return some


def _new_thread(work: Callable[[], None]) -> _Errand:
    return _Errand(lambda errand: threading.Thread(target=lambda: errand.go().release(), daemon=True).start(), work)


def on_threads(
    function: Callable[[T], object],
    items: Iterable[T],
    threads: int,
    helper: Callable[[Callable[[], None]], _Errand] = _new_thread,
) -> None:
    """Call ``function`` for every item, on at most so many threads, of which the caller's is one; ``helper`` makes the
    others.

    The first error ends the work, an interrupt too: items that have been begun are completed, and it is raised here.
    """
    waiting = deque(items)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while waiting:
                try:
                    item = waiting.popleft()
                except IndexError:  # another thread has taken the last one
                    return
                function(item)
        except BaseException as error:  # raised below
            errors.append(error)
            waiting.clear()

    helpers = [helper(work) for _ in range(min(threads, len(waiting)) - 1)]
    try:
        for one in helpers:
            one.start()
        work()
    finally:
        waiting.clear()
        _end(helpers)
    if errors:
        raise errors[0]


def _end(errands: Iterable[_Errand]) -> None:
    """End all of them; an interrupt meanwhile is raised when they have ended, so that nobody writes any more."""
    interrupt: BaseException | None = None
    for one in errands:
        while True:
            try:
                one.end()
                break
            except BaseException as error:
                interrupt = error
    if interrupt is not None:
        raise interrupt


def run_all(functions: Iterable[Callable[[], object]]) -> None:
    """Call functions on all CPUs that the caller may use. Errors as of `on_threads`."""
    on_threads(lambda function: function(), functions, allowed_cpus())


def in_parts(function: Callable[[slice], object], length: int, nbytes: int) -> None:
    """Call ``function`` for slices that make up ``range(length)``, for work that writes so many bytes: `PART_BYTES` or
    more for each, on all CPUs that the caller may use. Errors as of `on_threads`."""
    parts = max(1, min(nbytes // PART_BYTES, length))
    slices = [slice(length * k // parts, length * (k + 1) // parts) for k in range(parts)]
    on_threads(function, slices, allowed_cpus())
