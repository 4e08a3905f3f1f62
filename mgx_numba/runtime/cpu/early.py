"""Compilation of a plan's kernels in worker processes before the plan is finished, from the reading of its model on."""

from __future__ import annotations

import contextlib
import os
import threading

from ...codegen.cpu.toolchain.loader import loaded
from ...codegen.store import Store, default_store
from ...codegen.workers.background import BackgroundCompilation
from ...codegen.workers.objects import objects_of
from ...errors import CompileError
from .executor import COMMON_KERNELS

_SECONDS = 10.0
"""Time (s) for which workers wait for the compilation of a model that has been read: idle, they hold 100 MB. Reading a
model of 10,000 nodes takes a few seconds."""
waiting: list[tuple[BackgroundCompilation, threading.Timer]] = []
"""The compilation that `compile_soon` began and nobody has taken yet, with the timer that ends it."""


def compile_soon() -> None:
    """Start to compile the kernels that every plan needs, unless they are stored: a model is read that will probably
    be compiled. The next `compile_in_background` continues with the same workers."""
    if waiting:
        return
    begun = BackgroundCompilation(loaded, None, COMMON_KERNELS)
    try:
        begun.__enter__()
        if begun.batch is not None:
            timer = threading.Timer(_SECONDS, finish_unused)
            timer.daemon = True
            timer.start()
            waiting.append((begun, timer))
    except RuntimeError:  # the process is ending, or may not have more threads
        begun.__exit__(None, None, None)


def compile_in_background(store: Store | None) -> BackgroundCompilation:
    """Return a context manager that compiles a plan's kernels while the plan is made, except for kernels in
    ``store``."""
    begun = _taken()
    if begun is not None:
        if begun.store is (store or default_store()):
            return begun
        begun.__exit__(None, None, None)
    return BackgroundCompilation(loaded, store, COMMON_KERNELS)


def _taken() -> BackgroundCompilation | None:
    with contextlib.suppress(IndexError):
        begun, timer = waiting.pop()
        timer.cancel()
        return begun
    return None


def finish_unused() -> None:
    """Store the kernels and end the workers: no model has been compiled."""
    begun = _taken()
    if begun is not None:
        with contextlib.suppress(CompileError), begun:
            objects_of(COMMON_KERNELS, store=begun.store, ahead=begun)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=waiting.clear)  # the threads that feed the workers do not exist there
