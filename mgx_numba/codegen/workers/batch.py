"""Compiling many kernels at once: here, and in worker processes when there are enough to pay."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...environment import environment_flag, environment_number
from ...errors import CompileError
from ...interrupts import unbroken
from ..backend import backend
from ..kernel import KernelSource
from .worker import read_message, write_message

__all__ = ["compile_objects", "start_worker", "stop_worker", "worker_count"]

WORKER_COMMAND = (sys.executable, "-m", "mgx_numba.codegen.workers.worker")

# A worker imports Numba before it helps, so it must have this many kernels to compile to be worth it.
_KERNELS_PER_WORKER = 6
_EXIT_SECONDS = 5.0
_REPORT_SECONDS = 0.05

Finished = Callable[[KernelSource, bytes], None]


def worker_count(kernels: int, cpus: int | None = None) -> int:
    """Worker processes that pay off for so many kernels; 0 for few kernels or one core.

    With workers this process compiles nothing: Numba's and LLVM's memory stays theirs and goes with them.
    ``MIGRAPHX_GPU_COMPILE_PARALLEL`` is the most there may be.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        return 0
    available = cpus if cpus is not None else len(_affinity())
    available = min(available, environment_number("MIGRAPHX_GPU_COMPILE_PARALLEL") or available)
    workers = min(available, kernels // _KERNELS_PER_WORKER)
    return workers if workers > 1 else 0


def _affinity() -> Sequence[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def compile_objects(
    sources: Sequence[KernelSource], workers: int | None = None, finished: Finished | None = None
) -> list[bytes]:
    """Compile kernels of one back end; the objects come in the order of the sources.

    ``workers`` is the number of worker processes (None: as `worker_count`). A worker that fails to start or
    dies costs only time: its kernels are compiled here. ``finished`` is called for each kernel as it is done,
    in this thread.

    Raises:
        CompileError: the first kernel that cannot be compiled.
    """
    count = worker_count(len(sources)) if workers is None else workers
    batch = _Batch(sources)
    helpers = [threading.Thread(target=_serve, args=(batch,), daemon=True) for _ in range(count)]
    try:
        for helper in helpers:
            helper.start()
        for helper in helpers:
            while helper.is_alive():
                helper.join(_REPORT_SECONDS)
                batch.report(finished)
        batch.report(finished)
        _compile_here(batch, finished)  # all of them without workers, else what dead workers left
    except BaseException:
        batch.cancel()
        raise
    return [batch.objects[i] for i in range(len(sources))]


class _Batch:
    """Kernels to compile, shared by this process and its workers."""

    def __init__(self, sources: Sequence[KernelSource]) -> None:
        self.sources = sources
        self.objects: dict[int, bytes] = {}
        # Long texts first, so that all workers end at about the same time.
        self.waiting = deque(sorted(range(len(sources)), key=lambda k: -len(sources[k].text)))
        self._arrived: deque[tuple[int, bytes | CompileError]] = deque()
        self._workers: list[subprocess.Popen[bytes]] = []
        self._cancelled = False

    def take(self) -> int | None:
        try:
            return self.waiting.popleft()
        except IndexError:
            return None

    def give_back(self, index: int) -> None:
        self.waiting.append(index)

    def employ(self, process: subprocess.Popen[bytes]) -> None:
        """Take note of a worker process, which ends with the batch if that is cancelled."""
        self._workers.append(process)
        if self._cancelled:
            process.kill()

    def cancel(self) -> None:
        """Compile no more; workers end at once: they keep nothing."""
        self._cancelled = True
        self.waiting.clear()
        for process in list(self._workers):
            process.kill()

    def arrive(self, index: int, result: bytes | CompileError) -> None:
        """Hand in a worker's result; the next `report` passes it on."""
        self._arrived.append((index, result))

    def report(self, finished: Finished | None) -> None:
        while self._arrived:
            index, result = self._arrived.popleft()
            if isinstance(result, CompileError):
                raise result
            self.complete(index, result, finished)

    def complete(self, index: int, data: bytes, finished: Finished | None) -> None:
        self.objects[index] = data
        if finished is not None:
            finished(self.sources[index], data)


def _compile_here(batch: _Batch, finished: Finished | None) -> None:
    while (index := batch.take()) is not None:
        batch.complete(index, unbroken(_compiled_here, batch.sources[index]), finished)
        batch.report(finished)


def _compiled_here(source: KernelSource) -> bytes:
    compiler = backend(source.backend)
    return compiler.finished(source, compiler.compile(source))


def _serve(batch: _Batch) -> None:
    """Feed one worker process until nothing is left or it dies."""
    try:
        process = start_worker(backend(batch.sources[0].backend).worker_environment())
    except OSError:
        return
    index: int | None = None
    try:
        batch.employ(process)
        assert process.stdin is not None and process.stdout is not None
        read_message(process.stdout)
        while (index := batch.take()) is not None:
            source = batch.sources[index]
            write_message(
                process.stdin,
                {"backend": source.backend, "name": source.name, "text": source.text, "origin": source.origin},
            )
            batch.arrive(index, _result(source, read_message(process.stdout)))
            index = None
    except Exception:  # whatever went wrong with a worker, the kernel is compiled in this process
        if index is not None:
            batch.give_back(index)
    finally:
        stop_worker(process)


def _result(source: KernelSource, answer: dict[str, Any]) -> bytes | CompileError:
    if "error" in answer:
        return CompileError(answer["error"])
    return backend(source.backend).finished(source, answer["object"])


def start_worker(settings: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a process that speaks the protocol of `mgx_numba.codegen.workers.worker` on its pipes; ``settings`` are
    variables of its environment besides this process's.

    Raises:
        OSError: it cannot be started.
    """
    if environment_flag("MIGRAPHX_TRACE_CMD_EXECUTE"):
        print(shlex.join(WORKER_COMMAND), flush=True)
    root = Path(__file__).resolve().parents[3]
    search_path = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    environment = {**os.environ, **(settings or {}), "PYTHONPATH": os.pathsep.join([str(root), *search_path])}
    return subprocess.Popen(
        WORKER_COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=root,  # not the caller's folder, whose files could shadow modules
        env=environment,
        start_new_session=True,  # an interrupt from the terminal is for this process, which then closes the pipes
    )


def stop_worker(process: subprocess.Popen[bytes]) -> None:
    """End a worker: by the end of its input, or by force if that takes too long."""
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
