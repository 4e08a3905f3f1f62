"""Kernels in the CPU's language."""

from __future__ import annotations

from ..kernel import KernelSource

__all__ = ["NAME", "cpu_kernel"]

NAME = "cpu"
"""This back end's name."""


def cpu_kernel(name: str, text: str, origin: str = "") -> KernelSource:
    """A kernel whose text defines ``def kernel(args, begin, end)``.

    Its compiled form is ``void kernel(int64_t *args, int64_t begin, int64_t end)`` over the tasks ``begin <= i < end``
    (annotated ``-> int`` it returns an ``int64_t``); it may call every name of `vocabulary`.
    """
    return KernelSource(NAME, name, text, origin)
