"""Kernels that store tensors of lengths and of positions."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.cpu.data.numbers import numbers_launch, range_launch
from mgx_numba.codegen.launch import Launch
from mgx_numba.codegen.problems.cluster import NumbersProblem, RangeProblem, Tensor
from mgx_numba.core.types import Type

from .launching import run_launch


def stored(*values: int) -> Launch:
    return numbers_launch(NumbersProblem(values, Tensor(Type.int64_type, (len(values),), (1,))))


@pytest.mark.parametrize("pieces", [1, 3, None])
@pytest.mark.parametrize("count", [0, 1, 5, 4095, 4096, 4097, 30000])
def test_positions_fill_a_vector(count: int, pieces: int | None) -> None:
    memory = np.full(count + 8, -1, np.int64)
    launch = range_launch(RangeProblem(Tensor(Type.int64_type, (count,), (1,))))
    run_launch(launch, {"out": memory}, pieces)
    np.testing.assert_array_equal(memory, [*range(count), *[-1] * 8])


@pytest.mark.parametrize("values", [(), (7,), (0, -3, 1 << 62, 5), tuple(range(40))])
def test_lengths_are_stored_in_order(values: tuple[int, ...]) -> None:
    memory = np.full(len(values) + 8, -1, np.int64)
    run_launch(stored(*values), {"out": memory}, 1)
    np.testing.assert_array_equal(memory, [*values, *[-1] * 8])


def test_tensors_of_lengths_have_one_kernel() -> None:
    assert stored(1, 2).kernel == stored(3).kernel
