"""Threads of a block that an interpreted kernel runs together, as NumPy arrays with a mask of the active threads.

A value is *uniform* (a Python number, a NumPy number or a vector of width 1) where all threads share it, else it has
one entry a thread along its last axis: a scalar has the shape [threads], a vector of n lanes [n, threads].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mgx_numba.codegen.gpu.architecture import WARP
from mgx_numba.dataclass import dataclass
from mgx_numba.errors import MgxError

__all__ = ["EPOCH", "GENERATION", "KernelFault", "Lanes", "StuckFault", "is_varying", "of_lane"]

EPOCH = 1 << 20
"""Step of a block's epoch; exceeds the warp barriers between two block barriers."""
GENERATION = 1 << 20
"""Epochs per cluster barrier; exceeds the block barriers between two cluster barriers."""


class KernelFault(MgxError):
    """Illegal behaviour of an interpreted kernel; the message names the thread, the line and the violation.

    ``lane`` is the thread's index among those that run together, where it is not the first active one.
    """

    def __init__(self, message: str, lane: int | None = None) -> None:
        super().__init__(message)
        self.lane = lane


def is_varying(x: Any) -> bool:
    """Return whether a scalar or a condition has a value for each thread."""
    return isinstance(x, np.ndarray) and x.ndim > 0


@dataclass
class Branches:
    """Masks around an ``if``; `nobody` stands for a branch that no thread takes."""

    before: Any
    then: Any
    otherwise: Any


@dataclass
class Loop:
    """A running loop: the mask before it, and the threads that have left it by ``break``."""

    before: Any
    left: np.ndarray | None = None


