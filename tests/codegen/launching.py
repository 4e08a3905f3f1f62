"""Execution of kernels and launches on NumPy arrays, without a plan or threads."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mgx_numba.codegen.cpu.toolchain.loader import load
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.launch import Callee, Launch, Mark, Operand
from mgx_numba.codegen.problems.cluster import Tensor
from mgx_numba.core.types import from_numpy
from mgx_numba.runtime.host.native import NativeKernel
from tests.values import element_strides


def call_kernel(kernel: KernelSource, words: Sequence[int], *ranges: tuple[int, int], **options: Any) -> None:
    """Call a kernel, compiled if need be, for ranges of tasks; its argument block has these words. Options: `load`."""
    block = np.array(words, np.int64)
    entry = NativeKernel(load([kernel], **options)[0])
    for begin, end in ranges:
        entry(block.ctypes.data, begin, end)


def run_launch(launch: Launch, operands: Mapping[str, np.ndarray], pieces: int | None = 2) -> tuple[str, int] | None:
    """Run all tasks of a launch, in ``pieces`` ranges or, if that is ``None``, in those that threads claim, the last
    first; arrays are changed in place.

    Returns:
        What an index had to fit and the index, if one was out of range.
    """
    if launch.geometry.empty:
        return None
    fault = np.zeros(3, np.int64)
    words = [_word(arg, operands, {Mark.FAULT: fault.ctypes.data, Mark.STEP: 7}) for arg in launch.args]
    tasks, grain = launch.geometry.tasks, launch.geometry.grain
    if pieces is None:
        bounds = [*range(0, tasks, grain), tasks]
    else:
        bounds = np.linspace(0, tasks, pieces + 1).astype(int).tolist()
    call_kernel(launch.kernel, words, *reversed(list(itertools.pairwise(bounds))))
    step, check, index = fault.tolist()
    assert step in (0, 7)
    return (launch.checks[check], index) if step else None


def _word(arg: Any, operands: Mapping[str, np.ndarray], marks: Mapping[Mark, int]) -> int:
    if isinstance(arg, Operand):
        return int(operands[arg.name].__array_interface__["data"][0]) + arg.offset
    if isinstance(arg, Callee):
        return load([arg.kernel])[0]
    return marks[arg] if isinstance(arg, Mark) else int(arg)


def tensor_of(array: np.ndarray) -> Tensor:
    """Return the memory layout of an array."""
    return Tensor(from_numpy(array.dtype), array.shape, element_strides(array))
