"""How much of a program may be computed before it is run: by constant folding, and while a model is read."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.pages import memory_owner

if TYPE_CHECKING:
    from .module import Module

__all__ = ["Allowance"]

WORK, WORK_GROWTH = 1 << 30, 64
"""Elementary operations in all, and those for each byte of the program's literals: some seconds of NumPy, and for
weights more than unpacking, scaling and transposing them takes."""
HELD, HELD_GROWTH = 1 << 28, 8
"""Bytes that computed constants may take at once, and those for each byte of literals: int4 weights become float32."""


class Allowance:
    """Work and memory that constants of one program may take in all; what is beyond it is left to the run.

    A program of a few bytes may double a constant forty times, each time within reason.
    """

    def __init__(self, modules: Callable[[], Iterable[Module]]) -> None:
        """``modules`` gives the program's modules; their literals are counted when something is asked for first."""
        self._modules = modules
        self._literals: int | None = None
        self._work = 0
        self._held = 0
        self._watched: dict[int, weakref.ref[Any]] = {}

    def take(self, work: int, bytes: int) -> bool:
        """Whether a constant of so many bytes may be computed in so many operations, which count as done then."""
        if self._literals is None:
            arrays = (i.literal.array for m in self._modules() for i in m if i.literal is not None)
            self._literals = sum(a.nbytes for a in arrays if a is not None and 0 not in a.strides)
        if self._work + work > WORK + WORK_GROWTH * self._literals:
            return False
        if self._held + bytes > HELD + HELD_GROWTH * self._literals:
            return False
        self._work += work
        return True

    def hold(self, array: np.ndarray) -> None:
        """Count the memory of a computed constant for as long as it lives."""
        owner = memory_owner(array)
        key, size = id(owner), owner.nbytes
        if key in self._watched:
            return

        def freed(_: Any) -> None:
            del self._watched[key]
            self._held -= size

        self._watched[key] = weakref.ref(owner, freed)
        self._held += size