class Lanes:
    """Threads of a block that run together.

    Attributes:
        first: number in its block of the first thread.
        numbers: the threads' numbers in their block.
        mask: the active threads; None: all.
        epochs: the threads' epochs: the block's in steps of `EPOCH` plus the warp's barriers since. A cluster barrier
            starts the next multiple of `GENERATION` epochs.
        place: number of the block in its grid; neighbours along axis 0 are consecutive.
        kin: range of block numbers of the cluster, or of the cooperative launch.
    """

    nobody = object()
    """The mask of no thread."""

    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self.count = count
        self.numbers = np.arange(first, first + count)
        self.everyone = np.ones(count, np.bool_)
        self.nothing = np.zeros(count, np.bool_)
        self.begin((0, 0, 0), 0, (0, 0))

    def begin(self, block: tuple[int, int, int], place: int, kin: tuple[int, int]) -> None:
        """Start a block."""
        self.mask: np.ndarray | None = None
        self.block, self.place, self.kin = block, place, kin
        self._warp_epochs = np.zeros(self.count, np.int64)
        self.epochs = np.zeros(self.count, np.int64)

    def set_epoch(self, epoch: int) -> None:
        """Set the block's epoch."""
        self._epoch = epoch
        self.epochs = epoch * EPOCH + self._warp_epochs

    def meet_in_warps(self) -> list[range]:
        """Count a barrier of each active warp; return the numbers of the warps' threads."""
        self.expect_whole(WARP, "warp_barrier")
        self._warp_epochs = self._warp_epochs + self.active_mask()
        self.set_epoch(self._epoch)
        firsts = self.numbers[self.active_mask()][::WARP].tolist()
        return [range(first, first + WARP) for first in firsts]

    def active_mask(self) -> np.ndarray:
        """Return the mask as an array."""
        return self.everyone if self.mask is None else self.mask

    def active(self) -> list[int]:
        """Return the indices of the active threads."""
        return range(self.count) if self.mask is None else np.flatnonzero(self.mask).tolist()  # type: ignore[return-value]

    def expect_whole(self, size: int, name: str) -> None:
        """Require that all or none of each ``size`` threads are active.

        Raises:
            KernelFault: threads wait for others that are not active.
        """
        if self.mask is None and not self.count % size:
            return
        active, waiting = self.active_mask(), []
        for first in range(0, self.count, size):
            part = active[first : first + size]
            if part.any() and not (part.all() and part.size == size):
                waiting += (self.first + first + np.flatnonzero(part)).tolist()
        if waiting:
            raise StuckFault(name, waiting, self.count - int(active.sum()))

    # Control flow

    def split(self, condition: Any) -> Branches:
        """Return the masks of the branches of an ``if``."""
        before = self.mask
        if not is_varying(condition):
            return Branches(before, before, self.nobody) if condition else Branches(before, self.nobody, before)
        condition = _as_condition(condition)
        then = condition.copy() if before is None else before & condition
        if not then.any():
            return Branches(before, self.nobody, before)
        otherwise = ~condition if before is None else before & ~condition
        if not otherwise.any():
            return Branches(before, before, self.nobody)
        return Branches(before, then, otherwise)

    def stays(self, condition: Any) -> bool:
        """Keep the threads active for which a loop's condition holds; return whether there are any."""
        branches = self.split(condition)
        if branches.then is self.nobody:
            return False
        self.mask = branches.then
        return True

    def counted(self, *bounds: Any) -> Iterator[Any]:
        """Yield the numbers of ``range(*bounds)``; threads whose range has ended become inactive."""
        if not any(map(is_varying, bounds)):
            yield from range(*map(int, bounds))
            return
        start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
        now = np.array(np.broadcast_to(start, self.count))
        up = np.greater(step, 0)
        while self.stays(np.broadcast_to(np.where(up, now < stop, now > stop), self.count)):
            yield now
            now = now + step

    def loop(self) -> Loop:
        """Begin a loop."""
        return Loop(self.mask)

    def leave(self, loop: Loop) -> bool:
        """Let the active threads leave a loop; return whether no other thread is in it."""
        left = self.active_mask() if loop.left is None else loop.left | self.active_mask()
        loop.left = left
        inside = self.everyone if loop.before is None else loop.before
        return not (inside & ~left).any()

    def rejoin(self, before: Any, loop: Loop | None = None) -> None:
        """Restore the mask before a branch, without the threads that have left the loop around it."""
        self.mask = before
        if loop is not None and loop.left is not None:
            self.mask = self.active_mask() & ~loop.left

    def blend(self, new: Any, old: Any, home: Any) -> Any:
        """Return ``new`` for active and ``old`` for inactive threads; no thread outside the mask ``home`` reads it."""
        mask = self.mask
        if mask is None or mask is home or old is None or new is old:
            return new
        if hasattr(new, "blended"):
            return new.blended(mask, old)
        if isinstance(new, (np.ndarray, np.generic)):
            if not isinstance(old, (np.ndarray, np.generic)):
                old = np.asarray(old).astype(new.dtype)
            elif old.dtype != new.dtype or _length(old) != _length(new):
                return new  # the name stands for another variable from here on
        elif isinstance(old, (np.ndarray, np.generic)):
            new = np.asarray(new).astype(old.dtype)
        elif type(new) is type(old) and new == old:
            return new
        return np.where(mask, new, old)

    # Operators of Python, whose meaning for arrays differs

    def either(self, *conditions: Callable[[], Any]) -> Any:
        """Return the meaning of ``or``; an operand is only computed where it matters."""
        return self._joined(conditions, True)

    def both(self, *conditions: Callable[[], Any]) -> Any:
        """Return the meaning of ``and``; an operand is only computed where it matters."""
        return self._joined(conditions, False)

    def _joined(self, conditions: tuple[Callable[[], Any], ...], decides: bool) -> Any:
        before = self.mask
        found: Any = not decides
        for condition in conditions:
            own = condition()
            found = found | _as_condition(own) if decides else found & _as_condition(own)
            undecided = self.split(~found if decides and is_varying(found) else found != decides)
            if undecided.then is self.nobody:
                break
            self.mask = undecided.then
        self.mask = before
        return found

    def negated(self, condition: Any) -> Any:
        """Return the meaning of ``not``."""
        return ~_as_condition(condition) if is_varying(condition) else not condition

    def choose(self, condition: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Return the meaning of ``then if condition else otherwise``."""
        branches, value = self.split(condition), None
        for mask, branch in ((branches.then, then), (branches.otherwise, otherwise)):
            if mask is not self.nobody:
                self.mask = mask
                value = self.blend(branch(), value, branches.before)
        self.mask = branches.before
        return value

    # Calls for single threads

    def each(self, function: Callable[..., Any]) -> Callable[..., None]:
        """Return a function that calls ``function(number, *operands)`` for each active thread, with its operands."""

        def call(*operands: Any) -> None:
            for lane in self.active():
                try:
                    function(self.first + lane, *[of_lane(x, lane) for x in operands])
                except KernelFault as error:
                    error.lane = lane
                    raise

        return call


class StuckFault(KernelFault):
    """Threads wait for others that will not come.

    Attributes:
        name: the function at which they wait.
        waiting: the waiting threads.
        missing: the number of threads that are elsewhere.
    """

    def __init__(self, name: str, waiting: list[int], missing: int) -> None:
        super().__init__(f"threads never meet at {name}")
        self.name, self.waiting, self.missing = name, waiting, missing


def of_lane(x: Any, lane: int) -> Any:
    """Return a thread's own value."""
    if hasattr(x, "of_lane"):
        return x.of_lane(lane)
    if not is_varying(x):
        return x
    own = x[..., lane if x.shape[-1] > 1 else 0]
    return own


def _length(x: Any) -> int:
    """Return the number of lanes of a vector; 0 for a scalar."""
    return len(x) if x.ndim == 2 else 0


def _as_condition(x: Any) -> Any:
    return x.astype(np.bool_) if is_varying(x) and x.dtype != np.bool_ else x if is_varying(x) else bool(x)
