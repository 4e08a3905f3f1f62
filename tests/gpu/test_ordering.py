"""Positions of extremes, sorted selections and running sums: ties, NaN, infinities, signed zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.gpu.data import argreduce, scan, topk
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.gpu.rules import ordering

from ..values import small
from .operators import check_compiles, check_operator, hosted, operator_program
from .programs import compiled, interpreter

TYPES = (np.float32, np.float16, np.float64, np.int8, np.uint64, np.bool_)


def values(*lens: int, dtype: Any = np.float32, special: bool = True) -> np.ndarray:
    return small(dtype, lens, np.random.default_rng(len(lens)), quarters=True, special=special)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("last", [False, True])
def test_positions_of_extremes(name: str, last: bool, dtype: Any, on: Engine) -> None:
    for lens, axis in (((5, 9, 7), 1), ((3, 900), 1), ((40,), 0), ((0, 4), 1)):
        x = values(*lens, dtype=dtype, special=len(lens) == 3)
        check_operator(on, name, [x], axis=axis, select_last_index=last)


def test_positions_across_rows_when_these_are_many(on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argreduce, "DEVICE_THREADS", 1)
    check_operator(on, "argmax", [values(2, 11, 300)], axis=1)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("largest", [False, True])
def test_sorted_selections(largest: bool, dtype: Any, on: Engine) -> None:
    for lens, axis, k in (((3, 40, 2), 1, 7), ((2, 70), 1, 70), ((2, 5), 1, 0), ((0, 5), 1, 2), ((1,), 0, 1)):
        check_operator(on, "topk", [values(*lens, dtype=dtype)], axis=axis, k=k, largest=largest)


@pytest.mark.parametrize("largest", [False, True])
def test_selections_of_long_rows_in_parts(largest: bool, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topk, "PART", 8)
    monkeypatch.setattr(topk, "KEPT_OF_PART", 2)
    check_operator(on, "topk", [values(2, 151)], axis=1, k=5, largest=largest)
    check_operator(on, "topk", [values(61, 3, dtype=np.float16)], axis=0, k=3, largest=largest)


def test_selections_of_too_many_are_the_hosts(on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "MOST_COMPARISONS", 100)
    made = compiled(operator_program("topk", [values(2, 20)], axis=1, k=3), on)
    assert hosted(made) == ["ref::topk"]
    assert "kernels compare 100 elements, and 3 of 20 take 800" in str(made.fallback_reasons())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(exclusive: bool, reverse: bool, dtype: Any, on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"exclusive": exclusive, "reverse": reverse}
    for lens, axis in (((2, 11), 1), ((1,), 0), ((0, 4), 0)):
        check_operator(on, "prefix_scan_sum", [values(*lens, dtype=dtype)], axis=axis, **options)
    if dtype is np.float32:
        for axis in (0, 1):  # sums of -0 alone are -0
            check_operator(on, "prefix_scan_sum", [np.full((5, 70), -0.0, dtype)], axis=axis, **options)
        monkeypatch.setattr(scan, "THREADS", 64)  # of 4 elements each: rows of more take several rounds
        for lens in ((300,), (5, 70)):
            check_operator(on, "prefix_scan_sum", [values(*lens)], axis=0, **options)


def test_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    on = interpreter()
    for dtype in (np.float16, np.float64, np.uint8):
        check_compiles("argmin", [values(3, 500, dtype=dtype)], on, axis=1)
        check_compiles("topk", [values(3, 3000, dtype=dtype)], on, axis=1, k=4, largest=False)
    check_compiles("prefix_scan_sum", [values(3, 50, dtype=np.float16)], on, axis=1)
    check_compiles("prefix_scan_sum", [values(3, 300, dtype=np.bool_)], on, axis=0, exclusive=True)
