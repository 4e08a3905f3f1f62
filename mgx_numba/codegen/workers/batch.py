"""Parallel compilation of many kernels: in this process, or in worker processes if enough kernels pay for them.

One process is started and imports Numba. The other workers are forks of it, which inherit Numba and its caches. Where
processes cannot be forked, each worker is started.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import IO

from ...environment import environment_flag, environment_number
from ...errors import CompileError
from ...interrupts import unbroken
from ...json_types import JsonObject
from ..backend import backend
from ..kernel import KernelSource
from .worker import read_message, write_message

WORKER_COMMAND = (sys.executable, "-m", "mgx_numba.codegen.workers.worker")

# A worker imports Numba before it helps, so it must have this many kernels to compile to be worth it.
_KERNELS_PER_WORKER = 6
_KERNELS_PER_FORK = 3
"""Fewest kernels for each fork of a worker that runs already: a fork takes 10 to 30 ms, a kernel 15 to 100 ms."""
_WRITTEN_FUNCTION = "(args, begin, end, "
"""In a kernel's text, the call of a function that is written in LLVM IR, such as a register tile."""
_CHARACTERS_EACH = 4000
"""Characters of text that take as long to compile as a register tile: 15 to 30 ms on Zen 5."""
_MOST_WORKERS = 32
"""Most workers: networks have up to some 100 kernels, and each worker takes two pipes."""
_FORKS = hasattr(os, "fork")
_EXIT_SECONDS = 5.0
"""Time (s) after which a worker that was told to end is killed."""
_REPORT_SECONDS = 0.05
"""Interval (s) of progress reports while workers compile: often enough for a person who watches."""

Finished = Callable[[KernelSource, bytes], None]


def worker_count(kernels: int, cpus: int | None = None) -> int:
    """Return the number of worker processes that pay off for ``kernels`` kernels; 0 for few kernels or one core.

    With workers this process compiles nothing: the memory of Numba and LLVM is freed with the workers.
    ``MIGRAPHX_GPU_COMPILE_PARALLEL`` is the upper limit.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        return 0
    workers = min(_available(cpus), kernels // _KERNELS_PER_WORKER)
    return workers if workers > 1 else 0


def _available(cpus: int | None = None) -> int:
    """Return the upper limit of the number of workers."""
    available = min(_MOST_WORKERS, cpus if cpus is not None else len(_affinity()))
    return min(available, environment_number("MIGRAPHX_GPU_COMPILE_PARALLEL") or available)


def _affinity() -> Sequence[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def compile_objects(
    sources: Sequence[KernelSource],
    workers: int | None = None,
    finished: Finished | None = None,
    batch: ObjectBatch | None = None,
) -> list[bytes]:
    """Compile kernels of one back end; return the objects in the order of the sources.

    A worker that fails to start or dies costs only time: its kernels are compiled in this process.

    Args:
        sources: the kernels.
        workers: number of worker processes (None: as `worker_count`).
        finished: called in this thread for each finished kernel.
        batch: a batch that may have begun with some of the kernels, and that goes on; None: one for these kernels.

    Raises:
        CompileError: the first kernel that cannot be compiled.
    """
    own = batch or ObjectBatch()
    try:
        own.add(sources)
        if workers is None:
            workers = worker_count(len(sources))
            if batch is not None and _FORKS:  # its first worker has been started
                workers = max(workers, min(_available(), len(sources) // _KERNELS_PER_FORK))
        own.hire(workers)
        objects = own.wait(sources, finished)
    except BaseException:
        own.cancel()
        raise
    if batch is None:
        own.close()
    return [objects[source] for source in sources]


class ObjectBatch:
    """A queue of kernels that worker processes compile; any thread may add kernels at any time.

    Attributes:
        open: whether the queue accepts kernels; False from `close` on.
        hired: number of worker processes started so far.
        helpers: threads that feed the worker processes.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[KernelSource] = []
        self._results: dict[KernelSource, bytes | CompileError | None] = {}
        self.helpers: list[threading.Thread] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[_Pipes] = []
        self._wanted = self.hired = 0
        self.open = True

    def add(self, sources: Iterable[KernelSource]) -> None:
        """Queue kernels, each once."""
        with self._changed:
            for source in sources:
                if source not in self._results:
                    self._results[source] = None
                    self._waiting.append(source)
            # Longest time last: workers take kernels from the end, and so finish at about the same time.
            self._waiting.sort(key=effort)
            self._changed.notify_all()

    def hire(self, count: int) -> None:
        """Raise the number of workers to at least ``count``."""
        with self._changed:
            self._wanted = max(self._wanted, count)
            while self.hired < self._wanted and (not _FORKS or not self.hired):
                self.hired += 1
                self._help(self._start)
            self._changed.notify_all()

    def wait(self, sources: Sequence[KernelSource], finished: Finished | None) -> dict[KernelSource, bytes]:
        """Wait for added kernels, which workers compile next, and return their objects; without workers, compile them
        in this process.

        Raises:
            CompileError: the first kernel that cannot be compiled.
        """
        missing, objects = dict.fromkeys(sources), {}
        with self._changed:
            self._waiting.sort(key=lambda source: (source in missing, effort(source)))
        while missing:
            with self._changed:
                arrived = {source: self._results[source] for source in missing if self._results[source] is not None}
                helped = any(helper.is_alive() for helper in self.helpers)
                if not arrived and helped:
                    self._changed.wait(_REPORT_SECONDS)
                    continue
                if not arrived:
                    self._waiting = [source for source in self._waiting if source not in missing]
            if not arrived:  # all kernels without workers, else those of dead workers
                source = max(missing, key=effort)
                arrived = {source: unbroken(compiled_here, source)}
            for source, result in arrived.items():
                if isinstance(result, CompileError):
                    raise result
                assert result is not None
                del missing[source]
                objects[source] = result
                if finished is not None:
                    finished(source, result)
        return objects

    def close(self) -> None:
        """Stop accepting kernels; each worker ends after its current kernel."""
        with self._changed:
            self.open = False
            self._waiting.clear()
            self._changed.notify_all()

    def cancel(self) -> None:
        """Stop at once: kill all workers; partial results are not kept."""
        self.close()
        for process in list(self._processes):
            _kill(process)

    def _help(self, target: Callable[..., None], *given: object) -> None:
        run = copy_context().run  # back ends find there for which device they compile
        helper = threading.Thread(target=run, args=(target, *given), daemon=True, name="mgx-worker")
        self.helpers.append(helper)
        helper.start()

    def _start(self) -> None:
        """Start a process and feed it until the batch or the process ends; other threads feed its forks."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._results or not self.open) or not self._results:
                return
            source = next(iter(self._results))
        pipes = [_Pipes() for _ in range(_available() - 1 if _FORKS else 0)]
        try:
            process = start_worker(backend(source.backend).worker_environment(), pipes)
        except OSError:
            return
        finally:
            for pair in pipes:
                pair.passed()
        self._pipes = pipes[::-1]
        self._processes.append(process)
        if not self.open:
            _kill(process)
        assert process.stdin is not None and process.stdout is not None
        self._feed(process.stdin, process.stdout)
        for pair in self._pipes:
            pair.close()
        stop_worker(process)

    def _feed(self, requests: IO[bytes], answers: IO[bytes], forks: bool = True) -> None:
        """Feed one worker; ``forks``: whether it can be forked when more workers are wanted."""
        source: KernelSource | None = None
        try:
            read_message(answers)
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or not self.open)
                    if forks and self._pipes and self._lacks():
                        self.hired += 1
                        pair: _Pipes | None = self._pipes.pop()
                    elif self._waiting:
                        pair, source = None, self._waiting.pop()
                    else:
                        break
                if pair is not None:
                    write_message(requests, {"fork": True})
                    self._help(self._feed_fork, pair)
                    continue
                assert source is not None
                fields = {name: getattr(source, name) for name in ("backend", "name", "text", "origin")}
                write_message(requests, {"symbol": source.symbol, **fields})
                result = _result(source, read_message(answers))
                with self._changed:
                    self._results[source], source = result, None
                    self._changed.notify_all()
        except Exception:  # on any worker failure, another worker or this process compiles the kernel
            if source is not None:
                with self._changed:
                    self._waiting.append(source)
                    self._changed.notify_all()

    def _lacks(self) -> bool:
        return self.open and self.hired < self._wanted and bool(self._waiting)

    def _feed_fork(self, pair: _Pipes) -> None:
        self._feed(pair.requests, pair.answers, forks=False)
        pair.close()


class _Pipes:
    """Two pipes to a fork of a worker: this process writes ``requests`` and reads ``answers``."""

    def __init__(self) -> None:
        request, requests = os.pipe()
        answers, answer = os.pipe()
        self.requests, self.answers = os.fdopen(requests, "wb"), os.fdopen(answers, "rb")
        self.ends = (request, answer)

    def passed(self) -> None:
        """Close the child's pipe ends in this process, so that the child's exit ends the stream of answers."""
        for end in self.ends:
            os.close(end)

    def close(self) -> None:
        """Close this process's pipe ends."""
        for stream in (self.requests, self.answers):
            try:
                stream.close()
            except OSError:  # buffered data for a dead fork
                pass


