"""The functions outside an object that kernels may call: functions of the C library that every process has.

An object that calls any other function is refused before it is loaded.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Iterable

_MATH = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil cos cosh erf erfc exp exp2 expm1 floor fma fmax fmin "
    "fmod hypot ldexp lgamma log log10 log1p log2 nearbyint pow remainder rint round roundeven sin sinh sqrt "
    "tan tanh tgamma trunc"
).split()
_SYSTEM = "memcpy memmove memset memcmp bzero sched_yield usleep syscall clock_gettime SwitchToThread Sleep".split()
_STACK_PROBE = "__chkstk"
"""Stack probe that LLVM calls on Windows in functions with more than a page of local variables; ntdll exports it."""
ALLOWED = frozenset([*_SYSTEM, _STACK_PROBE, *_MATH, *(name + "f" for name in _MATH)])


@functools.lru_cache(maxsize=1)
def _libraries() -> tuple[ctypes.CDLL, ...]:
    if sys.platform == "win32":
        return tuple(ctypes.CDLL(name) for name in ("ucrtbase", "kernel32", "ntdll"))
    process = ctypes.CDLL(None)
    if hasattr(process, "fmodf"):
        return (process,)
    return (process, ctypes.CDLL("libm.so.6" if sys.platform.startswith("linux") else "libm.dylib"))


@functools.cache
def address(name: str) -> int | None:
    """Return the address of an allowed C library function; None if it is not allowed or this machine lacks it."""
    if name not in ALLOWED:
        return None
    for library in _libraries():
        function = getattr(library, name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value
    return None


def unavailable(names: Iterable[str]) -> list[str]:
    """Return the names, sorted, that a kernel may not call or that this machine lacks."""
    return sorted(name for name in names if address(name) is None)
