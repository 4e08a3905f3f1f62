"""Tables that operators make of constant inputs, kept from one run to the next."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def kept_for_constants(function: Callable[..., T]) -> Callable[..., T]:
    """Return ``function``, of arrays and of hashable keywords, with a memory of its results for read-only arrays.

    A compiled program gives an operator the same read-only array for a constant in each run. A result is kept as long
    as all of its arrays exist.
    """
    kept: dict[tuple[object, ...], tuple[list[weakref.ref[np.ndarray]], T]] = {}

    @functools.wraps(function)
    def looked_up(*arrays: np.ndarray, **settings: object) -> T:
        if any(a.flags.writeable for a in arrays):
            return function(*arrays, **settings)
        key = (*map(id, arrays), *settings.items())
        found = kept.get(key)
        if found is not None and all(ref() is a for ref, a in zip(found[0], arrays)):
            return found[1]
        result = function(*arrays, **settings)

        def forget(_: object) -> None:
            kept.pop(key, None)

        kept[key] = [weakref.ref(a, forget) for a in arrays], result
        return result

    return looked_up
