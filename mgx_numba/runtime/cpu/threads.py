"""The worker threads of the executor: their number, and the pool in which they wait.

Workers are daemon threads that enter compiled code once and stay there until the interpreter exits. The pool serves one
call at a time; a call that finds it taken runs on its caller's thread alone, so calls never wait for each other.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ...codegen.cpu.toolchain.loader import load
from ...core.pages import never_free
from ...errors import OptionError
from ...interrupts import handlers_later
from ..host.native import NativeKernel
from ..memory import address_of, aligned_empty
from .spmd import CONFINE, LEAD, LOOK, WALK, WORKER, Pool

ENVIRONMENT = "MGX_NUM_THREADS"
MAX_THREADS = 1024  # more than any machine has cores; the pool has a word for each
SPINS = 2000
"""Number of reads of a word before a waiting thread yields, about ten microseconds: more takes power, fewer lets
threads sleep between the steps of a call. No figures kept."""
YIELDS = 64  # number of yields before a thread sleeps
_JOIN_SECONDS = 1.0  # wait for a worker at exit, which takes microseconds unless it is descheduled


def available_cores() -> int:
    """Return the number of physical cores that this process may use.

    It is limited by the CPU affinity, with hardware threads of a core counted once, and by the cgroup's CPU quota.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = _cores(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, int(min(cores, cgroup_quota())))


def _cores(cpus: Iterable[int]) -> int:
    """Return the number of physical cores that contain ``cpus``."""
    return len({_siblings(cpu) for cpu in cpus})


