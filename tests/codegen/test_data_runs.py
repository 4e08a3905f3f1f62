"""Copies of short runs, and at small steps, against NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.cluster.pointwise import pointwise_launch
from mgx_numba.codegen.cpu.data.copies import runs_launch
from mgx_numba.core.shape import Shape
from mgx_numba.graph.module import Module
from tests.values import digits, in_order

from .launching import run_launch, tensor_of


def check(x: np.ndarray, out: np.ndarray, pieces: int = 2) -> None:
    """Copy between two views of equal lengths; nothing around the target changes."""
    launch = runs_launch("copy_kernel", tensor_of(x), tensor_of(out), ("x0", "out0"))
    assert launch is not None
    base = out if out.base is None else out.base
    expected = np.array(base)
    place = np.ndarray(out.shape, out.dtype, expected, _start(out) - _start(base), out.strides)
    place[...] = x
    run_launch(launch, {"x0": x, "out0": out}, pieces)
    np.testing.assert_array_equal(base, expected)


def _start(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.fixture(params=["cached", "streamed"])
def sizes(request: pytest.FixtureRequest, given_machine: Any) -> str:
    """Tensors of any size taken for larger than the caches, or not."""
    if request.param == "streamed":
        given_machine(last_cache_bytes=0)
    return str(request.param)


@pytest.mark.parametrize("run", [2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 48, 64, 70, 130])
def test_axes_around_runs_change_places(sizes: str, run: int) -> None:
    x = digits(3, 37, 5, run)
    check(x.transpose(0, 2, 1, 3), np.zeros((3, 5, 37, run), x.dtype))
    check(x, in_order(np.zeros_like(x), (0, 2, 1, 3)))
    check(x.transpose(2, 1, 0, 3), np.zeros((5, 37, 3, run), x.dtype), 3)


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_runs_of_whole_lines(sizes: str, dtype: str, start: int) -> None:
    """All runs of the target begin at a cache line, or one element later; NumPy's allocations begin anywhere."""
    x = digits(3, 7, 2, 128, dtype=dtype).transpose(1, 0, 2, 3)[:, :, ::-1]
    room = np.zeros(x.size + 2 * host.CACHE_LINE, dtype)
    start += -_start(room) % host.CACHE_LINE // room.itemsize
    check(x, room[start : start + x.size].reshape(x.shape))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "int32", "float64"])
@pytest.mark.parametrize(("run", "pitch"), [(2, 3), (3, 8), (7, 9), (12, 64), (65, 70)])
def test_slices_and_parts_of_concatenations(sizes: str, dtype: str, run: int, pitch: int) -> None:
    for rows, start in itertools.product((1, 6, 333), (0, pitch - run)):
        wide = digits(2, rows + 1, pitch, dtype=dtype)
        part = (slice(None), slice(1, None), slice(start, start + run))
        packed = np.zeros((2, rows, run), dtype)
        check(wide[part], packed)
        target = np.zeros_like(wide)
        check(digits(*packed.shape, dtype=dtype), target[part])


def test_repeated_and_reversed_runs(sizes: str) -> None:
    x = digits(50, 1, 3)
    check(np.broadcast_to(x, (50, 9, 3)), np.zeros((50, 9, 3), x.dtype))
    check(digits(21, 6, 5)[::-1], np.zeros((21, 6, 5), np.float32))
    check(digits(21, 6, 5)[:, ::-2], np.zeros((21, 3, 5), np.float32))


def test_runs_in_two_long_dimensions(sizes: str) -> None:
    """More than one block of the inner loop, and more than one task."""
    x = digits(2, 3000, 7, 3, dtype=np.uint8)
    check(x.transpose(0, 2, 1, 3), np.zeros((2, 7, 3000, 3), x.dtype), 3)
    check(digits(3000, 2, 5).transpose(1, 0, 2), np.zeros((2, 3000, 5), np.float32), 3)
    check(digits(40, 40, 2, 3).transpose(1, 0, 2, 3)[:, :, ::-1], np.zeros((40, 40, 2, 3), np.float32), 3)


def test_not_a_number_and_infinity_keep_their_bits(sizes: str) -> None:
    x = np.array([0x7FC00001, 0xFF800001, 0x7F800000, 0x80000000] * 30, np.uint32).reshape(10, 3, 4)
    check(x.view(np.float32).transpose(1, 0, 2).view(np.uint32), np.zeros((3, 10, 4), np.uint32))


def test_what_has_no_short_runs_is_left_to_others() -> None:
    x = np.zeros((6, 5, 4), np.float32)
    for source in (x, x[:, :, ::2], x.transpose(0, 2, 1), x[:0], np.zeros((4, 9000), np.float32)[:, :8000]):
        out = np.zeros(source.shape, np.float32)
        assert runs_launch("copy_kernel", tensor_of(source), tensor_of(out), ("x0", "out0")) is None


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("step", [2, 3, 4, 5, -1, -2])
def test_elements_at_small_steps(sizes: str, dtype: str, step: int) -> None:
    """Vectors are extracted from contiguous loads, which never read beyond the last element."""
    for cols in (1, 2, 31, 32, 33, 64, 65, 200):
        x = digits(3, cols * abs(step), dtype=dtype)[:, ::step]
        x = x if step < 0 else x[:, : cols - 1]
        out = np.zeros(x.shape, x.dtype)
        module = Module("copy")
        module.add_return([module.add_parameter("x0", Shape(tensor_of(x).type))])
        run_launch(pointwise_launch(module, [tensor_of(x)], [tensor_of(out)]), {"x0": x, "out0": out})
        np.testing.assert_array_equal(out, x)