def effort(source: KernelSource) -> int:
    """Return an estimate of a kernel's compile time, in characters of text."""
    return len(source.text) + _CHARACTERS_EACH * source.text.count(_WRITTEN_FUNCTION)


def compiled_here(source: KernelSource) -> bytes:
    compiler = backend(source.backend)
    return compiler.finished(source, compiler.compile(source))


def _result(source: KernelSource, answer: JsonObject) -> bytes | CompileError:
    if "error" in answer:
        return CompileError(answer["error"])
    return backend(source.backend).finished(source, answer["object"])


def start_worker(settings: Mapping[str, str] | None = None, forks: Sequence[_Pipes] = ()) -> subprocess.Popen[bytes]:
    """Start a process that speaks the protocol of `mgx_numba.codegen.workers.worker` on its pipes.

    Args:
        settings: environment variables in addition to this process's.
        forks: pipes to its future forks.

    Raises:
        OSError: the process cannot be started.
    """
    if environment_flag("MIGRAPHX_TRACE_CMD_EXECUTE"):
        print(shlex.join(WORKER_COMMAND), flush=True)
    passed = [end for pair in forks for end in pair.ends]
    root = Path(__file__).resolve().parents[3]
    search_path = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    environment = {**os.environ, **(settings or {}), "PYTHONPATH": os.pathsep.join([str(root), *search_path])}
    return subprocess.Popen(
        (*WORKER_COMMAND, *map(str, passed)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=root,  # not the caller's folder, whose files could shadow modules
        env=environment,
        pass_fds=passed,
        start_new_session=True,  # a terminal interrupt reaches only this process, which closes the pipes
    )


def stop_worker(process: subprocess.Popen[bytes]) -> None:
    """End a worker by closing its input; kill it if that takes too long."""
    for stream in (process.stdin, process.stdout):
        try:
            if stream is not None:
                stream.close()
        except OSError:
            pass
    try:
        process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker and its forks."""
    if not _FORKS:
        process.kill()
        return
    with contextlib.suppress(OSError):  # the processes have ended
        os.killpg(process.pid, signal.SIGKILL)