def _siblings(cpu: int) -> str:
    """Return the list of hardware threads on this CPU's core, as the system writes it; the CPU itself if there is no
    list."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the CPU time (in CPUs) that the cgroup (version 2, then 1) grants; infinity if it sets no bound."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text()
        except OSError:
            return math.inf
    try:
        granted = float(quota) / float(period)
    except (ValueError, ZeroDivisionError):  # the file has "max"
        return math.inf
    return granted if granted > 0 else math.inf


def default_num_threads() -> int:
    """Return ``MGX_NUM_THREADS`` if set, else `available_cores`.

    Raises:
        OptionError: the variable is not a positive number.
    """
    chosen = os.environ.get(ENVIRONMENT)
    if not chosen:
        return available_cores()
    return _checked(chosen, f"environment variable {ENVIRONMENT}")


def resolve_num_threads(num_threads: int | None) -> int:
    """Return the number of threads for an argument ``num_threads``; None or 0 mean `default_num_threads`.

    Raises:
        OptionError: not a whole number from 1 to 1024.
    """
    return _checked(num_threads, "num_threads") if num_threads else default_num_threads()


def _checked(value: object, where: str) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if not 1 <= number <= MAX_THREADS:
        raise OptionError(f"{where}: expected a whole number from 1 to {MAX_THREADS}, got {value!r}")
    return number


class ThreadPool:
    """The worker threads, and the block of words that they watch. Use `pool()`.

    Attributes:
        block: the words of `Pool`.
        numbers: the system's identifier of each worker thread.
        may_grow: False once the system has refused a thread.
    """

    def __init__(self) -> None:
        lead, walk, worker, look, confine = load([LEAD, WALK, WORKER, LOOK, CONFINE])
        self.lead = NativeKernel(lead)
        self._worker = NativeKernel(worker)
        self._kernels = {Pool.WALK: walk, Pool.LOOK: look, Pool.CONFINE: confine}
        self.block = aligned_empty((Pool.WORDS,), "int64")
        self.address = address_of(self.block)
        self._cpu_mask = np.zeros(Pool.MASK, np.uint64)
        self.numbers = np.zeros(MAX_THREADS, np.int64)
        for words in (self.block, self._cpu_mask, self.numbers):
            never_free(words)
        self.reset()

    def reset(self) -> None:
        """Start over without any worker, as after a fork."""
        self.workers: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.may_grow = True
        self.block[:] = 0
        self.block[Pool.GATE] = Pool.CLOSED
        for word, value in {**self._kernels, **native_functions()}.items():
            self.block[word] = value
        self._note_cpus()
        self._set_patience()

    def ensure(self, threads: int) -> None:
        """Start workers for calls on ``threads`` threads, including the caller; fewer if the system refuses."""
        if len(self.workers) < threads - 1 and self.may_grow:
            with handlers_later():
                self._grow(threads)

    def _grow(self, threads: int) -> None:
        with self._lock:
            while len(self.workers) < threads - 1 and self.may_grow:
                number = len(self.workers) + 1
                thread = threading.Thread(
                    target=self._worker,
                    args=(self.address, number, 0),
                    name=f"mgx-worker-{number}",
                    daemon=True,
                )
                try:
                    thread.start()
                except RuntimeError:  # no more threads, or the interpreter is exiting
                    self.may_grow = False
                    return
                self.workers.append(thread)
                self.numbers[number] = thread.native_id or 0
            self.block[Pool.WORKERS] = len(self.workers)
            self._set_patience()
            self.block[Pool.GROWN] = 1

    def stop(self) -> None:
        """End the workers; calls still work, on their callers' threads."""
        self.may_grow = False
        if self.workers:
            self._worker(self.address, 0, 0)
            for thread in self.workers:
                thread.join(_JOIN_SECONDS)

    def _note_cpus(self) -> None:
        """Record the CPUs that this thread may use; `CONFINE` updates the record later."""
        cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        known = bool(cpus) and max(cpus) < 64 * Pool.MASK
        self._cpu_mask[:] = 0  # a forked child may be allowed fewer
        for cpu in cpus if known else ():
            self._cpu_mask[cpu // 64] |= np.uint64(1 << cpu % 64)
        self.block[Pool.CPUS] = len(cpus) if known else 0
        self.block[Pool.ALLOWED] = address_of(self._cpu_mask)
        self.block[Pool.NUMBERS] = address_of(self.numbers)
        self.block[Pool.AVOIDED] = -1
        self.block[Pool.PATIENCE] = SPINS
        self.block[Pool.QUOTA] = int(min(MAX_THREADS, max(1, cgroup_quota())))
        self.block[Pool.SIBLINGS] = max(1, round(len(cpus) / max(1, _cores(cpus))))

    def _set_patience(self) -> None:
        """Set the number of spins: spinning pays only while every thread has a core of its own."""
        cores = self.block[Pool.CPUS] // self.block[Pool.SIBLINGS] or os.cpu_count() or 1
        crowded = len(self.workers) >= min(cores, self.block[Pool.QUOTA])
        self.block[Pool.SPINS] = 0 if crowded else SPINS
        self.block[Pool.YIELDS] = YIELDS


_pool: ThreadPool | None = None
_pool_lock = threading.Lock()


def pool() -> ThreadPool:
    """Return the pool of this process."""
    global _pool
    if _pool is None:
        with _pool_lock:
            if _pool is None:
                _pool = ThreadPool()
                atexit.register(_pool.stop)
    return _pool


def _after_fork() -> None:
    global _pool_lock
    _pool_lock = threading.Lock()
    if _pool is not None:
        _pool.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


_FUNCTIONS = {
    Pool.IDENT: "PyThread_get_thread_ident",
    Pool.ENSURE: "PyGILState_Ensure",
    Pool.RELEASE: "PyGILState_Release",
    Pool.CHECK: "PyErr_CheckSignals",
    Pool.FETCH: "PyErr_Fetch",
}


def native_functions() -> dict[int, int]:
    """Return the words of the pool that `LOOK` needs: the id of Python's main thread, and addresses of Python
    functions.

    Only the main thread runs signal handlers. The functions belong to the stable interface. The result is empty where
    the interpreter is not CPython.
    """
    if sys.implementation.name != "cpython":
        return {}
    found = {word: getattr(ctypes.pythonapi, name) for word, name in _FUNCTIONS.items()}
    words = {word: ctypes.cast(function, ctypes.c_void_p).value or 0 for word, function in found.items()}
    return {Pool.MAIN: threading.main_thread().ident or 0, **words}


def restore_error(kind: int, value: int, traceback: int) -> None:
    """Raise an error that ``PyErr_Fetch`` returned, taking over its references; zeros stand for None."""
    prototype = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    prototype(("PyErr_Restore", ctypes.pythonapi))(kind, value, traceback)
