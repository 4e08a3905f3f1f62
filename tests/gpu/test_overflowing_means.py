"""Means of elements whose sum overflows their type, in registers, in rounds, and across rows."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.codegen.gpu.cluster import thread_layout
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.test_overflowing_means import KINDS, along, rows_of, two_means, wanted_means
from .operators import hosted
from .programs import compiled, interpreter

TYPES = (np.float32, np.float64, ml_dtypes.bfloat16)


def check(on: Engine, lens: tuple[int, ...], axes: tuple[int, ...], dtype: Any) -> list[str]:
    """The means of elements and of their squares are those that wider sums give; returns the kernels' texts."""
    count = int(np.prod([lens[a] for a in axes]))
    rows = int(np.prod(lens)) // count
    x = along(rows_of(dtype, rows, count, np.random.default_rng(0)), lens, axes)
    program = Program()
    value = program.main.add_parameter("x", Shape(from_numpy(np.dtype(dtype)), lens))
    program.main.add_return(two_means(program.main, value, axes))
    made = compiled(program, on)
    assert not hosted(made)
    for found, wanted in zip(made.run({"x": x}), wanted_means(x, axes, dtype), strict=True):
        np.testing.assert_allclose(
            found.astype(np.float64), wanted.astype(np.float64), rtol=4 * float(ml_dtypes.finfo(dtype).eps)
        )
    return [kernel.text for kernel in made.kernels()]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("lens", "axes"), [((KINDS, 12), (1,)), ((KINDS, 301), (1,)), ((70, 2 * KINDS), (0,))])
def test_means_of_rows_and_columns(lens: tuple[int, ...], axes: tuple[int, ...], dtype: Any, on: Engine) -> None:
    check(on, lens, axes, dtype)


def test_means_of_rows_that_are_read_in_rounds(on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_layout, "MOST_THREADS", 32)
    monkeypatch.setattr(thread_layout, "MOST_HELD", 2)
    monkeypatch.setattr(thread_layout, "CLUSTERS", ())  # which would hold these rows on a device that has them
    texts = check(on, (KINDS, 301), (1,), np.float32)
    assert any(re.search(r"while (k\d_)?item\b", text) and "again" in text for text in texts)


def test_sums_and_means_of_halves_have_no_second_sum() -> None:
    """Their sums fit the accumulator: the branch would be never taken."""
    for dtype, name in ((np.float16, "reduce_mean"), (np.float32, "reduce_sum")):
        program = Program()
        x = program.main.add_parameter("x", Shape(from_numpy(np.dtype(dtype)), (3, 40)))
        program.main.add_return([program.main.add_instruction(name, [x], axes=(1,))])
        assert all("whole" not in kernel.text for kernel in compiled(program, interpreter()).kernels())
