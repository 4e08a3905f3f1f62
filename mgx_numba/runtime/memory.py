"""Aligned memory, dtypes by name, and addresses of arrays."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence

import numpy as np

from ..core.pages import aligned_bytes
from ..core.types import numpy_dtype
from ..errors import MgxError

ALIGNMENT = 64  # bytes of a cache line
BIG = 1 << 28
"""Largest allocation (bytes) made without asking the system for its available memory, which takes tens of
microseconds."""
_BYTE = np.dtype(np.uint8)
# Size of the object header, before PyArrayObject's first field: the address.
_HEADER = object.__basicsize__


def _address_of_interface(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _address_held(array: np.ndarray) -> int:
    return ctypes.c_size_t.from_address(id(array) + _HEADER).value


def _holds_addresses() -> bool:
    """Return whether an array object holds the address of its elements where NumPy's C interface says (CPython)."""
    if sys.implementation.name != "cpython":
        return False
    probe = np.empty(3)
    return all(_address_held(array) == _address_of_interface(array) for array in (probe, probe[1:]))


address_of = _address_held if _holds_addresses() else _address_of_interface
"""Return the address of an array's first element."""


def aligned_empty(lens: Sequence[int], dtype: str | np.dtype) -> np.ndarray:
    """Return a new C-contiguous array with undefined contents and 64-byte alignment."""
    chosen = numpy_dtype(dtype) if isinstance(dtype, str) else dtype
    return aligned_array(tuple(lens), chosen, math.prod(lens) * chosen.itemsize)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """Return a C-contiguous copy with 64-byte alignment."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def available_bytes() -> int | None:
    """Return the bytes that can be allocated without taking them from other processes, within the process's own limit.

    ``None`` where the system does not say.
    """
    try:
        with open("/proc/meminfo") as file:
            free = next((int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")), None)
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if free is None or limit == resource.RLIM_INFINITY:
            return free
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        return max(0, min(free, limit - used))
    except (ImportError, OSError, ValueError):
        return None


def needs_check(size: int) -> bool:
    """Return whether `expect_room` asks the system before this many bytes are allocated."""
    return size > BIG


def expect_room(size: int, what: str) -> None:
    """Raise an error if ``size`` bytes are not available: a system that overcommits memory kills the process instead.

    Sizes up to `BIG` are not checked.

    Raises:
        MemoryError: there are fewer bytes.
    """
    available = available_bytes() if needs_check(size) else None
    if available is not None and size > available:
        raise MemoryError(f"not enough memory for {what} {size} bytes, {available} are available")


def copied(array: np.ndarray) -> np.ndarray:
    """Return a row-major copy of an array, which may be larger than the array's own memory.

    Raises:
        MgxError: there is not enough memory.
    """
    try:
        expect_room(array.nbytes, "a result of")
        return np.array(array, order="C")
    except MemoryError as error:
        raise MgxError(f"run: {error}") from error


def scratch(size: int) -> np.ndarray:
    """Return ``size`` bytes for kernels, 64-byte aligned; large blocks use huge pages.

    Raises:
        MemoryError: the system has less memory.
    """
    return aligned_bytes(size)


def view_of(
    memory: np.ndarray, lens: Sequence[int], dtype: np.dtype, offset: int, strides: Sequence[int]
) -> np.ndarray:
    """Return an array over bytes of ``memory``; ``strides`` count elements, ``offset`` bytes.

    An array without elements gets no memory: NumPy refuses strides and offsets outside of ``memory``.
    """
    if 0 in lens:
        return np.empty(tuple(lens), dtype)
    return np.ndarray(tuple(lens), dtype, memory, offset, [stride * dtype.itemsize for stride in strides])


def aligned_array(lens: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    """Return an array as `aligned_empty` does, for a known number of bytes."""
    buffer = np.empty(size + ALIGNMENT, _BYTE)
    return np.ndarray(lens, dtype, buffer, -address_of(buffer) % ALIGNMENT)
