"""Running one planned kernel call on NumPy arrays, without a plan or threads."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from mgx_numba.codegen.cpu.toolchain.loader import load
from mgx_numba.codegen.launch import Launch, Mark, Operand
from mgx_numba.codegen.problems.cluster import Tensor
from mgx_numba.core.types import from_numpy

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def run_launch(launch: Launch, operands: Mapping[str, np.ndarray], pieces: int = 2) -> tuple[str, int] | None:
    """Run all tasks of a launch, in ``pieces`` ranges, the last first; arrays are changed in place.

    Returns:
        What an index had to fit and the index, if one was out of range.
    """
    if launch.geometry.empty:
        return None
    (address,) = load([launch.kernel])
    fault = np.zeros(3, np.int64)
    marks = {Mark.FAULT: fault.ctypes.data, Mark.STEP: 7}
    block = np.array(
        [
            operands[a.name].__array_interface__["data"][0] + a.offset
            if isinstance(a, Operand)
            else marks[a]
            if isinstance(a, Mark)
            else a
            for a in launch.args
        ],
        np.int64,
    )
    bounds = np.linspace(0, launch.geometry.tasks, pieces + 1).astype(int).tolist()
    for begin, end in reversed(list(itertools.pairwise(bounds))):
        _ENTRY(address)(block.ctypes.data, begin, end)
    step, check, index = fault.tolist()
    assert step in (0, 7)
    return (launch.checks[check], index) if step else None


def tensor_of(array: np.ndarray) -> Tensor:
    """How an array lies in memory."""
    strides = tuple(s // array.itemsize for s in array.strides)
    return Tensor(from_numpy(array.dtype), array.shape, strides)


def in_order(array: np.ndarray, order: Sequence[int] | None = None, gap: int = 0) -> np.ndarray:
    """A copy whose axes lie in memory in ``order``, slowest first, with ``gap`` elements after each row."""
    order = list(range(array.ndim)) if order is None else list(order)
    lens = [array.shape[axis] for axis in order]
    room = np.empty([*lens[:-1], lens[-1] + gap] if lens else [], array.dtype)
    room.view(np.uint8)[...] = 0xA5
    inside = room[..., : lens[-1]] if lens else room
    result = inside.transpose(np.argsort(order))
    result[...] = array
    return result


def empty_in_order(
    lens: Sequence[int], dtype: np.dtype, order: Sequence[int] | None = None, gap: int = 0
) -> np.ndarray:
    """As `in_order`, with a pattern in place of values, so that elements that are never written show."""
    array = in_order(np.zeros(lens, dtype), order, gap)
    array[...] = np.frombuffer(b"\xa5" * np.dtype(dtype).itemsize, dtype)[0] if dtype != np.bool_ else True
    return array
