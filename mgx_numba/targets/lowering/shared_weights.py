"""Packed weights that the plans of one dynamic program have in common."""

from __future__ import annotations

import bisect
import hashlib
import weakref
from collections.abc import Callable, Hashable

import numpy as np

from ...graph.program import Program

__all__ = ["SharedWeights"]


class SharedWeights:
    """Packed weights by what they were made from, for as long as some plan holds them.

    Weights of the program itself are known by their place in memory; what passes compute from them (a folded
    normalization, say) is computed again for every plan, and known by its bytes. May be used from any thread.
    """

    def __init__(self, program: Program) -> None:
        """``program`` is what all plans are made from; its literals live as long as this."""
        self._program = program
        arrays = [ins.literal.array for module in program.modules for ins in module if ins.literal is not None]
        self._places = sorted(np.lib.array_utils.byte_bounds(a) for a in arrays if a is not None)
        self._packed: weakref.WeakValueDictionary[Hashable, np.ndarray] = weakref.WeakValueDictionary()

    def packed(self, weights: np.ndarray, how: Hashable, pack: Callable[[], np.ndarray]) -> np.ndarray:
        """What ``pack`` makes of ``weights``, or made of the same weights before; ``how`` tells packings apart."""
        key = self._identity(weights), weights.dtype.name, weights.shape, weights.strides, how
        found = self._packed.get(key)
        if found is None:
            self._packed[key] = found = pack()
        return found

    def _identity(self, weights: np.ndarray) -> Hashable:
        address = weights.__array_interface__["data"][0]
        before = bisect.bisect_right(self._places, address, key=lambda place: place[0])
        if before and address < self._places[before - 1][1]:
            return address
        once = weights[tuple(slice(1 if stride == 0 else None) for stride in weights.strides)]
        data = np.ascontiguousarray(once.ravel(order="K")).view(np.uint8).data
        return hashlib.sha1(data, usedforsecurity=False).digest()
