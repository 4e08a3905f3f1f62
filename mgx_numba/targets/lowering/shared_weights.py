"""Packed weights that the plans of one dynamic program have in common."""

from __future__ import annotations

import bisect
import hashlib
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np

from ...core.pages import memory_owner
from ...core.shape import Shape
from ...core.types import from_numpy
from ...graph.program import Program
from ...runtime.memory import ALIGNMENT, address_of, aligned_copy

__all__ = ["SharedWeights", "stored"]

_SMALL = 1 << 20
"""Bytes of a constant that is copied if it is not aligned: each of its vectors would lie on two cache lines."""


Made = tuple[np.ndarray, Shape, int]
"""An array that plans have as a constant, and as what and from which element on it is seen."""


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
        self._stored: dict[int, tuple[weakref.ref[np.ndarray], np.ndarray | None, Shape]] = {}
        self._made: dict[Hashable, tuple[weakref.ref[np.ndarray], weakref.ref[np.ndarray], Any]] = {}
        self._digests: dict[int, tuple[weakref.ref[np.ndarray], dict[Hashable, bytes]]] = {}

    def packed(self, weights: np.ndarray, how: Hashable, pack: Callable[[], np.ndarray]) -> np.ndarray:
        """What ``pack`` makes of ``weights``, or made of the same weights before; ``how`` tells packings apart."""
        key = self.identity(weights), weights.dtype, weights.shape, weights.strides, how
        found = self._packed.get(key)
        if found is None:
            self._packed[key] = found = pack()
        return found

    def made(self, base: np.ndarray, how: Hashable) -> Made | None:
        """What was made of a constant in the way that ``how`` names, as long as some plan holds both."""
        known = self._made.get((id(base), how))
        array = None if known is None or known[0]() is not base else known[1]()
        return None if known is None or array is None else (array, *known[2])

    def note_made(self, base: np.ndarray, how: Hashable, made: Made) -> None:
        """Remember what was made of a constant, for `made`."""
        key, (array, *rest) = (id(base), how), made
        gone = partial(_forget, self._made, key)
        self._made[key] = weakref.ref(base, gone), weakref.ref(array), rest

    def stored(self, array: np.ndarray) -> tuple[np.ndarray, Shape]:
        """See the function of this name; the same copy as long as the constant lives."""
        known = self._stored.get(id(array))
        if known is not None and known[0]() is array:
            return array if known[1] is None else known[1], known[2]
        storage, shape = stored(array)
        own = None if storage is array else storage
        if own is None or not np.may_share_memory(own, array):  # else it would never be gone
            gone = partial(_forget, self._stored, id(array))
            self._stored[id(array)] = weakref.ref(array, gone), own, shape
        return storage, shape

    def identity(self, weights: np.ndarray) -> Hashable:
        """What tells weights from others of their type and shape, in all plans of the program."""
        address = address_of(weights)
        before = bisect.bisect_right(self._places, address, key=lambda place: place[0])
        if before and address < self._places[before - 1][1]:
            return address
        owner = memory_owner(weights)
        known = self._digests.get(id(owner))
        if known is None or known[0]() is not owner:
            known = self._digests[id(owner)] = weakref.ref(owner, partial(_forget, self._digests, id(owner))), {}
        place = address, weights.dtype, weights.shape, weights.strides
        found = known[1].get(place)
        if found is None:
            found = known[1][place] = _digest(weights)
        return found


def stored(array: np.ndarray) -> tuple[np.ndarray, Shape]:
    """A constant as a plan has it, its memory in one row and aligned unless that is large, and how it is seen."""
    shape = Shape(from_numpy(array.dtype), array.shape, [s // array.itemsize for s in array.strides])
    if array.dtype.hasobject:
        return array, shape
    if not array.flags.c_contiguous:
        raw = array.view(f"u{array.itemsize}")
        flat = np.lib.stride_tricks.as_strided(raw, (shape.element_space,), (array.itemsize,))
        return flat.view(array.dtype), shape
    small = array.nbytes <= _SMALL
    return (aligned_copy(array) if small and address_of(array) % ALIGNMENT else array), shape


def _forget(known: dict[Any, Any], key: Hashable, gone: weakref.ref[np.ndarray]) -> None:
    """Drop what is known of an array that is gone, unless another one has taken its identity."""
    if key in known and known[key][0] is gone:
        del known[key]


def _digest(weights: np.ndarray) -> bytes:
    once = weights[tuple(slice(1 if stride == 0 else None) for stride in weights.strides)]
    data = np.ascontiguousarray(once.ravel(order="K")).view(np.uint8).data
    return hashlib.sha1(data, usedforsecurity=False).digest()
