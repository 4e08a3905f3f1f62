"""Limits on the work and memory of computing constants before a program runs: in constant folding and in a frontend."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from ..core.pages import memory_owner

if TYPE_CHECKING:
    from .module import Module

WORK, WORK_GROWTH = 1 << 30, 64
"""Elementary operations per program, plus operations per byte of the program's literals. They bound folding to some
seconds of NumPy, and suffice to unpack, scale and transpose weights."""
HELD, HELD_GROWTH = 1 << 28, 8
"""Bytes of computed constants per program, plus bytes per byte of literals: int4 weights become float32."""


class Allowance:
    """The budget of work and memory for the computed constants of one program; a constant beyond it is computed at run
    time.

    A program of a few bytes may double a constant forty times, each time within a limit per constant.
    """

    def __init__(self, modules: Callable[[], Iterable[Module]]) -> None:
        """Create the budget of a program.

        Args:
            modules: returns the program's modules; their literals are counted at the first request.
        """
        self._modules = modules
        self._literals: int | None = None
        self._work = 0
        self.held_bytes = 0
        self._watched: dict[int, weakref.ref[np.ndarray]] = {}

    def take(self, work: int, bytes: int) -> bool:
        """Return whether a constant of ``bytes`` bytes may be computed in ``work`` operations; if so, count the
        operations."""
        if self._literals is None:
            arrays = (i.literal.array for m in self._modules() for i in m if i.literal is not None)
            self._literals = sum(a.nbytes for a in arrays if a is not None and 0 not in a.strides)
        if self._work + work > WORK + WORK_GROWTH * self._literals:
            return False
        if self.held_bytes + bytes > HELD + HELD_GROWTH * self._literals:
            return False
        self._work += work
        return True

    def hold(self, array: np.ndarray) -> None:
        """Count the memory of a computed constant until the constant is freed."""
        owner = memory_owner(array)
        key, size = id(owner), owner.nbytes
        if key in self._watched:
            return

        def freed(_: object) -> None:
            del self._watched[key]
            self.held_bytes -= size

        self._watched[key] = weakref.ref(owner, freed)
        self.held_bytes += size
