"""Values whose number of elements a kernel counts, in memory with room for more."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np


def counted_elements(lens: Sequence[int], memory: Any, count: Any) -> Any:
    """Return the elements that there are at the start of ``memory``, with lengths ``lens``: -1 stands for ``count``."""
    length = count.item()
    lens = [length if n < 0 else n for n in lens]
    return memory[: prod(lens)].reshape(lens)


def copied_elements(lens: Sequence[int], memory: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return a copy of `counted_elements`, for memory that is used again."""
    return counted_elements(lens, memory, count).copy()  # type: ignore[no-any-return]
