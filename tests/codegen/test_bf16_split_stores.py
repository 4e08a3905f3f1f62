"""Float32 stored as two bfloat16."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.codegen.cpu.part_form import LARGEST, TINY, number_text

from ..features import features
from .vector_kernels import run_body

form = features(["", "x86-64-v4", "x86-64-v3"], autouse=True)


def stored(numbers: np.ndarray, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """Both parts of the numbers, whose count is no multiple of ``lanes``."""
    room = -(-numbers.size // lanes) * lanes
    high, low = (np.full(room + 8, 77, ml_dtypes.bfloat16) for _ in range(2))
    run_body(
        f"""
i = 0
while i + {lanes} <= n3:
    store_parts(p1, p2, i, load(p0, i, {lanes}))
    i += {lanes}
store_parts_tail(p1, p2, i, load_tail(p0, i, n3 - i, 5, {lanes}), n3 - i)
""",
        numbers, high, low, numbers.size,
    )  # fmt: skip
    for part in (high, low):
        assert (part[numbers.size :] == 77).all()
    return high[: numbers.size], low[: numbers.size]


def joined(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """The numbers, as a kernel puts them together again."""
    upper = high.view(np.uint16).astype(np.int32) << 16
    lower = low.view(np.uint16).astype(np.int32)
    out = np.zeros(upper.size, np.float32)
    text = number_text("load(p0, i, 1)", "load(p1, i, 1)")
    run_body(f"for i in range(n3):\n    store(p2, i, {text})", upper, lower, out, upper.size)
    return out


@pytest.mark.parametrize("lanes", [16, 32])
def test_parts_tell_any_number(lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    usual = rng.standard_normal(45).astype(np.float32)
    scales = np.float32(2.0) ** rng.integers(-100, 100, 45).astype(np.float32)
    edges = np.array([0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, LARGEST, 1e-39, -3e-42, 1e-45, TINY, -TINY])
    edges = np.concatenate([edges, np.nextafter(edges[-4:].astype(np.float32), np.float32(0))])
    for numbers in (usual, usual * scales, np.concatenate([usual, edges.astype(np.float32)]), usual[:7] * 0):
        numbers = numbers.astype(np.float32)
        high, low = stored(numbers, lanes)
        found = joined(high, low)
        finite = np.isfinite(numbers)
        np.testing.assert_array_equal(found[~finite], numbers[~finite])
        error = np.abs(found[finite] - numbers[finite].astype(np.float64))
        assert (error <= np.maximum(2.0**-17 * np.abs(numbers[finite]), 2.0**-147)).all()
        large = np.abs(numbers) >= TINY
        np.testing.assert_array_equal(
            high[large & (np.abs(numbers) <= LARGEST)],
            numbers[large & (np.abs(numbers) <= LARGEST)].astype(ml_dtypes.bfloat16),
        )
        tiny = np.abs(numbers) < TINY
        assert (np.abs(low[tiny].astype(np.float32)) < 2.0**-63).all()
        assert np.isfinite(high[finite].astype(np.float32)).all()
