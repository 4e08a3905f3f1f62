"""Thread helpers for work that NumPy, the file system or a hash does without the interpreter lock."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

PART_BYTES = 2 << 20
"""Least number of bytes per thread, half a millisecond of copying or more. Starting a thread takes a quarter of that
time on the 16 CPUs of an H200 host, so threads for smaller parts do not pay."""

T = TypeVar("T")


def allowed_cpus() -> int:
    """Return the number of CPUs that the calling thread may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class KeptThreads:
    """A pool of threads for `on_threads`; about ``most`` idle threads wait for work, others end.

    An idle thread starts in 15 us, a new thread in 60 to 110 us (measured on the 16 CPUs of an H200 host). The pool may
    be used from any thread; after a fork it is empty.
    """

    def __init__(self, most: int) -> None:
        self._idle: deque[_KeptThread] = deque()
        self._most = most
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._idle.clear)

    def helper(self, work: Callable[[], None]) -> _Errand:
        """Return an errand that runs ``work`` on a thread of the pool; ``work`` must not raise."""
        return _Errand(self.ask, work)

    def ask(self, errand: _Errand) -> None:
        """Give an errand to an idle thread, or to a new thread."""
        try:
            one = self._idle.pop()
        except IndexError:
            _KeptThread(self._idle, self._most, errand)
        else:
            one.ask(errand)


class _KeptThread:
    """A thread of `KeptThreads`, started with an errand.

    After an errand it adds itself to the ``idle`` threads, or ends if about ``most`` are idle.
    """

    def __init__(self, idle: deque[_KeptThread], most: int, errand: _Errand) -> None:
        self._idle, self._most = idle, most
        self._errand: _Errand | None = errand  # before the start: an interrupt leaves no waiting thread
        self._asked = threading.Lock()
        threading.Thread(target=self._go, daemon=True).start()

    def ask(self, errand: _Errand) -> None:
        """Give the thread its next errand."""
        self._errand = errand
        self._asked.release()

    def _go(self) -> None:
        while True:
            self._asked.acquire()
            errand, self._errand = self._errand, None
            assert errand is not None
            done = errand.go()
            del errand  # drop the references of its work
            kept = len(self._idle) < self._most
            if kept:
                self._idle.append(self)
            done.release()
            if not kept:
                return


class _Errand:
    """Work on a thread beside the caller's; ``ask`` assigns the thread.

    Unlike `threading.Thread`, an errand can be waited for again after an interrupt: before Python 3.13 an interrupted
    `join` marks the thread as ended.

    Attributes:
        ident: identifier of the thread; None until the work has started.
    """

    def __init__(self, ask: Callable[[_Errand], None], work: Callable[[], None]) -> None:
        self.ident: int | None = None
        self._ask, self._work = ask, work
        self._over = self._unwanted = False
        self._done = threading.Lock()
        self._done.acquire()

    def start(self) -> None:
        """Assign the errand to a thread."""
        self._ask(self)

    def go(self) -> threading.Lock:
        """Do the work; return the lock to release for waiting callers."""
        self.ident = threading.get_ident()
        if not self._unwanted:
            self._work()
        self._over = True
        return self._done

    def end(self) -> None:
        """Wait until the work is done, or prevent its start."""
        self._unwanted = True
        while self.ident is not None and not self._over:  # an interrupt may follow the acquisition
            self._done.acquire()


class Helpers:
    """The errands of one caller on kept threads, so that the caller can make sure that none is left.

    An interrupt at the moment when `on_threads` begins to wait leaves errands running.
    """

    def __init__(self, threads: KeptThreads) -> None:
        self._threads = threads
        self._errands: list[_Errand] = []

    def helper(self, work: Callable[[], None]) -> _Errand:
        """Return a recorded errand for ``work``; the argument ``helper`` of `on_threads`."""
        errand = self._threads.helper(work)
        self._errands.append(errand)
        return errand

    def end(self) -> bool:
        """Wait for all errands and drop their work; return whether there were any since the last call."""
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
    """Call ``function`` for every item, on at most ``threads`` threads, including the caller's.

    ``helper`` makes the other threads. The first error, or an interrupt, ends the work: items that have started are
    completed, and the error is raised here.
    """
    waiting = deque(items)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while waiting:
                try:
                    item = waiting.popleft()
                except IndexError:  # another thread has taken the last item
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
    """End all errands; an interrupt meanwhile is raised after they have ended, so that no thread still writes."""
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
    """Call functions on all CPUs that the caller may use; errors as in `on_threads`."""
    on_threads(lambda function: function(), functions, allowed_cpus())


def in_parts(function: Callable[[slice], object], length: int, nbytes: int) -> None:
    """Call ``function`` for slices that partition ``range(length)``, on all CPUs that the caller may use.

    ``nbytes`` is the size of the whole work; each slice has `PART_BYTES` or more. Errors as in `on_threads`.
    """
    parts = max(1, min(nbytes // PART_BYTES, length))
    slices = [slice(length * k // parts, length * (k + 1) // parts) for k in range(parts)]
    on_threads(function, slices, allowed_cpus())
