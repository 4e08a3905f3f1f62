"""Tensors of lengths and of positions, which kernels store."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.cpu.data.lengths import iota_launch, lengths_launch

from .launching import run_launch


@pytest.mark.parametrize("pieces", [1, 3, None])
@pytest.mark.parametrize("count", [0, 1, 5, 4095, 4096, 4097, 30000])
def test_positions_fill_a_vector(count: int, pieces: int | None) -> None:
    memory = np.full(count + 8, -1, np.int64)
    run_launch(iota_launch(count), {"out": memory}, pieces)
    np.testing.assert_array_equal(memory, [*range(count), *[-1] * 8])


@pytest.mark.parametrize("values", [(), (7,), (0, -3, 1 << 62, 5), tuple(range(40))])
def test_lengths_are_stored_in_order(values: tuple[int, ...]) -> None:
    memory = np.full(len(values) + 8, -1, np.int64)
    run_launch(lengths_launch(values), {"out": memory}, 1)
    np.testing.assert_array_equal(memory, [*values, *[-1] * 8])


def test_tensors_of_lengths_have_one_kernel() -> None:
    assert lengths_launch((1, 2)).kernel == lengths_launch((3,)).kernel
