"""The compiled loop over an access's threads and bytes: it checks each byte, records who touched it, and copies it."""

from __future__ import annotations

from typing import Any

import numba

from mgx_numba.codegen.gpu.architecture import WARP

from .lanes import EPOCH, GENERATION

__all__ = ["MISALIGNED", "OUTSIDE", "RACES_READ", "RACES_WRITE", "UNDEFINED", "access"]

OUTSIDE, UNDEFINED, RACES_WRITE, RACES_READ, MISALIGNED = 1, 2, 3, 4, 5
"""Faults: out of bounds, of bytes nobody has written, beside a write or a read of another thread without a barrier, not
aligned."""
_SEVERAL = -2
"""In a record: several threads, or several blocks, have read the byte."""
_WARP_READERS = -3
"""In a record, this minus a warp's number: only threads of that warp have read the byte."""
_KIN_READERS = -3
"""In a record, this minus the number of a cluster's first block: only blocks of that cluster have read the byte."""
_BLOCK_STEP, _CLUSTER_STEP = EPOCH, EPOCH * GENERATION

_inlined: Any = numba.njit(inline="always")
_compiled: Any = numba.njit(
    "Tuple((i8, i8, i8))(b1, u1[::1], u1[::1], i4[:, ::1], i4[:, ::1], i8[:, ::1], i8[::1], i8, i8, b1[::1], i8[::1], "
    "i8[::1], i8, i8, i8, u1[:, ::1])",
    cache=True,
)
"""A decorator that compiles `access` for one signature: other arrays are an error, rather than seconds of compiling."""


@_inlined
def _of_kin(block: int, first: int, end: int) -> bool:
    """Return whether a block, or all readers of a cluster, belongs to the cluster of several blocks."""
    return end - first > 1 and (first <= block < end or block == _KIN_READERS - first)


@_inlined
def _of_warp(number: int, other: int) -> bool:
    """Return whether a thread, or all readers of a warp, belongs to the warp of ``other``; numbers count from 1."""
    warp = (other - 1) // WARP
    return (number - 1) // WARP == warp if number > 0 else number == _WARP_READERS - warp


@_inlined
def _past(number: int, block: int, epoch: int, own: int, own_block: int, own_epoch: int, first: int, end: int) -> bool:
    """Return whether an access precedes a barrier that the own thread and all threads of the access have passed."""
    if block == own_block:
        if epoch // _BLOCK_STEP < own_epoch // _BLOCK_STEP:
            return True
        if epoch < own_epoch and _of_warp(number, own):
            return True
    return _of_kin(block, first, end) and epoch // _CLUSTER_STEP < own_epoch // _CLUSTER_STEP


@_compiled
def access(
    write: bool, data: Any, written: Any, numbers: Any, blocks: Any, epochs: Any, starts: Any, size: int,
    alignment: int, mask: Any, own_numbers: Any, own_epochs: Any, own_block: int, kin_first: int, kin_end: int,
    values: Any,
) -> tuple[int, int, int]:  # fmt: skip
    """Read or write the bytes of each active thread; return the fault (0: none), the lane and the byte.

    Args:
        written: for each byte whether it is initialised; empty for memory that always is.
        numbers, blocks, epochs: the last write [0, byte] and the last read [1, byte]: the thread's number from 1 (0:
            nobody, and see `_SEVERAL`), its block, its epoch.
        starts, values: one row, or a row for each thread.
        alignment: the number of bytes of which each start must be a multiple.
        own_numbers: the threads' numbers.
    """
    for lane in range(mask.size):
        if not mask[lane]:
            continue
        start = starts[lane if starts.size > 1 else 0]
        row = lane if values.shape[0] > 1 else 0
        if start % alignment:
            return MISALIGNED, lane, start
        if start < 0 or start + size > data.size:
            return OUTSIDE, lane, start
        own, own_epoch = own_numbers[lane] + 1, own_epochs[lane]
        for n in range(size):
            at = start + n
            if written.size:
                if write:
                    written[at] = 1
                elif not written[at]:
                    return UNDEFINED, lane, at
            for kind in range(2 if write else 1):
                number = numbers[kind, at]
                if number == 0 or (number == own and blocks[kind, at] == own_block):
                    continue
                if not _past(number, blocks[kind, at], epochs[kind, at], own, own_block, own_epoch, kin_first, kin_end):
                    return RACES_READ if kind else RACES_WRITE, lane, at
            if write:
                numbers[0, at], blocks[0, at], epochs[0, at] = own, own_block, own_epoch
                data[at] = values[row, n]
                continue
            values[row, n] = data[at]
            number, block, epoch = numbers[1, at], blocks[1, at], epochs[1, at]
            new_number, new_block = own, own_block
            if not (
                number == 0
                or (number == own and block == own_block)
                or _past(number, block, epoch, own, own_block, own_epoch, kin_first, kin_end)
            ):
                new_number = new_block = _SEVERAL
                if block == own_block:
                    new_block = own_block
                    if _of_warp(number, own):
                        new_number = _WARP_READERS - (own - 1) // WARP
                elif _of_kin(block, kin_first, kin_end):
                    new_block = _KIN_READERS - kin_first
            numbers[1, at], blocks[1, at], epochs[1, at] = new_number, new_block, own_epoch
    return 0, 0, 0
