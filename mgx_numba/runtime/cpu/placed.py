"""Results in memory of the caller: which of the offered arrays a run can write its results to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..memory import address_of
from ..plan import Plan


def usable(
    plan: Plan, made: Sequence[Any], inputs: Sequence[np.ndarray], offered: Sequence[np.ndarray | None]
) -> list[np.ndarray | None]:
    """Return the offered arrays that a run writes its results to, None for results that need memory of their own.

    An array is usable if it is writeable, C-contiguous, aligned, of the result's element type and lengths, and shares
    no memory with an input or another offered array. It may be an input if the plan updates that input in place
    (`Plan.updates`).

    Args:
        plan: the plan.
        made: lengths, dtype and bytes of each output of the run, or None.
        inputs: the run's inputs.
        offered: an array, or None, for each output.
    """
    updated = dict(plan.updates)
    taken = [_range(array) for array in offered if array is not None]
    sources = [_range(array) for array in inputs]
    found: list[np.ndarray | None] = []
    for k, (array, output) in enumerate(zip(offered, made, strict=True)):
        fits = array is not None and output is not None and _fits(array, *output[:2])
        if fits:
            assert array is not None
            own = _range(array)
            fits = sum(_meet(own, other) for other in taken) <= 1
            for number, source in enumerate(sources):
                fits = fits and (not _meet(own, source) or (updated.get(k) == number and own == source))
        found.append(array if fits else None)
    return found


def _fits(array: np.ndarray, lens: Sequence[int], dtype: np.dtype) -> bool:
    flags = array.flags
    plain = flags.c_contiguous and flags.writeable and flags.aligned
    return plain and array.dtype == dtype and array.shape == tuple(lens)


def _range(array: np.ndarray) -> tuple[int, int]:
    start = address_of(array)
    return start, start + array.nbytes


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]
