"""Arrays of random values for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["normal"]


def normal(*lens: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Normally distributed numbers; equal arguments give equal ones."""
    return np.random.default_rng(seed).standard_normal(lens).astype(dtype)
