"""Create kernels in the CPU's kernel language."""

from __future__ import annotations

import functools

from ..kernel import KernelSource
from .host import Host, host

NAME = "cpu"
"""The name of this back end."""
KEPT = 1024
"""Kernels that are cached, of some kilobytes each: a network has some dozens, for all of its lengths."""


def cpu_kernel(name: str, text: str, origin: str = "") -> KernelSource:
    """Return the kernel whose text defines ``def kernel(args, begin, end)``.

    Its compiled form is ``void kernel(int64_t *args, int64_t begin, int64_t end)`` over the tasks ``begin <= i < end``;
    annotated ``-> int`` it returns an ``int64_t``. It may call every name of `vocabulary`.
    """
    return _kernel(name, text, origin, host())


@functools.lru_cache(maxsize=KEPT)
def _kernel(name: str, text: str, origin: str, cpu: Host) -> KernelSource:
    """Return one object for equal kernels, so that a symbol is computed once; the symbol depends on ``cpu``."""
    return KernelSource(NAME, name, text, origin)
