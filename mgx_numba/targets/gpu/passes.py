"""The passes of the ``gpu`` target, in order: those of the ``cpu`` target whose results have kernels here."""

from __future__ import annotations

from ..cpu.passes import PASSES as ON_CPU

__all__ = ["PASSES"]

WITHOUT_KERNEL = frozenset(("fuse_attention",))
"""Passes that make operators which only the CPU has a kernel for: their parts have kernels here."""

PASSES: tuple[str, ...] = tuple(name for name in ON_CPU if name not in WITHOUT_KERNEL)
