"""Ask Linux for permission to use AMX tiles in this process; their state takes 8 KiB a thread.

A process without permission dies of an illegal instruction, whatever CPUID says. Threads and forks inherit permission;
after `exec` a process has to ask again.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

from ...messages import INFO, tell

_ARCH_PRCTL = 158
"""The number of the system call on x86-64 (Linux, arch/x86/entry/syscalls/syscall_64.tbl)."""
_REQUEST, _TILE_DATA = 0x1023, 18
"""ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA (Linux 5.16, Documentation/arch/x86/xstate.rst)."""


@functools.lru_cache(maxsize=1)
def tiles_permitted() -> bool:
    """Ask once and return whether tiles are permitted; a refusal is logged, and kernels are then generated without
    tiles."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0:
        return True
    error = ctypes.get_errno()
    reason = os.strerror(error)  # ENOSPC: a thread has a signal stack too small for the state
    tell("cpu", INFO, "the CPU has AMX, but the system does not permit it: %s; compiling without", reason)
    return False
