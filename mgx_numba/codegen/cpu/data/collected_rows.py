"""The result rows of NonMaxSuppression, from the boxes that a kernel has picked."""

from __future__ import annotations

import numpy as np


def collected_rows(classes: int, total: int | None, picked: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return rows (image, class, box) of the boxes picked, and zeros up to ``total`` rows."""
    found = int(counts.sum())
    rows = np.zeros((found if total is None else total, 3), np.int64)
    group = np.repeat(np.arange(len(counts)), counts)
    rows[:found, 0], rows[:found, 1] = group // classes, group % classes
    rows[:found, 2] = picked[np.arange(picked.shape[1]) < counts[:, None]]
    return rows
