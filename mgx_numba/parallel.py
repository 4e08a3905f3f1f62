"""Work that NumPy, the file system or a hash does without the interpreter's lock, on several threads."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["allowed_cpus", "in_parts", "on_threads", "run_all"]

PART_BYTES = 2 << 20
"""Of a thread's part at least, half a millisecond of copying or more: until a thread has begun the caller waits for a
quarter of one on the 16 CPUs beside an H200, so that many threads for small parts take longer than few."""

T = TypeVar("T")


def allowed_cpus() -> int:
    """CPUs that the calling thread may use now."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_threads(function: Callable[[T], object], items: Iterable[T], threads: int) -> None:
    """Call ``function`` for every item, on at most so many threads, of which the caller's is one.

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

    helpers = [threading.Thread(target=work, daemon=True) for _ in range(min(threads, len(waiting)) - 1)]
    try:
        for helper in helpers:
            helper.start()
        work()
    finally:
        waiting.clear()
        for helper in helpers:
            if helper.ident is not None:
                helper.join()
    if errors:
        raise errors[0]


def run_all(functions: Iterable[Callable[[], object]]) -> None:
    """Call functions on all CPUs that the caller may use. Errors as of `on_threads`."""
    on_threads(lambda function: function(), functions, allowed_cpus())


def in_parts(function: Callable[[slice], object], length: int, nbytes: int) -> None:
    """Call ``function`` for slices that make up ``range(length)``, on as many threads as it pays for work that writes
    so many bytes. Errors as of `on_threads`."""
    parts = max(1, min(allowed_cpus(), nbytes // PART_BYTES, length))
    on_threads(function, [slice(length * k // parts, length * (k + 1) // parts) for k in range(parts)], parts)
