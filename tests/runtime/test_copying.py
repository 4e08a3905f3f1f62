"""Copies of arrays of any layout, multithreaded for large arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import mgx_numba
from mgx_numba.core import copying
from mgx_numba.core.copying import copy_elements, row_major

VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "turned": lambda x: x.T,
    "channels_last": lambda x: x.transpose(0, 2, 3, 1),
    "channels_first": lambda x: x.transpose(0, 3, 1, 2)[:1],
    "backwards": lambda x: x[::-1, :, ::-2, ::-1],
    "every_other": lambda x: x[..., 1::2],
    "repeated": lambda x: np.broadcast_to(x[:, :1, :, :1], x.shape),
    "all_repeated": lambda x: np.broadcast_to(x[1, 2, 3, 4:5], (3, 70, 11)),
    "overlapping": lambda x: as_strided(x, (50, 3, 40), (x.itemsize * 2, x.itemsize, x.itemsize * 5)),
    "one_axis": lambda x: x.reshape(-1)[::-3],
    "odd": lambda x: x[1:, 1:, 1:, 1:].swapaxes(0, 2),
    "empty": lambda x: x[:, :0].T,
    "few_channels": lambda x: x.reshape(3, -1).T,
    "contiguous": lambda x: x[1],
    "no_axes": lambda x: x[0, 0, 0, :1].reshape(()),
}
DTYPES = [
    "float32",
    "bool",
    "int8",
    "float16",
    "int64",
    "complex128",
    ">i4",
    ml_dtypes.bfloat16,
    ml_dtypes.int4,
    object,
]


@pytest.fixture
def little_is_large(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Set parts to some hundred bytes, and record partitioned copies: axis lengths and numbers of bytes."""
    seen = []
    original = copying.in_parts

    def noted(function: Any, length: int, nbytes: int) -> None:
        seen.append((length, nbytes))
        original(function, length, nbytes)

    monkeypatch.setattr(copying, "in_parts", noted)
    monkeypatch.setattr(copying, "PART_BYTES", 300)
    monkeypatch.setattr(copying, "LEAST_RUN", 8)
    monkeypatch.setattr("mgx_numba.parallel.PART_BYTES", 300)
    monkeypatch.setattr("mgx_numba.parallel.allowed_cpus", lambda: 3)
    return seen


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_every_layout_is_copied(view: str, dtype: Any, little_is_large: list[tuple[int, int]]) -> None:
    values = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 7, (3, 5, 13, 9))
    given = VIEWS[view](values.astype(dtype))
    made = row_major(given)
    assert made.flags.c_contiguous and (made.dtype, made.ndim) == (given.dtype, max(1, given.ndim))
    np.testing.assert_array_equal(made.reshape(given.shape), given, strict=True)
    large = given.nbytes >= 600 and not given.flags.c_contiguous and dtype is not object
    assert bool(little_is_large) == large
    if not large and given.flags.c_contiguous and given.ndim:
        assert made is given or np.shares_memory(made, given)


def test_bits_of_values_that_are_no_numbers_are_kept(little_is_large: list[tuple[int, int]]) -> None:
    for dtype, bits in (("float32", "uint32"), (ml_dtypes.bfloat16, "uint16"), (ml_dtypes.float8_e5m2, "uint8")):
        patterns = np.random.default_rng(0).integers(0, np.iinfo(bits).max, (40, 50), bits, endpoint=True)
        made = row_major(patterns.view(dtype).T)
        np.testing.assert_array_equal(made.view(bits), patterns.T)


def test_parts_are_pieces_of_the_source_where_what_they_write_is_long(
    little_is_large: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = np.arange(7 * 400, dtype=np.float32).reshape(7, 400)
    monkeypatch.setattr(copying, "LEAST_RUN", 4)
    for lens, run, axis in (((7, 400), 4, 0), ((40, 70), 4, 1), ((40, 70), 64, 0)):
        monkeypatch.setattr(copying, "LEAST_RUN", run)
        target = np.empty(lens[::-1], np.float32)
        copy_elements(target, source.reshape(lens).T)
        np.testing.assert_array_equal(target, source.reshape(lens).T)
        assert little_is_large.pop() == (target.shape[axis], target.nbytes), (lens, run)


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_large_inputs_of_any_layout(target: str) -> None:
    program = mgx_numba.program()
    main = program.get_main_module()
    x = main.add_parameter("x", mgx_numba.shape(type="float", lens=[3, 600, 700]))
    main.add_return([main.add_instruction(mgx_numba.op("relu"), [x])])
    program.compile(target)
    values = np.random.default_rng(0).standard_normal((600, 700, 6), np.float32)
    values[0, 0, :2] = np.nan, np.inf
    for given in (values[..., :3].transpose(2, 0, 1), values[::-1, :, ::-2].transpose(2, 0, 1)):
        (result,) = program.run({"x": given})
        np.testing.assert_array_equal(np.asarray(result), np.maximum(given, 0))
