"""Kernels in the CPU's language."""

from __future__ import annotations

import functools

from ..kernel import KernelSource
from .host import Host, host

__all__ = ["NAME", "cpu_kernel"]

NAME = "cpu"
"""This back end's name."""
KEPT = 1024
"""Kernels of some kilobytes that are kept: a network has some dozens, for all of its lengths."""


def cpu_kernel(name: str, text: str, origin: str = "") -> KernelSource:
    """A kernel whose text defines ``def kernel(args, begin, end)``.

    Its compiled form is ``void kernel(int64_t *args, int64_t begin, int64_t end)`` over the tasks ``begin <= i < end``
    (annotated ``-> int`` it returns an ``int64_t``); it may call every name of `vocabulary`.
    """
    return _kernel(name, text, origin, host())


@functools.lru_cache(maxsize=KEPT)
def _kernel(name: str, text: str, origin: str, cpu: Host) -> KernelSource:
    """One object for equal kernels, which finds its symbol once; that depends on the CPU."""
    return KernelSource(NAME, name, text, origin)
