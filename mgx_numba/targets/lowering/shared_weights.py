"""Packed weights that the plans of a dynamic program share."""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np

from ...core.pages import memory_owner
from ...core.shape import Shape
from ...core.types import from_numpy
from ...graph.program import Program
from ...parallel import allowed_cpus, on_threads
from ...runtime.memory import ALIGNMENT, address_of, aligned_copy

_DIGESTED = 4 << 20
"""Bytes of weights whose digest a thread computes at a time, in some 2 ms."""
_SMALL = 1 << 20
"""Largest constant (bytes) that is copied to aligned memory. In unaligned memory each vector of the constant can
straddle two cache lines."""


Made = tuple[np.ndarray, Shape, int]
"""An array that plans hold as a constant; the shape and the element offset of the view of it."""


class SharedWeights:
    """A cache of packed weights, keyed by their source; an entry lives as long as some plan holds the packed array.

    Weights of the program itself are identified by their address. Constants that passes compute, such as a folded
    normalisation, are computed again for every plan and identified by their bytes. Thread-safe.
    """

    def __init__(self, program: Program) -> None:
        """Create the cache for ``program``, from which all plans are made; the cache keeps its literals alive."""
        self._program = program
        arrays = [ins.literal.array for module in program.modules for ins in module if ins.literal is not None]
        self._places = sorted(np.lib.array_utils.byte_bounds(a) for a in arrays if a is not None)
        self._packed: weakref.WeakValueDictionary[Hashable, np.ndarray] = weakref.WeakValueDictionary()
        self._copies: dict[int, tuple[weakref.ref[np.ndarray], np.ndarray]] = {}
        self._made: dict[Hashable, tuple[weakref.ref[np.ndarray], weakref.ref[np.ndarray], Any]] = {}
        self._digests: dict[int, tuple[weakref.ref[np.ndarray], dict[Hashable, bytes]]] = {}

    def packed(self, weights: np.ndarray, how: Hashable, pack: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the cached result of ``pack`` for equal weights, or call ``pack``; ``how`` identifies the packing."""
        key = self.identity(weights), weights.dtype, weights.shape, weights.strides, how
        found = self._packed.get(key)
        if found is None:
            self._packed[key] = found = pack()
        return found

    def made(self, base: np.ndarray, how: Hashable) -> Made | None:
        """Return the constant derived from ``base`` in the way that ``how`` identifies; None if no plan holds both any
        more."""
        known = self._made.get((id(base), how))
        array = None if known is None or known[0]() is not base else known[1]()
        return None if known is None or array is None else (array, *known[2])

    def note_made(self, base: np.ndarray, how: Hashable, made: Made) -> None:
        """Record a constant that was derived from ``base``, for `made`."""
        key, (array, *rest) = (id(base), how), made
        gone = partial(_forget, self._made, key)
        self._made[key] = weakref.ref(base, gone), weakref.ref(array), rest

    def aligned(self, array: np.ndarray, storage: np.ndarray) -> np.ndarray:
        """Return `aligned` of ``storage``, the elements of a constant; the same copy as long as the constant lives."""
        known = self._copies.get(id(array))
        if known is not None and known[0]() is array:
            return known[1]
        found = aligned(storage)
        if found is not storage:
            self._copies[id(array)] = weakref.ref(array, partial(_forget, self._copies, id(array))), found
        return found

    def identity(self, weights: np.ndarray) -> Hashable:
        """Return a key that identifies weights among weights of the same type and shape, in all plans of the
        program."""
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


def flat(array: np.ndarray) -> tuple[np.ndarray, Shape]:
    """Return a contiguous array over the memory of a constant, and the shape of the constant's view of it."""
    shape = Shape(from_numpy(array.dtype), array.shape, [s // array.itemsize for s in array.strides])
    if array.dtype.hasobject or array.flags.c_contiguous:
        return array, shape
    raw = array.view(f"u{array.itemsize}")
    return np.lib.stride_tricks.as_strided(raw, (shape.element_space,), (array.itemsize,)).view(array.dtype), shape


def aligned(storage: np.ndarray) -> np.ndarray:
    """Return a contiguous array in aligned memory, unless it is large."""
    small = storage.nbytes <= _SMALL and not storage.dtype.hasobject
    return aligned_copy(storage) if small and address_of(storage) % ALIGNMENT else storage


def _forget(known: dict[Any, Any], key: Hashable, gone: weakref.ref[np.ndarray]) -> None:
    """Remove the entry of a deleted array, unless another array has the same id by now."""
    if key in known and known[key][0] is gone:
        del known[key]


def _digest(weights: np.ndarray) -> bytes:
    import hashlib  # late: it loads OpenSSL

    once = weights[tuple(slice(1 if stride == 0 else None) for stride in weights.strides)]
    data = np.ascontiguousarray(once.ravel(order="K")).view(np.uint8).data
    found: dict[int, bytes] = {}

    def digest(start: int) -> None:
        found[start] = hashlib.sha1(data[start : start + _DIGESTED], usedforsecurity=False).digest()

    on_threads(digest, range(0, len(data), _DIGESTED), allowed_cpus())
    return hashlib.sha1(b"".join(found[start] for start in sorted(found)), usedforsecurity=False).digest()
