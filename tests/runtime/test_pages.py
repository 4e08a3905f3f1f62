"""Memory in huge pages."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.core.pages import ALIGNMENT, HUGE_PAGE, aligned_array, aligned_bytes, memory_owner


@pytest.mark.parametrize("size", [0, 1, 63, 4096, HUGE_PAGE - 1, HUGE_PAGE, 2 * HUGE_PAGE + 5])
def test_bytes_are_zeros_that_begin_where_they_should(size: int) -> None:
    found = aligned_bytes(size)
    assert (found.dtype, found.shape) == (np.uint8, (size,)) and not found.any()
    assert not size or found.ctypes.data % (HUGE_PAGE if size >= HUGE_PAGE else ALIGNMENT) == 0
    found[:] = 1
    assert found.all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool", "complex128", ml_dtypes.bfloat16, object])
@pytest.mark.parametrize("lens", [(), (0, 3), (5, 1, 7), (1024, 1025)])
def test_arrays_have_lengths_and_type(lens: tuple[int, ...], dtype: type) -> None:
    found = aligned_array(lens, np.dtype(dtype))
    assert (found.shape, found.dtype) == (lens, np.dtype(dtype)) and found.flags.c_contiguous and found.flags.writeable
    assert not found.any()


def test_what_no_memory_has_is_said() -> None:
    with pytest.raises(MemoryError, match="bytes for a kernel"):
        aligned_bytes(1 << 62)


def test_the_owner_of_memory_that_views_of_views_are_in() -> None:
    owner = np.zeros((4, 6))
    assert memory_owner(owner) is owner
    assert memory_owner(owner[1:].T.reshape(-1).reshape(6, 3)) is not owner  # a copy
    assert memory_owner(owner[1:, ::-2].T[None]) is owner
    mapped = aligned_bytes(2 * HUGE_PAGE)  # NumPy's array is a view of what is none
    assert memory_owner(mapped[5:9].view(np.uint16)) is memory_owner(mapped)
