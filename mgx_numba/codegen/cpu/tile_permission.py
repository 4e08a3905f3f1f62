"""Whether this process may use AMX's tiles: Linux gives their 8 KiB of state a thread to whom asks for it.

A process that has not asked dies of an illegal instruction, whatever CPUID says. Threads and forks have what their
process was given; what `exec` starts has to ask again.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

from ...messages import INFO, tell

__all__ = ["tiles_permitted"]

_ARCH_PRCTL = 158
"""The system call's number on x86-64 (Linux, arch/x86/entry/syscalls/syscall_64.tbl)."""
_REQUEST, _TILE_DATA = 0x1023, 18
"""ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA (Linux 5.16, Documentation/arch/x86/xstate.rst)."""


@functools.lru_cache(maxsize=1)
def tiles_permitted() -> bool:
    """Ask once; a refusal is told in the log, and kernels are then made without tiles."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0:
        return True
    error = ctypes.get_errno()
    reason = os.strerror(error)  # ENOSPC: a thread has a signal stack too small for the state
    tell("cpu", INFO, "the CPU has AMX, but the system does not permit it: %s; compiling without", reason)
    return False
